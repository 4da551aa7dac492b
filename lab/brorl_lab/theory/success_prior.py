"""Model how hard prompts are by a Beta prior, and fit it to the groups of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import betaln, gammaln

Float64 = NDArray[np.float64]

# bounds of log a and log b: beyond, the likelihood is flat in one direction
_SHAPE_BOUNDS = (np.log(1e-3), np.log(1e3))


@dataclass(frozen=True)
class SuccessPrior:
    """A Beta(a, b) distribution of the success probability of a prompt."""

    a: float
    b: float

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    @property
    def reward_variance(self) -> float:
        """Expected variance of a 0/1 reward, E[x (1 − x)]: what one rollout of the prompt has to teach."""
        total = self.a + self.b
        return self.a * self.b / (total * (total + 1))

    def posterior(self, successes: float, failures: float) -> SuccessPrior:
        """Return the posterior distribution of a prompt's success rate after more rollouts.

        It is the prior for the rollouts that follow.
        """
        return SuccessPrior(self.a + successes, self.b + failures)

    def keep_rate(self, num_rollouts: int) -> float:
        """Return the share of prompts with 0 < successes < N: 1 − E[x^N] − E[(1 − x)^N].

        It grows with N, towards 1 for a proper prior.
        """
        log_norm = betaln(self.a, self.b)
        all_right = np.exp(betaln(self.a + num_rollouts, self.b) - log_norm)
        all_wrong = np.exp(betaln(self.a, self.b + num_rollouts) - log_norm)
        return float(1.0 - all_right - all_wrong)

    def pass_at_k(self, k: int) -> float:
        """Return the expected pass@k of a prompt: 1 − E[(1 − x)^k]."""
        return float(1.0 - np.exp(betaln(self.a, self.b + k) - betaln(self.a, self.b)))


def fit_success_prior(
    successes: Sequence[int] | NDArray[np.int64], num_rollouts: Sequence[int] | NDArray[np.int64]
) -> SuccessPrior:
    """Return the Beta prior under which a run's groups are most likely (beta-binomial maximum likelihood).

    A group has k of N right, and N may differ. Pass all groups that were sampled, also those that dynamic sampling
    dropped: without them the prior takes every prompt to be of medium difficulty. Raises ValueError for fewer than two
    groups or counts out of range.
    """
    k = np.asarray(successes, float)
    n = np.asarray(num_rollouts, float)
    if k.shape != n.shape or k.size < 2:
        raise ValueError(f"{k.size} success counts and {n.size} group sizes: give one of each for at least two groups")
    if (k < 0).any() or (k > n).any() or (n < 1).any():
        raise ValueError("success counts must be between 0 and their group's size")

    def negative_log_likelihood(log_shape: Float64) -> float:
        a, b = np.exp(log_shape)
        choose = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
        per_group = choose + betaln(k + a, n - k + b) - betaln(a, b)
        return -float(per_group.sum())

    best = minimize(negative_log_likelihood, np.zeros(2), method="L-BFGS-B", bounds=[_SHAPE_BOUNDS] * 2)
    a, b = np.exp(best.x)
    return SuccessPrior(float(a), float(b))
