"""What tests ask of a rank's Learner in one call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_brorl.types import WeightBucket


def save(learner: Any, folder: Path) -> None:
    """Write a checkpoint and wait for it."""
    learner.begin_save(folder)
    learner.finish_save()


def weight_buckets(learner: Any) -> Iterator[WeightBucket]:
    """The current weights, bytes and all."""
    # Late: Megatron is imported behind it, once the process is ready for that.
    from nemo_brorl.weights.sender import buckets

    return buckets(learner.hf_export.stream(), learner.bucket_bytes)
