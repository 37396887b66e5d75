"""Which systems libraries run on, by the versions of glibc and libstdc++ that they ask for.

A platform tag names the oldest glibc that a wheel needs; auditwheel's policies say what else
systems with that glibc have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lms_cli.wheel.elf import Needs

if TYPE_CHECKING:
    from auditwheel.policy import WheelPolicies

    from lms_cli.releases import OfficialWheel


def deserved(official: OfficialWheel, needed: Needs | None) -> str:
    """The platform tag of our wheel: the promised one, or that of the newer systems it is for.

    Args:
        official: the official wheel.
        needed: what our library asks for, None if there is no library.
    """
    promised = official.promised_platform
    if needed is None or not too_new(needed, promised):
        return promised
    return oldest([needed])


def oldest(needed: Iterable[Needs]) -> str:
    """The platform tag of the oldest systems that have what all of some libraries ask for."""
    levels = []
    for needs in needed:
        versions = {library: set(names) for library, names in needs.versions.items()}
        levels.append(_policies(needs.machine).versioned_symbols_policy(versions))
    return str(min(levels).name)


def too_new(needed: Needs, platform: str) -> list[str]:
    """What a library asks for that systems of a platform tag may lack, as fstat@GLIBC_2.33."""
    allowed = _policies(needed.machine).get_policy_by_name(platform).symbol_versions
    if not allowed:  # linux_x86_64 promises nothing
        return []
    found = []
    for symbol, version in needed.versioned.items():
        family, _, number = version.partition("_")
        if number not in allowed.get(family, ()):
            found.append(f"{symbol}@{version}")
    return sorted(found)


def tags(machine: str) -> list[str]:
    """The platform tags that there are for a machine."""
    return [str(policy.name) for policy in _policies(machine)]


def _policies(machine: str) -> WheelPolicies:
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    return WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))
