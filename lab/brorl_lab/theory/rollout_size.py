"""Compute what a rollout size N is worth: unsampled mass, signal-to-noise, pass@k, and the mass balance of one update.

Sources: Lemma 2 and Corollary 3 of BroRL (arXiv 2510.01180) for the unsampled second moment. The rest is textbook
probability, so that users can evaluate their own runs.

Mass balance of one update at one token position (BroRL, arXiv 2510.01180, section 2).

One position has logits z and p = softmax(z). Its tokens are correct or incorrect, and N are drawn. A small step on a
surrogate loss changes the probability mass of the correct tokens, Q_pos, by a gain from what was sampled and by a
coupling with what was not. The terms depend on the update rule:

    rule                     surrogate                             r_j (weight of token j)       z_j moves by
    distinct set             −(1/N) Σ_{sampled tokens} R_i p_i     R_j / N once, if drawn        η p_j (r_j − S)
    counted                  −(1/N) Σ_{draws} R_i p_i              R_j f_j, f_j = n_j / N        η p_j (r_j − S)
    REINFORCE                −(1/N) Σ_{draws} R_i log p_i          R_j f_j                       η (r_j − S p_j)
    REINFORCE with baseline  the same with R − mean R              (R_j − mean R) f_j            η (r_j − S p_j), S = 0

Theorem 1 of the paper is for the distinct set. `mass_balance` holds for all four. With the group-mean baseline S = 0,
so the first-order change is never negative, whatever N is. N then buys signal-to-noise.

Legend: p [V] probabilities, is_correct [V] bool, counts [V] int draws of each token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
BoolMask = NDArray[np.bool_]

RULES = ("distinct", "counted", "reinforce", "reinforce_baseline")


@dataclass(frozen=True)
class Rewards:
    """Rewards of drawn tokens, with correct >= 0 >= wrong. A token that was not drawn has reward 0."""

    correct: float = 1.0
    wrong: float = -1.0


@dataclass(frozen=True)
class MassBalance:
    """The first-order change of Q_pos in one step, term by term. Multiply it by the learning rate η."""

    sampled_correct: float  # push on drawn correct tokens: >= 0 when their reward is
    sampled_wrong: float  # push on drawn wrong tokens: >= 0 when their reward is not above 0
    coupling: float  # coupling of either sign: the batch's S times what is left to p²

    @property
    def total(self) -> float:
        """The first-order change of the correct tokens' probability Q_pos, per learning rate η."""
        return self.sampled_correct + self.sampled_wrong + self.coupling


def softmax(logits: Float64) -> Float64:
    """Return the softmax probabilities [V] of logits [V]."""
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()


def token_weights(
    p: Float64,
    is_correct: BoolMask,
    counts: NDArray[np.int64],
    rewards: Rewards,
    rule: str,
) -> Float64:
    """Return the weight r_j of each token [V] in the surrogate loss of an update rule.

    Raises ValueError for an unknown rule or when no token was drawn.
    """
    if rule not in RULES:
        raise ValueError(f"rule={rule!r} is unknown: set one of {', '.join(RULES)}")
    num = int(counts.sum())
    if num == 0:
        raise ValueError("counts are all zero: at least one token must be drawn")
    reward = np.where(is_correct, rewards.correct, rewards.wrong)
    if rule == "distinct":
        return reward * (counts > 0) / num
    shares = counts / num
    if rule == "reinforce_baseline":
        reward = reward - float(reward @ shares)
    return reward * shares


def logit_step(
    p: Float64,
    is_correct: BoolMask,
    counts: NDArray[np.int64],
    rewards: Rewards,
    rule: str,
) -> Float64:
    """Return the change Δz of the logits [V] in one gradient step, per learning rate η.

    It is the negative gradient of the update rule's surrogate loss with respect to the logits.
    """
    weights = token_weights(p, is_correct, counts, rewards, rule)
    if rule in ("distinct", "counted"):
        return p * (weights - float(weights @ p))
    return weights - float(weights.sum()) * p


def mass_balance(
    p: Float64,
    is_correct: BoolMask,
    counts: NDArray[np.int64],
    rewards: Rewards,
    rule: str,
) -> MassBalance:
    """Return the terms of ΔQ_pos / η = Q_neg a − Q_pos b + S (Q_pos N₂ − Q_neg P₂), for every update rule.

    Q_pos and Q_neg are the probabilities of all correct and all wrong tokens, η is the learning rate. a and b are the
    first-order pushes on the correct and the wrong tokens (Σ r p² for the surrogates in p, Σ r p for REINFORCE), S = Σ
    r p or Σ r, and P₂, N₂ the sums of p² over all correct and all wrong tokens.
    """
    weights = token_weights(p, is_correct, counts, rewards, rule)
    is_surrogate_in_p = rule in ("distinct", "counted")
    push = weights * p**2 if is_surrogate_in_p else weights * p
    mood = float(weights @ p) if is_surrogate_in_p else float(weights.sum())
    q_pos = float(p[is_correct].sum())
    squares_correct, squares_wrong = float((p[is_correct] ** 2).sum()), float((p[~is_correct] ** 2).sum())
    return MassBalance(
        sampled_correct=(1 - q_pos) * float(push[is_correct].sum()),
        sampled_wrong=-q_pos * float(push[~is_correct].sum()),
        coupling=mood * (q_pos * squares_wrong - (1 - q_pos) * squares_correct),
    )


def theorem_1(
    p: Float64,
    is_correct: BoolMask,
    is_sampled: BoolMask,
    num_draws: int,
    rewards: Rewards,
) -> MassBalance:
    """Return the terms of Theorem 1 as the BroRL paper (arXiv 2510.01180) states it, for the distinct-set update rule.

    They group the sum of `mass_balance` in another way:

        ΔQ_pos / η = [(R_c − S_R) Q_neg A₂ + (S_R − R_w) Q_pos B₂ + S_R (Q_pos U_neg,2 − Q_neg U_pos,2)] / N

    with S_R = R_c P_pos + R_w P_neg over the sampled set, and A₂, B₂, U₂ sums of p² over sampled correct, sampled wrong
    and unsampled tokens. The first two terms are never negative. The third, from what was not sampled, vanishes as N
    grows.
    """
    sampled_correct, sampled_wrong = is_sampled & is_correct, is_sampled & ~is_correct
    mood = rewards.correct * float(p[sampled_correct].sum()) + rewards.wrong * float(p[sampled_wrong].sum())
    q_pos = float(p[is_correct].sum())
    squares = p**2
    unsampled_correct, unsampled_wrong = (
        squares[is_correct & ~is_sampled].sum(),
        squares[~is_correct & ~is_sampled].sum(),
    )
    return MassBalance(
        sampled_correct=(rewards.correct - mood) * (1 - q_pos) * float(squares[sampled_correct].sum()) / num_draws,
        sampled_wrong=(mood - rewards.wrong) * q_pos * float(squares[sampled_wrong].sum()) / num_draws,
        coupling=mood * float(q_pos * unsampled_wrong - (1 - q_pos) * unsampled_correct) / num_draws,
    )


def change_of_q(p: Float64, is_correct: BoolMask, logit_change: Float64) -> float:
    """Return the exact change of Q_pos, the probability of correct tokens, when logits move by `logit_change` [V].

    First-order terms in the learning rate η approximate it to O(η²).
    """
    moved = p * np.exp(logit_change - logit_change.max())
    return float(moved[is_correct].sum() / moved.sum() - p[is_correct].sum())


def unsampled_second_moment(p: Float64, num_draws: int) -> float:
    """Return the expected Σ p² over the tokens that N draws leave out, which is Σ p² (1 − p)^N.

    This is Lemma 2 of BroRL (arXiv 2510.01180). The value falls in N for every p (Corollary 3).
    """
    return float((p**2 * (1 - p) ** num_draws).sum())


def unsampled_mass(p: Float64, num_draws: int) -> float:
    """Return the expected probability of all tokens that N draws leave out, which is Σ p (1 − p)^N."""
    return float((p * (1 - p) ** num_draws).sum())


def pass_at_k(q_pos: float, k: int) -> float:
    """Return 1 − (1 − Q_pos)^k, the probability that at least one of k answers is correct."""
    return 1.0 - (1.0 - q_pos) ** k


@dataclass(frozen=True)
class SignalToNoise:
    """Mean and standard deviation of the first-order ΔQ_pos per η over draws of N tokens."""

    mean: float
    deviation: float

    @property
    def ratio(self) -> float:
        """Signal-to-noise ratio: the mean over the standard deviation, or infinity when the deviation is 0."""
        return self.mean / self.deviation if self.deviation > 0 else float("inf")


def signal_to_noise(
    p: Float64,
    is_correct: BoolMask,
    num_draws: int,
    rewards: Rewards,
    rule: str,
    num_trials: int,
    seed: int,
) -> SignalToNoise:
    """Return the mean and standard deviation of ΔQ_pos / η over `num_trials` simulated groups of N draws.

    ΔQ_pos / η is the change of the correct tokens' probability in one update, per learning rate η.
    """
    random = np.random.default_rng(seed)
    draws = random.multinomial(num_draws, p, size=num_trials)
    changes = np.array([mass_balance(p, is_correct, counts, rewards, rule).total for counts in draws])
    return SignalToNoise(float(changes.mean()), float(changes.std(ddof=1)))
