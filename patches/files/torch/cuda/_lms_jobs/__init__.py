"""Several jobs that train on the same devices, a few steps at a time: `torch.cuda.lms.jobs`.

`jobs.py` is what users import. A `Pool` (`pool.py`) gives devices to jobs (`job.py`) in the order
of a schedule (`schedules.py`). Each job is a thread. It runs from its grant to the end of its turn,
with what a process has only once as its own (`belongings.py`, `floor.py`).
"""
