"""Stored responses scored again by another verifier, and what that changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nemo_brorl.core.errors import DataError
from nemo_brorl.ports import Verifier
from nemo_brorl.tasks.verifiers.payload import ENVIRONMENT
from nemo_brorl.tasks.verifiers.registry import check_payload
from nemo_brorl.types import SUCCESS_REWARD, Float32, Prompt, RolloutChunk, ScoredGroup

Key = tuple[str, int]  # uid, first index of a chunk


@dataclass(frozen=True)
class Rescored:
    """A group with its rewards then and now."""

    scored: ScoredGroup
    rewards: Float32  # [N] now, raw
    num_failed: int

    @property
    def changed(self) -> np.ndarray:
        """Places of the rollouts whose reward is another one."""
        return np.flatnonzero(self.rewards != self.scored.rewards)


def asked_again(prompt: Prompt, verifier: str | None, options: Mapping[str, Any]) -> Prompt:
    """The prompt for another verifier (None: its own), with these options over those of its payload. Raises DataError
    when the verifier cannot score it, ConfigError for an unknown name."""
    changed = replace(
        prompt,
        verifier=verifier or prompt.verifier,
        payload={**prompt.payload, **options},
    )
    if changed.verifier == ENVIRONMENT:
        raise DataError(
            f"prompt {prompt.uid} was answered by an environment, which cannot be asked again: write --verifier of "
            "one that reads the whole text"
        )
    check_payload(changed.verifier, changed.payload)
    return changed


def rescore(
    groups: Sequence[ScoredGroup],
    pool: Verifier,
    verifier: str | None,
    options: Mapping[str, Any],
) -> list[Rescored]:
    """Groups, each of another prompt, in order. Raises as `asked_again` before anything is scored."""
    chunks: list[RolloutChunk] = []
    for scored in groups:
        prompt = asked_again(scored.prompt, verifier, options)
        for chunk in scored.group.chunks:
            request = replace(chunk.request, prompt=prompt)
            chunks.append(replace(chunk, request=request))
    rewards: dict[Key, Float32] = {}
    num_failed: dict[str, int] = {}
    for scored_chunk in pool.score(chunks):
        uid, _ = key = _key(scored_chunk.chunk)
        rewards[key] = scored_chunk.rewards
        num_failed[uid] = num_failed.get(uid, 0) + scored_chunk.num_failed
    return list(_joined(groups, rewards, num_failed))


def _key(chunk: RolloutChunk) -> Key:
    return chunk.request.prompt.uid, int(chunk.indices[0])


def _joined(
    groups: Iterable[ScoredGroup],
    rewards: Mapping[Key, Float32],
    num_failed: Mapping[str, int],
) -> Iterator[Rescored]:
    for scored in groups:
        parts = [rewards[_key(chunk)] for chunk in scored.group.chunks]
        yield Rescored(scored, np.concatenate(parts), num_failed[scored.prompt.uid])


@dataclass
class Changes:
    """Counts over rollouts, by task and over all."""

    num: int = 0
    num_changed: int = 0
    reward_before: float = 0.0  # sum
    reward_now: float = 0.0
    num_groups: int = 0
    informative_before: int = 0
    informative_now: int = 0

    def add(self, rescored: Rescored) -> None:
        """Count a group."""
        before = rescored.scored.rewards
        self.num += len(before)
        self.num_changed += len(rescored.changed)
        self.reward_before += float(before.sum())
        self.reward_now += float(rescored.rewards.sum())
        self.num_groups += 1
        self.informative_before += bool(np.ptp(before) > 0)
        self.informative_now += bool(np.ptp(rescored.rewards) > 0)


def confusion(groups: Iterable[Rescored]) -> np.ndarray:
    """Rollouts [was right, was wrong] × [is right, is wrong]."""
    counts = np.zeros((2, 2), np.int64)
    for rescored in groups:
        was_wrong = rescored.scored.rewards < SUCCESS_REWARD
        is_wrong = rescored.rewards < SUCCESS_REWARD
        np.add.at(counts, (was_wrong.astype(int), is_wrong.astype(int)), 1)
    return counts


def changes_by_task(groups: Iterable[Rescored]) -> dict[str, Changes]:
    """Counts by task, by name; last over all of them."""
    found: dict[str, Changes] = {}
    overall = Changes()
    for rescored in groups:
        task = rescored.scored.prompt.task
        found.setdefault(task, Changes()).add(rescored)
        overall.add(rescored)
    ordered = dict(sorted(found.items()))
    ordered["all"] = overall
    return ordered
