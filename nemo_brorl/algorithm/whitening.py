"""Whiten advantages: divide them by their standard deviation over a batch, or over the newest steps.

Over rollouts every rollout counts once and nothing is subtracted, since groups that are centred have the mean 0. Over
tokens, as in the public ProRLv2 recipes, a rollout counts with its tokens, and the mean over tokens is subtracted. It
is not 0 where wrong answers are longer than right ones.

Where dynamic sampling fills batches by samples, a step may hold a single informative group, whose own deviation would
make its rare success as large as that of any other. So the deviation is carried over steps there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemo_brorl.config.algorithm import AdvantageParams
from nemo_brorl.types import Float32, Int32

Float64 = NDArray[np.float64]

EPSILON = 1e-8  # added to a standard deviation, so that a division by it stays finite


class CarriedMoments:
    """Sums of the advantages' weights, values and squares over the newest steps; older steps count less and less."""

    def __init__(self) -> None:
        self.sums = [0.0, 0.0, 0.0]

    def add(self, sums: Sequence[float], memory: float) -> None:
        """Add a step's sums, and discount those of the steps before so that `memory` steps count."""
        decay = 1 - 1 / memory
        self.sums = [decay * old + new for old, new in zip(self.sums, sums, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums = [float(value) for value in state["sums"]]


def whitened(
    groups: Sequence[Float64],
    lengths: Sequence[Int32],
    params: AdvantageParams,
    carried: CarriedMoments | None = None,
) -> list[Float32]:
    """Return each group's centred values [N] divided by their deviation over all rollouts or tokens of the batch.

    `lengths` are the tokens of each group's rollouts [N]. With `carried` the deviation is that of the newest steps,
    this one included.
    """
    values = np.concatenate(groups)
    is_by_tokens = params.whiten_over == "tokens"
    weights = np.concatenate(lengths).astype(np.float64) if is_by_tokens else np.ones(len(values))
    mean, square = 0.0, float(np.mean(values**2))
    total = float(weights.sum())
    if total > 0 and (is_by_tokens or carried is not None):
        sums: Sequence[float] = (total, float(weights @ values), float(weights @ values**2))
        if carried is not None and params.whiten_memory > 0:
            carried.add(sums, params.whiten_memory)
            sums = carried.sums
        mean = sums[1] / sums[0] if is_by_tokens else 0.0
        square = max(sums[2] / sums[0] - mean**2, 0.0)
    deviation = float(np.sqrt(square))
    return [((group - mean) / (deviation + EPSILON)).astype(np.float32) for group in groups]
