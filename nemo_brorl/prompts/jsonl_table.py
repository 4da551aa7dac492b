"""Read lines of JSON, or one JSON array of objects, as a memory-mapped table with 16 bytes of index per row."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from brorl_graders.base.foreign import DIGITS, read_json

from nemo_brorl.core.errors import DataError
from nemo_brorl.core.files import why_unreadable
from nemo_brorl.prompts.questions import BadRow, Row

# Matches the start of an array of objects, after an optional byte order mark.
ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*[{\]]")
TO_UTF_8 = "write the file as UTF-8, as `iconv -f LATIN1 -t UTF-8` does"
# Matches brackets, and whole strings, so that brackets inside strings are ignored.
STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)


class JsonlTable:
    """Rows of one memory-mapped file of JSON. Empty lines are no rows."""

    columns: Sequence[str] | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = _mapped(path)
        pair = np.dtype((np.int64, 2))
        self.spans = np.fromiter(_spans(self._bytes, path), pair)  # first byte, and byte after the last [rows, 2]

    def __len__(self) -> int:
        return len(self.spans)

    def read(self, start: int, stop: int) -> list[Row]:
        """Return the rows [start, stop) of a JSON file, with a BadRow for each line that is not a JSON object."""
        rows = []
        for first, end in self.spans[start:stop].tolist():
            line = self._bytes[first:end]
            rows.append(parsed_row(line))
        return rows

    def locate_row(self, index: int) -> str:
        """Return the path of a JSON file and the line of its row `index`, counted from 1, for an error message."""
        # Lines are counted only for a message, because storing their numbers would take as much memory as the spans.
        end = int(self.spans[index, 0])
        num_lines = 0
        position = self._bytes.find(b"\n", 0, end)
        while position >= 0:
            num_lines += 1
            position = self._bytes.find(b"\n", position + 1, end)
        return f"{self.path}, line {num_lines + 1}"


def first_rows(path: Path, num: int) -> list[Row]:
    """Return at most `num` rows from the start of a JSON file, without reading the rest of the file.

    Raises DataError if the file cannot be read.
    """
    data = _mapped(path)
    rows = []
    for first, end in islice(_spans(data, path), num):
        rows.append(parsed_row(data[first:end]))
    return rows


def _mapped(path: Path) -> mmap.mmap | bytes:
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                # An empty file cannot be mapped.
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {why_unreadable(error)}") from error


def _spans(data: mmap.mmap | bytes, path: Path) -> Iterator[tuple[int, int]]:
    """Yield the byte range of every row in a file of JSON: first byte, and byte after the last."""
    is_array = ARRAY.match(data) is not None
    return _array_spans(data, path) if is_array else _line_spans(data)


def _line_spans(data: mmap.mmap | bytes) -> Iterator[tuple[int, int]]:
    # A byte order mark is not part of the first row.
    start = 3 if data[:3] == b"\xef\xbb\xbf" else 0
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0:
            end = len(data)
        # Most lines start with a character that is no space, so copying one byte shows that the line is not empty.
        first = data[start : min(end, start + 1)]
        if first.strip() or data[start:end].strip():
            yield start, end
        start = end + 1


def _array_spans(data: mmap.mmap | bytes, path: Path) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges of the objects directly inside the outermost JSON array of a data file."""
    depth = 0
    first = 0
    for match in STRUCTURE.finditer(data):
        mark = match.group()
        if mark in (b"{", b"["):
            depth += 1
            if depth == 2:
                first = match.start()
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth == 1:
                yield first, match.end()
    if depth != 0:
        raise DataError(f"{path} is a JSON array without an end: the file was cut off, or a bracket is missing")


def parsed_row(line: bytes) -> Row:
    """Return the JSON object in one line of a data file, or a BadRow with the reason why there is none."""
    try:
        row = read_json(line, digits=DIGITS, most_bytes=len(line))
    except UnicodeDecodeError as error:
        return BadRow(f"not UTF-8 ({error.reason}): {TO_UTF_8}")
    except ValueError as error:
        return BadRow(f"not JSON: {error}{_hint(line.strip())}")
    if not isinstance(row, dict):
        return BadRow(f"a row is a JSON object, not {type(row).__name__}")
    return row


def _hint(line: bytes) -> str:
    if re.match(rb"\{\s*'", line):
        return ". It is Python's text of a mapping: write json.dumps(row)"
    if line.endswith(b"},"):
        return ". Leave out the comma at its end"
    return ". Write each object on one line" if line in (b"{", b"}", b"[", b"]") else ""
