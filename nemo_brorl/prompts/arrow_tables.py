"""Parquet and Arrow files as tables, which pyarrow reads; it is imported when the first of them is opened."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.questions import Row

if TYPE_CHECKING:
    import pyarrow

CACHE_BYTES = 128 * 2**20  # decoded row groups of one file that are kept; the one in use always is


class _NumberedRows:
    """What is told of a row in a file without lines."""

    path: Path

    def locate_row(self, index: int) -> str:
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
        # Shuffled rows come from any row group: as many as fit are kept decoded, the latest used last.
        self._decoded: OrderedDict[int, pyarrow.Table] = OrderedDict()

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
        # pyarrow's threads would take the cores that engines and verifiers have.
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
            # Hugging Face datasets writes streams under the same suffix as files with a footer.
            try:
                reader = pyarrow.ipc.open_stream(source)
            except pyarrow.ArrowInvalid:
                reader = pyarrow.ipc.open_file(source)
            # Views of the mapped file: nothing is copied.
            self._table = reader.read_all()
            names = list(self._table.schema.names)
        self.columns: Sequence[str] | None = names

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def read(self, start: int, stop: int) -> list[Row]:
        """Rows [start, stop). Raises DataError for a text that is none, and for one that lies outside the file."""
        part = self._table.slice(start, stop - start)
        with _damage_named(self.path):
            # A text that a damaged file places outside itself would end the process, and no exception says so.
            part.validate(full=True)
            return list(part.to_pylist())


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """pyarrow's own messages do not name the file."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, SystemError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
