"""The cards that the timing mode knows: cards.json."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from simcuda.control import SimulationError

_FILE = Path(__file__).resolve().parent / "cards.json"
_RATES = ("fp64", "fp32", "tf32", "fp16", "bf16", "int8")


@functools.cache
def _data() -> dict[str, Any]:
    return dict(json.loads(_FILE.read_text()))


def names() -> list[str]:
    """Names of all cards."""
    return list(_data()["cards"])


def card(name: str) -> dict[str, Any]:
    """One card's entry of cards.json, with the defaults for what it does not say.

    Raises:
        SimulationError: there is no such card.
    """
    data = _data()
    if name not in data["cards"]:
        raise SimulationError(f"card={name!r} is not known: expected one of {', '.join(names())}")
    return {**data["defaults"], **data["cards"][name], "name": name}


def describe(name: str) -> str:
    """A card as SIMCUDA_CARD says it: reached rates and bandwidths, costs in nanoseconds."""
    entry = card(name)
    major, minor = entry["capability"].split(".")
    values: dict[str, Any] = {"name": name, "major": major, "minor": minor}
    values["processors"] = entry["processors"]
    for kind in _RATES:
        # Arithmetic that the card is too old for runs in single precision.
        rate = entry["rates"].get(kind, entry["rates"]["fp32"])
        values[kind] = rate * entry["compute_efficiency"]
    values["bandwidth"] = entry["bandwidth"] * entry["bandwidth_efficiency"]
    values["host_bandwidth"] = entry["host_bandwidth"]
    locked, pageable = entry["page_locked"], entry["pageable"]
    values |= {"h2d": locked["h2d"], "d2h": locked["d2h"], "duplex": locked["both"]}
    values |= {"pageable_h2d": pageable["h2d"], "pageable_d2h": pageable["d2h"]}
    nvlink = entry.get("nvlink")  # without, collectives go over PCIe, both ways at once
    reached = nvlink * entry["nvlink_efficiency"] if nvlink else locked["both"] / 2
    values |= {"collective": reached, "collectives_on_link": int(nvlink is None)}
    values |= {f"disk_{way}": rate for way, rate in entry["disk"].items()}
    times = ("launch_ns", "copy_ns", "collective_ns", "operator_ns", "call_ns")
    for key in (*times, "page_clear_ns_per_byte", "page_lock_ns_per_byte"):
        values[key] = entry[key]
    values |= {f"call_ns.{function}": cost for function, cost in entry["calls"].items()}
    return ",".join(f"{key}={value}" for key, value in values.items())
