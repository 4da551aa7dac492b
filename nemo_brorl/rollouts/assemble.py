"""Chunks to groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from nemo_brorl.rollouts.sampled_mass import sampled_mass
from nemo_brorl.types import Prompt, RolloutGroup, ScoredChunk, ScoredGroup


def assemble(prompts: Sequence[Prompt], num_per_prompt: int, chunks: Iterable[ScoredChunk]) -> Iterator[ScoredGroup]:
    """Groups as they close, that is when all `num_per_prompt` rollouts of a prompt have arrived; chunks come in any order."""
    waiting: dict[str, list[ScoredChunk]] = {prompt.uid: [] for prompt in prompts}
    for chunk in chunks:
        prompt = chunk.chunk.request.prompt
        parts = waiting[prompt.uid]
        parts.append(chunk)
        if sum(len(part.rewards) for part in parts) == num_per_prompt:
            yield close_group(prompt, parts)
            del waiting[prompt.uid]
    assert not waiting, f"{len(waiting)} groups did not get all their chunks, first {next(iter(waiting))}"


def close_group(prompt: Prompt, parts: Iterable[ScoredChunk]) -> ScoredGroup:
    """One group from all its scored chunks, ordered by their place in the group."""
    ordered = sorted(parts, key=lambda part: part.chunk.request.first_index)
    return ScoredGroup(
        group=RolloutGroup(prompt, tuple(part.chunk for part in ordered)),
        rewards=np.concatenate([part.rewards for part in ordered]),
        num_failed=sum(part.num_failed for part in ordered),
        repetition=np.concatenate([part.repetition for part in ordered]),
        mass=sampled_mass(*(np.concatenate([getattr(part, name) for part in ordered]) for name in ("keys", "log_probs", "rewards"))),
    )
