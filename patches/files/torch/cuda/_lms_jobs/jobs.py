r"""Several models that train at once, on one device or on many.

A job is a function that trains something. A pool runs many of them, each for a few seconds at a
time, and Large Model Support moves their tensors in and out::

    jobs = torch.cuda.lms.jobs
    pool = jobs.Pool()
    found = [pool.add(train, rate, name=f"rate {rate}", steps=1000) for rate in (1e-2, 1e-3)]
    pool.run()
    best = min(job.result() for job in found)

Each job gives the same results as alone, to the last bit.
"""

# Absolute, because this is the module torch.cuda.lms.jobs: lms.py says where it lies.
from torch.cuda._lms_jobs.job import Job, JobCancelled
from torch.cuda._lms_jobs.pool import Pool
from torch.cuda._lms_jobs.schedules import (
    FairShare,
    LongestRemaining,
    Priorities,
    RoundRobin,
    Schedule,
)

__all__ = [
    "FairShare",
    "Job",
    "JobCancelled",
    "LongestRemaining",
    "Pool",
    "Priorities",
    "RoundRobin",
    "Schedule",
]

for _public in (
    *(Job, JobCancelled, Pool),
    *(FairShare, LongestRemaining, Priorities, RoundRobin, Schedule),
):
    _public.__module__ = __name__  # where they are public
