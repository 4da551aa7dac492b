"""The mass balance against numbers worked by hand, exact derivatives, and finite steps."""

from __future__ import annotations

import numpy as np
import pytest
from brorl_lab.theory.rollout_size import (
    RULES,
    Rewards,
    change_of_q,
    logit_step,
    mass_balance,
    softmax,
    theorem_1,
)

SIGNED = Rewards(1.0, -1.0)


def instance(seed: int, num_tokens: int = 40, num_draws: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    p = softmax(random.normal(scale=1.5, size=num_tokens))
    return p, random.random(num_tokens) < 0.4, random.multinomial(num_draws, p)


def surrogate(z: np.ndarray, is_correct: np.ndarray, counts: np.ndarray, rewards: Rewards, rule: str) -> float:
    """The rule's loss as the table writes it, for derivatives by finite differences."""
    p, num = softmax(z), counts.sum()
    reward = np.where(is_correct, rewards.correct, rewards.wrong)
    if rule == "distinct":
        return -float((reward * (counts > 0) * p).sum()) / num
    if rule == "counted":
        return -float((reward * counts * p).sum()) / num
    if rule == "reinforce_baseline":
        reward = reward - (reward * counts).sum() / num
    return -float((reward * counts * np.log(p)).sum()) / num


def test_three_tokens_worked_by_hand() -> None:
    # p = (.5, .3, .2), the first two correct; draws: token 0 once, token 2 once. S_R = .5 − .2 = .3, Q_pos = .8, Q_neg
    # = .2.
    p, is_correct = np.array([0.5, 0.3, 0.2]), np.array([True, True, False])
    result = theorem_1(p, is_correct, np.array([True, False, True]), 2, SIGNED)
    assert result.sampled_correct == pytest.approx((1 - 0.3) * 0.2 * 0.25 / 2)  # (R_c − S_R) Q_neg A₂ / N
    assert result.sampled_wrong == pytest.approx((0.3 + 1) * 0.8 * 0.04 / 2)  # (S_R − R_w) Q_pos B₂ / N
    assert result.coupling == pytest.approx(
        0.3 * (0 - 0.2 * 0.09) / 2
    )  # nothing wrong is unsampled; token 1 is unsampled
    assert result.total == pytest.approx(0.0175 + 0.0208 - 0.0027)


@pytest.mark.parametrize("seed", range(50))
def test_theorem_1_is_the_exact_derivative_of_the_distinct_set_rule(seed: int) -> None:
    p, is_correct, counts = instance(seed)
    rewards = Rewards(1.0, -0.5)
    step = logit_step(p, is_correct, counts, rewards, "distinct")
    derivative = float(p[is_correct] @ step[is_correct]) - p[is_correct].sum() * float(p @ step)
    assert theorem_1(p, is_correct, counts > 0, int(counts.sum()), rewards).total == pytest.approx(
        derivative, rel=1e-10
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(20))
def test_the_general_identity_is_the_exact_derivative_of_every_rule(rule: str, seed: int) -> None:
    p, is_correct, counts = instance(seed)
    rewards = Rewards(1.0, -0.5)
    step = logit_step(p, is_correct, counts, rewards, rule)
    derivative = float(p[is_correct] @ step[is_correct]) - p[is_correct].sum() * float(p @ step)
    assert mass_balance(p, is_correct, counts, rewards, rule).total == pytest.approx(derivative, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("rule", RULES)
def test_the_logit_step_is_the_negative_gradient_of_the_surrogate(rule: str) -> None:
    p, is_correct, counts = instance(3)
    z, h = np.log(p), 1e-6
    step = logit_step(p, is_correct, counts, SIGNED, rule)
    for token in (0, 5, 17):
        bump = np.zeros_like(z)
        bump[token] = h
        slope = surrogate(z + bump, is_correct, counts, SIGNED, rule) - surrogate(
            z - bump, is_correct, counts, SIGNED, rule
        )
        assert step[token] == pytest.approx(-slope / (2 * h), abs=1e-8)


@pytest.mark.parametrize("rule", RULES)
def test_what_the_first_order_leaves_out_falls_with_the_square_of_the_step(rule: str) -> None:
    p, is_correct, counts = instance(8)  # draws of both kinds: else the baseline leaves nothing
    step = logit_step(p, is_correct, counts, SIGNED, rule)
    first_order = mass_balance(p, is_correct, counts, SIGNED, rule).total
    errors = [abs(change_of_q(p, is_correct, eta * step) - eta * first_order) for eta in (1e-1, 1e-2, 1e-3)]
    assert errors[0] / errors[1] == pytest.approx(100, rel=0.25)
    assert errors[1] / errors[2] == pytest.approx(100, rel=0.25)


@pytest.mark.parametrize("seed", range(30))
def test_with_the_group_mean_as_baseline_the_change_is_never_negative(seed: int) -> None:
    p, is_correct, counts = instance(seed, num_draws=3)
    result = mass_balance(p, is_correct, counts, SIGNED, "reinforce_baseline")
    assert result.coupling == pytest.approx(0, abs=1e-16)
    assert result.total >= 0


def test_without_a_baseline_a_small_group_can_lose_mass() -> None:
    totals = [mass_balance(*instance(seed, num_draws=2), SIGNED, "reinforce").total for seed in range(50)]
    assert min(totals) < 0 < max(totals)


def test_bad_input_says_what_to_write() -> None:
    p, is_correct, counts = instance(0)
    with pytest.raises(ValueError, match="rule='ppo' is unknown: set one of distinct, counted"):
        mass_balance(p, is_correct, counts, SIGNED, "ppo")
    with pytest.raises(ValueError, match="at least one token must be drawn"):
        mass_balance(p, is_correct, counts * 0, SIGNED, "counted")
