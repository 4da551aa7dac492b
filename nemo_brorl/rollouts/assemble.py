"""Chunks to groups."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nemo_brorl.rollouts.sampled_mass import sampled_mass
from nemo_brorl.types import Prompt, RolloutGroup, ScoredChunk, ScoredGroup


def close_group(prompt: Prompt, parts: Iterable[ScoredChunk]) -> ScoredGroup:
    """One group from its scored chunks, none of them empty."""
    ordered = in_order(parts)
    answers = [part.answers for part in ordered if part.answers is not None]
    return ScoredGroup(
        group=RolloutGroup(prompt, tuple(part.chunk for part in ordered)),
        rewards=np.concatenate([part.rewards for part in ordered]),
        num_failed=sum(part.num_failed for part in ordered),
        repetition=np.concatenate([part.repetition for part in ordered]),
        mass=sampled_mass(
            *(np.concatenate([getattr(part, name) for part in ordered]) for name in ("keys", "log_probs", "rewards"))
        ),
        answers=tuple(answer for part in answers for answer in part) if len(answers) == len(ordered) else None,
    )


def in_order(parts: Iterable[ScoredChunk]) -> list[ScoredChunk]:
    """By the place of their first rollout in the group, whichever came first."""
    return sorted(parts, key=lambda part: int(part.chunk.indices[0]))
