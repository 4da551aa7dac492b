"""Read questions from files.

Every row is read once at the start, to check it and to find its split, and again whenever its question is drawn.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from brorl_graders import check_name

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.columns import column_of
from nemo_brorl.prompts.file_tables import Tables, open_tables
from nemo_brorl.prompts.find_files import find_files
from nemo_brorl.prompts.levels import TaskLevel
from nemo_brorl.prompts.order import permuted
from nemo_brorl.prompts.questions import BadRow, Question, Row, hash_of
from nemo_brorl.prompts.row_formats import RowFormat, row_formats
from nemo_brorl.prompts.row_questions import is_wanted, question_of
from nemo_brorl.types import Int64, UInt64

log = get_logger(__name__)

NUM_SHOWN = 5  # bad rows that a message lists


@dataclass(frozen=True)
class RowReader:
    """Reader that turns the rows of a source into questions."""

    formats: tuple[RowFormat, ...]
    task: str  # task name of rows that name none
    options: Mapping[str, Any]  # options of the verifier

    def read(self, row: Row) -> Question | BadRow:
        """Return the question in a row of a data file, or a BadRow with the reason why it has none."""
        if isinstance(row, BadRow):
            return row
        return question_of(row, self.formats, self.task, self.options)


@dataclass(frozen=True)
class QuestionFile:
    """The questions in a source's data files, whose rows have been checked once."""

    tables: Tables
    reader: RowReader
    rows: Int64  # numbers of the usable rows [n], ascending
    hashes: UInt64  # hashes of the usable rows' texts [n]

    def question(self, row: int) -> Question:
        """Return the question in row `row` of the data files, one of the usable rows.

        Raises DataError if the file was changed after its rows were checked.
        """
        question = self.reader.read(self.tables.row(row))
        if isinstance(question, BadRow):
            where = self.tables.locate_row(row)
            raise DataError(f"{where}: {question.reason}; it was usable at the start: was the file changed meanwhile?")
        return question

    def split(self, held_out_share: float) -> SplitFile:
        """Split the questions of the data files into training and held-out rows, by the hash of each question's text.

        `held_out_share` is the share of held-out questions. If it is above 0 and would select no row, the row with the
        smallest hash is held out.
        """
        # A share of 1 would give 2**64, which needs 65 bits.
        limit = min(held_out_share * 2**64, 2**64 - 1)
        chosen = self.hashes < np.uint64(limit)
        if held_out_share > 0 and not chosen.any():
            chosen = self.hashes == self.hashes.min()
        return SplitFile(self, self, self.rows[chosen], self.hashes[chosen])


class SplitFile(NamedTuple):
    """The questions in a source's data files, split into training and held-out rows."""

    train: QuestionFile
    held_out: QuestionFile  # equals `train`, unless held-out questions have their own file
    held_out_rows: Int64
    held_out_hashes: UInt64


class FileSource:
    """A source of questions in files, with a new order in each epoch."""

    def __init__(self, file: QuestionFile, rows: Int64, seed: str) -> None:
        """Create a source of the questions in `rows` of the data files, which `seed` shuffles for every epoch."""
        self.file = file
        self.rows = rows
        self.seed = seed

    @property
    def size(self) -> int:
        """Number of questions in one epoch, which is the number of rows of the data files in use."""
        return len(self.rows)

    @property
    def levels(self) -> Mapping[str, TaskLevel]:
        """Difficulty levels by task: none, because questions from data files have no levels."""
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the data files' questions and of the row numbers in use, by which a resumed run notices changes."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(self.file.hashes.tobytes())
        digest.update(self.rows.tobytes())
        return digest.hexdigest()

    def question(self, index: int) -> Question:
        """Return the question at `index` in the endless sequence of shuffled epochs over the data files."""
        # Each epoch is another permutation, so that the position alone determines the row.
        epoch, position = divmod(index, self.size)
        key = hash_of(f"{self.seed}/{epoch}")
        shuffled = permuted(position, self.size, key)
        row = int(self.rows[shuffled])
        return self.file.question(row)


def open_questions(config: SourceConfig, path: str, task: str) -> QuestionFile:
    """Read and check every row of the data files at `path`, and return their usable questions.

    Raises DataError when the files are missing, lack columns, or have more than `max_bad_rows` unusable rows. Raises
    ConfigError for an unknown verifier.
    """
    reader = RowReader(row_formats(config), task, config.verifier_options)
    selected = {column_of(where) for where in config.only}
    columns = set(selected)
    required = []  # required columns of each format
    for layout in reader.formats:
        check_name(layout.verifier)
        columns |= layout.columns
        required.append(layout.required_columns | selected)
    files = find_files(config.source, path, config.dataset_split)
    num_bytes = sum(file.stat().st_size for file in files)
    log.info("reading %s: %d files, %.1f MiB", path, len(files), num_bytes / 2**20)
    tables = open_tables(files, sorted(columns))
    _check_columns(tables, required)
    return _usable(tables, reader, config, path)


def _usable(tables: Tables, reader: RowReader, config: SourceConfig, path: str) -> QuestionFile:
    """Return the questions in the usable rows of the data files.

    Raises DataError when too many rows are unusable, or all are.
    """
    # So many bad rows refuse the run and fill the message, so the rest need not be read.
    enough = config.max_bad_rows + NUM_SHOWN
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
        # The row names code or an address that no setting names, which `max_bad_rows` does not allow.
        if question.is_refused:
            raise DataError(f"{tables.locate_row(number)}: {question.reason}")
        bad.append((number, question.reason))
        if len(bad) >= enough:
            break
    found = _without_repeats(
        rows=np.array(numbers, np.int64),
        hashes=np.array(hashes, np.uint64),
    )
    for repeated, first in found.repeated[:enough]:
        reason = f"repeats the question of {tables.locate_row(first)}"
        bad.append((repeated, reason))
    _judge(tables, bad, config.max_bad_rows, path)
    if len(found.rows) == 0:
        raise DataError(f"{path} is empty: none of its {len(tables)} rows can be used")
    log.info("%s: %d questions, %d rows left out", path, len(found.rows), len(bad))
    return QuestionFile(tables, reader, found.rows, found.hashes)


def _check_columns(tables: Tables, required: Sequence[set[str]]) -> None:
    """Raise DataError, with the columns that exist, when a data file lacks a required column.

    The columns of a JSON file are those of its first object.
    """
    for part in tables.parts:
        there = part.columns
        if there is None and len(part) > 0:
            (first,) = part.read(0, 1)
            if isinstance(first, dict):
                there = list(first)
        # The scan reports an empty file, and one whose first line is bad.
        if there is None:
            continue
        # Among several formats the user probably means the one with the fewest missing columns.
        lacking = min((columns.difference(there) for columns in required), key=len)
        if lacking:
            raise DataError(
                f"{part.path} has no column {', '.join(sorted(lacking))}; it has {', '.join(there)}. "
                f"Say which is which with data.columns, for example data.columns.prompt=question, "
                f"or choose another data.preset"
            )


class _Distinct(NamedTuple):
    """Rows with distinct texts, and the rows that repeat one."""

    rows: Int64  # numbers of the distinct rows, ascending
    hashes: UInt64
    repeated: list[tuple[int, int]]  # pairs of a row and the first row with its text, ascending


def _without_repeats(rows: Int64, hashes: UInt64) -> _Distinct:
    # Compared by 64-bit hashes, because 10 GB of texts would not fit into memory.
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
    """Raise DataError when too many rows of the data files are unusable, else warn about the rows that are left out."""
    first = sorted(bad)[:NUM_SHOWN]
    shown = "; ".join(f"{tables.locate_row(number)}: {reason}" for number, reason in first)
    if len(bad) > allowed:
        more = "; …" if len(bad) > NUM_SHOWN else ""
        raise DataError(
            f"{path} has rows that cannot be used, more than data.max_bad_rows={allowed}: {shown}{more}. "
            "Fix these rows, or set a larger data.max_bad_rows"
        )
    if bad:
        log.warning("%s: %d rows are left out: %s", path, len(bad), shown)
