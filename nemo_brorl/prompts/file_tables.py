"""Files as tables of rows by number, read where they lie: an index of offsets or of row groups is all that is held in
memory. Parquet and Arrow go through pyarrow, which is imported when the first of them is opened.

Rows are shuffled without memory: where index i of an epoch goes is computed, not looked up. A Feistel network permutes
the numbers of 2k bits; those that fall outside the range are sent through again until they fall inside (cycle walking),
which leaves a permutation of the range. Fewer than four times are needed on average.

A path means a file, a pattern, or a Hugging Face dataset folder on disk, of two kinds: what `Dataset.save_to_disk` and
`DatasetDict.save_to_disk` write (arrow files named in `state.json`), and what lies on the hub (`.parquet`, `.jsonl` or
`.json` files, told apart by the name of their split).

Lines of JSON, or one JSON array of objects, are read behind an index of offsets: 16 bytes a row in memory.
"""

from __future__ import annotations

import glob
import json
import mmap
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.questions import BadRow, Row
from nemo_brorl.types import Int64

if TYPE_CHECKING:
    import pyarrow

# Beginning of an array of objects, behind a byte order mark.
ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*[{\]]")
# Whole strings, so that brackets inside them are not seen, and brackets.
STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)


class JsonlTable:
    """Rows of one file, memory-mapped. Empty lines are no rows."""

    columns: Sequence[str] | None = None

    def __init__(self, path: Path, spans: Int64 | None = None) -> None:
        """`spans` are those that an earlier look has found in the same file."""
        self.path = path
        self._bytes = _mapped(path)
        if spans is not None:
            self.spans = spans
            return
        is_array = ARRAY.match(self._bytes) is not None
        found = _array_spans(self._bytes, path) if is_array else _line_spans(self._bytes)
        pair = np.dtype((np.int64, 2))
        self.spans = np.fromiter(found, pair)  # [rows, 2] first byte, byte behind the last

    def __len__(self) -> int:
        return len(self.spans)

    def read(self, start: int, stop: int) -> list[Row]:
        """Rows [start, stop); a line that is not a JSON object is a BadRow."""
        rows = []
        for first, end in self.spans[start:stop].tolist():
            line = self._bytes[first:end]
            rows.append(parsed_row(line))
        return rows

    def where(self, index: int) -> str:
        """File and line, counted from 1."""
        end = int(self.spans[index, 0])
        num_lines = 0  # that end before the row
        position = self._bytes.find(b"\n", 0, end)
        while position >= 0:
            num_lines += 1
            position = self._bytes.find(b"\n", position + 1, end)
        return f"{self.path}, line {num_lines + 1}"


def _mapped(path: Path) -> mmap.mmap | bytes:
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                return b""  # nothing cannot be mapped
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _line_spans(data: mmap.mmap | bytes) -> Iterator[tuple[int, int]]:
    start = 3 if data[:3] == b"\xef\xbb\xbf" else 0  # a byte order mark
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0:
            end = len(data)
        first = data[start : min(end, start + 1)]
        if first.strip() or data[start:end].strip():  # most lines are not copied to see that they hold something
            yield start, end
        start = end + 1


def _array_spans(data: mmap.mmap | bytes, path: Path) -> Iterator[tuple[int, int]]:
    """The objects directly inside the outermost array."""
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
    """Read a line of JSON as a row; a bad one says why it is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or brackets without end
        return BadRow(f"not JSON: {error}")
    if not isinstance(row, dict):
        return BadRow(f"a row is a JSON object, not {type(row).__name__}")
    return row


DEFAULT_SPLIT = "train"
SPLIT_WORDS = ("train", "training", "test", "testing", "validation", "valid", "dev", "val", "eval")
HUB_SUFFIXES = (".parquet", ".jsonl", ".json")  # the first kind that is there is read
NOT_ROWS = ("dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json")


def find_files(kind: str, path: str, dataset_split: str | None) -> list[Path]:
    """The files of a source, sorted. Raises DataError when there are none."""
    if kind == "dataset":
        return dataset_files(Path(path), dataset_split)
    return matching_files(path)


def matching_files(path: str) -> list[Path]:
    """A file, or all that a pattern matches, sorted. Raises DataError when there is none."""
    if Path(path).is_file():
        return [Path(path)]
    if Path(path).is_dir():
        raise DataError(
            f"{path} is a folder: write source=dataset to read a dataset folder, or a pattern of files such as "
            f"{path}/*.jsonl"
        )
    found = []
    for name in glob.glob(path, recursive=True):
        if Path(name).is_file():
            found.append(Path(name))
    if not found:
        raise DataError(f"{path!r} is not a file, and no file matches it as a pattern")
    return sorted(found)


def dataset_files(folder: Path, split: str | None) -> list[Path]:
    """The files of one split of a dataset folder. `split` null: train where there is one, else everything.

    Raises DataError, with the splits there are, when it cannot be found.
    """
    if not folder.is_dir():
        raise DataError(
            f"{str(folder)!r} is not a folder; data.source=dataset reads the folder of a Hugging Face dataset on disk"
        )
    if (folder / "dataset_dict.json").is_file():
        saved = _read_json(folder / "dataset_dict.json")
        folder = folder / _chosen(folder, split, saved.get("splits", []))
    if (folder / "state.json").is_file():
        return _saved_files(folder)
    return _hub_files(folder, split)


def _saved_files(folder: Path) -> list[Path]:
    files = []
    missing = []
    state = _read_json(folder / "state.json")
    for entry in state.get("_data_files", []):
        path = folder / entry["filename"]
        files.append(path)
        if not path.is_file():
            missing.append(entry["filename"])
    if missing or not files:
        raise DataError(
            f"{folder} is not whole: state.json names {', '.join(missing) or 'no files'}; save the dataset again"
        )
    return files


def _hub_files(folder: Path, split: str | None) -> list[Path]:
    for suffix in HUB_SUFFIXES:
        found: list[Path] = []
        by_split: dict[str, list[Path]] = {}
        for path in sorted(folder.rglob(f"*{suffix}")):
            if path.name in NOT_ROWS or path.name.startswith("."):
                continue
            found.append(path)
            name = _split_of(path, folder)
            if name is not None:
                by_split.setdefault(name, []).append(path)
        if found and not by_split and split is None:
            return found
        if found:
            wanted = _chosen(folder, split, sorted(by_split))
            return by_split[wanted]
    raise DataError(f"{folder} has no dataset: no state.json (save_to_disk) and no {', '.join(HUB_SUFFIXES)} files")


def _split_of(path: Path, folder: Path) -> str | None:
    """`data/train-00000-of-00002.parquet` and `train/0000.parquet` are of the split train; None where no name says
    so."""
    parts = path.relative_to(folder).with_suffix("").parts
    for part in reversed(parts):
        first, *_ = re.split(r"[-_.]", part)
        word = first.lower()
        if word in SPLIT_WORDS:
            return word
    return None


def _chosen(folder: Path, split: str | None, names: list[str]) -> str:
    only = names[0] if len(names) == 1 else None
    wanted = split or only or DEFAULT_SPLIT
    if wanted not in names:
        known = ", ".join(names) or "no named splits"
        raise DataError(f"{folder} has no split {wanted!r}; set data.dataset_split to one of {known}")
    return wanted


def _read_json(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        return dict(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from error


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
