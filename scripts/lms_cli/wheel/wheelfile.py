"""Reading and writing wheels member by member, without inflating what is not changed.

Copying compressed bytes makes a 530 MB wheel in a second, and keeps every untouched member bit for
bit. All decisions that make two runs give the same bytes are in `write`.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import struct
import time
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from lms_cli import files
from lms_cli.errors import LmsError, WheelError

CHUNK = 1 << 20  # bytes
LOCAL_HEADER = struct.Struct("<4s5H3L2H")
REGULAR_FILE = 0o100644
EARLIEST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class RecordRow:
    """One row of RECORD: the digest as `sha256=<urlsafe base64>`, the size in bytes."""

    digest: str
    size: str


class Wheel:
    """An existing wheel, open for reading."""

    def __init__(self, path: Path, stream: BinaryIO | None = None) -> None:
        """Open a wheel.

        Args:
            path: where it is, or its name if `stream` is given.
            stream: its bytes, if they are not in a file.

        Raises:
            WheelError: it is not a complete zip file with one dist-info folder.
        """
        self.path = path
        try:
            self.stream = stream or path.open("rb")
            self.zip = zipfile.ZipFile(self.stream)
        except (OSError, zipfile.BadZipFile) as error:
            raise WheelError(f"{path} is not a complete wheel: {error}") from error
        self.members = {info.filename: info for info in self.zip.infolist()}
        folders = {name.split("/")[0] for name in self.members if ".dist-info/" in name}
        if len(folders) != 1:
            raise WheelError(f"{path} has {len(folders)} dist-info folders, a wheel has one")
        self.dist_info = folders.pop()

    def __enter__(self) -> Wheel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.zip.close()
        self.stream.close()

    def read(self, name: str) -> bytes:
        """The inflated bytes of a member.

        Raises:
            WheelError: there is no such member, or it is damaged.
        """
        try:
            return self.zip.read(name)
        except (KeyError, zipfile.BadZipFile, OSError, EOFError) as error:
            raise WheelError(f"{self.path.name}: cannot read {name}: {error}") from error
        except LmsError:
            raise
        except Exception as error:  # zlib.error is not a BadZipFile
            raise WheelError(f"{self.path.name}: {name} is damaged: {error}") from error

    def text(self, name: str) -> str | None:
        """The text of a member, None if there is no such member."""
        return self.read(name).decode("utf-8") if name in self.members else None

    def raw(self, info: zipfile.ZipInfo) -> Iterator[bytes]:
        """The compressed bytes of a member, in chunks."""
        self.stream.seek(info.header_offset)
        header = LOCAL_HEADER.unpack(self.stream.read(LOCAL_HEADER.size))
        self.stream.seek(header[-2] + header[-1], os.SEEK_CUR)
        left = info.compress_size
        while left:
            chunk = self.stream.read(min(left, CHUNK))
            if not chunk:
                raise WheelError(f"{self.path.name} ends inside {info.filename}")
            left -= len(chunk)
            yield chunk

    def record(self) -> dict[str, RecordRow]:
        """The rows of RECORD by member name.

        Raises:
            WheelError: RECORD is missing, malformed, or names a member twice.
        """
        text = self.text(f"{self.dist_info}/RECORD")
        rows: dict[str, RecordRow] = {}
        for row in csv.reader(io.StringIO(text or "")):
            if len(row) != 3 or row[0] in rows:
                raise WheelError(f"{self.path.name}: RECORD has a bad or repeated row: {row}")
            rows[row[0]] = RecordRow(row[1], row[2])
        return rows


@dataclass(frozen=True)
class Copied:
    """A member of the source wheel, copied as it is, perhaps under a new name."""

    info: zipfile.ZipInfo


@dataclass(frozen=True)
class Written:
    """A member with new content."""

    content: bytes


def record_row(content: bytes) -> RecordRow:
    """The RECORD row of a member's content."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return RecordRow(f"sha256={digest}", str(len(content)))


def record_text(rows: dict[str, RecordRow], dist_info: str) -> str:
    """RECORD, with its own row last and empty as the format asks."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for name in sorted(rows, key=lambda name: order(name, dist_info)):
        writer.writerow((name, rows[name].digest, rows[name].size))
    writer.writerow((f"{dist_info}/RECORD", "", ""))
    return stream.getvalue()


def order(name: str, dist_info: str) -> tuple[bool, bool, str]:
    """Sort key of members: by name, dist-info last, RECORD last of all."""
    return name.startswith(f"{dist_info}/"), name == f"{dist_info}/RECORD", name


def write(
    target: Path,
    source: Wheel,
    members: dict[str, Copied | Written],
    rows: dict[str, RecordRow],
    dist_info: str,
) -> None:
    """Write a wheel beside `target`, then rename it: the same input gives the same bytes.

    Args:
        target: the new wheel.
        source: where copied members come from.
        members: content by name, without RECORD.
        rows: the RECORD rows of all members that are files.
        dist_info: name of the new dist-info folder.
    """
    record = f"{dist_info}/RECORD"
    complete = {**members, record: Written(record_text(rows, dist_info).encode())}
    moment = timestamp(source)
    with files.written_beside(target) as temporary, zipfile.ZipFile(temporary, "w") as output:
        for name in sorted(complete, key=lambda name: order(name, dist_info)):
            match complete[name]:
                case Copied(info):
                    _copy(source, info, name, output)
                case Written(content):
                    _add(name, content, moment, output)


def write_part(target: Path, source: Wheel, names: Iterable[str]) -> None:
    """Write a zip file of some members of a wheel beside `target`, then rename it.

    Raises:
        WheelError: a member is not what the wheel's RECORD says.
    """
    rows = source.record()
    infos = sorted((source.members[name] for name in names), key=lambda info: info.header_offset)
    with files.written_beside(target) as temporary:
        with zipfile.ZipFile(temporary, "w") as output:
            for info in infos:
                _copy(source, info, info.filename, output)
        with Wheel(temporary) as part:
            for name in part.members:
                if name != f"{source.dist_info}/RECORD" and (
                    rows.get(name) != record_row(part.read(name))
                ):
                    raise WheelError(f"{source.path.name}: {name} is not what RECORD says")


def timestamp(source: Wheel) -> tuple[int, int, int, int, int, int]:
    """Time of new members: SOURCE_DATE_EPOCH if set, else the newest in the source wheel."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is None:
        return max(info.date_time for info in source.members.values())
    moment = time.gmtime(int(epoch))
    return max(
        (moment[0], moment[1], moment[2], moment[3], moment[4], moment[5]), EARLIEST_ZIP_TIME
    )


def _copy(source: Wheel, info: zipfile.ZipInfo, name: str, output: zipfile.ZipFile) -> None:
    """Append a member's compressed bytes; zipfile has no public way to do this."""
    copy = zipfile.ZipInfo(name, info.date_time)
    copy.compress_type, copy.external_attr, copy.create_system = (
        info.compress_type,
        info.external_attr,
        info.create_system,
    )
    copy.CRC, copy.file_size, copy.compress_size = info.CRC, info.file_size, info.compress_size
    stream = output.fp
    assert stream is not None
    copy.header_offset = stream.tell()
    stream.write(copy.FileHeader())
    for chunk in source.raw(info):
        stream.write(chunk)
    output.filelist.append(copy)
    output.NameToInfo[name] = copy
    output.start_dir = stream.tell()
    output._didModify = True  # type: ignore[attr-defined]


def _add(
    name: str, content: bytes, moment: tuple[int, int, int, int, int, int], output: zipfile.ZipFile
) -> None:
    info = zipfile.ZipInfo(name, moment)
    info.compress_type = zipfile.ZIP_STORED  # each version of zlib deflates in its own way
    info.external_attr = REGULAR_FILE << 16
    info.create_system = 3  # Unix
    output.writestr(info, content)
