"""A simulated CUDA device under an unmodified PyTorch wheel.

`environment` gives the environment variables with which a child process sees the device; `import
torch` does the rest there. The other functions inspect and steer the simulation from inside such a
process.
"""

from simcuda.control import (
    SimulationError,
    Stats,
    active,
    calls,
    reset_peak,
    set_faults,
    stats,
    unsimulated,
)
from simcuda.environ import environment

__all__ = [
    "SimulationError",
    "Stats",
    "active",
    "calls",
    "environment",
    "reset_peak",
    "set_faults",
    "stats",
    "unsimulated",
]
