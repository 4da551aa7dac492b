"""Advantages: one number per rollout from the raw (or shaped) rewards of its group and of the batch."""

from collections.abc import Callable, Sequence

import numpy as np

from nemo_brorl.types import Float32

EPSILON = 1e-8  # keeps a division by a vanishing standard deviation finite

Advantage = Callable[[Sequence[Float32]], list[Float32]]


def reinforce_plus_plus_baseline(rewards: Sequence[Float32]) -> list[Float32]:
    """R − group mean, then divided by the standard deviation over all rollouts of the batch (REINFORCE++-baseline,
    arXiv 2501.03262; the advantage of ProRLv2 and BroRL).

    `rewards` holds one [N] array per group. Whitening weighs every rollout alike; subtracting the batch mean would change
    nothing, since every centred group already sums to zero.
    """
    centred = [group.astype(np.float64) - group.mean(dtype=np.float64) for group in rewards]
    deviation = float(np.sqrt(np.mean(np.concatenate(centred) ** 2)))
    return [(group / (deviation + EPSILON)).astype(np.float32) for group in centred]


def grpo(rewards: Sequence[Float32]) -> list[Float32]:
    """(R − group mean) / group standard deviation (GRPO, arXiv 2402.03300 section 4.1.2), group by group."""
    wide = [group.astype(np.float64) for group in rewards]
    return [((group - group.mean()) / (group.std() + EPSILON)).astype(np.float32) for group in wide]


ADVANTAGES: dict[str, Advantage] = {
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "grpo": grpo,
}
