"""Credit the turns of trajectories: each by its own return, compared with the same turn of the group's others.

The return of a turn is G_j = r_j + γ G_(j + 1), with γ = `algorithm.turn_discount` (after MT-GRPO, arXiv 2505.11821,
which adds the advantages of turn and outcome). What shaping changes in a trajectory's reward is part of the reward of
its last turn. Legend: N rollouts of a group, K turns of its longest trajectory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nemo_brorl.algorithm.advantages import (
    GroupRewards,
    advantages_of,
)
from nemo_brorl.algorithm.shaping import Float64
from nemo_brorl.config.algorithm import AlgorithmConfig
from nemo_brorl.types import Float32, Int32, ScoredGroup


def returns_of(group: ScoredGroup, shaped: Float32, discount: float) -> Float64:
    """Return of each turn [N, K]; 0 after the last one. A rollout of no environment has one turn, with its reward."""
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


def advantages_by_turn(
    groups: Sequence[GroupRewards],
    returns: Sequence[Float64],
    num_turns: Sequence[Int32],
    config: AlgorithmConfig,
) -> list[Float32]:
    """One [N, K] array per group. The trajectories that have come to a turn are compared with each other there, as if
    they were a group; one that has come further than all others has nothing to be compared with, and gets 0.

    Example: returns of turns (1, 1), (0, 0), (0) with one discount. dr_grpo takes off 1/3 at the first turn and 1/2 at
    the second: (2/3, 1/2), (−1/3, −1/2), (−1/3).
    """
    advantages = [np.zeros(values.shape, np.float32) for values in returns]
    compared: list[GroupRewards] = []
    places: list[tuple[int, int, NDArray[np.int64]]] = []
    for index, group in enumerate(groups):
        for turn in range(returns[index].shape[1]):
            members = np.flatnonzero(num_turns[index] > turn)
            if len(members) < 2:
                continue
            shaped = returns[index][members, turn].astype(np.float32)
            compared.append(GroupRewards(group.raw[members], shaped, group.lengths[members]))
            places.append((index, turn, members))
    if not compared:
        return advantages
    for (index, turn, members), values in zip(places, advantages_of(compared, config), strict=True):
        advantages[index][members, turn] = values
    return advantages
