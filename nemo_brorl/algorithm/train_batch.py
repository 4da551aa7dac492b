"""Make the batch that is learned from, of informative groups: rewards are shaped (`shaping.py`), rollouts chosen,
advantages computed (`advantages.py`), in this order. The functions that settings name for it are checked before
anything is started.

`algorithm.credit` says what each turn of a trajectory is learned by:

    outcome  the trajectory's reward: one advantage for all of its turns (the default)
    return   the discounted sum of its turns' rewards Σ γ^(j − 1) r_j, likewise one advantage
    turn     each turn its own return (`turns.py`)

γ is `algorithm.turn_discount`. Legend: N rollouts of a group, K turns of its longest trajectory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from brorl_graders.components import is_import_path

from nemo_brorl.algorithm.advantages import (
    GroupRewards,
    advantages_of,
    find_advantage,
    weigh_rare_successes,
)
from nemo_brorl.algorithm.shaping import Float64, find_shaping, shaped_rewards
from nemo_brorl.algorithm.turns import advantages_by_turn, returns_of
from nemo_brorl.config.algorithm import AlgorithmConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.types import Float32, Int64, ScoredGroup, TrainBatch


def make_train_batch(
    groups: Sequence[ScoredGroup],
    config: BroRLConfig,
    step: int,
    loss_scale: float = 1.0,
) -> TrainBatch:
    """The batch of training step `step`, counted from 1. Raw rewards stay with the groups. The tail of a group is
    judged within the whole group and trained alone."""
    algorithm = config.algorithm
    max_tokens = config.rollouts.max_response_tokens
    shaping = config.rewards.shaping
    own_shaping = find_shaping(shaping)
    rewards = []
    returns = []
    trained = []
    for group in groups:
        shaped = shaped_rewards(group, shaping, max_tokens, step, own_shaping)
        if algorithm.credit != "outcome":
            returns.append(returns_of(group, shaped, algorithm.turn_discount))
        if algorithm.credit == "return":
            shaped = returns[-1][:, 0].astype(np.float32)
        of_group = GroupRewards(group.rewards, shaped, group.group.num_sampled)
        rewards.append(of_group)
        trained.append(_trained_rollouts(group, of_group, algorithm))
    advantages = _advantages(groups, rewards, trained, algorithm, returns)
    kept = []
    for values, chosen in zip(advantages, trained, strict=True):
        kept.append(_zero_elsewhere(values[chosen], chosen, len(values)))
    of_turns: tuple[Float32, ...] = ()
    if algorithm.credit == "turn":
        of_turns = tuple(kept)
        kept = [values.sum(axis=1) / group.num_turns for group, values in zip(groups, kept, strict=True)]
    selection = config.dynamic_sampling
    min_reward_range = selection.min_reward_range if selection.enabled else None
    return TrainBatch(
        groups=tuple(groups),
        advantages=tuple(kept),
        rollouts=tuple(trained),
        loss_scale=loss_scale,
        min_reward_range=min_reward_range,
        shaped=tuple(of_group.shaped for of_group in rewards),
        turn_advantages=of_turns,
    )


def _trained_rollouts(group: ScoredGroup, rewards: GroupRewards, config: AlgorithmConfig) -> Int64:
    """Indices of the rollouts that are learnt from: of a tail those that no step has learnt from, else the chosen ones,
    else all."""
    if group.learn_from is not None:
        return group.learn_from
    if config.train_rollouts is not None:
        return max_variance_subset(rewards.shaped, config.train_rollouts)
    return np.arange(len(rewards.raw))


def _advantages(
    groups: Sequence[ScoredGroup],
    rewards: Sequence[GroupRewards],
    trained: Sequence[Int64],
    config: AlgorithmConfig,
    returns: Sequence[Float64],
) -> list[Float32]:
    """[N] per group, or [N, K] of its turns. A chosen subset is compared within itself, a tail within its group."""
    compared = []
    compared_rewards = []
    for group, of_group, chosen in zip(groups, rewards, trained, strict=True):
        rollouts = chosen if group.learn_from is None else np.arange(len(of_group.raw))
        compared.append(rollouts)
        compared_rewards.append(of_group.of(rollouts))
    if config.credit == "turn":
        compared_returns = [values[rollouts] for values, rollouts in zip(returns, compared, strict=True)]
        num_turns = [group.num_turns[rollouts] for group, rollouts in zip(groups, compared, strict=True)]
        values_of_compared = advantages_by_turn(compared_rewards, compared_returns, num_turns, config)
    else:
        values_of_compared = advantages_of(compared_rewards, config)
    if config.rare_success_exponent > 0:
        values_of_compared = weigh_rare_successes(values_of_compared, rewards, config.rare_success_exponent)
    advantages = []
    for values, rollouts, of_group in zip(values_of_compared, compared, rewards, strict=True):
        advantages.append(_zero_elsewhere(values, rollouts, len(of_group.raw)))
    return advantages


def _zero_elsewhere(values: Float32, rollouts: Int64, size: int) -> Float32:
    """An array [size, ...] with the values of these rollouts and 0 for all others."""
    spread = np.zeros((size, *values.shape[1:]), np.float32)
    spread[rollouts] = values
    return spread


def max_variance_subset(rewards: Float32, size: int) -> Int64:
    """Indices, ascending, of `size` rollouts of a group with the largest variance of rewards (PODS, arXiv 2504.13818);
    all of them where there are no more. Of 512 rollouts most repeat each other.

    Such a subset is always the k highest and the size − k lowest rewards for some k (theorem 1 of the paper), so k is
    found in one pass over prefix sums. Rewards with equal variance: the smallest k.
    """
    num = len(rewards)
    if size >= num:
        return np.arange(num)
    order = np.argsort(rewards, kind="stable")
    ascending = rewards[order].astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(ascending)])
    squares = np.concatenate([[0.0], np.cumsum(ascending**2)])
    high = np.arange(size + 1)  # k: how many come from the top
    total = sums[size - high] + sums[num] - sums[num - high]
    total_of_squares = squares[size - high] + squares[num] - squares[num - high]
    variances = total_of_squares / size - (total / size) ** 2
    best = int(np.argmax(np.round(variances, 12)))
    chosen = np.concatenate([order[: size - best], order[num - best :]])
    return np.sort(chosen)


def check_functions(config: BroRLConfig) -> None:
    """Import a user's own advantage, loss and reward shaping and fill in their parameters. Raises ConfigError."""
    algorithm = config.algorithm
    find_advantage(algorithm)
    find_shaping(config.rewards.shaping)
    if is_import_path(algorithm.loss) or algorithm.own_loss_params:
        # imports torch, two seconds: not for a loss that is known to be there
        from nemo_brorl.algorithm.losses import find_loss

        find_loss(algorithm.loss, algorithm)
