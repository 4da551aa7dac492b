"""Turn questions of another source, or tasks that an environment draws itself, into the starts of episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from brorl_graders import ENVIRONMENT, Environment, first_messages, make_environment

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.levels import TaskLevel
from nemo_brorl.prompts.questions import Question, Source, hash_of, is_held_out, size_of_drawn

MAX_ATTEMPTS = 1000  # draws for one task of a split before the split counts as empty
SEEDS = 2**31
DRAWN = "environment"  # name of the source whose tasks the environment draws


class Episodes:
    """Factory that turns questions into the starts of an environment's episodes."""

    def __init__(self, config: SourceConfig) -> None:
        """Check an environment's settings by creating the environment once. Raises ConfigError for wrong settings."""
        assert config.environment is not None, "an environment was asked for"
        self.name = config.environment
        self.settings = dict(config.environment_settings)
        # Created once here, so that errors are reported before anything starts.
        self.environment()

    def environment(self) -> Environment:
        """Return a new instance of the environment, for one episode."""
        return make_environment(self.name, self.settings)

    def answering(self, question: Question) -> Question:
        """Turn a question of a data source into the start of an environment's episode.

        Raises DataError when the environment does not accept the question.
        """
        start = self.beginning(question.task, _task_of(question))
        return replace(start, level=question.level)

    def beginning(self, name: str, task: Mapping[str, Any]) -> Question:
        """Return the question with which an environment's episode of `task` starts.

        `name` is the task's name in metrics. Raises DataError when the environment starts no episode with this task.
        """
        environment = self.environment()
        messages = first_messages(self.name, environment, task)
        payload = {
            "environment": self.name,
            "settings": self.settings,
            "task": dict(task),
        }
        return Question(
            task=name,
            verifier=ENVIRONMENT,
            text=messages[-1]["content"],
            payload=payload,
            messages=messages,
            tools=tuple(map(dict, environment.tools)),
        )


class AnsweredSource:
    """The questions of another source, each as the task of an environment's episode."""

    def __init__(self, episodes: Episodes, source: Source) -> None:
        self.episodes = episodes
        self.source = source

    @property
    def size(self) -> int | None:
        """Number of questions in one epoch of a data source that start an environment's episodes. None: endless."""
        return self.source.size

    @property
    def levels(self) -> Mapping[str, TaskLevel]:
        """Difficulty levels of the tasks of a data source whose questions start an environment's episodes."""
        return self.source.levels

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the questions of a data source that start an environment's episodes."""
        return self.source.fingerprint

    def change_since(self, earlier: str) -> str:
        return self.source.change_since(earlier)

    def question(self, index: int) -> Question:
        """Return question `index` of a data source as the start of an environment's episode.

        Raises DataError when the environment starts no episode with this question.
        """
        return self.episodes.answering(self.source.question(index))


class DrawnSource:
    """A source of tasks that an environment draws itself."""

    fingerprint = ""
    levels: Mapping[str, TaskLevel] = {}

    def __init__(self, episodes: Episodes, held_out_fraction: float, split: str, seed: str) -> None:
        """Check that an environment can draw its own tasks. Raises ConfigError if it cannot."""
        self.episodes = episodes
        self.held_out_fraction = held_out_fraction
        self.split = split
        self.seed = seed
        episodes.environment().task(0)

    @property
    def size(self) -> int | None:
        """Number of tasks that an environment draws: None (endless), or 0 for a held-out split without tasks."""
        return size_of_drawn(self.split, self.held_out_fraction)

    def change_since(self, earlier: str) -> str:
        return "" if earlier == self.fingerprint else "other questions"

    def question(self, index: int) -> Question:
        """Return the start of an episode whose task an environment draws by seed and `index`.

        Raises DataError when the environment draws no task of this split.
        """
        episodes = self.episodes
        for attempt in range(MAX_ATTEMPTS):
            seed = hash_of(f"{self.seed}/{self.split}/{index}/{attempt}") % SEEDS
            task = episodes.environment().task(seed)
            # The task decides the split, as a question's text does.
            written = repr(sorted(task.items()))
            if is_held_out(written, self.held_out_fraction) == (self.split == "held_out"):
                return episodes.beginning(episodes.name, task)
        raise DataError(
            f"environment {episodes.name} drew no {self.split} task in {MAX_ATTEMPTS} draws; it has too few different "
            f"tasks, or data.held_out_fraction={self.held_out_fraction} leaves none"
        )


def _task_of(question: Question) -> Mapping[str, Any]:
    task: dict[str, Any] = {
        "text": question.text,
        "verifier": question.verifier,
        "payload": dict(question.payload),
    }
    if question.messages:
        task["messages"] = [dict(message) for message in question.messages]
    return task
