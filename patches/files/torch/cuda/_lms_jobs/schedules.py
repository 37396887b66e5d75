"""Schedules: which of the jobs that wait for a device has the next turn there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .job import Job


class Schedule(Protocol):
    r"""What chooses the next job. Any object with this method will do."""

    def choose(self, waiting: Sequence[Job]) -> Job:
        r"""Return one of the jobs that wait for a device.

        It is called by the thread of some job, and must neither wait nor compute.

        Args:
            waiting (sequence of Job): at least one, in the order in which they were added; also
                the one whose turn ends, unless it has ended.
        """
        ...


class LongestRemaining:
    r"""The job that will take longest until its end, so that all end at about the same time.

    With several devices that leaves none without work at the end (Hydra, arXiv 2110.08633). A job
    of which this is unknown comes first: one not yet started, or added without ``steps``.
    """

    def choose(self, waiting: Sequence[Job]) -> Job:
        """The one with the largest :attr:`Job.remaining`."""
        return max(waiting, key=lambda job: job.remaining)


class RoundRobin:
    r"""One after the other."""

    def choose(self, waiting: Sequence[Job]) -> Job:
        """The one whose last turn is longest ago."""
        return min(waiting, key=lambda job: job.last_turn)


class FairShare:
    r"""The job that has had the least of a device's time, in proportion to its weight."""

    def choose(self, waiting: Sequence[Job]) -> Job:
        """The one with the least :attr:`Job.device_seconds` for its weight."""
        return min(waiting, key=lambda job: job.device_seconds / job.weight)


class Priorities:
    r"""The job with the highest priority; equals take turns."""

    def choose(self, waiting: Sequence[Job]) -> Job:
        """The one with the highest priority, of these the one whose last turn is longest ago."""
        return min(waiting, key=lambda job: (-job.priority, job.last_turn))
