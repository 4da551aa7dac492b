"""Files that a reader, or a program that is started again, finds whole or as they were before."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from zipfile import BadZipFile

from nemo_brorl.core.errors import ResourceError

_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

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


def cannot_write(path: Path, error: OSError) -> str:
    """Why a file of a run could not be written, and what to do, as a message says it."""
    if error.errno in _IS_FULL:
        remedy = "make room on that disk"
    else:
        remedy = "see that this user may write there and that the disk is well"
    cause = error.strerror or str(error)
    return f"{path} cannot be written ({cause}): {remedy}; the same command then goes on from the last checkpoint"
