"""Read JSON and files that others wrote within bounds, and show their text: replies of services, folders of runs.

    read_json(reply, most_bytes=2**20)
    record_json(RUN / "heartbeat.json", 2**20)

`json.loads` of hostile bytes may raise RecursionError, or return a number that no float holds. A file of a hostile
folder may be a pipe that never ends, a link to a private file, or gigabytes of nothing.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import unicodedata
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from brorl_graders.base.errors import DataError

DIGITS = 4300  # longest number of data that a user names: Python reads no longer one
SMALL = 1 << 20  # largest size, in bytes, of a record such as a heartbeat
LARGE = 1 << 26  # largest size of a record that is in memory as a whole, such as an evaluation
VAST = 1 << 42  # largest size of a file that is read in parts, such as weights
MOST_MARKS = 8  # marks above and below one letter that are shown as such; more would cover other lines
MAX_LINE = 1 << 24  # largest line of a file of JSON lines, in bytes
# Folders of the hub's cache. Snapshots and older downloads link to their `blobs`, which are named by their hash: who
# does not know what a file holds cannot link to it.
CACHED = ("models--", "datasets--")

_BRACKETS = bytes.maketrans(b"[{]}", b"(())")
_OTHERS = bytes(set(range(256)) - set(b"[{]}"))


class MalformedError(ValueError):
    """JSON is larger, deeper or has longer numbers than its reader allows, or an object has a key twice."""


class RecordError(DataError):
    """A file of a run or model folder is no regular file inside its folder, or does not hold what its reader expects.

    It may also be too large.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason}")
        self.reason = reason


def read_json(
    data: bytes | str,
    *,
    depth: int = 64,
    digits: int = 300,
    most_bytes: int,
) -> Any:
    """Return the value that JSON in UTF-8 holds, after counting its bytes, brackets and digits.

    Raises ValueError for what is not JSON, and its subclass MalformedError for more than `most_bytes`, `depth` lists
    and objects in each other, numbers of more than `digits` digits, or a key that an object has twice.
    """
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    if len(data) > most_bytes:
        raise MalformedError(f"it has {len(data):,} bytes, {most_bytes:,} are allowed")
    data = data.removeprefix(BOM_UTF8)
    check_json(data, depth, digits)
    return json.loads(data.decode("utf-8", "surrogatepass"), object_pairs_hook=without_repeats)


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object with these keys and values. Raises MalformedError for a key that it has twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        # Readers differ in which of the values they take.
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise MalformedError(f"it has the key {key[:80]!r} twice")
    return found


def check_json(data: bytes, depth: int = 64, digits: int = 300) -> None:
    """Raise MalformedError if JSON is nested more deeply, or has longer numbers, than `read_json` allows."""
    long_number = re.compile(rb"(?<![0-9])[0-9]{%d}" % (digits + 1))
    is_deep = data.count(b"[") + data.count(b"{") > depth
    if is_deep or long_number.search(data):
        bare = data.replace(rb"\\", b"").replace(rb"\"", b"")
        outside = b"".join(bare.split(b'"')[::2])
        if _is_deeper(outside, depth):
            raise MalformedError(f"it is more than {depth} lists and objects deep")
        if long_number.search(outside):
            raise MalformedError(f"it has a number of more than {digits} digits")


def _is_deeper(outside: bytes, depth: int) -> bool:
    """Return whether brackets, without those in texts, are nested more deeply than `depth`, or are never closed."""
    nested = outside.translate(_BRACKETS, _OTHERS)
    if b"(" * (depth + 1) in nested:
        return True
    for _ in range(depth):
        num_before = len(nested)
        nested = nested.replace(b"()", b"")
        if len(nested) == num_before:
            break
    return b"()" in nested or nested.count(b"(") > depth


def open_record(path: Path, most_bytes: int) -> BinaryIO:
    """Open a regular file of at most `most_bytes` inside its folder for reading.

    A link may lead to a file of its folder, or to a blob of the hub's cache. Raises RecordError for pipes, devices,
    other links and larger files, and OSError if there is no file or it may not be read.
    """
    try:
        target = _target(path)
    except ValueError as error:
        raise RecordError(path, f"no file has this name ({error})") from error
    # Without O_NONBLOCK a pipe without a writer would never open.
    descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise RecordError(path, "it is no regular file")
        if found.st_size > most_bytes:
            raise RecordError(path, f"it has {found.st_size:,} bytes, {most_bytes:,} are allowed")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _target(path: Path) -> Path:
    """Return the file that a path leads to. Raises RecordError for a link to another folder."""
    folder = Path(os.path.realpath(path.parent))
    target = Path(os.path.realpath(path))
    repository = target.parent.parent
    is_blob = target.parent.name == "blobs" and repository.name.startswith(CACHED)
    if not is_blob and not target.is_relative_to(folder):
        raise RecordError(path, f"it is a link to {target}, outside of its folder. Put a copy or a hard link there")
    return target


def record_bytes(path: Path, most_bytes: int) -> bytes:
    """Return the content of a file that `open_record` accepts. Raises RecordError and OSError."""
    with open_record(path, most_bytes) as file:
        # Python reserves as much memory as it is told to read.
        return file.read(os.fstat(file.fileno()).st_size)


def record_text(path: Path, most_bytes: int) -> str:
    """Return the UTF-8 text of a file that `open_record` accepts. Raises RecordError and OSError."""
    try:
        return record_bytes(path, most_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(path, f"it is no text in UTF-8 ({error})") from error


def record_json(path: Path, most_bytes: int) -> Any:
    """Return the JSON in a file that `open_record` accepts. Raises RecordError and OSError."""
    content = record_bytes(path, most_bytes)
    try:
        return read_json(content, most_bytes=most_bytes)
    except ValueError as error:
        raise RecordError(path, f"it is not JSON ({error})") from error


def record_object(path: Path, most_bytes: int) -> dict[str, Any]:
    """Return the JSON object in a file that `open_record` accepts. Raises RecordError and OSError."""
    found = record_json(path, most_bytes)
    if not isinstance(found, dict):
        raise RecordError(path, f"it holds a {type(found).__name__}, not an object")
    return found


def record_lines(path: Path, most_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a file that `open_record` accepts. Raises RecordError and OSError."""
    with open_record(path, most_bytes) as file:
        while line := file.readline(MAX_LINE + 1):
            if len(line) > MAX_LINE:
                raise RecordError(path, f"a line has more than {MAX_LINE:,} bytes")
            yield line


def inert_line(text: str) -> str:
    """Return untrusted text as one line that is safe to show. A name with a line break would look like another line."""
    return inert(text).replace("\n", "\\n")


def inert(text: str) -> str:
    """Return untrusted text in a form that is safe to show on a terminal.

    Control characters, escape sequences, marks that change the writing direction, lone surrogates and a letter's marks
    beyond MOST_MARKS are escaped. Line breaks and tabs stay.
    """
    shown = text.translate(_INERT)
    return shown if shown.isascii() else _with_few_marks(shown)


def _with_few_marks(text: str) -> str:
    characters: list[str] = []
    num_marks = 0
    for character in text:
        num_marks = num_marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        characters.append(_escaped(character) if num_marks > MOST_MARKS else character)
    return "".join(characters)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class _Inert(dict[int, str]):
    """What is shown in place of each character, by its number, filled in as characters are met."""

    def __missing__(self, number: int) -> str:
        character = chr(number)
        is_strange = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        if is_strange and character not in "\n\t":
            character = _escaped(character)
        self[number] = character
        return character


_INERT = _Inert()
