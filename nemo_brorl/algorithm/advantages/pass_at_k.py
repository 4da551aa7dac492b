"""Advantages shaped for pass@k: what a rollout adds to the chance that one of k is correct."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln

from nemo_brorl.algorithm.advantages.base import EPSILON, GroupRewards
from nemo_brorl.config.schema import AlgorithmConfig
from nemo_brorl.types import Bool, Float32


def pass_at_k(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """Analytic advantages of pass@k training (arXiv 2508.10751 section 2.4), `algorithm.pass_at_k` = k ≤ N.

    Over all subsets of k of a group's N rollouts, a subset earns 1 if it holds a correct rollout. With W wrong ones its
    mean is R̄ = 1 − C(W, k) / C(N, k) and its deviation σ = √(R̄ (1 − R̄)); a correct rollout gets (1 − R̄) / σ, a
    wrong one (1 − R̄ − C(W − 1, k − 1) / C(N − 1, k − 1)) / σ. Once most subsets succeed, both vanish: easy prompts
    stop pulling. Only correctness counts, so shaping changes nothing.
    """
    return [_of_group(group.is_correct, config.pass_at_k) for group in groups]


def _of_group(is_correct: Bool, k: int) -> Float32:
    num, wrong = len(is_correct), int((~is_correct).sum())
    all_wrong = _ratio_of_binomials(wrong, num, k)
    deviation = np.sqrt((1 - all_wrong) * all_wrong)
    if deviation < EPSILON:
        return np.zeros(num, np.float32)
    of_wrong = all_wrong - (_ratio_of_binomials(wrong - 1, num - 1, k - 1) if wrong else 0.0)
    return (np.where(is_correct, all_wrong, of_wrong) / deviation).astype(np.float32)


def _ratio_of_binomials(few: int, many: int, k: int) -> float:
    """C(few, k) / C(many, k) for few ≤ many, through logarithms so that N = 512 does not overflow."""
    if k > few:
        return 0.0
    return float(np.exp(gammaln(few + 1) - gammaln(few - k + 1) - gammaln(many + 1) + gammaln(many - k + 1)))
