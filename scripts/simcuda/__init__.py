"""A simulated CUDA device under an unmodified PyTorch wheel.

`environment` gives the environment variables with which a child process sees the device; `import
torch` does the rest there. The other functions inspect and steer the simulation from inside such a
process.
"""

from simcuda.control import (
    Busy,
    SimulationError,
    Stats,
    active,
    busy,
    calls,
    device_time,
    meter_own_time,
    own_time,
    reset_peak,
    set_faults,
    stats,
    timeline,
    unsimulated,
    virtual_time,
)
from simcuda.environ import environment
from simcuda.host_thread import HostThread
from simcuda.lanes import Lanes

__all__ = [
    "Busy",
    "HostThread",
    "Lanes",
    "SimulationError",
    "Stats",
    "active",
    "busy",
    "calls",
    "device_time",
    "environment",
    "meter_own_time",
    "own_time",
    "reset_peak",
    "set_faults",
    "stats",
    "timeline",
    "unsimulated",
    "virtual_time",
]
