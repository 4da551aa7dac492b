"""Compute advantages: one number per rollout from the rewards of a batch's groups, one pure function an algorithm.

`algorithm.advantage` names one of `ADVANTAGES`, or a function of your own as `package.module:function`
(docs/howto/extend.md). Each function takes the groups of a batch and the section `algorithm`, and returns one float32
array [N] per group, with N rollouts. R is the shaped reward of a rollout.

A group has a gradient only where its rewards disagree, and not always there: `teaching.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from brorl_graders import lowest_right
from brorl_graders.base.components import find_function, is_import_path, with_params
from numpy.typing import NDArray

from nemo_brorl.algorithm.pass_at_k import share_within
from nemo_brorl.algorithm.whitening import EPSILON, CarriedMoments, whitened
from nemo_brorl.config.algorithm import AlgorithmConfig
from nemo_brorl.core.errors import TrainingError
from nemo_brorl.types import Bool, Float32, Int32, Int64, ReadOnly

EQUAL = 1e-6  # rewards are equal whose difference is at most this share of their size

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class GroupRewards(ReadOnly):
    """Rewards and lengths of N rollouts of one group, from which advantages are computed.

    Training uses the shaped rewards. The raw rewards tell which rollouts are correct.
    """

    raw: Float32  # [N]
    shaped: Float32  # [N]
    lengths: Int32  # [N] sampled tokens of the responses
    full_mark: float = 1.0  # raw reward from which a rollout is correct

    def select(self, rollouts: Int64) -> GroupRewards:
        """Return the rewards and response lengths of the group's rollouts that have the given indices."""
        return GroupRewards(self.raw[rollouts], self.shaped[rollouts], self.lengths[rollouts], self.full_mark)

    @property
    def is_correct(self) -> Bool:
        """Mask [N] of the correct rollouts of a group, whose raw reward reaches the full mark.

        Shaping may lower the reward of a correct rollout far below that.
        """
        return self.raw >= lowest_right(self.full_mark)


def disagree(rewards: Float32, min_range: float, full_mark: float = 1.0) -> bool:
    """Return whether the best and the worst raw reward of a group differ by `min_range` of the full mark at least.

    `rewards` [N] are the raw rewards of the group's N rollouts. Rewards that are equal but for rounding never disagree.
    The standard deviation would be no test: in float32 it is not zero for 512 equal rewards of 0.3.
    """
    if not len(rewards):
        return False
    rounding = rounding_of(rewards, full_mark)
    least_range = max(min_range * abs(full_mark) - rounding, rounding)
    return float(rewards.max()) - float(rewards.min()) > least_range


def rounding_of(rewards: Float32 | Float64, full_mark: float) -> float:
    """Return the largest difference of rewards [N] that counts as rounding, relative to them and the full mark."""
    return EQUAL * max(float(np.abs(rewards).max()), abs(full_mark))


Advantage = Callable[[Sequence[GroupRewards], AlgorithmConfig], list[Float32]]  # returns one [N] array per group


def wide(group: GroupRewards) -> Float64:
    """Return a group's shaped rewards [N] in float64, in which the mean of 512 equal rewards equals each of them.

    Rewards that differ by rounding alone are made equal, since a division by their deviation would make it a signal.
    """
    rewards = group.shaped.astype(np.float64)
    if len(rewards) and np.ptp(rewards) <= rounding_of(rewards, group.full_mark):
        rewards[:] = rewards[0]
    return rewards


def centred(group: GroupRewards) -> Float64:
    """Return a group's shaped rewards minus their mean, [N] float64."""
    rewards = wide(group)
    return rewards - rewards.mean()


def reinforce_plus_plus(
    groups: Sequence[GroupRewards],
    config: AlgorithmConfig,
    carried: CarriedMoments | None = None,
) -> list[Float32]:
    """Return (R − batch mean) / batch standard deviation (REINFORCE++, arXiv 2501.03262).

    R is the shaped reward of a rollout. All prompts share one baseline.
    """
    rewards = [wide(group) for group in groups]
    every = np.concatenate(rewards)
    mean = float(every.mean())
    if np.ptp(every) <= rounding_of(every, max(group.full_mark for group in groups)):
        return [np.zeros(len(values), np.float32) for values in rewards]
    centres = [values - mean for values in rewards]
    return whitened(centres, [group.lengths for group in groups], config.shared_params, carried)


def reinforce_plus_plus_baseline(
    groups: Sequence[GroupRewards],
    config: AlgorithmConfig,
    carried: CarriedMoments | None = None,
) -> list[Float32]:
    """Return R − group mean, divided by the standard deviation over the batch (REINFORCE++-baseline).

    Source: arXiv 2501.03262. R is the shaped reward of a rollout. ProRLv2 and BroRL use this advantage. `whitening.py`
    says what the deviation is over, and when a mean is subtracted.
    """
    return whitened(
        [centred(group) for group in groups], [group.lengths for group in groups], config.shared_params, carried
    )


def grpo(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """Return (R − group mean) / group standard deviation (GRPO, arXiv 2402.03300 section 4.1.2).

    R is the shaped reward of a rollout. The deviation of a group with one success in N is about 1/√N, so the success
    gets an advantage of about √N. Rare successes of hard prompts count much more than with a deviation over the batch.
    The deviation divides by N, as in the paper. Several implementations divide by N − 1.
    """
    advantages = []
    for group in groups:
        deviation = wide(group).std()
        values = centred(group) / (deviation + EPSILON)
        advantages.append(values.astype(np.float32))
    return advantages


def dr_grpo(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """Return R − group mean, not divided by a standard deviation (Dr. GRPO, arXiv 2503.20783 section 3.2).

    R is the shaped reward of a rollout. Very easy and very hard prompts get no extra weight.
    """
    return [centred(group).astype(np.float32) for group in groups]


def rloo(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """Return R_i − mean of R_j over j ≠ i, which is N / (N − 1) (R_i − group mean) (RLOO).

    Source: arXiv 2402.14740 section 3.1. R_i is the shaped reward of rollout i in a group of N.
    """
    advantages = []
    for group in groups:
        num = len(group.raw)
        values = centred(group) * num / (num - 1)
        advantages.append(values.astype(np.float32))
    return advantages


def opo(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """Return R minus the length-weighted mean reward Σ l R / Σ l of the group (OPO, arXiv 2505.23585 section 3).

    R is the shaped reward of a rollout, and l is the number of sampled tokens of its response. This baseline has the
    least variance where the squared norm of a response's score function is proportional to its length. The paper
    derives it for strictly on-policy steps, which `algorithm.num_mini_batches=1` gives.
    """
    advantages = []
    for group in groups:
        rewards = wide(group)
        num_tokens = max(group.lengths.sum(), 1)
        baseline = (group.lengths @ rewards) / num_tokens
        advantages.append((rewards - baseline).astype(np.float32))
    return advantages


def maxrl(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """Return (R − group mean) / mean raw reward of the group (MaxRL, arXiv 2602.02710).

    R is the shaped reward of a rollout, p the prompt's success rate and N the number of rollouts in the group. Without
    the baseline, the mean score function of a group's successes has the expectation ∇p Σ (1 − p)^j over j < N. That is
    the gradient of the log-likelihood truncated at order N, so a larger N comes closer to maximum likelihood. With the
    baseline the sum runs over j < N − 1 and the order is N − 1. The reason is that a group without a success gets zeros
    instead of its share of the baseline, which subtracts (1 − p)^(N − 1).

    The divisor uses raw rewards, as dynamic sampling does. Shaping that makes rewards negative therefore does not turn
    a group with successes into one without. Negative raw rewards count as 0 in the divisor.
    """
    advantages = []
    for group in groups:
        values = centred(group)
        earned = np.maximum(group.raw, 0.0)
        mean = earned.mean(dtype=np.float64)
        values = values / mean if mean > 0 else np.zeros_like(values)
        advantages.append(values.astype(np.float32))
    return advantages


def pass_at_k(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """Return the analytic advantages of pass@k training (arXiv 2508.10751 section 2.4).

    k is `algorithm.pass_at_k`, and k ≤ N / 2. A subset of k of a group's N rollouts earns 1 if one of them is correct.
    With W wrong rollouts the mean over all subsets is R̄ = 1 − C(W, k) / C(N, k), and the deviation is σ = √(R̄ (1 −
    R̄)). A correct rollout gets (1 − R̄) / σ. A wrong one gets (1 − R̄ − C(W − 1, k − 1) / C(N − 1, k − 1)) / σ. Both
    vanish once most subsets succeed, so easy prompts lose their weight. Only correctness counts, so shaping changes
    nothing.
    """
    return [pass_at_k_of_group(group.is_correct, config.pass_at_k) for group in groups]


def none(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """Return zeros: rewards are measured, and only the KL to a teacher (`algorithm.kl.teacher`) trains."""
    return [np.zeros(len(group.raw), np.float32) for group in groups]


def pass_at_k_of_group(is_correct: Bool, k: int) -> Float32:
    """Return the advantages [N] of pass@k training for one group, 0 where it has too few wrong or no right rollouts."""
    if k > len(is_correct):
        return np.zeros(len(is_correct), np.float32)
    num = len(is_correct)
    num_wrong = int((~is_correct).sum())
    # Share of subsets without a correct rollout: 1 − R̄ in the paper.
    all_wrong = share_within(num_wrong, num, k)
    deviation = np.sqrt((1 - all_wrong) * all_wrong)
    if deviation < EPSILON:
        return np.zeros(num, np.float32)
    wrong_one = all_wrong
    if num_wrong:
        wrong_one -= share_within(num_wrong - 1, num - 1, k - 1)
    values = np.where(is_correct, all_wrong, wrong_one)
    return (values / deviation).astype(np.float32)


WHITENED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")
ADVANTAGES: dict[str, Advantage] = {
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "opo": opo,
    "maxrl": maxrl,
    "pass_at_k": pass_at_k,
    "none": none,
}


def find_advantage(config: AlgorithmConfig) -> Advantage:
    """Return the advantage function that `algorithm.advantage` names, with `algorithm.advantage_params` filled in.

    Raises ConfigError for a function that cannot be imported or a parameter that the function does not have.
    """
    function = find_function("algorithm.advantage", config.advantage, ADVANTAGES)
    return with_params("algorithm.advantage_params", config.advantage, function, config.own_advantage_params)


def advantages_of(
    groups: Sequence[GroupRewards],
    config: AlgorithmConfig,
    carried: CarriedMoments | None = None,
) -> list[Float32]:
    """Return the advantages of a batch's groups by `algorithm.advantage`, one [N] array per group.

    Whitened advantages update `carried`, and take the deviation from it where it is given.
    Raises TrainingError when a user's own function returns anything but one finite number per rollout.
    """
    function: Callable[..., list[Float32]] = find_advantage(config)
    if not groups:
        # Every group of the batch was cut to one rollout, which nothing is compared with.
        return []
    if config.advantage in WHITENED:
        function = partial(function, carried=carried)
    advantages = function(groups, config)
    if is_import_path(config.advantage):
        advantages = _checked(advantages, groups, config.advantage)
    return advantages


def weigh_rare_successes(
    advantages: Sequence[Float32], groups: Sequence[GroupRewards], exponent: float
) -> list[Float32]:
    """Return advantages times (1 − share of correct rollouts)^exponent of their group (F-GRPO, arXiv 2602.06717).

    The factor comes after any normalisation. `groups` are whole groups of rollouts, also where only some of a group's
    rollouts are trained on. Exponent 0 changes nothing.
    """
    weighted = []
    for values, group in zip(advantages, groups, strict=True):
        share = float(np.mean(group.is_correct))
        weighted.append(values * np.float32((1.0 - share) ** exponent))
    return weighted


def _checked(advantages: Sequence[Float32], groups: Sequence[GroupRewards], name: str) -> list[Float32]:
    """Return the result of a user's advantage function as one float32 array per group.

    Raises TrainingError unless the result has one finite number per rollout.
    """
    if len(advantages) != len(groups):
        raise TrainingError(f"algorithm.advantage={name} returned {len(advantages)} arrays for {len(groups)} groups")
    checked = []
    for index, (values, group) in enumerate(zip(advantages, groups, strict=True)):
        values = np.asarray(values, np.float32)
        if values.shape != group.shaped.shape:
            raise TrainingError(
                f"algorithm.advantage={name} returned an array of shape {values.shape} for group {index} of "
                f"{len(group.shaped)} rollouts: return one number per rollout"
            )
        if not np.isfinite(values).all():
            raise TrainingError(f"algorithm.advantage={name} returned numbers that are not finite for group {index}")
        checked.append(values)
    return checked
