"""Rows of several files by number, read where they lie: an index of offsets or of row groups is all that is held in
memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from nemo_brorl.core.errors import DataError
from nemo_brorl.tasks.questions.arrow import ArrowTable, ParquetTable
from nemo_brorl.tasks.questions.folders import dataset_files, matching_files
from nemo_brorl.tasks.questions.jsonl import JsonlTable
from nemo_brorl.tasks.questions.rows import Row, Table
from nemo_brorl.types import Int64

BATCH_ROWS = 512  # rows that a scan holds at a time


class Tables:
    """Files as one table, in order."""

    def __init__(self, parts: Sequence[Table]) -> None:
        self.parts = tuple(parts)
        self._starts = [0, *accumulate(len(part) for part in parts)]

    def __len__(self) -> int:
        return self._starts[-1]

    def row(self, index: int) -> Row:
        """Row `index`."""
        part, inside = self._find(index)
        return part.read(inside, inside + 1)[0]

    def where(self, index: int) -> str:
        """Row `index` for a message: file and line."""
        part, inside = self._find(index)
        return part.where(inside)

    def scan(self) -> Iterator[tuple[int, Row]]:
        """Every row with its number, in order, a few at a time."""
        for part, first in zip(self.parts, self._starts[:-1], strict=True):
            for start in range(0, len(part), BATCH_ROWS):
                yield from enumerate(part.read(start, min(start + BATCH_ROWS, len(part))), first + start)

    def _find(self, index: int) -> tuple[Table, int]:
        number = bisect_right(self._starts, index) - 1
        return self.parts[number], index - self._starts[number]


def find_files(kind: str, path: str, dataset_split: str | None) -> list[Path]:
    """The files of a source, sorted. Raises DataError when there are none."""
    return dataset_files(Path(path), dataset_split) if kind == "dataset" else matching_files(path)


def open_tables(files: Sequence[Path], columns: Sequence[str], spans: Mapping[str, Int64] | None = None) -> Tables:
    """Open files, each by its format: `.parquet`, `.arrow`, anything else as lines of JSON. Only `columns` are read
    where the format allows to leave others out. `spans` of lines of JSON, by file, spare looking for them. Raises
    DataError for a file that is empty, damaged or unreadable."""
    tables = Tables([_open(path, columns, (spans or {}).get(str(path))) for path in files])
    if len(tables) == 0:
        raise DataError(f"{', '.join(map(str, files))} is empty; give a file with at least one row")
    return tables


def _open(path: Path, columns: Sequence[str], spans: Int64 | None) -> Table:
    if path.suffix == ".parquet":
        return ParquetTable(path, columns)
    if path.suffix == ".arrow":
        return ArrowTable(path)
    return JsonlTable(path, spans)
