"""Write files so that a reader, or a program that is restarted, finds them complete or unchanged."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from zipfile import BadZipFile

from brorl_graders.base.foreign import RecordError

from nemo_brorl.core.errors import ResourceError

_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_IS_FORBIDDEN = (errno.EACCES, errno.EPERM)

# Exceptions of JSON, YAML, npz and gzip readers for content that is truncated, damaged or hostile.
MALFORMED = (
    ArithmeticError,
    AttributeError,
    BadZipFile,
    EOFError,
    LookupError,
    MemoryError,
    RecordError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)


def why_unreadable(error: Exception) -> str:
    """Return why a file cannot be read, without its name, for a message that has the name already."""
    if isinstance(error, RecordError):
        return error.reason
    return getattr(error, "strerror", None) or str(error)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`, which replaces `path` when the context ends without an error.

    The temporary file is always removed. Raises OSError.
    """
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
    """Replace a file's text, in UTF-8, so that readers see the old text or the new one.

    `is_synced`: the text is on the disk afterwards, even if the machine loses power. Raises OSError.
    """
    with replacing(path) as aside, aside.open("w", encoding="utf-8") as file:
        file.write(text)
        if is_synced:
            file.flush()
            os.fsync(file.fileno())
    return path


def share_as_usual(path: Path) -> None:
    """Give a file the mode of new files, by the umask. Some libraries write files that only their owner can read."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    umask = int(status.partition("Umask:")[2].split(maxsplit=1)[0], 8)
    path.chmod(0o666 & ~umask)


def append_line(path: Path, text: str) -> None:
    """Append a line to a file, which is created if missing: the whole line or nothing. Raises ResourceError."""
    with naming(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            append_whole(descriptor, f"{text}\n".encode())
        finally:
            os.close(descriptor)


def append_whole(descriptor: int, content: bytes) -> None:
    """Append bytes to a file that is open for appending: all of them or nothing. Raises OSError."""
    num_before = os.fstat(descriptor).st_size
    try:
        # A disk that runs full writes only some of the bytes.
        while content:
            content = content[os.write(descriptor, content) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, num_before)
        raise


def sync(path: Path) -> None:
    """Sync a file's bytes, or a folder's names, to disk so that they survive a power failure. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn an OSError raised inside the context into a ResourceError with `path`, the cause and a remedy."""
    try:
        yield
    except OSError as error:
        raise ResourceError(cannot_write(path, error)) from error


def is_refused(error: OSError) -> bool:
    """Return whether an OSError comes from the disk or its permissions rather than from a program.

    The disk is full, read-only or broken, or this user may not access the file.
    """
    if error.errno in _IS_FORBIDDEN:
        # The error of a process that may not be signalled has no file name.
        return error.filename is not None
    return error.errno in (*_IS_FULL, errno.EROFS, errno.EIO)


def cannot_write(path: Path, error: OSError) -> str:
    """Return the error message for a file of a run that could not be written: path, cause and remedy.

    Where access is forbidden, the message also fits a file that could not be read.
    """
    failed = "cannot be written"
    if error.errno in _IS_FORBIDDEN:
        failed = "is forbidden"
        remedy = "make sure that this user may read and write there"
    elif error.errno in _IS_FULL:
        remedy = "make room on that disk"
    else:
        remedy = "make sure that this user may write there and that the disk works"
    cause = error.strerror or str(error)
    return f"{path} {failed} ({cause}): {remedy}; the same command then resumes from the last checkpoint"
