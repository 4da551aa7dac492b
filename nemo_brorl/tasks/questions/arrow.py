"""Parquet and Arrow files, through pyarrow, which is imported when the first of them is opened."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_brorl.core.errors import DataError
from nemo_brorl.tasks.questions.rows import Row

if TYPE_CHECKING:
    import pyarrow

CACHE_BYTES = 128 * 2**20  # decoded row groups of one file that are kept; the one in use always is


class ParquetTable:
    """Rows of one Parquet file, decoded a row group at a time."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        """Only `columns`, where the file has them, are read."""
        import pyarrow.parquet

        self.path = path
        with _damage_named(path):
            self._file = pyarrow.parquet.ParquetFile(path, memory_map=True)
        self.columns: Sequence[str] | None = list(self._file.schema_arrow.names)
        self._wanted = [name for name in self._file.schema_arrow.names if name in columns]
        groups = range(self._file.metadata.num_row_groups)
        self._starts = [0, *accumulate(self._file.metadata.row_group(group).num_rows for group in groups)]
        self._decoded: OrderedDict[int, pyarrow.Table] = OrderedDict()

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int) -> list[Row]:
        """Rows [start, stop). Raises DataError for a damaged row group."""
        return _rows(self._starts, self._group, start, stop)

    def where(self, index: int) -> str:
        """File and row, counted from 1."""
        return f"{self.path}, row {index + 1}"

    def _group(self, number: int) -> pyarrow.Table:
        if number not in self._decoded:
            with _damage_named(self.path):
                self._decoded[number] = self._file.read_row_group(number, columns=self._wanted, use_threads=False)
            while len(self._decoded) > 1 and sum(table.nbytes for table in self._decoded.values()) > CACHE_BYTES:
                self._decoded.popitem(last=False)
        self._decoded.move_to_end(number)
        return self._decoded[number]


class ArrowTable:
    """Rows of one Arrow file (a stream, as Hugging Face datasets writes it, or a file with a footer), memory-mapped."""

    def __init__(self, path: Path) -> None:
        import pyarrow

        self.path = path
        with _damage_named(path):
            self._batches = list(_record_batches(pyarrow.memory_map(str(path))))
        self.columns: Sequence[str] | None = list(self._batches[0].schema.names) if self._batches else None
        self._starts = [0, *accumulate(batch.num_rows for batch in self._batches)]

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int) -> list[Row]:
        """Rows [start, stop)."""
        return _rows(self._starts, self._batches.__getitem__, start, stop)

    def where(self, index: int) -> str:
        """File and row, counted from 1."""
        return f"{self.path}, row {index + 1}"


def _rows(starts: Sequence[int], part_of: Callable[[int], Any], start: int, stop: int) -> list[Row]:
    """Rows [start, stop) of parts that begin at `starts`."""
    rows: list[Row] = []
    while start < stop:
        number = bisect_right(starts, start) - 1
        end = min(stop, starts[number + 1])
        rows.extend(part_of(number).slice(start - starts[number], end - start).to_pylist())
        start = end
    return rows


def _record_batches(source: pyarrow.MemoryMappedFile) -> Iterator[pyarrow.RecordBatch]:
    """Views of the mapped file: nothing is copied."""
    import pyarrow.ipc

    try:
        yield from pyarrow.ipc.open_stream(source)
    except pyarrow.ArrowInvalid:
        reader = pyarrow.ipc.open_file(source)
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """pyarrow's own messages do not name the file."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
