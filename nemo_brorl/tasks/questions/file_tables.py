"""Files as tables of rows by number, read where they lie: an index of offsets or of row groups is all that is held in
memory. Parquet and Arrow go through pyarrow, which is imported when the first of them is opened.

Rows are shuffled without memory: where index i of an epoch goes is computed, not looked up. A Feistel network permutes
the numbers of 2k bits; those that fall outside the range are sent through again until they fall inside (cycle walking),
which leaves a permutation of the range. Fewer than four times are needed on average.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nemo_brorl.core.errors import DataError
from nemo_brorl.tasks.questions.jsonl import JsonlTable
from nemo_brorl.tasks.questions.questions import Row
from nemo_brorl.types import Int64

if TYPE_CHECKING:
    import pyarrow

BATCH_ROWS = 512  # rows that a scan holds at a time
CACHE_BYTES = 128 * 2**20  # decoded row groups of one file that are kept; the one in use always is
ROUNDS = 6
WORD = 2**64 - 1


class Table(Protocol):
    """Rows of one file, by number; only an index of them is held in memory."""

    path: Path
    columns: Sequence[str] | None  # None where each row has its own

    def __len__(self) -> int:
        """Number of rows."""

    def read(self, start: int, stop: int) -> list[Row]:
        """Rows [start, stop)."""

    def where(self, index: int) -> str:
        """Row `index` for a message: file and line."""


class _NumberedRows:
    """What is told of a row in a file without lines."""

    path: Path

    def where(self, index: int) -> str:
        """File and row, counted from 1."""
        return f"{self.path}, row {index + 1}"


class ParquetTable(_NumberedRows):
    """Rows of one Parquet file, decoded a row group at a time."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        """Only `columns`, where the file has them, are read."""
        import pyarrow.parquet

        self.path = path
        with _damage_named(path):
            self._file = pyarrow.parquet.ParquetFile(path, memory_map=True)
            names = list(self._file.schema_arrow.names)
        self.columns: Sequence[str] | None = names
        self._wanted = [name for name in names if name in columns]
        num_rows = 0
        self._starts = [0]  # first row of each row group, and the number of rows
        for number in range(self._file.num_row_groups):
            num_rows += self._file.metadata.row_group(number).num_rows
            self._starts.append(num_rows)
        self._decoded: OrderedDict[int, pyarrow.Table] = OrderedDict()  # the latest used last

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int) -> list[Row]:
        """Rows [start, stop). Raises DataError for a damaged row group."""
        rows: list[Row] = []
        while start < stop:
            number = bisect_right(self._starts, start) - 1
            first = self._starts[number]
            end = min(stop, self._starts[number + 1])
            group = self._row_group(number)
            part = group.slice(start - first, end - start)
            with _damage_named(self.path):
                rows.extend(part.to_pylist())
            start = end
        return rows

    def _row_group(self, number: int) -> pyarrow.Table:
        if number in self._decoded:
            self._decoded.move_to_end(number)
            return self._decoded[number]
        with _damage_named(self.path):
            group = self._file.read_row_group(number, columns=self._wanted, use_threads=False)
        self._decoded[number] = group
        sizes = [table.nbytes for table in self._decoded.values()]
        num_bytes = sum(sizes)
        while num_bytes > CACHE_BYTES and len(self._decoded) > 1:
            _, oldest = self._decoded.popitem(last=False)
            num_bytes -= oldest.nbytes
        return group


class ArrowTable(_NumberedRows):
    """Rows of one Arrow file (a stream, as Hugging Face datasets writes it, or a file with a footer), memory-mapped."""

    def __init__(self, path: Path) -> None:
        import pyarrow

        self.path = path
        with _damage_named(path):
            source = pyarrow.memory_map(str(path))
            try:
                reader = pyarrow.ipc.open_stream(source)
            except pyarrow.ArrowInvalid:
                reader = pyarrow.ipc.open_file(source)
            self._table = reader.read_all()  # views of the mapped file: nothing is copied
            names = list(self._table.schema.names)
        self.columns: Sequence[str] | None = names

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def read(self, start: int, stop: int) -> list[Row]:
        """Rows [start, stop). Raises DataError for a text that is none, and for one that lies outside the file."""
        part = self._table.slice(start, stop - start)
        with _damage_named(self.path):
            part.validate(full=True)  # a place outside the mapped file would end the process
            return list(part.to_pylist())


class Tables:
    """Files as one table, in order."""

    def __init__(self, parts: Sequence[Table]) -> None:
        self.parts = tuple(parts)
        num_rows = 0
        self._starts = [0]  # first row of each part, and the number of rows
        for part in parts:
            num_rows += len(part)
            self._starts.append(num_rows)

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
        number = 0
        for part in self.parts:
            num_rows = len(part)
            for start in range(0, num_rows, BATCH_ROWS):
                stop = min(start + BATCH_ROWS, num_rows)
                for row in part.read(start, stop):
                    yield number, row
                    number += 1

    def _find(self, index: int) -> tuple[Table, int]:
        number = bisect_right(self._starts, index) - 1
        inside = index - self._starts[number]
        return self.parts[number], inside


def open_tables(
    files: Sequence[Path],
    columns: Sequence[str],
    spans: Mapping[str, Int64] | None = None,
) -> Tables:
    """Open files, each by its format: `.parquet`, `.arrow`, anything else as lines of JSON. Only `columns` are read
    where the format allows to leave others out. `spans` of lines of JSON, by file, spare looking for them. Raises
    DataError for a file that is empty, damaged or unreadable."""
    known_spans = spans or {}
    parts: list[Table] = []
    for path in files:
        if path.suffix == ".parquet":
            parts.append(ParquetTable(path, columns))
        elif path.suffix == ".arrow":
            parts.append(ArrowTable(path))
        else:
            spans_of_file = known_spans.get(str(path))
            parts.append(JsonlTable(path, spans_of_file))
    tables = Tables(parts)
    if len(tables) == 0:
        names = ", ".join(map(str, files))
        raise DataError(f"{names} is empty; give a file with at least one row")
    return tables


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """pyarrow's own messages do not name the file."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, SystemError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def permuted(index: int, size: int, key: int) -> int:
    """Image of `index` under permutation number `key` (64 bits) of 0 … size - 1."""
    assert 0 <= index < size, f"index {index} is outside 0 … {size - 1}"
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left = index >> half
        right = index & mask
        for number in range(ROUNDS):
            round_key = _mixed(key + number)
            scrambled = left ^ (_mixed(right ^ round_key) & mask)
            left = right
            right = scrambled
        index = left << half | right
        if index < size:
            return index


def _mixed(value: int) -> int:
    """64 bits in, 64 bits out, every one of them dependent on all (the finaliser of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & WORD
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & WORD
    return value ^ value >> 31
