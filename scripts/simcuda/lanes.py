"""Hosts of several devices in virtual time, each with a clock of its own."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from types import TracebackType

from simcuda.control import SimulationError, library


class Lock:
    """A lock in virtual time: threads of lanes get it in the order of their clocks.

    Who waits goes on when the lock is given back, by its clock. Any thread may give it back.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def acquire(self) -> None:
        """Waits until it is free, and takes it."""
        library().simcudaAcquire(self._number)

    def release(self) -> None:
        """Gives it back, to the one who has waited for longest.

        Raises:
            RuntimeError: nobody has it.
        """
        if library().simcudaRelease(self._number) != 0:
            raise RuntimeError("nobody has taken the lock that is given back")

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self.release()


class Lanes:
    """Starts and stops lanes: while one is started, each device has a clock of the host of its own.

    A thread is in a lane once it has entered it, or has run an operator or taken a lock with the
    lane's device as its current one, and until the lane is stopped. Of the threads in lanes one
    goes on at a time, which is in the lane that is earliest in virtual time. They must not wait
    for each other by other means than a `lock()`.
    """

    def __init__(self, patience: float = 60.0) -> None:
        """Starts none.

        Args:
            patience: seconds of real time after which it is told on stderr that lanes wait for one
                whose threads do nothing.

        Raises:
            SimulationError: this process does not run in timed mode.
        """
        if not library().simcudaIsTimed():
            raise SimulationError('no virtual time here: lanes need kernels="timed"')
        library().simcudaSetPatienceOfLanes(ctypes.c_double(patience))

    def start(self, device: int) -> None:
        """Lets threads of a lane work, from when the caller's clock shows, or its own if later.

        Raises:
            SimulationError: there is no such device.
        """
        if library().simcudaStartLane(device) != 0:
            raise SimulationError(f"there is no simulated device {device}")

    def stop(self, device: int) -> None:
        """The lane has nothing to do until it is started again.

        With the last one lanes are off: all threads have the clock of the one that came furthest.

        Raises:
            SimulationError: there is no such device.
        """
        if library().simcudaStopLane(device) != 0:
            raise SimulationError(f"there is no simulated device {device}")

    def enter(self, device: int) -> None:
        """Puts the calling thread into a lane, and returns when that has its turn.

        A thread stays in a lane whatever device it turns to, as long as the lane is started.

        Raises:
            SimulationError: the lane is not started.
        """
        if library().simcudaEnterLane(device) != 0:
            raise SimulationError(f"the lane of device {device} is not started")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Lanes that are started in this context begin to run at its end, and so all at once."""
        library().simcudaPauseLanes()
        try:
            yield
        finally:
            library().simcudaResumeLanes()

    def lock(self, *, taken: bool = False) -> Lock:
        """Makes a lock, for as long as the process lives.

        One that is taken is waited for until somebody gives it back.
        """
        return Lock(library().simcudaMakeLock(int(taken)))
