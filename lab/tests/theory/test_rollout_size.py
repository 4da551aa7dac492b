"""What N buys: closed forms against simulation, and numbers of the design notes."""

from __future__ import annotations

import numpy as np
import pytest
from brorl_lab.theory.rollout_size import (
    Rewards,
    pass_at_k,
    signal_to_noise,
    unsampled_mass,
    unsampled_second_moment,
)
from brorl_lab.theory.success_prior import SuccessPrior, fit_success_prior


def zipf(num_tokens: int) -> np.ndarray:
    weights = 1 / np.arange(1, num_tokens + 1)
    return weights / weights.sum()


@pytest.mark.parametrize("num_draws", [1, 4, 64])
def test_lemma_2_agrees_with_simulation_within_its_error(num_draws: int) -> None:
    p, trials = zipf(50), 20_000
    draws = np.random.default_rng(0).multinomial(num_draws, p, size=trials)
    sums = ((draws == 0) * p**2).sum(1)
    assert unsampled_second_moment(p, num_draws) == pytest.approx(sums.mean(), abs=4 * sums.std() / trials**0.5)


def test_the_unsampled_second_moment_only_falls_with_n() -> None:
    values = [unsampled_second_moment(zipf(1000), num) for num in (1, 2, 16, 128, 512, 4096)]
    assert values == sorted(values, reverse=True)


def test_two_equal_tokens_worked_by_hand() -> None:
    p = np.array([0.5, 0.5])
    assert unsampled_second_moment(p, 3) == pytest.approx(2 * 0.25 * 0.125)
    assert unsampled_mass(p, 3) == pytest.approx(2 * 0.5 * 0.125)
    assert pass_at_k(0.5, 3) == pytest.approx(0.875)


def test_signal_to_noise_of_the_baseline_rule_grows_like_the_root_of_n() -> None:
    p = zipf(1000)
    is_correct = np.arange(1000) % 3 == 0
    small, large = (
        signal_to_noise(p, is_correct, num, Rewards(), "reinforce_baseline", 400, seed=1).ratio for num in (32, 512)
    )
    assert large / small == pytest.approx(4, rel=0.2)


def test_keep_rates_of_a_beta_prior_are_those_of_the_design_notes() -> None:
    prior = SuccessPrior(0.56, 0.13)
    rates = [prior.keep_rate(num) for num in (16, 32, 64, 128, 256, 512)]
    assert rates == pytest.approx([0.38, 0.44, 0.49, 0.54, 0.58, 0.62], abs=0.012)  # the notes round a and b


def test_a_uniform_prior_keeps_all_but_two_outcomes() -> None:
    # Under Beta(1, 1) every success count 0 … N is equally likely.
    assert SuccessPrior(1, 1).keep_rate(9) == pytest.approx(8 / 10)
    assert SuccessPrior(1, 1).pass_at_k(3) == pytest.approx(3 / 4)
    assert SuccessPrior(3, 1).mean == pytest.approx(0.75)


def test_the_fit_finds_the_prior_that_drew_the_groups() -> None:
    random = np.random.default_rng(5)
    sizes = random.choice([16, 64, 512], 4000)
    prior = fit_success_prior(random.binomial(sizes, random.beta(0.6, 0.3, 4000)), sizes)
    assert (prior.a, prior.b) == pytest.approx((0.6, 0.3), rel=0.08)


def test_a_fit_refuses_counts_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="at least two groups"):
        fit_success_prior([3], [16])
    with pytest.raises(ValueError, match="between 0 and their group's size"):
        fit_success_prior([3, 17], [16, 16])
