"""Compute the returns of the turns of trajectories.

The return of a turn is G_j = r_j + γ G_(j + 1), with γ = `algorithm.turn_discount`. It follows MT-GRPO (arXiv
2505.11821), which adds the advantages of turn and outcome. Whatever shaping adds to a trajectory's reward belongs to
the reward of its last turn. Legend: N rollouts of a group, K turns of its longest trajectory.
"""

from __future__ import annotations

import numpy as np

from nemo_brorl.algorithm.shaping import Float64
from nemo_brorl.types import Float32, ScoredGroup


def returns_of(group: ScoredGroup, shaped: Float32, discount: float) -> Float64:
    """Return the discounted return of each turn of a group's rollouts, [N, K], with 0 after a rollout's last turn.

    `shaped` [N] are the shaped rewards of whole rollouts, `discount` is γ. A rollout without an environment has one
    turn, whose reward is the reward of the rollout.
    """
    num_turns = group.num_turns
    num = len(num_turns)
    rewards = np.zeros((num, int(num_turns.max())))
    start = 0
    for chunk, record in zip(group.group.chunks, group.turns, strict=True):
        end = start + len(chunk.lengths)
        of_turns = group.rewards[start:end, None] if record is None else record.rewards
        rewards[start:end, : of_turns.shape[1]] = of_turns
        start = end
    rewards[np.arange(num), num_turns - 1] += shaped.astype(np.float64) - group.rewards
    for turn in range(rewards.shape[1] - 2, -1, -1):
        rewards[:, turn] += discount * rewards[:, turn + 1]
    return rewards
