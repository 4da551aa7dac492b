"""Draw questions of Reasoning Gym tasks, mixed by weight.

A task's settings can change with the position in the stream (stages) or with success (levels).
"""

from __future__ import annotations

import bisect
import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from brorl_graders import check_name, check_payload
from brorl_graders.base.foreign import DIGITS, read_json

from nemo_brorl.config.data import SourceConfig, TaskConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.levels import TaskLevel
from nemo_brorl.prompts.questions import Question, hash_of, is_held_out, size_of_drawn

log = get_logger(__name__)

PAGE_SIZE = 256  # questions of one Reasoning Gym dataset object, because a few tasks prepare all of theirs at creation
MAX_ATTEMPTS = 2000  # draws for one question of a split before the split counts as empty
ALL_TASKS = "*"
VERIFIER = "reasoning_gym"

# Tasks that iterate over sets of texts. Their questions depend on Python's hash seed, which differs between processes.
HASH_ORDERED = ("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note")

# Tasks that "*" leaves out, with the reason.
NOT_IN_ALL_TASKS: dict[str, str] = {
    "composite": "a mixture of other tasks, which data.tasks is itself",
    "codeio": "it runs programs that come with it, in this process; some draw from Python's global random, so no two "
    "runs ask the same",
}


class _Page(NamedTuple):
    """`PAGE_SIZE` consecutive questions of a Reasoning Gym task."""

    number: int
    dataset: Any


class ReasoningGymSource:
    """A source of questions: a weighted mixture of Reasoning Gym's generated tasks."""

    fingerprint = ""

    def __init__(
        self,
        tasks: Sequence[TaskConfig],
        held_out_fraction: float,
        split: str,
        seed: int | str,
        *,
        verifier: str = VERIFIER,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a source of questions of Reasoning Gym tasks, and check the settings of the tasks.

        `options` are added to the verifier's payload of every question. Raises DataError for unusable tasks, and
        ConfigError for an unknown verifier.
        """
        check_name(verifier)
        self.tasks = expanded(tasks)
        check_tasks(self.tasks)
        _warn_of_unrepeatable(self.tasks)
        self.levels: dict[str, TaskLevel] = {}  # levels by task, for tasks that have some
        for task in self.tasks:
            if task.levels:
                self.levels[task.name] = TaskLevel(task)
        self.held_out_fraction = held_out_fraction
        self.split = split
        self.seed = seed
        self.verifier = verifier
        self.options = dict(options or {})
        self._pages: dict[tuple[int, int, int], _Page] = {}  # pages in use, by (task, stage, attempt)

    @property
    def size(self) -> int | None:
        """Number of Reasoning Gym questions: None (generated without end), or 0 for an empty held-out split."""
        return size_of_drawn(self.split, self.held_out_fraction)

    def change_since(self, earlier: str) -> str:
        return "" if earlier == self.fingerprint else "other questions"

    def question(self, index: int) -> Question:
        """Return question `index` of a weighted mixture of Reasoning Gym tasks.

        Raises DataError when the drawn task has no question in this split.
        """
        random = Random(hash_of(f"{self.seed}/{self.split}/{index}"))
        numbers = range(len(self.tasks))
        weights = [task.weight for task in self.tasks]
        (number,) = random.choices(numbers, weights=weights)
        task = self.tasks[number]
        stage = self._stage(task, index)
        # Draws until a question belongs to this split, so that train and held-out never share a question.
        for attempt in range(MAX_ATTEMPTS):
            entry = self._entry(number, stage, attempt, index)
            is_entry_held_out = is_held_out(entry["question"], self.held_out_fraction)
            if is_entry_held_out == (self.split == "held_out"):
                settings = stage_config(task, stage)
                level = stage if task.levels else None
                return self._as_question(task.name, settings, entry, level)
        raise DataError(
            f"task {task.name} gave no {self.split} question in {MAX_ATTEMPTS} draws; "
            f"its settings allow too few different questions "
            f"or data.held_out_fraction={self.held_out_fraction} leaves none"
        )

    def _stage(
        self,
        task: TaskConfig,
        index: int,
    ) -> int:
        """Return which of a Reasoning Gym task's settings apply to question `index`.

        0 means the settings before the first curriculum stage, or on the first difficulty level. Held-out
        questions cycle through all settings, so that validations of a run are comparable.
        """
        if self.split == "held_out":
            return index % num_stages(task)
        if task.levels:
            return self.levels[task.name].reached
        beginnings = [stage.from_question for stage in task.stages]
        return bisect.bisect_right(beginnings, index)

    def _entry(
        self,
        number: int,
        stage: int,
        attempt: int,
        index: int,
    ) -> dict[str, Any]:
        page, place = divmod(index, PAGE_SIZE)
        in_use = self._pages.get((number, stage, attempt))
        if in_use is None or in_use.number != page:
            task = self.tasks[number]
            # The split is not part of the seed, but a question can pass for one split only.
            seed = hash_of(f"{self.seed}/{number}/{attempt}/{page}") % 2**31
            settings = stage_config(task, stage)
            dataset = _make_dataset(task.name, settings, seed)
            in_use = _Page(page, dataset)
            self._pages[number, stage, attempt] = in_use
        entry: dict[str, Any] = in_use.dataset[place]
        return entry

    def _as_question(
        self,
        name: str,
        config: Mapping[str, Any],
        entry: Mapping[str, Any],
        level: int | None,
    ) -> Question:
        """Return an entry of a Reasoning Gym task as a question.

        The verifier's payload includes the task's settings, because some tasks score by them.
        """
        asked = {"dataset": name, "config": config}
        for key in ("question", "answer", "metadata"):
            asked[key] = entry[key]
        # Metadata may hold values that JSON cannot represent. They are sent as text.
        as_json = json.dumps(asked, default=str)
        return Question(
            task=name,
            verifier=self.verifier,
            text=entry["question"],
            payload={**self.options, **read_json(as_json, digits=DIGITS, most_bytes=len(as_json))},
            level=level,
        )


def open_tasks(config: SourceConfig, held_out_fraction: float, split: str, seed: str) -> ReasoningGymSource:
    """Return a source of questions that draws them from the configured Reasoning Gym tasks.

    Raises DataError for unknown tasks and for options that the verifier does not take, and ConfigError for an unknown
    verifier.
    """
    verifier = config.verifier or VERIFIER
    source = ReasoningGymSource(
        config.tasks,
        held_out_fraction,
        split,
        seed,
        verifier=verifier,
        options=config.verifier_options,
    )
    if config.verifier_options and source.size != 0:
        check_payload(verifier, source.question(0).payload)
    return source


def num_stages(task: TaskConfig) -> int:
    """Return how many different settings a Reasoning Gym task goes through during training.

    They are those of its difficulty levels, or those of its curriculum stages and the settings before the first stage.
    """
    return len(task.levels) or len(task.stages) + 1


def stage_config(task: TaskConfig, stage: int) -> dict[str, Any]:
    """Return a Reasoning Gym task's settings at a curriculum stage (0: before the first), or on a difficulty level."""
    if task.levels:
        return {**task.config, **task.levels[stage]}
    if stage == 0:
        return dict(task.config)
    changes = task.stages[stage - 1]
    return {**task.config, **changes.config}


def expanded(tasks: Sequence[TaskConfig]) -> list[TaskConfig]:
    """Return Reasoning Gym tasks with "*" replaced by every task of the installed version that is not listed.

    The tasks that replace "*" share its weight equally.
    """
    if all(task.name != ALL_TASKS for task in tasks):
        return list(tasks)
    from reasoning_gym.factory import DATASETS

    named = [task.name for task in tasks]
    others = set(DATASETS)
    others.difference_update(named, NOT_IN_ALL_TASKS)
    all_tasks: list[TaskConfig] = []
    for task in tasks:
        names = sorted(others) if task.name == ALL_TASKS else [task.name]
        weight = task.weight / len(names)
        for name in names:
            one = replace(task, name=name, weight=weight)
            all_tasks.append(one)
    return all_tasks


def check_tasks(tasks: Sequence[TaskConfig]) -> None:
    """Raise DataError unless every Reasoning Gym task exists, accepts its settings and has a positive weight.

    The settings are checked at every curriculum stage or difficulty level. Loads Reasoning Gym.
    """
    if not tasks:
        raise DataError(
            "data.tasks is empty; list at least one Reasoning Gym task, for example data.tasks=[{name: chain_sum}]"
        )
    for task in tasks:
        if task.weight <= 0:
            raise DataError(
                f"data.tasks: {task.name} has weight {task.weight}; a weight is above 0 (leave the task out to drop it)"
            )
        for stage in range(num_stages(task)):
            settings = stage_config(task, stage)
            _make_dataset(task.name, settings, seed=0, size=1)


def _warn_of_unrepeatable(tasks: Sequence[TaskConfig]) -> None:
    names = {task.name for task in tasks}
    found = names.intersection(HASH_ORDERED)
    is_order_random = os.environ.get("PYTHONHASHSEED", "random") == "random"
    if found and is_order_random:
        log.warning(
            "each start draws other questions of %s: set PYTHONHASHSEED=0 to repeat them",
            ", ".join(sorted(found)),
        )
    if "codeio" in names:
        log.warning("each start draws other questions of codeio: %s", NOT_IN_ALL_TASKS["codeio"])


def _make_dataset(
    name: str,
    config: Mapping[str, Any],
    seed: int,
    size: int = PAGE_SIZE,
) -> Any:
    """Return a Reasoning Gym dataset of `size` questions of one task.

    Raises DataError for an unknown task, with close names, and for settings that the task does not take.
    """
    from reasoning_gym.factory import DATASETS, create_dataset

    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=4, cutoff=0.5)
        hint = f"the known tasks are {', '.join(sorted(DATASETS))}"
        if close:
            hint = f"did you mean {', '.join(close)}?"
        raise DataError(f"unknown Reasoning Gym task {name!r}; {hint}")
    if name == "composite":
        raise DataError("task 'composite' mixes other tasks; list those in data.tasks, each with its weight")
    try:
        return create_dataset(name, **config, seed=seed, size=size)
    except (TypeError, ValueError, AssertionError) as error:
        _, settings = DATASETS[name]
        allowed = [field for field in settings.__dataclass_fields__ if field not in ("seed", "size")]
        raise DataError(
            f"task {name} does not take config {dict(config)}: {error}; its settings are {', '.join(allowed)}"
        ) from error
