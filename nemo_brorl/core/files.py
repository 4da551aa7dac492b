"""Files that a reader, or a program that is started again, finds whole or as they were before, and sums (size, crc32)
that are taken when files are written and looked at before they are read again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from nemo_brorl.core.errors import CheckpointError, ResourceError

_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_IS_FORBIDDEN = (errno.EACCES, errno.EPERM)

# What readers of JSON, YAML, npz and gzip raise for what was cut off, changed, or made by a stranger.
MALFORMED = (
    ArithmeticError,
    AttributeError,
    BadZipFile,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what takes a file's place at the end: a name beside it, with its suffix. Nothing is left there.
    Raises OSError."""
    aside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield aside
        aside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def write_whole(path: Path, text: str, is_synced: bool = False) -> Path:
    """Replace a file's text, in UTF-8. `is_synced`: it is on the disk afterwards, even if the machine loses power.
    Raises OSError."""
    with replacing(path) as aside, aside.open("w", encoding="utf-8") as file:
        file.write(text)
        if is_synced:
            file.flush()
            os.fsync(file.fileno())
    return path


def append_line(path: Path, text: str) -> None:
    """Append a line to a file, made where it is missing: the whole line or nothing of it. Raises ResourceError."""
    with naming(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            append_whole(descriptor, f"{text}\n".encode())
        finally:
            os.close(descriptor)


def append_whole(descriptor: int, content: bytes) -> None:
    """Append to a file that is open for appending: all of it or nothing. Raises OSError."""
    num_before = os.fstat(descriptor).st_size
    try:
        while content:  # a disk that runs full takes a part
            content = content[os.write(descriptor, content) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, num_before)
        raise


def sync(path: Path) -> None:
    """Have a file's bytes, or a folder's names, on the disk: they survive a machine that loses power. Raises
    OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Inside, `path` is written: an OSError becomes a ResourceError that names it, the cause and what to do."""
    try:
        yield
    except OSError as error:
        raise ResourceError(cannot_write(path, error)) from error


def is_refused(error: OSError) -> bool:
    """Whether a disk or its owner is at fault, and nobody's program: full, read-only, broken, or a file that this user
    may not touch."""
    if error.errno in _IS_FORBIDDEN:
        return error.filename is not None  # a process that may not be signalled has none
    return error.errno in (*_IS_FULL, errno.EROFS, errno.EIO)


def cannot_write(path: Path, error: OSError) -> str:
    """Why a file of a run could not be written, and what to do, as a message says it. Where the file is forbidden, the
    message fits one that was to be read, too."""
    failed = "cannot be written"
    if error.errno in _IS_FORBIDDEN:
        failed = "is forbidden"
        remedy = "see that this user may read and write there"
    elif error.errno in _IS_FULL:
        remedy = "make room on that disk"
    else:
        remedy = "see that this user may write there and that the disk is well"
    cause = error.strerror or str(error)
    return f"{path} {failed} ({cause}): {remedy}; the same command then goes on from the last checkpoint"


SUMS = "checksums.json"  # of the files beside it
_PIECE_BYTES = 4 << 20  # read at a time; crc32 gives up the interpreter's lock
_NUM_THREADS = 4  # that read: a parallel disk answers several of them at once


@dataclass(frozen=True)
class FileSum:
    """What is known of a file."""

    num_bytes: int
    crc32: int | None  # None: its bytes are not looked at


def file_sum(path: Path) -> FileSum:
    """Size and crc32 of a file, read once, a piece at a time. Raises OSError."""
    piece = memoryview(bytearray(_PIECE_BYTES))
    total = 0
    crc32 = 0
    with path.open("rb", buffering=0) as file:
        while num_read := file.readinto(piece):
            crc32 = zlib.crc32(piece[:num_read], crc32)
            total += num_read
    return FileSum(total, crc32)


def damage(path: Path, expected: FileSum) -> str:
    """What is wrong with a file, in words; "" where it is as it was written."""
    try:
        num_bytes = path.stat().st_size
        if num_bytes != expected.num_bytes:
            return f"{path} has {num_bytes:,} of {expected.num_bytes:,} bytes"
        if expected.crc32 is None or file_sum(path).crc32 == expected.crc32:
            return ""
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    return f"{path} holds other bytes than were written (crc32)"


def all_damage(folder: Path, sums: Mapping[str, FileSum]) -> list[str]:
    """`damage` of files by their names in a folder, looked at by a few threads."""
    paths = [folder / name for name in sums]
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        return [words for words in threads.map(damage, paths, sums.values()) if words]


def write_sums(folder: Path, sums: Mapping[str, FileSum]) -> None:
    """Write `checksums.json`, for good. Raises OSError."""
    write_whole(folder / SUMS, sums_as_json(sums), is_synced=True)


def read_sums(folder: Path) -> dict[str, FileSum]:
    """What `write_sums` wrote; {} in a folder of an earlier version. Raises CheckpointError for a damaged one."""
    path = folder / SUMS
    try:
        return dict(sums_from_json(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, *MALFORMED) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def share_of(names: Sequence[str], number: int, total: int) -> Sequence[str]:
    """Names that member `number` of `total` looks at; every name is somebody's."""
    return sorted(names)[number::total]


def sums_as_json(sums: Mapping[str, FileSum]) -> str:
    """{name: [bytes, crc32 in hexadecimal digits or null]}."""
    rows: dict[str, list[Any]] = {}
    for name in sorted(sums):
        crc32 = sums[name].crc32
        rows[name] = [sums[name].num_bytes, None if crc32 is None else f"{crc32:08x}"]
    return json.dumps(rows, indent=1) + "\n"


def sums_from_json(text: str) -> Iterator[tuple[str, FileSum]]:
    """Names and sums; a plain number is a size, as earlier versions wrote. Raises one of `MALFORMED`."""
    for name, row in json.loads(text).items():
        if isinstance(row, int):
            yield name, FileSum(row, None)
        else:
            num_bytes, digits = row
            yield name, FileSum(int(num_bytes), None if digits is None else int(digits, 16))
