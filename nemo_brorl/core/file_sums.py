"""Checksums of files (size, crc32), computed when files are written and checked before they are read again.

They cost one more read of each file at each save and load, from what the kernel holds after writing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import LARGE, read_json, record_bytes

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.files import MALFORMED, write_atomically

# Name of the file with the checksums of its folder's other files.
SUMS = "checksums.json"
# Bytes read at a time. crc32 releases the interpreter's lock.
_PIECE_BYTES = 4 << 20
# Threads that read, because a parallel file system serves several at once.
_NUM_THREADS = 4


@dataclass(frozen=True)
class FileSum:
    """Size and checksum of a file."""

    num_bytes: int
    crc32: int | None  # None: the content is not checked


def file_sum(path: Path) -> FileSum:
    """Return the size and crc32 of a file, reading it once in pieces of 4 MiB. Raises OSError."""
    piece = memoryview(bytearray(_PIECE_BYTES))
    total = 0
    crc32 = 0
    with path.open("rb", buffering=0) as file:
        while num_read := file.readinto(piece):
            crc32 = zlib.crc32(piece[:num_read], crc32)
            total += num_read
    return FileSum(total, crc32)


def damage(path: Path, expected: FileSum) -> str:
    """Return a description of how a file differs from its expected checksum, or "" if it does not."""
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
    """Return a description of every damaged file among those that `sums` names in a folder.

    Four threads read the files.
    """
    paths = [folder / name for name in sums]
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        return [words for words in threads.map(damage, paths, sums.values()) if words]


def write_sums(folder: Path, sums: Mapping[str, FileSum]) -> None:
    """Write `checksums.json` into a folder and sync it to disk. Raises OSError."""
    write_atomically(folder / SUMS, sums_as_json(sums), is_synced=True)


def read_sums(folder: Path) -> dict[str, FileSum]:
    """Return the checksums by file name that `write_sums` wrote into a folder.

    {} for a folder of an earlier version, which has none. Raises CheckpointError for a damaged file.
    """
    path = folder / SUMS
    try:
        return dict(sums_from_json(record_bytes(path, LARGE)))
    except FileNotFoundError:
        return {}
    except (OSError, *MALFORMED) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def share_of(
    names: Sequence[str],
    number: int,
    total: int,
) -> Sequence[str]:
    """Return the names of the checkpoint files whose checksums process `number` (of `total`) verifies.

    Every file belongs to exactly one process.
    """
    return sorted(names)[number::total]


def sums_as_json(sums: Mapping[str, FileSum]) -> str:
    """Return checksums as JSON text: {name: [bytes, crc32 in hexadecimal digits or null]}."""
    rows: dict[str, list[Any]] = {}
    for name in sorted(sums):
        crc32 = sums[name].crc32
        rows[name] = [sums[name].num_bytes, None if crc32 is None else f"{crc32:08x}"]
    return json.dumps(rows, indent=1) + "\n"


def sums_from_json(text: str | bytes) -> Iterator[tuple[str, FileSum]]:
    """Yield file names and checksums from JSON text.

    A plain number is a file's size without a checksum, as earlier versions wrote. Raises one of the exceptions in
    `MALFORMED` for damaged text.
    """
    for name, row in read_json(text, most_bytes=LARGE).items():
        if isinstance(row, int):
            yield name, FileSum(row, None)
        else:
            num_bytes, digits = row
            yield name, FileSum(int(num_bytes), None if digits is None else int(digits, 16))
