"""Read Parquet and Arrow files as tables with pyarrow, which is imported when the first file is opened."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_brorl.core.errors import DataError
from nemo_brorl.core.files import MALFORMED, why_unreadable
from nemo_brorl.prompts.jsonl_table import TO_UTF_8
from nemo_brorl.prompts.questions import Row

if TYPE_CHECKING:
    import pyarrow

CSV_SUFFIXES = (".csv", ".tsv")
CACHE_BYTES = 128 * 2**20  # bytes of decoded row groups that are kept for a file, besides the one in use


class _NumberedRows:
    """A data file whose rows are located by number, because it has no lines."""

    path: Path

    def locate_row(self, index: int) -> str:
        """Return the path of a data file and the number of its row `index`, counted from 1, for an error message."""
        return f"{self.path}, row {index + 1}"


class ParquetTable(_NumberedRows):
    """Rows of one Parquet file, decoded one row group at a time."""

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        """Open the Parquet file `path`, to read those of `columns` that it has, or all (None)."""
        import pyarrow.parquet

        self.path = path
        with _damage_named(path):
            self._file = pyarrow.parquet.ParquetFile(path, memory_map=True)
            names = list(self._file.schema_arrow.names)
        self.columns: Sequence[str] | None = names
        self._wanted = [name for name in names if columns is None or name in columns]
        sizes = [self._file.metadata.row_group(number).num_rows for number in range(self._file.num_row_groups)]
        self._starts = [0, *accumulate(sizes)]  # first row of each row group, then the number of rows
        if min(sizes, default=0) < 0:
            raise DataError(f"{path} cannot be read: it says that a row group has less than no rows")
        # Shuffled rows come from any row group, so recently used groups stay decoded, the latest used last.
        self._decoded: OrderedDict[int, pyarrow.Table] = OrderedDict()

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int) -> list[Row]:
        """Return the rows [start, stop) of the Parquet file. Raises DataError for a damaged row group."""
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
    """Rows of one memory-mapped Arrow file, either a stream, as Hugging Face datasets writes it, or with a footer."""

    def __init__(self, path: Path) -> None:
        import pyarrow

        self.path = path
        with _damage_named(path):
            source = pyarrow.memory_map(str(path))
            # Hugging Face datasets gives streams the suffix of files with a footer.
            try:
                reader = pyarrow.ipc.open_stream(source)
            except pyarrow.ArrowInvalid:
                reader = pyarrow.ipc.open_file(source)
            # The columns are views of the mapped file, so nothing is copied.
            self._table = reader.read_all()
            names = list(self._table.schema.names)
        self.columns: Sequence[str] | None = names

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def read(self, start: int, stop: int) -> list[Row]:
        """Return the rows [start, stop) of the Arrow file.

        Raises DataError for text that is not UTF-8 or whose offsets are outside the file.
        """
        part = self._table.slice(start, stop - start)
        with _damage_named(self.path):
            # Without this check, a damaged offset beyond the file would end the process without an exception.
            part.validate(full=True)
            return list(part.to_pylist())


class CsvTable(ArrowTable):
    """Rows of one file of values separated by commas, semicolons or tabs, held in memory. All values are texts."""

    def __init__(self, path: Path) -> None:
        import pyarrow.csv

        self.path = path
        with _damage_named(path):
            with path.open(encoding="utf-8-sig") as file:
                header = file.readline()
            # Excel's first line names the delimiter.
            num_skipped = int(re.fullmatch(r"sep=[,;\t]\n", header) is not None)
            delimiter = "\t" if path.suffix == ".tsv" else max(",;\t", key=header.count)
            read = pyarrow.csv.ReadOptions(skip_rows=num_skipped)
            parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
            # Types are guessed otherwise, and 007 would be 7.
            names = pyarrow.csv.open_csv(path, read, parse).schema.names
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise DataError(f"{path} has two columns {twice!r}: give each a name of its own")
            convert = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()))
            table = pyarrow.csv.read_csv(path, read, parse, convert)
            self._table = table.rename_columns([name.strip() for name in names])
        self.columns = self._table.schema.names


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turn pyarrow's errors, which do not name the file, into a DataError with the path of the file."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, SystemError, *MALFORMED) as error:
        if isinstance(error, UnicodeDecodeError) and path.suffix in CSV_SUFFIXES:
            raise DataError(f"{path} is not UTF-8 ({error.reason}): {TO_UTF_8}") from error
        raise DataError(f"{path} cannot be read: {why_unreadable(error)}") from error
