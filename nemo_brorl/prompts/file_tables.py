"""Read files as one table of numbered rows; memory holds only an index of offsets or row groups."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from nemo_brorl.core.errors import DataError
from nemo_brorl.core.files import why_unreadable
from nemo_brorl.prompts import jsonl_table
from nemo_brorl.prompts.arrow_tables import CSV_SUFFIXES, ArrowTable, CsvTable, ParquetTable
from nemo_brorl.prompts.jsonl_table import JsonlTable
from nemo_brorl.prompts.questions import Row

MAX_START = 4096  # bytes of a file by which its kind is recognised
JSON_SUFFIXES = (".jsonl", ".json")
SEPARATED = re.compile(rb"[\w \"-]+(?:,[\w \"-]+)+$")  # a line of column names
TABLE_SUFFIXES = (".parquet", ".arrow", *CSV_SUFFIXES)
BATCH_ROWS = 512  # rows that a scan holds at a time
COMPRESSED = {  # first bytes of files that must be unpacked, and what unpacks them
    b"\x1f\x8b": "gunzip",
    b"\x28\xb5\x2f\xfd": "unzstd",
    b"\xfd7zXZ": "unxz",
    b"BZh": "bunzip2",
    b"PK\x03\x04": "unzip",
}
OTHER_KINDS = {  # first bytes of other files, and what to do with them
    b"PAR1": "is a Parquet file: name it .parquet",
    b"ARROW1": "is an Arrow file: name it .arrow",
    b"version https://git-lfs": "is a Git LFS pointer: run `git lfs pull` in its folder",
    b"\xff\xfe": "is UTF-16: write it as UTF-8, as `iconv -f UTF-16 -t UTF-8` does",
    b"\xfe\xff": "is UTF-16: write it as UTF-8, as `iconv -f UTF-16 -t UTF-8` does",
}
ARCHIVES = {".xlsx": "a workbook: save it as CSV", ".npz": "an archive of arrays: write its rows as lines of JSON"}
OBJECT = re.compile(rb"^\s*[{\[]", re.MULTILINE)


class RowTable(Protocol):
    """Numbered rows of one file. Only an index of them is held in memory."""

    path: Path
    columns: Sequence[str] | None  # None: each row has its own columns

    def __len__(self) -> int:
        """Return the number of rows in the data file."""

    def read(self, start: int, stop: int) -> list[Row]:
        """Return the rows [start, stop) of the data file."""

    def locate_row(self, index: int) -> str:
        """Return the path of the data file and the line or number of its row `index`, for an error message."""


class Tables:
    """Several data files as one table of numbered rows, in order."""

    def __init__(self, parts: Sequence[RowTable]) -> None:
        self.parts = tuple(parts)
        num_rows = 0
        self._starts = [0]  # first row of each file, then the number of rows
        for part in parts:
            num_rows += len(part)
            self._starts.append(num_rows)

    def __len__(self) -> int:
        return self._starts[-1]

    def row(self, index: int) -> Row:
        """Return row `index` of a table that consists of several data files, counted over all of them."""
        part, inside = self._find(index)
        return part.read(inside, inside + 1)[0]

    def locate_row(self, index: int) -> str:
        """Return the data file and the line of row `index`, counted over all data files, for an error message."""
        part, inside = self._find(index)
        return part.locate_row(inside)

    def scan(self) -> Iterator[tuple[int, Row]]:
        """Yield every row of the data files with its number, in order, reading 512 rows at a time."""
        number = 0
        for part in self.parts:
            num_rows = len(part)
            for start in range(0, num_rows, BATCH_ROWS):
                stop = min(start + BATCH_ROWS, num_rows)
                for row in part.read(start, stop):
                    yield number, row
                    number += 1

    def _find(self, index: int) -> tuple[RowTable, int]:
        number = bisect_right(self._starts, index) - 1
        inside = index - self._starts[number]
        return self.parts[number], inside


def open_tables(files: Sequence[Path], columns: Sequence[str] | None) -> Tables:
    """Open data files as one table of rows: `.parquet`, `.arrow`, `.csv` and `.tsv`, and all others as JSON.

    Only `columns` (None: all) are read where the format can skip columns. Raises DataError for a file that is empty,
    compressed, damaged or unreadable.
    """
    tables = Tables([_open_table(path, columns) for path in files])
    if len(tables) == 0:
        names = ", ".join(map(str, files))
        raise DataError(f"{names} is empty; give a file with at least one row")
    return tables


def _open_table(path: Path, columns: Sequence[str] | None) -> RowTable:
    _refuse_other_kinds(path)
    if path.suffix == ".parquet":
        return ParquetTable(path, columns)
    if path.suffix == ".arrow":
        return ArrowTable(path)
    if path.suffix in CSV_SUFFIXES:
        return CsvTable(path)
    return JsonlTable(path)


def _refuse_other_kinds(path: Path) -> None:
    """Raise DataError for a compressed file, and for one of another kind than its suffix says."""
    try:
        with path.open("rb") as file:
            start = file.read(MAX_START)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {why_unreadable(error)}") from error
    if path.suffix in ARCHIVES:
        raise DataError(f"{path} is {ARCHIVES[path.suffix]}")
    for mark, words in OTHER_KINDS.items():
        if start.startswith(mark) and not (path.suffix and words.endswith(path.suffix)):
            raise DataError(f"{path} {words}")
    for mark, program in COMPRESSED.items():
        if start.startswith(mark):
            raise DataError(f"{path} is compressed: run `{program} {path}`, and set the path of what it writes")
    text = start.removeprefix(b"\xef\xbb\xbf")
    line = text.partition(b"\n")[0].strip()
    shown = line[:60].decode(errors="replace")
    if path.suffix in JSON_SUFFIXES and SEPARATED.match(line):
        raise DataError(f"{path} has values separated by commas, its first line is {shown!r}: name the file .csv")
    if line and path.suffix not in TABLE_SUFFIXES and not OBJECT.search(text):
        raise DataError(
            f"{path} begins with {shown!r} and has no objects of JSON: give lines such as "
            '{"prompt": "2+2?", "answer": "4"}, or a table named .parquet, .arrow, .csv or .tsv'
        )


def first_rows(file: Path, columns: Sequence[str] | None, num: int) -> list[Row]:
    """Return at most `num` rows from the start of a data file, without reading all of it."""
    if file.suffix in TABLE_SUFFIXES:
        tables = open_tables([file], columns)
        num_rows = min(num, len(tables))
        return [tables.row(index) for index in range(num_rows)]
    # Not opened as a table, because building its index of offsets would read the whole file.
    _refuse_other_kinds(file)
    return jsonl_table.first_rows(file, num)
