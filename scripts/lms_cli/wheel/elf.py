"""What a shared library needs and what it provides, read from its dynamic section."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym: name, info, other, section, value, size
UNDEFINED_SECTION = 0


@dataclass(frozen=True)
class Needs:
    """What a library asks of others."""

    machine: str  # x86_64 or aarch64
    libraries: tuple[str, ...]  # DT_NEEDED
    run_path: str  # DT_RPATH or DT_RUNPATH
    symbols: frozenset[str]  # undefined, not weak, without a version
    versions: dict[str, frozenset[str]]  # symbol versions by library: libc.so.6 -> GLIBC_2.28
    versioned: dict[str, str]  # undefined, with the version: fstat -> GLIBC_2.33


def needs_of(content: bytes | None) -> Needs | None:
    """What a library of these bytes needs, None if there is none."""
    return None if content is None else needs(io.BytesIO(content))


def needs(stream: IO[bytes]) -> Needs:
    """Read what a library needs."""
    from auditwheel.elfutils import elf_find_versioned_symbols
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(stream)
    dynamic: Any = elf.get_section_by_name(".dynamic")
    tags = list(dynamic.iter_tags())
    versions: dict[str, set[str]] = {}
    for library, version in elf_find_versioned_symbols(elf):
        versions.setdefault(library, set()).add(version)
    symbols: Any = elf.get_section_by_name(".dynsym")
    names = _version_names(elf)
    version_of: Any = elf.get_section_by_name(".gnu.version")
    undefined = set()
    versioned = {}
    for number, symbol in enumerate(symbols.iter_symbols()):
        if not symbol.name or symbol["st_shndx"] != "SHN_UNDEF":
            continue
        index = version_of.get_symbol(number)["ndx"] if version_of else None
        if index in names:
            versioned[symbol.name] = names[index]
        elif symbol["st_info"]["bind"] == "STB_GLOBAL":
            undefined.add(symbol.name)
    return Needs(
        machine=elf["e_machine"].removeprefix("EM_").lower(),
        libraries=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        run_path=next((tag.rpath for tag in tags if tag.entry.d_tag == "DT_RPATH"), "")
        or next((tag.runpath for tag in tags if tag.entry.d_tag == "DT_RUNPATH"), ""),
        symbols=frozenset(undefined),
        versions={library: frozenset(found) for library, found in versions.items()},
        versioned=versioned,
    )


def _version_names(elf: ELFFile) -> dict[int, str]:
    """The versions that a library asks for, by the number that its symbols have."""
    section: Any = elf.get_section_by_name(".gnu.version_r")
    if section is None:
        return {}
    return {
        version["vna_other"]: version.name
        for _, versions in section.iter_versions()
        for version in versions
    }


def provided(stream: IO[bytes], wanted: frozenset[str]) -> set[str]:
    """Those of the wanted symbols that a library defines, found without an object for each."""
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(stream)
    symbols: Any = elf.get_section_by_name(".dynsym")
    names: bytes = elf.get_section(symbols["sh_link"]).data()
    encoded = {name.encode() for name in wanted}
    found = set()
    for name, _info, _other, section, _value, _size in SYMBOL.iter_unpack(symbols.data()):
        if section != UNDEFINED_SECTION:
            text = names[name : names.index(b"\0", name)]
            if text in encoded:
                found.add(text.decode())
    return found
