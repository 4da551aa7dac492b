"""What an environment is, in Gymnasium's terms (arXiv 2407.17032): `reset` begins an episode, `step` answers an action;
and what the judging of turns sees of episodes: a step, its outcome, and who keeps the instances.

An action is a turn of the model, an observation what it is told then. Episodes must be a function of their task, seed
and actions: one whose process was lost is made anew by repeating its actions.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from brorl_graders.base.errors import ConfigError

Message = Mapping[str, Any]  # role and content
Observation = str | Sequence[Message]  # a text is what the user says, or the tool that was called
Task = Mapping[str, Any]  # JSON-able; all that an episode needs to know of its question
Value = TypeVar("Value")

# Which episodes may share a process.
ANY = "any"
SAME_TASK = "same task"  # where responses may take the process over, as they do a library's scorer
ALONE = "alone"
ISOLATIONS = (ANY, SAME_TASK, ALONE)


@dataclass(frozen=True)
class ToolCall:
    """A call of one of the environment's tools; its arguments fit the tool's schema."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Action:
    """One turn of the model."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_error: str = ""  # what is wrong with its calls; only agents see such an action
    size: TurnSize | None = None  # None: not known


@dataclass(frozen=True)
class Step:
    """What an action leads to."""

    observation: Observation = ""  # not read where the episode has ended
    reward: float = 0.0
    terminated: bool = False  # the task came to its end
    truncated: bool = False  # it is broken off
    info: Mapping[str, Any] = field(default_factory=dict)  # JSON-able


class Traits(NamedTuple):
    """Which processes may hold an episode."""

    is_open: bool
    is_async: bool
    isolation: str


class Environment(ABC):
    """Base of environments. The keyword arguments of the constructor, annotated, are its settings.

    `reset` and `step` may both be `async def`: then many episodes of a process run at once.
    """

    tools: Sequence[Mapping[str, Any]] = ()  # each {"type": "function", "function": {name, description, parameters}}
    max_turns: int = 8  # then the episode is truncated
    is_open: bool = False  # may use files, the network and other processes; the class says so, not its settings
    isolation: str = ANY
    is_agent: bool = False  # names its tools with its first observation, and deals with wrong calls itself

    @classmethod
    def traits(cls, task: Task) -> Traits:
        """What the owner of processes must know. Episodes live in copies of the process in which this is called: what
        such tasks need is best imported here."""
        is_async = inspect.iscoroutinefunction(cls.step)
        return Traits(cls.is_open, is_async, cls.isolation)

    def task(self, seed: int) -> Task:
        """A task of the environment's own, drawn with the seed, for `data.source=environment`. Raises ConfigError where
        it has none."""
        name = type(self).__name__
        raise ConfigError(f"{name} draws no tasks of its own: write a data.source that has questions for it")

    @abstractmethod
    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin an episode: the prompt, which depends on the task alone. Resources are taken when a step needs them:
        prompts are made by this method, too."""

    @abstractmethod
    def step(self, action: Action) -> Step | Awaitable[Step]:
        """Answer an action. What it raises ends the episode with reward 0."""

    def close(self) -> None:
        """Give back what the episode holds."""
        return


def failed_outcome(reason: str) -> EpisodeOutcome:
    """Of an episode whose environment failed."""
    return EpisodeOutcome((), 0.0, True, False, {}, reason)


def to_messages(observation: Observation, role: str) -> tuple[Message, ...]:
    """An observation as messages; a text is one of this role. Raises TypeError for what is none."""
    if isinstance(observation, str):
        return ({"role": role, "content": observation},)
    messages = tuple(observation)
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, str) or not isinstance(message.get("role"), str):
            raise TypeError(f"an observation is a text or messages with role and content, not {message!r:.200}")
    return messages


async def resolve(given: Any) -> Any:
    """What a method returns, whether it is `async def` or not."""
    return await given if inspect.isawaitable(given) else given


def run_without_waiting(work: Coroutine[Any, Any, Value]) -> Value:
    """Result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        value: Value = end.value
        return value
    raise RuntimeError("a synchronous environment waits for something")


class TurnSize(NamedTuple):
    """Tokens of a turn."""

    num_prompt: int  # all before it
    num_sampled: int
    is_cut: bool  # by a limit: the model had not come to its end


class EpisodeStep(NamedTuple):
    """One more turn of an episode."""

    episode: str  # name of the trajectory, the same at every turn
    environment: str
    settings: Mapping[str, Any]
    task: Mapping[str, Any]
    seed: int
    actions: tuple[str, ...]  # texts of all turns so far; the last one is new
    sizes: tuple[TurnSize | None, ...] = ()  # of these; empty: not known


class EpisodeOutcome(NamedTuple):
    """What the environment makes of it."""

    observation: tuple[Mapping[str, Any], ...]  # messages; none when it has ended
    reward: float
    has_ended: bool
    truncated: bool
    info: Mapping[str, Any]  # `tool_error`: the turn called a tool wrongly
    error: str  # why the environment failed; "" if it did not
