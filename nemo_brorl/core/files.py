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


def write_atomically(
    path: Path,
    text: str,
    is_synced: bool = False,
) -> Path:
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
        # A disk that runs full takes a part.
        while content:
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
        # A process that may not be signalled has none.
        return error.filename is not None
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
