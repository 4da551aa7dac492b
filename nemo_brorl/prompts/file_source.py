"""Read questions from files.

Every row is read once at the start, to check it and to find its split, and again whenever its question is drawn.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from brorl_graders import check_name

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.answer_census import AnswerCensus
from nemo_brorl.prompts.arrow_tables import CSV_SUFFIXES
from nemo_brorl.prompts.columns import column_of
from nemo_brorl.prompts.file_tables import RowTable, Tables, first_rows, open_tables
from nemo_brorl.prompts.find_files import find_files
from nemo_brorl.prompts.fingerprints import difference, fingerprint, fingerprint_of_texts
from nemo_brorl.prompts.levels import TaskLevel
from nemo_brorl.prompts.order import permuted
from nemo_brorl.prompts.question_keys import QuestionKeys, keys_of
from nemo_brorl.prompts.questions import BadRow, Question, Row, hash_of
from nemo_brorl.prompts.row_formats import RowFormat, columns_of, row_formats
from nemo_brorl.prompts.row_questions import is_wanted, question_of
from nemo_brorl.prompts.row_shapes import Shape, proposal, recognise, splits_of, unread_companions
from nemo_brorl.types import Bool, Int64, UInt64

log = get_logger(__name__)

NUM_SHOWN = 5  # bad rows that a message lists
ONE_OBJECT = (
    "It is one object of JSON: write one object a row, as pandas' to_json(PATH, orient='records', lines=True) does"
)
ONE_SPLIT = "data.only={split: train}"
NUM_FOR_SHAPE = 20  # rows by which a layout is recognised


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
    forms: UInt64  # hashes of the normal forms of these texts [n]
    contents: UInt64  # hashes of all that the usable rows' questions are made of [n]

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
        """Split the questions into training and held-out rows, by hashes of their texts.

        Rows whose texts have one normal form stay together. If a share above 0 would hold out no row, the rows with the
        smallest hash are held out.
        """
        # A share of 1 would give 2**64, which needs 65 bits.
        limit = min(held_out_share * 2**64, 2**64 - 1)
        deciding = self._deciding_hashes()
        chosen = deciding < np.uint64(limit)
        if held_out_share > 0 and not chosen.any():
            chosen = deciding == deciding.min()
        return SplitFile(self, self, self.rows[chosen], self.forms[chosen])

    def _deciding_hashes(self) -> UInt64:
        """Return for each row the hash of one of the texts with its normal form [n]: its own, without near repeats."""
        # Low bits choose the text, because high bits decide the side. So near repeats are held out no more often.
        order = np.argsort(self.hashes << np.uint64(32), kind="stable")
        deciding = np.empty_like(self.hashes)
        deciding[order] = self.hashes[order][_first_places(self.forms[order])]
        return deciding


class SplitFile(NamedTuple):
    """The questions in a source's data files, split into training and held-out rows."""

    train: QuestionFile
    held_out: QuestionFile  # equals `train`, unless held-out questions have their own file
    held_out_rows: Int64
    held_out_forms: UInt64  # hashes of the normal forms of the held-out questions


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
        """Hashes of the data files' questions and of the rows in use, by which a resumed run notices changes."""
        return fingerprint(self.file.rows, self.file.contents, self.rows)

    def change_since(self, earlier: str) -> str:
        """Return which rows have changed since the fingerprint `earlier` was taken, or "" if none has."""
        if earlier == fingerprint_of_texts(self.file.hashes, self.rows):
            log.warning("the checkpoint is of an earlier version: it cannot tell whether answers have changed")
            return ""
        return difference(earlier, self.fingerprint, self.file.rows, self.file.tables)

    def question(self, index: int) -> Question:
        """Return the question at `index` in the endless sequence of shuffled epochs over the data files."""
        return self.file.question(self._row(index))

    def locate(self, index: int) -> str:
        """Return the data file and the line of question `index`, for a message."""
        return self.file.tables.locate_row(self._row(index))

    def _row(self, index: int) -> int:
        # Each epoch is another permutation, so that the position alone determines the row.
        epoch, position = divmod(index, self.size)
        key = hash_of(f"{self.seed}/{epoch}")
        shuffled = permuted(position, self.size, key)
        return int(self.rows[shuffled])


def open_questions(config: SourceConfig, path: str, task: str, where: str = "data") -> QuestionFile:
    """Read and check every row of the data files at `path`, and return their usable questions.

    `where` is the settings key of the source, for messages. Raises DataError when the files are missing, lack columns,
    repeat questions, or have more than `max_bad_rows` unusable rows. Raises ConfigError for an unknown verifier.
    """
    files = find_files(config.source, path, config.dataset_split)
    num_bytes = sum(file.stat().st_size for file in files)
    log.info("reading %s: %d files, %.1f MiB", path, len(files), num_bytes / 2**20)
    reader = RowReader(formats_of(config, files), task, config.verifier_options)
    for layout in reader.formats:
        check_name(layout.verifier)
    selected = {column_of(path) for path in config.only}
    columns = columns_of(reader.formats, reader.options)
    tables = open_tables(files, columns and sorted(selected.union(columns)))
    _check_columns(tables, [layout.required_columns | selected for layout in reader.formats], where)
    return _usable(tables, reader, config, path, where)


def _usable(tables: Tables, reader: RowReader, config: SourceConfig, path: str, where: str) -> QuestionFile:
    """Return the questions in the usable rows of the data files, each once.

    Raises DataError when too many rows are unusable, all are, or some repeat a question.
    """
    # So many bad rows refuse the run and fill the message, so the rest need not be read.
    enough = config.max_bad_rows + NUM_SHOWN
    numbers = array("q")
    keys = array("Q")  # QuestionKeys of these rows, one behind the other
    bad: list[tuple[int, str]] = []  # (row, what is wrong with it)
    census = AnswerCensus()
    for number, row in tables.scan():
        if not isinstance(row, BadRow) and not is_wanted(row, config.only):
            continue
        question = reader.read(row)
        if isinstance(question, Question):
            numbers.append(number)
            keys.extend(keys_of(question))
            census.add(question)
            continue
        # The row names code or an address that no setting names, which `max_bad_rows` does not allow.
        if question.is_refused:
            raise DataError(f"{tables.locate_row(number)}: {question.reason}")
        bad.append((number, question.reason))
        if len(bad) >= enough:
            break
    rows = np.array(numbers, np.int64)
    texts, forms, conversations, answered, contents = np.array(keys, np.uint64).reshape(-1, len(QuestionKeys._fields)).T
    found = _Distinct(_first_places(answered), _first_places(conversations))
    for place in np.flatnonzero(found.is_contradiction)[:enough].tolist():
        first = tables.locate_row(int(rows[found.first_asked[place]]))
        bad.append((int(rows[place]), f"asks the question of {first} and has another answer"))
    _judge(tables, bad, config.max_bad_rows, path, where)
    census.judge(path, where, reader.formats[-1].answer, is_verifier_chosen=config.verifier is not None)
    kept = ~(found.is_repeat | found.is_contradiction)
    if not kept.any():
        raise DataError(f"{path} is empty: none of its {len(tables)} rows can be used")
    if found.is_repeat.any():
        _judge_repeats(tables, rows, found, texts, config.repeated_rows == "drop", path, where)
    log.info("%s: %d questions, %d rows left out", path, kept.sum(), len(bad) + found.is_repeat.sum())
    return QuestionFile(tables, reader, rows[kept], texts[kept], forms[kept], contents[kept])


def formats_of(config: SourceConfig, files: Sequence[Path]) -> tuple[RowFormat, ...]:
    """Return the row formats of a source: those of its settings, or of a public data set whose rows look like these."""
    rows = [row for row in first_rows(files[0], None, NUM_FOR_SHAPE) if isinstance(row, dict)]
    shape = recognise(config, rows)
    formats = row_formats(config, shape.formats if shape else ())
    if shape is not None:
        log.info("%s: %s", files[0], Shape(shape.like, formats))
    if len(splits := splits_of(rows)) > 1 and "split" not in config.only:
        log.warning("%s: rows of %s are all read. Set '%s' to read some", files[0], ", ".join(splits), ONE_SPLIT)
    for name in unread_companions(rows, formats):
        log.warning("%s: the model is not shown the column %s. Join it to the question if it needs it", files[0], name)
    return formats


def _check_columns(tables: Tables, required: Sequence[set[str]], where: str) -> None:
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
        if not there:
            continue
        # Among several formats the user probably means the one with the fewest missing columns.
        lacking = min((columns.difference(there) for columns in required), key=len)
        if lacking:
            if _is_one_object(part):
                raise DataError(f"{part.path} has {', '.join(there)}. {ONE_OBJECT}")
            proposed = proposal(lacking, there, where) or f"{where}.columns, or another {where}.preset"
            header = ""
            if part.path.suffix in CSV_SUFFIXES:
                header = ". If these are no names, write a first line with some, such as prompt,answer"
            raise DataError(
                f"{part.path} has no column {', '.join(sorted(lacking))}; it has {', '.join(there)}. "
                f"Say which is which: set {proposed}{header}"
            )


def _is_one_object(table: RowTable) -> bool:
    """Return whether a file of JSON is a single object of lists or mappings, such as columns by their names."""
    if table.columns is not None or len(table) != 1:
        return False
    (row,) = table.read(0, 1)
    return isinstance(row, dict) and all(isinstance(value, list | dict) for value in row.values())


class _Distinct(NamedTuple):
    """Which of n usable rows repeat another, found by hashes, because 10 GB of texts would not fit into memory."""

    first_answered: Int64  # place of the first row with the same question and answer [n]
    first_asked: Int64  # place of the first row with the same conversation, to the letter [n]

    @property
    def is_repeat(self) -> Bool:
        return self.first_answered < np.arange(len(self.first_answered))

    @property
    def is_contradiction(self) -> Bool:
        """Rows that ask the question of an earlier row and have another answer [n]."""
        return ~self.is_repeat & (self.first_asked < np.arange(len(self.first_asked)))


def _first_places(keys: UInt64) -> Int64:
    """Return for each key the place of the first one that is equal [n]."""
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return first[group]


def _judge_repeats(
    tables: Tables,
    rows: Int64,
    found: _Distinct,
    texts: UInt64,
    is_dropped: bool,
    path: str,
    where: str,
) -> None:
    """Raise DataError that counts the rows which repeat a question, or log them if the settings drop them."""
    places = np.flatnonzero(found.is_repeat)
    firsts = found.first_answered[places]
    num_near = int((texts[places] != texts[firsts]).sum())
    near = f", {num_near} of them but for blanks or case" if num_near else ""
    example = f"{tables.locate_row(int(rows[places[0]]))} repeats {tables.locate_row(int(rows[firsts[0]]))}"
    text = f"{path}: {len(rows) - len(places)} questions, and {len(places)} rows repeat one of them{near} ({example})"
    if not is_dropped:
        raise DataError(f"{text}. Set {where}.repeated_rows=drop to use each question once")
    log.info("%s: they are left out", text)


def _judge(
    tables: Tables,
    bad: Sequence[tuple[int, str]],
    allowed: int,
    path: str,
    where: str,
) -> None:
    """Raise DataError when too many rows of the data files are unusable, else warn about the rows that are left out."""
    first = sorted(bad)[:NUM_SHOWN]
    shown = "; ".join(f"{tables.locate_row(number)}: {reason}" for number, reason in first)
    if len(bad) > allowed:
        more = "; …" if len(bad) > NUM_SHOWN else ""
        more += f". {ONE_OBJECT}" if _is_one_object(tables.parts[0]) else ""
        raise DataError(
            f"{path} has rows that cannot be used, more than {where}.max_bad_rows={allowed}: {shown}{more}. "
            f"Fix these rows, or set a larger {where}.max_bad_rows"
        )
    if bad:
        log.warning("%s: %d rows are left out: %s", path, len(bad), shown)
