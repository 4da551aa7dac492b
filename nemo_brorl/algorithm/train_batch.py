"""Make the batch to train on from informative groups: shape rewards, choose rollouts, compute advantages.

The three steps, in this order, are in `shaping.py`, `down_sampling.py` and `advantages.py`. `algorithm.credit` says
what reward each turn of a trajectory is credited with:

    outcome  the trajectory's reward: one advantage for all of its turns (the default)
    return   the discounted sum of its turns' rewards Σ γ^(j − 1) r_j, also one advantage
    turn     each turn its own return (`turns.py`)

γ is `algorithm.turn_discount`. Legend: N rollouts of a group, K returns of each rollout. K is 1, and under `turn` the
number of turns of the group's longest trajectory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from brorl_graders import full_mark

from nemo_brorl.algorithm.advantages import GroupRewards, advantages_of, weigh_rare_successes
from nemo_brorl.algorithm.down_sampling import max_variance_subset, stratum_weights, with_every_reward
from nemo_brorl.algorithm.shaping import find_shaping, shaped_rewards
from nemo_brorl.algorithm.turns import returns_of
from nemo_brorl.algorithm.whitening import CarriedMoments
from nemo_brorl.config.algorithm import AlgorithmConfig
from nemo_brorl.config.rewards import ShapingConfig
from nemo_brorl.types import Float32, Int32, Int64, ScoredGroup, TrainBatch


@dataclass(frozen=True)
class GroupView:
    """One group with everything that its advantages are computed from."""

    rewards: GroupRewards  # [N] of whole trajectories
    returns: Float32  # [N, K] returns that the advantages are computed from
    num_returns: Int32  # [N] number of returns that a trajectory has, at most K
    trained: Int64  # ascending indices of the rollouts to train on
    compared: Int64  # indices of the rollouts that form the baseline, the trained ones included
    weights: Float32 | None = None  # weights [N] of trained rollouts, which stand for those left out; None: 1


def make_train_batch(
    groups: Sequence[ScoredGroup],
    step: int,
    algorithm: AlgorithmConfig,
    shaping: ShapingConfig,
    max_tokens: int,
    loss_scale: float = 1.0,
    min_reward_range: float | None = None,
    carried: CarriedMoments | None = None,
) -> TrainBatch:
    """Return the batch of groups, advantages and rollouts for training step `step`, counted from 1.

    `max_tokens` is the longest that a response may be. `loss_scale` and `min_reward_range` are stored in the
    `TrainBatch`. Advantages that are whitened update `carried`. The groups keep their raw rewards. Raises TrainingError
    when a user's own shaping or advantage function does not return one finite number per rollout.
    """
    own_shaping = find_shaping(shaping)
    views = []
    for group in groups:
        shaped = shaped_rewards(group, shaping, max_tokens, step, own_shaping)
        views.append(_view(group, shaped, algorithm))
    advantages = _advantages(views, algorithm, carried)
    means = []
    for view, values in zip(views, advantages, strict=True):
        mean = values.sum(axis=1) / view.num_returns
        means.append(mean.astype(np.float32))
    return TrainBatch(
        groups=tuple(groups),
        advantages=tuple(means),
        rollouts=tuple(view.trained for view in views),
        loss_scale=loss_scale,
        min_reward_range=min_reward_range,
        shaped=tuple(view.rewards.shaped for view in views),
        turn_advantages=tuple(advantages) if algorithm.credit == "turn" else (),
    )


def _view(group: ScoredGroup, shaped: Float32, algorithm: AlgorithmConfig) -> GroupView:
    returns = shaped[:, None]
    if algorithm.credit != "outcome":
        returns = returns_of(group, shaped, algorithm.turn_discount).astype(np.float32)
    if algorithm.credit == "return":
        returns = returns[:, :1]
        shaped = returns[:, 0]
    everyone = np.arange(len(shaped))
    trained = compared = everyone
    weights = None
    if group.train_indices is not None:
        # An earlier step trained on the other rollouts. Advantages use the whole group, the update only the rest.
        trained = group.train_indices
    elif algorithm.train_rollouts is not None:
        trained = max_variance_subset(shaped, algorithm.train_rollouts)
        if algorithm.train_rollouts_compared == "group":
            trained = with_every_reward(shaped, trained)
            weights = stratum_weights(shaped, trained)
        if weights is None:
            compared = trained
    return GroupView(
        rewards=GroupRewards(group.rewards, shaped, group.group.num_sampled, full_mark(group.prompt.payload)),
        returns=returns,
        num_returns=np.minimum(group.num_turns, returns.shape[1]),
        trained=trained,
        compared=compared,
        weights=weights,
    )


def _advantages(
    views: Sequence[GroupView], algorithm: AlgorithmConfig, carried: CarriedMoments | None
) -> list[Float32]:
    """Return one array [N, K] of advantages per group, 0 for rollouts that are not trained on.

    At each turn, the trajectories that have reached it are compared as if they were a group. A trajectory that has no
    other to be compared with at a turn gets 0 there.

    Example: three trajectories whose turns have the returns (1, 1), (0, 0) and (0). dr_grpo subtracts the mean 1/3 at
    the first turn and 1/2 at the second: (2/3, 1/2), (−1/3, −1/2), (−1/3).
    """
    advantages = [np.zeros(view.returns.shape, np.float32) for view in views]
    compared: list[GroupRewards] = []
    targets: list[tuple[Float32, Int64, int]] = []
    for view, of_group in zip(views, advantages, strict=True):
        for turn in range(view.returns.shape[1]):
            members = view.compared[view.num_returns[view.compared] > turn]
            if len(members) < 2:
                continue
            compared.append(replace(view.rewards.select(members), shaped=view.returns[members, turn]))
            targets.append((of_group, members, turn))
    for (of_group, members, turn), values in zip(targets, advantages_of(compared, algorithm, carried), strict=True):
        of_group[members, turn] = values
    if algorithm.rare_success_exponent > 0:
        rewards = [view.rewards for view in views]
        advantages = weigh_rare_successes(advantages, rewards, algorithm.rare_success_exponent)
    for view, of_group in zip(views, advantages, strict=True):
        is_trained = np.isin(np.arange(len(of_group)), view.trained)
        of_group[~is_trained] = 0.0
        if view.weights is not None:
            of_group *= view.weights[:, None]
    return advantages
