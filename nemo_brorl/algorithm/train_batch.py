"""The batch that is learnt from, made of informative groups: rewards are shaped, rollouts chosen, advantages computed,
in this order. The functions that settings name for it are checked before anything is started.

Shaping is what length and a missing end do to rewards, after dynamic sampling has judged the raw ones. The raw reward
decides which groups are informative and is what metrics call reward; only advantages see the shaped one. A shaping
function takes and returns the rewards of one group [N]; lengths are of sampled tokens. `rewards.shaping.function` adds
one of your own, as `package.module:function` (docs/extending.md).

Turns of trajectories are compared with each other alone. `algorithm.credit` says what each turn of a
trajectory is learnt by:

    outcome  the trajectory's reward: one advantage for all of its turns (the default)
    return   the discounted sum of its turns' rewards Σ γ^(j − 1) r_j, likewise one advantage
    turn     each turn its own return from there on, G_j = r_j + γ G_(j + 1), against the returns of the group's other
             trajectories at the same turn (after MT-GRPO, arXiv 2505.11821, which adds the advantages of turn and
             outcome)

γ is `algorithm.turn_discount`. What shaping changes in a trajectory's reward is part of the reward of its last turn.
Legend: N rollouts of a group, K turns of its longest trajectory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from nemo_brorl.algorithm.advantages import (
    GroupRewards,
    advantages_of,
    find_advantage,
    weigh_rare_successes,
)
from nemo_brorl.config.algorithm import AlgorithmConfig
from nemo_brorl.config.rewards import CosineLengthConfig, ShapingConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.components import find_function, is_import_path, with_params
from nemo_brorl.core.errors import TrainingError
from nemo_brorl.types import Bool, Float32, Int32, Int64, ScoredGroup, TrainBatch

Float64 = NDArray[np.float64]
Shaping = Callable[[Float64, ScoredGroup, int, int], Float64]  # rewards [N], group, max_tokens, step -> rewards [N]


def shaped_rewards(
    scored: ScoredGroup,
    config: ShapingConfig,
    max_tokens: int,
    step: int,
    own: Shaping | None = None,
) -> Float32:
    """Rewards [N] after all that the settings ask for, in the order of this file, a user's own function last.
    `max_tokens` is the longest a response may be; `step` counts from 1; `own` is `find_shaping(config)`, looked up once
    for all groups. Raises TrainingError when it returns something else."""
    assert (own is None) == (config.function is None), "rewards.shaping.function was not looked up"
    rewards = scored.rewards.astype(np.float64)
    lengths = scored.group.num_sampled
    if config.cosine.enabled and is_on(config.cosine, step):
        rewards = cosine_length(rewards, lengths, max_tokens, config.cosine)
    if config.overlong_buffer > 0:
        rewards = rewards + config.overlong_penalty * overlong(lengths, max_tokens, config.overlong_buffer)
    if config.repetition_penalty > 0:
        rewards = rewards - config.repetition_penalty * scored.repetition
    if config.truncated_factor != 1.0:
        rewards = stop_properly(rewards, scored.group.is_stopped, config.truncated_factor)
    if own is not None:
        rewards = np.asarray(own(rewards, scored, max_tokens, step))
        if rewards.shape != scored.rewards.shape or not np.isfinite(rewards).all():
            raise TrainingError(
                f"rewards.shaping.function={config.function} returned shape {rewards.shape} for prompt "
                f"{scored.prompt.uid}: return {len(scored.rewards)} finite numbers, one per rollout"
            )
    return rewards.astype(np.float32)


def find_shaping(config: ShapingConfig) -> Shaping | None:
    """The function of `rewards.shaping.function` with `rewards.shaping.function_params`; None: there is none. Raises
    ConfigError."""
    if config.function is None:
        return None
    function = find_function("rewards.shaping.function", config.function, {})
    return with_params("rewards.shaping.function_params", config.function, function, config.function_params)


def is_on(config: CosineLengthConfig, step: int) -> bool:
    """Whether the length reward acts in `step`: for `on_steps` steps, then not for `off_steps`, and so on; off_steps=0:
    always."""
    if config.off_steps == 0:
        return True
    return (step - 1) % (config.on_steps + config.off_steps) < config.on_steps


def cosine_length(
    rewards: Float64,
    lengths: Int32,
    max_tokens: int,
    config: CosineLengthConfig,
) -> Float64:
    """Half a cosine over the length from one value at 0 tokens to another at max_tokens, for correct and for wrong
    answers apart (arXiv 2502.03373 section 4.1). A reward r between 0 and 1 takes r parts of the correct curve and 1 −
    r of the wrong one."""
    fall = 0.5 * (1 + np.cos(np.pi * np.minimum(lengths / max_tokens, 1.0)))  # 1 at no tokens, 0 at the limit
    correct = config.correct_long + (config.correct_short - config.correct_long) * fall
    wrong = config.wrong_long + (config.wrong_short - config.wrong_long) * fall
    return rewards * correct + (1 - rewards) * wrong


def overlong(lengths: Int32, max_tokens: int, buffer: int) -> Float64:
    """0 up to max_tokens − buffer, then falling in a line to −1 at max_tokens (DAPO's soft overlong punishment, arXiv
    2503.14476 equation 13)."""
    excess = lengths - (max_tokens - buffer)
    return -np.clip(excess / buffer, 0.0, 1.0)


def stop_properly(rewards: Float64, is_stopped: Bool, factor: float) -> Float64:
    """Rewards of truncated responses times `factor`: 0 … 0.1 in ProRLv2 and BroRL. A negative reward is left as it is,
    since shrinking it would reward running out of room."""
    return np.where(is_stopped | (rewards < 0), rewards, rewards * factor)


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
