"""The interface of an environment, in Gymnasium's terms (arXiv 2407.17032), and the records of its episodes.

`reset` starts an episode and `step` answers an action. An action is one turn of the model, and an observation is what
the model receives next. An episode must be a function of its task, seed and actions. When its process is lost, a new
process repeats the actions.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from brorl_graders.base.errors import ConfigError

Message = Mapping[str, Any]  # a chat message with role and content
Observation = str | Sequence[Message]  # a text is a message of the user or the called tool
Task = Mapping[str, Any]  # JSON data with all that an episode needs
Value = TypeVar("Value")

# Which episodes may share a process.
ANY = "any"
SAME_TASK = "same task"  # only episodes of one task, where a hostile response could take the process over
ALONE = "alone"
ISOLATIONS = (ANY, SAME_TASK, ALONE)


@dataclass(frozen=True)
class ToolCall:
    """A call of one of the environment's tools, with arguments that fit the tool's schema."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Action:
    """One turn of the model, with the tool calls in it."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_error: str = ""  # error in the tool calls; only agents get such an action
    size: TurnSize | None = None  # token counts; None: unknown


@dataclass(frozen=True)
class Step:
    """An environment's answer to an action: the next observation, a reward, and whether the episode has ended."""

    observation: Observation = ""  # unused when the episode has ended
    reward: float = 0.0
    terminated: bool = False  # the task is finished
    truncated: bool = False  # the episode stops before its task is finished
    info: Mapping[str, Any] = field(default_factory=dict)  # JSON data


class Traits(NamedTuple):
    """Properties of an environment that decide which process may run its episodes."""

    is_open: bool
    is_async: bool
    isolation: str


class Environment(ABC):
    """Base class of environments, which answer a model turn by turn.

    The annotated keyword arguments of the constructor are the environment's settings. `reset` and `step` may both be
    `async def`. Then many episodes of a process run concurrently.
    """

    tools: Sequence[Mapping[str, Any]] = ()  # entries {"type": "function", "function": {name, description, parameters}}
    max_turns: int = 8  # largest number of turns; then the episode is truncated
    is_open: bool = False  # may use files, the network and other processes; set it in the class
    isolation: str = ANY  # which episodes share a process: ANY, SAME_TASK or ALONE
    is_agent: bool = False  # sends its tools with the first observation, and handles wrong calls

    @classmethod
    def traits(cls, task: Task) -> Traits:
        """Return the properties that decide which process may run an episode of this task.

        Import here what such tasks need. Episodes run in forks of the process that calls this method, and share the
        imports.
        """
        is_async = inspect.iscoroutinefunction(cls.step)
        return Traits(cls.is_open, is_async, cls.isolation)

    def task(self, seed: int) -> Task:
        """Return a task of the environment, drawn with the seed, for `data.source=environment`.

        Raises ConfigError for an environment that has no tasks of its own.
        """
        name = type(self).__name__
        raise ConfigError(f"{name} draws no tasks of its own: set data.source to a source of questions for it")

    @abstractmethod
    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Start an episode and return its prompt, which depends on the task alone.

        Acquire resources in `step` and not here, since prompts are also made with this method, with seed 0.
        """

    @abstractmethod
    def step(self, action: Action) -> Step | Awaitable[Step]:
        """Answer an action of the model with the next observation, a reward, and whether the episode has ended.

        An exception ends the episode with reward 0.
        """

    def close(self) -> None:
        """Release the resources that the episode holds."""
        return


def failed_outcome(reason: str) -> EpisodeOutcome:
    """Return the outcome of an episode whose environment failed, with reward 0 and the reason."""
    return EpisodeOutcome((), 0.0, True, False, {}, reason)


def to_messages(observation: Observation, role: str) -> tuple[Message, ...]:
    """Return an environment's observation as chat messages, where a text becomes one message of the given role.

    Raises TypeError for an observation of any other type.
    """
    if isinstance(observation, str):
        return ({"role": role, "content": observation},)
    messages = tuple(observation)
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, str) or not isinstance(message.get("role"), str):
            raise TypeError(f"an observation is a text or messages with role and content, not {message!r:.200}")
    return messages


async def resolve(result: Any) -> Any:
    """Return the result of an environment's method, awaited when the method is `async def`."""
    return await result if inspect.isawaitable(result) else result


def run_without_waiting(work: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine that waits for nothing, and return its result. Raises RuntimeError when it waits."""
    try:
        work.send(None)
    except StopIteration as end:
        value: Value = end.value
        return value
    raise RuntimeError("a synchronous environment waits for something")


class TurnSize(NamedTuple):
    """Token counts of one turn of the model."""

    num_prompt: int  # tokens before this turn
    num_sampled: int
    is_cut: bool  # a token limit ended the turn


class EpisodeStep(NamedTuple):
    """A request to play one more turn of an episode."""

    episode: str  # name of the trajectory, equal at every turn
    environment: str
    settings: Mapping[str, Any]
    task: Mapping[str, Any]
    seed: int
    actions: tuple[str, ...]  # texts of all turns so far; the last one is to be played
    sizes: tuple[TurnSize | None, ...] = ()  # token counts of these turns; empty: unknown


class EpisodeOutcome(NamedTuple):
    """An environment's answer to one turn of an episode, as plain data that processes exchange."""

    observation: tuple[Mapping[str, Any], ...]  # messages; empty after the end
    reward: float
    has_ended: bool
    truncated: bool
    info: Mapping[str, Any]  # JSON data; `tool_error`: the turn called a tool wrongly
    error: str  # why the environment failed; "": no failure
