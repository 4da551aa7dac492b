"""Advantages: one number per rollout from the rewards of a batch's groups. One pure function an algorithm.

`algorithm.advantage` names one of `ADVANTAGES`, or a function of your own as `package.module:function`
(docs/extending.md).

Rewards say something where rollouts of a group disagree; dynamic sampling and packing ask for that here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from brorl_graders.base.components import find_function, is_import_path, with_params
from numpy.typing import NDArray

from nemo_brorl.algorithm.pass_at_k import share_within
from nemo_brorl.config.algorithm import AlgorithmConfig
from nemo_brorl.core.errors import TrainingError
from nemo_brorl.types import SUCCESS_REWARD, Bool, Float32, Int32, Int64

EPSILON = 1e-8  # keeps a division by a vanishing deviation finite
EQUAL = 1e-6  # rewards that differ by less are the same

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class GroupRewards:
    """Rewards of those rollouts of a group that are trained: the shaped ones are learnt from, the raw ones say what is
    correct."""

    raw: Float32  # [N]
    shaped: Float32  # [N]
    lengths: Int32  # [N] sampled tokens of the responses

    def select(self, rollouts: Int64) -> GroupRewards:
        """Those of some of its rollouts alone."""
        return GroupRewards(self.raw[rollouts], self.shaped[rollouts], self.lengths[rollouts])

    @property
    def is_correct(self) -> Bool:  # [N]
        """By the raw reward: shaping may take a correct answer far below SUCCESS_REWARD."""
        return self.raw >= SUCCESS_REWARD


def disagree(rewards: Float32, min_range: float) -> bool:
    """Whether the best and the worst of these raw rewards differ, by at least `min_range`. Their standard deviation
    would not be zero for 512 equal rewards of 0.3."""
    least_range = max(min_range - EQUAL, EQUAL)
    if not len(rewards):
        return False
    return float(rewards.max()) - float(rewards.min()) > least_range


Advantage = Callable[[Sequence[GroupRewards], AlgorithmConfig], list[Float32]]  # one [N] array per group


def wide(group: GroupRewards) -> Float64:
    """Shaped rewards in float64: the mean of 512 equal float32 rewards need not be that reward."""
    return group.shaped.astype(np.float64)


def centred(group: GroupRewards) -> Float64:
    """Shaped rewards minus their group's mean [N]."""
    rewards = wide(group)
    return rewards - rewards.mean()


def whitened(groups: Sequence[Float64]) -> list[Float32]:
    """Values divided by their root mean square over all rollouts of the batch."""
    values = np.concatenate(groups)
    deviation = float(np.sqrt(np.mean(values**2)))
    return [(group / (deviation + EPSILON)).astype(np.float32) for group in groups]


def reinforce_plus_plus(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """(R − batch mean) / batch deviation (REINFORCE++, arXiv 2501.03262): one baseline for all prompts."""
    rewards = [wide(group) for group in groups]
    mean = float(np.concatenate(rewards).mean())
    return whitened([values - mean for values in rewards])


def reinforce_plus_plus_baseline(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """R − group mean, then divided by the standard deviation over all rollouts of the batch (REINFORCE++-baseline,
    arXiv 2501.03262; the advantage of ProRLv2 and BroRL).

    Whitening weighs every rollout alike; subtracting the batch mean would change nothing, since every centred group
    already sums to zero.
    """
    return whitened([centred(group) for group in groups])


def grpo(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """(R − group mean) / group standard deviation (GRPO, arXiv 2402.03300 section 4.1.2), group by group.

    The deviation of a group with one success in N is about 1/√N, so its success gets about √N: rare successes of hard
    prompts count much more than under a batch-wide deviation.
    """
    advantages = []
    for group in groups:
        deviation = wide(group).std()
        values = centred(group) / (deviation + EPSILON)
        advantages.append(values.astype(np.float32))
    return advantages


def dr_grpo(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """R − group mean, without a deviation (Dr. GRPO, arXiv 2503.20783 section 3.2): very easy and very hard prompts get
    no extra weight."""
    return [centred(group).astype(np.float32) for group in groups]


def rloo(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """R_i − mean of R_j over j ≠ i, which is N / (N − 1) (R_i − group mean) (RLOO, arXiv 2402.14740 section 3.1)."""
    advantages = []
    for group in groups:
        num = len(group.raw)
        values = centred(group) * num / (num - 1)
        advantages.append(values.astype(np.float32))
    return advantages


def opo(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """R − Σ l R / Σ l over the group, with l the response's sampled tokens (OPO, arXiv 2505.23585 section 3): the
    baseline of least variance where the squared norm of a response's score function is in proportion to its length. For
    strictly on-policy steps, which is what the paper derives it for: `algorithm.num_mini_batches=1`."""
    advantages = []
    for group in groups:
        rewards = wide(group)
        num_tokens = max(group.lengths.sum(), 1)
        baseline = (group.lengths @ rewards) / num_tokens
        advantages.append((rewards - baseline).astype(np.float32))
    return advantages


def maxrl(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """(R − group mean) / mean raw reward of the group (MaxRL, arXiv 2602.02710).

    The mean score function of a group's successes has the expectation ∇p Σ (1 − p)^j over j < N: the gradient of the
    log-likelihood truncated at order N, so a larger N comes closer to maximum likelihood. With the baseline it is the
    sum over j < N − 1, order N − 1: a group without success gets zeros and not its share of the baseline, which takes
    (1 − p)^(N − 1) off. The divisor is the raw reward, that of dynamic sampling, so that shaping that makes rewards
    negative does not turn a group with successes into one without.
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
    """Analytic advantages of pass@k training (arXiv 2508.10751 section 2.4), `algorithm.pass_at_k` = k ≤ N.

    Over all subsets of k of a group's N rollouts, a subset earns 1 if it holds a correct rollout. With W wrong ones its
    mean is R̄ = 1 − C(W, k) / C(N, k) and its deviation σ = √(R̄ (1 − R̄)); a correct rollout gets (1 − R̄) / σ, a
    wrong one (1 − R̄ − C(W − 1, k − 1) / C(N − 1, k − 1)) / σ. Once most subsets succeed, both vanish: easy prompts
    stop pulling. Only correctness counts, so shaping changes nothing.
    """
    return [_pass_at_k_of_group(group.is_correct, config.pass_at_k) for group in groups]


def _pass_at_k_of_group(is_correct: Bool, k: int) -> Float32:
    num = len(is_correct)
    num_wrong = int((~is_correct).sum())
    all_wrong = share_within(num_wrong, num, k)  # share of subsets without a correct rollout: 1 − R̄
    deviation = np.sqrt((1 - all_wrong) * all_wrong)
    if deviation < EPSILON:
        return np.zeros(num, np.float32)
    wrong_one = all_wrong
    if num_wrong:
        wrong_one -= share_within(num_wrong - 1, num - 1, k - 1)
    values = np.where(is_correct, all_wrong, wrong_one)
    return (values / deviation).astype(np.float32)


ADVANTAGES: dict[str, Advantage] = {
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "opo": opo,
    "maxrl": maxrl,
    "pass_at_k": pass_at_k,
}


def find_advantage(config: AlgorithmConfig) -> Advantage:
    """The function that `algorithm.advantage` names, with `algorithm.advantage_params`. Raises ConfigError."""
    function = find_function("algorithm.advantage", config.advantage, ADVANTAGES)
    return with_params("algorithm.advantage_params", config.advantage, function, config.own_advantage_params)


def advantages_of(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """One [N] array per group by the chosen algorithm. Raises TrainingError when a function of the user's own returns
    something else."""
    advantages = find_advantage(config)(groups, config)
    if is_import_path(config.advantage):
        advantages = _checked(advantages, groups, config.advantage)
    return advantages


def weigh_rare_successes(
    advantages: Sequence[Float32], groups: Sequence[GroupRewards], exponent: float
) -> list[Float32]:
    """Advantages times (1 − share of correct rollouts)^exponent of their group (F-GRPO, arXiv 2602.06717), after any
    normalisation; `groups` are whole, whichever of their rollouts are trained. Exponent 0 changes nothing."""
    weighted = []
    for values, group in zip(advantages, groups, strict=True):
        share = float(np.mean(group.is_correct))
        weighted.append(values * np.float32((1.0 - share) ** exponent))
    return weighted


def _checked(advantages: Sequence[Float32], groups: Sequence[GroupRewards], name: str) -> list[Float32]:
    """What a user's function returned, as float32. Raises TrainingError unless it is one finite number per rollout."""
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
