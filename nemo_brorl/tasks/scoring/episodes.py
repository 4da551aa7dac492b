"""Episodes as the judging of turns sees them: a step, what the environment makes of it, and who keeps the instances."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol


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


class EpisodeHost(Protocol):
    """Environments in processes that may hang or crash. Any thread may call."""

    def step(self, steps: Sequence[EpisodeStep]) -> list[EpisodeOutcome]:
        """Outcome of each, in order. An instance that is missing is made anew by repeating its actions."""

    def end(self, episodes: Collection[str]) -> None:
        """Forget these; those that are not known are passed over."""

    def close(self) -> None:
        """End all processes."""


class TurnTokens(Protocol):
    """Tokens that follow a turn, by the model's chat template."""

    def after(
        self,
        messages: Sequence[Mapping[str, Any]],
        response_ids: Sequence[int],
        is_stopped: bool,
        observation: Sequence[Mapping[str, Any]],
    ) -> list[int]:
        """The end of the assistant's message, the observation, and the beginning of the assistant's next message."""
