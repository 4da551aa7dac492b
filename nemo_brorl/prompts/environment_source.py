"""Questions that an environment answers over several turns: another source's, or tasks that it draws itself."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from brorl_graders.environments.protocol import Environment, Message, Task, as_messages, completed, value_of
from brorl_graders.environments.registry import make
from brorl_graders.verifiers.payload import ENVIRONMENT

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.core.errors import BroRLError, DataError
from nemo_brorl.prompts.levels import TaskLevel
from nemo_brorl.prompts.questions import Question, Source, hash_of, is_held_out, size_of_drawn

MAX_ATTEMPTS = 1000  # draws for one task of a split before the split counts as empty
SEEDS = 2**31
DRAWN = "environment"  # the source of tasks that the environment draws


class EnvironmentSource:
    """The questions of `source`, each the task of an episode, or, without one, tasks of the environment's own."""

    def __init__(
        self,
        config: SourceConfig,
        source: Source | None,
        held_out_fraction: float,
        split: str,
        seed: str,
    ) -> None:
        """Raises ConfigError for what is no environment, or one that has no tasks where it needs them."""
        assert config.environment is not None, "an environment was asked for"
        self.name = config.environment
        self.settings = dict(config.environment_settings)
        self.source = source
        self.held_out_fraction = held_out_fraction
        self.split = split
        self.seed = seed
        # Made and asked for a task once, so that what is wrong with it is said before anything starts.
        environment = make(self.name, self.settings)
        if config.source == DRAWN:
            environment.task(0)

    @property
    def size(self) -> int | None:
        """As the questions' source; tasks that are drawn have no end, or none are held out."""
        if self.source is not None:
            return self.source.size
        return size_of_drawn(self.split, self.held_out_fraction)

    @property
    def levels(self) -> Mapping[str, TaskLevel]:
        """As the questions' source."""
        return {} if self.source is None else self.source.levels

    @property
    def fingerprint(self) -> str:
        """As the questions' source."""
        return "" if self.source is None else self.source.fingerprint

    def question(self, index: int) -> Question:
        """Prompt and task of episode `index`. Raises DataError when the environment draws none of this split, or does
        not begin an episode with what the source gives."""
        if self.source is not None:
            return self.answered(self.source.question(index))
        for attempt in range(MAX_ATTEMPTS):
            seed = hash_of(f"{self.seed}/{self.split}/{index}/{attempt}") % SEEDS
            task = make(self.name, self.settings).task(seed)
            # The split is decided by the task, as that of a question by its text.
            written = repr(sorted(task.items()))
            if is_held_out(written, self.held_out_fraction) == (self.split == "held_out"):
                return self._question(self.name, task)
        raise DataError(
            f"environment {self.name} drew no {self.split} task in {MAX_ATTEMPTS} draws; it has too few different "
            f"tasks, or data.held_out_fraction={self.held_out_fraction} leaves none"
        )

    def answered(self, asked: Question) -> Question:
        """A question as the prompt and task of an episode. Raises DataError as `question`."""
        task = _task_of(asked)
        question = self._question(asked.task, task)
        return replace(question, level=asked.level)

    def _question(self, name: str, task: Task) -> Question:
        environment = make(self.name, self.settings)
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


def first_messages(name: str, environment: Environment, task: Task) -> tuple[Message, ...]:
    """What an episode begins with. Raises DataError when it does not begin."""
    try:
        begun = _begun(environment, task)
        if inspect.iscoroutinefunction(environment.reset):
            return asyncio.run(begun)
        return completed(begun)
    except BroRLError:
        raise
    # A user's own code, which may raise anything.
    except Exception as error:
        raise DataError(f"environment {name}: reset does not take its task: {type(error).__name__}: {error}") from error


async def _begun(environment: Environment, task: Task) -> tuple[Message, ...]:
    """The first messages. The episode is closed in the event loop that it began in, where there is one."""
    try:
        observation = await value_of(environment.reset(task, 0))
        return as_messages(observation, "user")
    finally:
        environment.close()


def _task_of(question: Question) -> Mapping[str, Any]:
    """A question as the task of an episode."""
    task: dict[str, Any] = {
        "text": question.text,
        "verifier": question.verifier,
        "payload": dict(question.payload),
    }
    if question.messages:
        task["messages"] = [dict(message) for message in question.messages]
    return task
