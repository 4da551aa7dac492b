"""A few questions of a source without reading all of it: first rows of its files, or some of each generated task."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from nemo_brorl.config.schema import SourceConfig
from nemo_brorl.tasks.questions.columns import RowFormat, is_wanted, question_of, row_formats
from nemo_brorl.tasks.questions.file_tables import find_files
from nemo_brorl.tasks.questions.questions import BadRow, Question, Row

FIRST_ROWS = 20


def first_rows(file: Path, formats: tuple[RowFormat, ...]) -> list[Row]:
    """At most FIRST_ROWS rows of a file."""
    from nemo_brorl.tasks.questions.file_tables import open_tables

    if file.suffix in (".parquet", ".arrow"):
        columns: set[str] = set()
        for layout in formats:
            columns.update(layout.columns)
        tables = open_tables([file], sorted(columns))
        num_rows = min(FIRST_ROWS, len(tables))
        return [tables.row(index) for index in range(num_rows)]
    with file.open("rb") as lines:
        not_empty = filter(bytes.strip, lines)
        return [_row(line) for line in islice(not_empty, FIRST_ROWS)]


def some_questions(
    source: SourceConfig,
    num: int,
    budget_s: float,
) -> Iterator[list[Question]]:
    """At most `num` questions of each Reasoning Gym task, until `budget_s` seconds have been spent on making them, or
    the first ones of a file. Raises DataError as the source does."""
    if source.source == "environment":
        return
    if source.source != "reasoning_gym":
        yield _of_files(source)
        return
    from nemo_brorl.tasks.questions.reasoning_gym import ReasoningGymSource, expanded

    spent_s = 0.0
    for task in expanded(source.tasks):
        if spent_s > budget_s:
            return
        start = time.monotonic()
        tasks = ReasoningGymSource(
            [task],
            held_out_fraction=0.0,
            split="train",
            seed=0,
            verifier=source.verifier or "reasoning_gym",
            options=source.verifier_options,
        )
        questions = [tasks.question(index) for index in range(num)]
        spent_s += time.monotonic() - start
        yield questions


def _of_files(source: SourceConfig) -> list[Question]:
    assert source.path is not None, "the settings were checked"
    formats = row_formats(source)
    files = find_files(source.source, source.path, source.dataset_split)
    found = []
    for row in first_rows(files[0], formats):
        if isinstance(row, BadRow) or not is_wanted(row, source.only):
            continue
        question = question_of(row, formats, "", source.verifier_options)
        if not isinstance(question, BadRow):
            found.append(question)
    return found


def _row(line: bytes) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        return BadRow(f"no JSON ({error})")
    return row if isinstance(row, dict) else BadRow(f"a {type(row).__name__}, not an object")
