"""Questions from files: read once to see that they can be used and which split each belongs to, then row by row as they
are asked for."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemo_brorl.config.schema import SourceConfig
from nemo_brorl.core.errors import DataError
from nemo_brorl.core.logs import get_logger
from nemo_brorl.tasks.questions.columns import RowFormat, is_wanted, question_of
from nemo_brorl.tasks.questions.jsonl import JsonlTable
from nemo_brorl.tasks.questions.paths import column_of
from nemo_brorl.tasks.questions.permutation import permuted
from nemo_brorl.tasks.questions.presets import row_formats
from nemo_brorl.tasks.questions.questions import Question, hash_of
from nemo_brorl.tasks.questions.row_index import RowIndex, load_index, save_index
from nemo_brorl.tasks.questions.rows import BadRow
from nemo_brorl.tasks.questions.tables import Tables, find_files, open_tables
from nemo_brorl.tasks.verifiers.registry import check_name
from nemo_brorl.types import Int64, UInt64

log = get_logger(__name__)

NUM_SHOWN = 5  # bad rows written out in a message


@dataclass(frozen=True)
class QuestionFile:
    """Files whose rows have been looked through once."""

    tables: Tables
    formats: tuple[RowFormat, ...]
    task: str  # of rows that name none
    options: Mapping[str, Any]
    rows: Int64  # [usable rows] their numbers, ascending
    hashes: UInt64  # [usable rows] of their texts

    def question(self, row: int) -> Question:
        """The question in row `row`, which `rows` holds."""
        found = self.tables.row(row)
        question = found if isinstance(found, BadRow) else question_of(found, self.formats, self.task, self.options)
        if isinstance(question, BadRow):
            raise DataError(
                f"{self.tables.where(row)}: {question.reason}; it was usable at the start: was the file changed "
                f"meanwhile?"
            )
        return question

    def held_out(self, fraction: float) -> NDArray[np.bool_]:
        """[usable rows] Whether a row is held out: by the hash of its text; where that takes none, the one with the
        smallest."""
        chosen = self.hashes < np.uint64(min(fraction * 2**64, 2**64 - 1))
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
        digest = hashlib.blake2b(self.file.hashes.tobytes(), digest_size=8)
        digest.update(self.rows.tobytes())
        return digest.hexdigest()

    def question(self, index: int) -> Question:
        """Row `index` of the endless sequence of shuffled epochs."""
        epoch, position = divmod(index, self.size)
        return self.file.question(int(self.rows[permuted(position, self.size, hash_of(f"{self.seed}/{epoch}"))]))


def open_questions(config: SourceConfig, path: str, task: str, index: Path | None = None) -> QuestionFile:
    """Look through every row of `path`, unless that has been done and is kept in the file `index`. Raises DataError
    when it is missing, has the wrong columns, or more rows that cannot be used than `max_bad_rows`; ConfigError when
    its verifier is not known."""
    formats = row_formats(config)
    for layout in formats:
        check_name(layout.verifier)
    selected = {column_of(where) for where in config.only}
    files = find_files(config.source, path, config.dataset_split)
    columns = sorted(selected.union(*(layout.columns for layout in formats)))
    if index is not None and (kept_index := load_index(index)) is not None:
        log.info(
            "%s: %d questions, %d rows left out, as found earlier", path, len(kept_index.rows), kept_index.num_left_out
        )
        tables = open_tables(files, columns, kept_index.spans)
        return QuestionFile(tables, formats, task, config.verifier_options, kept_index.rows, kept_index.hashes)
    tables = open_tables(files, columns)
    _check_columns(tables, [layout.required_columns | selected for layout in formats])
    rows, hashes, bad = _scanned(tables, formats, task, config)
    kept, repeated = _without_repeats(rows, hashes)
    bad.extend(
        (int(row), f"the same question as {tables.where(int(first))}")
        for row, first in repeated[: config.max_bad_rows + NUM_SHOWN]
    )
    _judge(tables, bad, config.max_bad_rows, path)
    if not len(kept):
        raise DataError(f"{path} is empty: none of its {len(tables)} rows can be used")
    log.info("%s: %d questions, %d rows left out", path, len(kept), len(bad))
    if index is not None:
        spans = {str(part.path): part.spans for part in tables.parts if isinstance(part, JsonlTable)}
        save_index(index, RowIndex(rows[kept], hashes[kept], spans, len(bad)))
    return QuestionFile(tables, formats, task, config.verifier_options, rows[kept], hashes[kept])


def _scanned(
    tables: Tables, formats: Sequence[RowFormat], task: str, config: SourceConfig
) -> tuple[Int64, UInt64, list[tuple[int, str]]]:
    """(numbers of usable rows, hashes of their texts, bad rows with what is wrong with them)."""
    rows, hashes, bad = array("q"), array("Q"), []
    for number, row in tables.scan():
        if not isinstance(row, BadRow) and not is_wanted(row, config.only):
            continue
        question = row if isinstance(row, BadRow) else question_of(row, formats, task, config.verifier_options)
        if isinstance(question, Question):
            rows.append(number)
            hashes.append(hash_of(question.text))
            continue
        bad.append((number, question.reason))
        if len(bad) >= config.max_bad_rows + NUM_SHOWN:  # enough to tell
            break
    return np.array(rows, np.int64), np.array(hashes, np.uint64), bad


def _check_columns(tables: Tables, required: Sequence[set[str]]) -> None:
    """Raise DataError when a file lacks a column, with those that are there. JSON lines are judged by their first
    object."""
    for part in tables.parts:
        first = part.read(0, 1)[0] if len(part) else None
        there = list(first) if part.columns is None and isinstance(first, dict) else part.columns
        if there is None:
            continue  # an empty file, or one whose first line is bad: the scan will say so
        lacking = min((sorted(columns - set(there)) for columns in required), key=len)
        if lacking:
            raise DataError(
                f"{part.path} has no column {', '.join(lacking)}; it has {', '.join(there)}. Say which is which with "
                f"data.columns, "
                "for example data.columns.prompt=question, or choose another data.preset"
            )


def _without_repeats(rows: Int64, hashes: UInt64) -> tuple[Int64, list[tuple[int, int]]]:
    """(positions of the first row of each text, ascending; (row, first row with its text) of the others)."""
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    is_first = np.zeros(len(rows), bool)
    is_first[first] = True
    others = np.flatnonzero(~is_first)
    return np.flatnonzero(is_first), list(
        zip(rows[others].tolist(), rows[first[inverse[others]]].tolist(), strict=True)
    )


def _judge(tables: Tables, bad: Sequence[tuple[int, str]], allowed: int, path: str) -> None:
    """Raise DataError when too many rows are bad; warn about those that are left out."""
    shown = "; ".join(f"{tables.where(number)}: {reason}" for number, reason in sorted(bad)[:NUM_SHOWN])
    if len(bad) > allowed:
        more = "; …" if len(bad) > NUM_SHOWN else ""
        raise DataError(f"{path} has rows that cannot be used, more than data.max_bad_rows={allowed}: {shown}{more}")
    if bad:
        log.warning("%s: %d rows are left out: %s", path, len(bad), shown)
