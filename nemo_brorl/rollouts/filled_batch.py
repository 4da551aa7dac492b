"""Result of filling a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nemo_brorl.types import ScoredGroup


@dataclass(frozen=True)
class Withdrawn:
    """The finished rollouts of a group that did not close: nobody learns from them."""

    group: ScoredGroup
    reason: str  # as `DynamicSampling.withdraw` counts it


@dataclass(frozen=True)
class FilledBatch:
    """Result of a step's sampling."""

    batch: tuple[ScoredGroup, ...]  # to learn from, completed groups of earlier steps last
    sampled: tuple[ScoredGroup, ...]  # every group that closed, informative or not
    withdrawn: tuple[Withdrawn, ...]
    loss_scale: float  # of the batch, where batches vary in size
    metrics: Mapping[str, float]
    generate_s: float  # until the last rollout was sampled
    reward_s: float  # after that, until the last one was scored
