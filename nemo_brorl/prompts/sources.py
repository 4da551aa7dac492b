"""Questions, by index. Question i of a split is a function of (seed, i) alone, so a stream is resumed by its position.

Train and held-out questions are told apart by a hash of the question's text: they never share a question, whatever the
seed, the tasks' settings or the order of rows.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

from nemo_brorl.config.schema import DataConfig, TaskConfig
from nemo_brorl.errors import DataError

SPLITS = ("train", "held_out")
PAGE_SIZE = 256  # questions of one Reasoning Gym dataset object: a few tasks prepare all of theirs when they are made
MAX_ATTEMPTS = 2000  # draws for one question of a split before the split counts as empty


@dataclass(frozen=True)
class Question:
    """A question before tokenisation."""

    task: str
    verifier: str
    text: str
    payload: Mapping[str, Any]  # JSON-able


class Source(Protocol):
    """Questions of one split."""

    def question(self, index: int) -> Question:
        """Question `index` (0, 1, …, without end)."""


def make_source(config: DataConfig, split: str, seed: int) -> Source:
    """The configured source. Raises DataError when it is missing, empty, unknown or holds unusable rows."""
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
    if config.source == "reasoning_gym":
        return ReasoningGymSource(config.tasks, config.held_out_fraction, split, seed)
    if config.source == "jsonl":
        if config.path is None:
            raise DataError("data.source=jsonl needs a file: set data.path=FILE.jsonl")
        return JsonlSource(Path(config.path), config.held_out_fraction, split, seed)
    raise DataError(f"unknown data.source {config.source!r}; choose reasoning_gym or jsonl")


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a question belongs to the held-out split: decided by its text, so the same for every run."""
    return _hash(text) < fraction * 2**64


def check_tasks(tasks: Sequence[TaskConfig]) -> None:
    """Raise DataError unless every task exists, takes its settings and has a positive weight. Loads Reasoning Gym (under 1 s)."""
    if not tasks:
        raise DataError("data.tasks is empty; list at least one Reasoning Gym task, for example data.tasks=[{name: chain_sum}]")
    for task in tasks:
        if task.weight <= 0:
            raise DataError(f"data.tasks: {task.name} has weight {task.weight}; a weight is above 0 (leave the task out to drop it)")
        _make_dataset(task, seed=0)


class ReasoningGymSource:
    """A weighted mixture of procedurally generated tasks."""

    def __init__(self, tasks: Sequence[TaskConfig], held_out_fraction: float, split: str, seed: int) -> None:
        check_tasks(tasks)
        self.tasks = list(tasks)
        self.held_out_fraction = held_out_fraction
        self.split = split
        self.seed = seed
        self._pages: dict[tuple[int, int], tuple[int, Any]] = {}  # (task, attempt) -> (page, dataset): the pages in use

    def question(self, index: int) -> Question:
        """Question `index`. Raises DataError when its task has no question in this split."""
        number = Random(_hash(f"{self.seed}/{self.split}/{index}")).choices(
            range(len(self.tasks)), weights=[task.weight for task in self.tasks]
        )[0]
        task = self.tasks[number]
        for attempt in range(MAX_ATTEMPTS):
            entry = self._entry(number, attempt, index)
            if is_held_out(entry["question"], self.held_out_fraction) == (self.split == "held_out"):
                return _as_question(task, entry)
        raise DataError(
            f"task {task.name} gave no {self.split} question in {MAX_ATTEMPTS} draws; its settings allow too few different questions "
            f"or data.held_out_fraction={self.held_out_fraction} leaves none"
        )

    def _entry(self, number: int, attempt: int, index: int) -> dict[str, Any]:
        page = index // PAGE_SIZE
        cached = self._pages.get((number, attempt))
        if cached is None or cached[0] != page:
            # The split is not part of the seed, but a question can pass for one split only.
            seed = _hash(f"{self.seed}/{number}/{attempt}/{page}") % 2**31
            cached = (page, _make_dataset(self.tasks[number], seed))
            self._pages[number, attempt] = cached
        return cached[1][index % PAGE_SIZE]


@dataclass
class JsonlSource:
    """Rows of a file, shuffled anew each epoch.

    A row: `prompt` and `answer` (text), optionally `task` (default `jsonl`), `verifier` (default `exact_match`) and
    `metadata`. When no row falls into the held-out split by chance, the row with the smallest hash is held out.
    Raises DataError naming file and line for a bad row, or when a split is empty.
    """

    path: Path
    held_out_fraction: float
    split: str
    seed: int
    rows: list[Question] = field(init=False)

    def __post_init__(self) -> None:
        everything = _read_rows(self.path)
        held_out = {row.text for row in everything if is_held_out(row.text, self.held_out_fraction)}
        if not held_out and self.held_out_fraction > 0:
            held_out = {min((row.text for row in everything), key=_hash)}
        self.rows = [row for row in everything if (row.text in held_out) == (self.split == "held_out")]
        if not self.rows:
            raise DataError(
                f"{self.path} has no {self.split} rows: {len(everything)} rows in all, data.held_out_fraction={self.held_out_fraction}"
            )
        self._order: tuple[int, list[int]] = (-1, [])

    def question(self, index: int) -> Question:
        """Row `index` of the endless sequence of shuffled epochs."""
        epoch, position = divmod(index, len(self.rows))
        if self._order[0] != epoch:
            order = list(range(len(self.rows)))
            Random(_hash(f"{self.seed}/{self.split}/{epoch}")).shuffle(order)
            self._order = (epoch, order)
        return self.rows[self._order[1][position]]


def _make_dataset(task: TaskConfig, seed: int) -> Any:
    """One page of a task. Raises DataError for an unknown task (with close names) or settings it does not take."""
    from reasoning_gym.factory import DATASETS, create_dataset

    if task.name not in DATASETS:
        close = difflib.get_close_matches(task.name, DATASETS, n=4, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else f"the known tasks are {', '.join(sorted(DATASETS))}"
        raise DataError(f"unknown Reasoning Gym task {task.name!r}; {hint}")
    try:
        return create_dataset(task.name, **task.config, seed=seed, size=PAGE_SIZE)
    except (TypeError, ValueError, AssertionError) as error:
        allowed = ", ".join(name for name in DATASETS[task.name][1].__dataclass_fields__ if name not in ("seed", "size"))
        raise DataError(f"task {task.name} does not take config {dict(task.config)}: {error}; its settings are {allowed}") from error


def _as_question(task: TaskConfig, entry: Mapping[str, Any]) -> Question:
    """The verifier gets the entry and the task's settings: some tasks score by them."""
    fields = {key: entry[key] for key in ("question", "answer", "metadata")}
    payload = json.loads(json.dumps({"dataset": task.name, "config": task.config, **fields}, default=str))
    return Question(task=task.name, verifier="reasoning_gym", text=entry["question"], payload=payload)


def _read_rows(path: Path) -> list[Question]:
    if not path.is_file():
        raise DataError(f"data.path={str(path)!r} is not a file")
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [_parse_row(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise DataError(f"{path} is empty; write one JSON object a line with 'prompt' and 'answer'")
    return rows


def _parse_row(line: str, where: str) -> Question:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: a row is a JSON object with 'prompt' and 'answer', not {type(row).__name__}")
    for key, default in (("prompt", None), ("answer", None), ("task", "jsonl"), ("verifier", "exact_match")):
        value = row.setdefault(key, default)
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}: '{key}' is {value!r}; write a non-empty text")
    payload = {"question": row["prompt"], "answer": row["answer"], "metadata": row.get("metadata", {})}
    return Question(task=row["task"], verifier=row["verifier"], text=row["prompt"], payload=payload)


def _hash(text: str) -> int:
    """64 bits that do not change between processes (Python's own hash does)."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "big")
