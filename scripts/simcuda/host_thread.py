"""A thread of the host in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from simcuda.control import SimulationError, library


class HostThread(Executor):
    """In the place of a ThreadPoolExecutor with one worker, in a program that runs in timed mode.

    The tasks run at once, in the calling thread. In virtual time they run one after the other when
    it comes to them, the program goes on, and it waits where it asks for a result. What they do
    takes the time of the calls of CUDA, of what these wait for, and of fused optimizers.
    """

    def __init__(self, *_: Any) -> None:
        """Takes the arguments of ThreadPoolExecutor, of which it needs none."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Calls the function.

        Raises:
            SimulationError: this process does not run in timed mode.
        """
        done = _Done()
        if library().simcudaBeginHostWork() != 0:
            raise SimulationError("no virtual time here: a thread of the host needs it")
        try:
            done.set_result(function(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        finally:
            done.number = library().simcudaEndHostWork()
        return done


class _Done(Future[Any]):
    number = 0

    def result(self, timeout: float | None = None) -> Any:
        library().simcudaWaitForHostWork(self.number)
        return super().result(timeout)
