"""Groups under way: what was asked for, what has come back scored, what was cut off. Pure bookkeeping.

Life of a group: opened with its first rollouts → settled, when all of them have come back → extended by a further wave,
or closed to a `ScoredGroup`, or held: its beginnings wait for a later step. A rollout that was asked for comes back
exactly once, finished or cut off, or the ledger refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nemo_brorl.rollouts.assemble import close_group, in_order
from nemo_brorl.rollouts.group_size.waves import Draw
from nemo_brorl.types import (
    Float32,
    Int32,
    Int64,
    PartialRollouts,
    Prompt,
    RolloutChunk,
    Sampling,
    ScoredChunk,
    ScoredGroup,
)


@dataclass
class OpenGroup:
    """One prompt's rollouts while they are sampled."""

    prompt: Prompt
    sampling: Sampling
    deadline_s: float | None = None  # of each of its requests
    num_rollouts: int = 0  # asked for so far
    parts: list[ScoredChunk] = field(default_factory=list)  # finished and scored
    unfinished: list[PartialRollouts] = field(default_factory=list)  # cut off, not asked for again
    draws: list[Draw] = field(default_factory=list)  # its waves
    num_learnt: int = 0  # parts that were learnt from in an earlier step

    @property
    def uid(self) -> str:
        return self.prompt.uid

    @property
    def num_finished(self) -> int:
        return sum(len(part.rewards) for part in self.parts)

    @property
    def num_unfinished(self) -> int:
        return sum(len(partial.indices) for partial in self.unfinished)

    @property
    def is_settled(self) -> bool:
        """Whether every rollout that was asked for has come back, finished or cut off."""
        return self.num_finished + self.num_unfinished == self.num_rollouts

    @property
    def oldest_version(self) -> int | None:
        """Of all its tokens; None when there are none."""
        versions = [part.chunk.version for part in self.parts] + [
            partial.version for partial in self.unfinished if partial.lengths.any()
        ]
        return min(versions, default=None)

    @property
    def rewards(self) -> Float32:  # [finished]
        return np.concatenate([part.rewards for part in in_order(self.parts)])

    @property
    def lengths(self) -> Int32:  # [finished]
        return np.concatenate([part.chunk.lengths for part in in_order(self.parts)])

    def close(self) -> ScoredGroup:
        """What has finished as a group; what was cut off is not in it."""
        return close_group(self.prompt, self.parts)

    def tail(self) -> Int64:
        """Places within the closed group of the rollouts that no step has learnt from, ascending."""
        learnt = _joined([part.chunk.indices for part in self.parts[: self.num_learnt]])
        places = np.concatenate([part.chunk.indices for part in in_order(self.parts)])
        return np.flatnonzero(~np.isin(places, learnt)).astype(np.int64)


@dataclass(frozen=True)
class UnderWay:
    """Groups between two steps."""

    kept: tuple[ScoredGroup, ...] = ()  # closed, informative, not learnt from yet
    held: tuple[OpenGroup, ...] = ()  # cut, to be sampled on
    tails: tuple[OpenGroup, ...] = ()  # learnt from without their cut rollouts, which are sampled on
    late: tuple[ScoredGroup, ...] = ()  # tails that have ended, not learnt from yet


class GroupLedger:
    """The groups that are under way, by uid, in the order they were opened."""

    def __init__(self) -> None:
        self.groups: dict[str, OpenGroup] = {}
        self._out: dict[str, set[int]] = {}  # by uid: indices of rollouts that have not come back

    @property
    def num_out(self) -> int:
        """Rollouts that have not come back."""
        return sum(map(len, self._out.values()))

    def open(self, group: OpenGroup) -> None:
        """Follow a group; nothing of it is out yet."""
        assert group.uid not in self.groups, f"group {group.uid} is under way already"
        self.groups[group.uid] = group
        self._out[group.uid] = set()

    def ask(self, uid: str, indices: Iterable[int]) -> None:
        """Rollouts of a group were asked for; beginnings that are resumed are no longer unfinished."""
        group, asked = self.groups[uid], set(indices)
        group.unfinished = [rest for partial in group.unfinished if (rest := _without(partial, asked)) is not None]
        self._out[uid] |= asked
        group.num_rollouts = group.num_finished + group.num_unfinished + len(self._out[uid])

    def receive(self, chunk: RolloutChunk, scored: ScoredChunk | None) -> OpenGroup | None:
        """Note what a request came back with; `scored` is None for a chunk without finished rollouts. Returns the group
        if that settles it."""
        uid = chunk.request.prompt.uid
        back = set(chunk.indices.tolist()) | (
            set(chunk.unfinished.indices.tolist()) if chunk.unfinished is not None else set()
        )
        num_back = len(chunk.indices) + (len(chunk.unfinished.indices) if chunk.unfinished is not None else 0)
        assert back <= self._out[uid] and len(back) == num_back, f"rollouts of {uid} came back twice"
        self._out[uid] -= back
        group = self.groups[uid]
        if scored is not None:
            group.parts.append(scored)
        if chunk.unfinished is not None:
            group.unfinished.append(chunk.unfinished)
        return None if self._out[uid] else group

    def release(self, uid: str) -> OpenGroup:
        """Stop following a settled group."""
        assert not self._out[uid], f"{len(self._out[uid])} rollouts of {uid} are still out"
        del self._out[uid]
        return self.groups.pop(uid)


def _without(partial: PartialRollouts, indices: set[int]) -> PartialRollouts | None:
    """A partial is resumed as a whole or not at all: its data is one block."""
    resumed = [index in indices for index in partial.indices.tolist()]
    assert all(resumed) or not any(resumed), "beginnings of one chunk must be resumed together"
    return None if all(resumed) else partial


def length_bias(groups: Sequence[OpenGroup]) -> dict[str, float]:
    """How much shorter finished responses are than all that were begun, over groups that were cut; the unfinished ones
    count with the tokens they had, so the true bias is larger. Empty when nothing was cut."""
    finished = _joined([part.chunk.lengths for group in groups for part in group.parts])
    begun = _joined([partial.lengths for group in groups for partial in group.unfinished])
    if not len(begun):
        return {}
    every = np.concatenate([finished, begun])
    return {
        "rollouts/cut_share": len(begun) / len(every),
        "rollouts/cut_response_tokens": float(begun.mean()),
        "rollouts/length_bias": float(finished.mean() - every.mean()) if len(finished) else 0.0,
    }


def _joined(arrays: Sequence[Int32]) -> Int32:
    return np.concatenate([*arrays, np.empty(0, np.int32)])
