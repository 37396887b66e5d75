"""Strict reading of a zip file: the checks that lenient readers leave out."""

from __future__ import annotations

import os
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LOCAL = struct.Struct("<4s5H3L2H")
END = struct.Struct("<4s4H2LH")


def problems(path: Path, archive: zipfile.ZipFile) -> Iterator[str]:
    """Say what is wrong with the structure of a zip file.

    Every byte must belong to exactly one member, the central directory or its end record, and each
    member's local header must say the same as the directory.
    """
    members = sorted(archive.infolist(), key=lambda info: info.header_offset)
    for name, count in Counter(info.filename for info in members).items():
        if count > 1:
            yield f"{name} is there {count} times"
    position = 0
    with path.open("rb") as stream:
        for info in members:
            if info.header_offset != position:
                yield f"{info.filename} is at byte {info.header_offset}, not at {position}"
            stream.seek(info.header_offset)
            header = LOCAL.unpack(stream.read(LOCAL.size))
            name = stream.read(header[9]).decode("utf-8", "replace")
            local = (name, header[2], header[3], header[6], header[7], header[8])
            central = (
                info.filename,
                info.flag_bits,
                info.compress_type,
                info.CRC,
                info.compress_size,
                info.file_size,
            )
            if local != central:
                yield f"{info.filename}: local header {local} differs from the directory {central}"
            if info.filename.startswith("/") or ".." in info.filename.split("/"):
                yield f"{info.filename} leaves the folder it is unpacked to"
            position = info.header_offset + LOCAL.size + header[9] + header[10] + info.compress_size
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - END.size))
        record = stream.read(END.size)
        if len(record) < END.size or record[:4] != b"PK\x05\x06":
            yield "bytes follow the end record"
            return
        directory_size, directory_start = END.unpack(record)[5:7]
        if directory_start != position or directory_start + directory_size + END.size != size:
            yield f"the directory is at byte {directory_start}, the last member ends at {position}"
