"""Questions from files: read once to see that they can be used and which split each belongs to, then row by row as they
are asked for.

What was found out about large files, which rows can be used and where they are, is kept beside the run. Looking through
every row of a 10-GB file takes minutes at every start, requeued ones too, and finds the same each time. It is kept as
`RUN/prompts_index/KEY.npz`. The key is of everything that decides it: the files' names, sizes and times, the settings,
the code that reads rows. An index that cannot be read or written is done without.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import brorl_graders
import numpy as np
from brorl_graders.verifiers.registry import check_name
from numpy.typing import NDArray

from nemo_brorl.config.schema import SourceConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import DataError
from nemo_brorl.core.files import replacing
from nemo_brorl.prompts.columns import RowFormat, column_of, is_wanted, question_of, row_formats
from nemo_brorl.prompts.file_tables import JsonlTable, Tables, find_files, open_tables, permuted
from nemo_brorl.prompts.questions import BadRow, Question, Row, hash_of
from nemo_brorl.types import Int64, UInt64

log = get_logger(__name__)

FOLDER = "prompts_index"
MIN_BYTES = 1 << 26  # of files; smaller ones are looked through in a second
# Code that decides which rows can be used.
CODE = (Path(__file__).parent, Path(brorl_graders.__file__).parent / "verifiers")


@dataclass(frozen=True)
class RowIndex:
    """The usable rows of some files."""

    rows: Int64  # [usable rows] their numbers, ascending
    hashes: UInt64  # [usable rows] of their texts
    spans: Mapping[str, Int64]  # [rows, 2] by file: where every row is in it; only of lines of JSON
    num_left_out: int


def index_path(folder: Path, decides: Sequence[str]) -> Path:
    """Where the index is kept that these texts, and the code, decide."""
    text = "\n".join(decides)
    digest = hashlib.blake2b(text.encode(), digest_size=12)
    for code in CODE:
        for path in sorted(code.rglob("*.py")):
            digest.update(path.read_bytes())
    return folder / f"{digest.hexdigest()}.npz"


def load_index(path: Path) -> RowIndex | None:
    """A kept index; None where there is none, or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as data:
            spans = {}
            for number, name in enumerate(data["files"]):
                spans[str(name)] = data[f"spans_{number}"]
            return RowIndex(data["rows"], data["hashes"], spans, int(data["num_left_out"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        log.warning("%s cannot be read (%s): the files are looked through again", path, error)
        return None


def save_index(path: Path, index: RowIndex) -> None:
    """Keep an index, whole or not at all."""
    arrays: dict[str, Any] = {
        "rows": index.rows,
        "hashes": index.hashes,
        "files": np.array(list(index.spans), dtype=str),
        "num_left_out": index.num_left_out,
    }
    for number, spans in enumerate(index.spans.values()):
        arrays[f"spans_{number}"] = spans
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside:
            np.savez(aside, **arrays)
    except OSError as error:
        log.warning("%s cannot be written (%s): the next start looks through the files again", path, error)


NUM_SHOWN = 5  # bad rows written out in a message


@dataclass(frozen=True)
class RowReader:
    """How the rows of a source become questions."""

    formats: tuple[RowFormat, ...]
    task: str  # of rows that name none
    options: Mapping[str, Any]  # of the verifier

    def read(self, row: Row) -> Question | BadRow:
        """The question in a row."""
        if isinstance(row, BadRow):
            return row
        return question_of(row, self.formats, self.task, self.options)


@dataclass(frozen=True)
class QuestionFile:
    """Files whose rows have been looked through once."""

    tables: Tables
    reader: RowReader
    rows: Int64  # [usable rows] their numbers, ascending
    hashes: UInt64  # [usable rows] of their texts

    def question(self, row: int) -> Question:
        """The question in row `row`, which `rows` holds."""
        question = self.reader.read(self.tables.row(row))
        if isinstance(question, BadRow):
            where = self.tables.where(row)
            raise DataError(f"{where}: {question.reason}; it was usable at the start: was the file changed meanwhile?")
        return question

    def held_out(self, fraction: float) -> NDArray[np.bool_]:
        """[usable rows] Whether a row is held out: by the hash of its text; where that takes none, the one with the
        smallest."""
        limit = min(fraction * 2**64, 2**64 - 1)
        chosen = self.hashes < np.uint64(limit)
        if fraction > 0 and not chosen.any():
            chosen = self.hashes == self.hashes.min()
        return chosen


class FileSource:
    """Some rows of files, shuffled anew each epoch."""

    def __init__(self, file: QuestionFile, rows: Int64, seed: str) -> None:
        """`seed` decides the order."""
        self.file = file
        self.rows = rows
        self.seed = seed

    @property
    def size(self) -> int:
        """Rows of one epoch."""
        return len(self.rows)

    @cached_property
    def fingerprint(self) -> str:
        """Of the texts of all rows of the files and of which rows these are."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(self.file.hashes.tobytes())
        digest.update(self.rows.tobytes())
        return digest.hexdigest()

    def question(self, index: int) -> Question:
        """Row `index` of the endless sequence of shuffled epochs."""
        epoch, position = divmod(index, self.size)
        key = hash_of(f"{self.seed}/{epoch}")
        shuffled = permuted(position, self.size, key)
        row = int(self.rows[shuffled])
        return self.file.question(row)


def open_questions(
    config: SourceConfig,
    path: str,
    task: str,
    index: Path | None = None,
) -> QuestionFile:
    """Look through every row of `path`, unless that has been done and is kept in the file `index`. Raises DataError
    when it is missing, has the wrong columns, or more rows that cannot be used than `max_bad_rows`; ConfigError when
    its verifier is not known."""
    reader = RowReader(row_formats(config), task, config.verifier_options)
    selected = {column_of(where) for where in config.only}
    columns = set(selected)
    required = []  # by format
    for layout in reader.formats:
        check_name(layout.verifier)
        columns |= layout.columns
        required.append(layout.required_columns | selected)
    files = find_files(config.source, path, config.dataset_split)
    kept = None if index is None else load_index(index)
    if kept is not None:
        num_rows = len(kept.rows)
        log.info("%s: %d questions, %d rows left out, as found earlier", path, num_rows, kept.num_left_out)
        tables = open_tables(files, sorted(columns), kept.spans)
    else:
        tables = open_tables(files, sorted(columns))
        _check_columns(tables, required)
        kept = _looked_through(tables, reader, config, path)
        num_rows = len(kept.rows)
        log.info("%s: %d questions, %d rows left out", path, num_rows, kept.num_left_out)
        if index is not None:
            save_index(index, kept)
    return QuestionFile(tables, reader, kept.rows, kept.hashes)


def _looked_through(
    tables: Tables,
    reader: RowReader,
    config: SourceConfig,
    path: str,
) -> RowIndex:
    """The rows that can be used. Raises DataError when too many cannot, or none can."""
    enough = config.max_bad_rows + NUM_SHOWN  # bad rows to tell what is wrong
    numbers = array("q")
    hashes = array("Q")
    bad: list[tuple[int, str]] = []  # (row, what is wrong with it)
    for number, row in tables.scan():
        if not isinstance(row, BadRow) and not is_wanted(row, config.only):
            continue
        question = reader.read(row)
        if isinstance(question, Question):
            numbers.append(number)
            hashes.append(hash_of(question.text))
            continue
        if question.is_refused:
            raise DataError(f"{tables.where(number)}: {question.reason}")
        bad.append((number, question.reason))
        if len(bad) >= enough:
            break
    found = _without_repeats(
        rows=np.array(numbers, np.int64),
        hashes=np.array(hashes, np.uint64),
    )
    for repeated, first in found.repeated[:enough]:
        reason = f"the same question as {tables.where(first)}"
        bad.append((repeated, reason))
    _judge(tables, bad, config.max_bad_rows, path)
    if len(found.rows) == 0:
        raise DataError(f"{path} is empty: none of its {len(tables)} rows can be used")
    spans = {}
    for part in tables.parts:
        if isinstance(part, JsonlTable):
            spans[str(part.path)] = part.spans
    return RowIndex(found.rows, found.hashes, spans, len(bad))


def _check_columns(tables: Tables, required: Sequence[set[str]]) -> None:
    """Raise DataError when a file lacks a column, with those that are there. JSON lines are judged by their first
    object."""
    for part in tables.parts:
        there = part.columns
        if there is None and len(part) > 0:
            (first,) = part.read(0, 1)
            if isinstance(first, dict):
                there = list(first)
        if there is None:
            continue  # an empty file, or one whose first line is bad: the scan will say so
        lacking = min((columns.difference(there) for columns in required), key=len)
        if lacking:
            raise DataError(
                f"{part.path} has no column {', '.join(sorted(lacking))}; it has {', '.join(there)}. "
                f"Say which is which with data.columns, for example data.columns.prompt=question, "
                f"or choose another data.preset"
            )


class _Distinct(NamedTuple):
    """Rows of different texts."""

    rows: Int64  # ascending
    hashes: UInt64
    repeated: list[tuple[int, int]]  # (row, first row with the same text), ascending


def _without_repeats(rows: Int64, hashes: UInt64) -> _Distinct:
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    is_first = np.zeros(len(rows), bool)
    is_first[first] = True
    is_repeated = ~is_first
    repeated = rows[is_repeated].tolist()
    first_of_text = first[inverse[is_repeated]]
    originals = rows[first_of_text].tolist()
    return _Distinct(
        rows=rows[is_first],
        hashes=hashes[is_first],
        repeated=list(zip(repeated, originals, strict=True)),
    )


def _judge(
    tables: Tables,
    bad: Sequence[tuple[int, str]],
    allowed: int,
    path: str,
) -> None:
    """Raise DataError when too many rows are bad; warn about those that are left out."""
    first = sorted(bad)[:NUM_SHOWN]
    shown = "; ".join(f"{tables.where(number)}: {reason}" for number, reason in first)
    if len(bad) > allowed:
        more = "; …" if len(bad) > NUM_SHOWN else ""
        raise DataError(f"{path} has rows that cannot be used, more than data.max_bad_rows={allowed}: {shown}{more}")
    if bad:
        log.warning("%s: %d rows are left out: %s", path, len(bad), shown)
