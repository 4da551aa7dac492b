"""Errors of means over prompts, on numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import stdtrit

from nemo_brorl.core.statistics import bootstrap_means, difference_interval, estimate, share_interval

SETTINGS = (0.95, 2000, 0)


def test_the_standard_error_is_that_of_the_prompts() -> None:
    # Means of four prompts 0, 1/2, 1/2, 1: variance (1/4 + 0 + 0 + 1/4) / 3 = 1/6, error sqrt(1/24)
    found = estimate([[0.0, 0.5, 0.5, 1.0]], *SETTINGS)
    assert found.value == 0.5
    assert found.standard_error == pytest.approx(math.sqrt(1 / 24))


def test_samples_of_a_prompt_that_agree_are_no_further_evidence() -> None:
    """Clustered by prompt: 4 prompts of 100 equal samples say as much as 4 samples."""
    assert estimate([[0.0, 0.0, 1.0, 1.0]], *SETTINGS).standard_error == pytest.approx(math.sqrt(1 / 3 / 4))


def test_the_bootstrap_interval_holds_nearly_as_much_as_it_says() -> None:
    values = np.linspace(0, 1, 101)
    low, high = estimate([values.tolist()], *SETTINGS).bootstrap
    half = 1.96 * values.std() / math.sqrt(101)
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), abs=0.01)


def test_benchmarks_that_count_the_same_are_strata() -> None:
    # means 1/2 and 1, variances 1/12 (of the mean) and 0: error sqrt(1/12) / 2
    found = estimate([[0.0, 0.0, 1.0, 1.0], [1.0, 1.0]], *SETTINGS)
    assert found.value == 0.75
    assert found.standard_error == pytest.approx(math.sqrt(1 / 12) / 2)
    means = bootstrap_means([[0.0, 0.0, 1.0, 1.0], [1.0, 1.0]], 500, 0)
    assert means.min() >= 0.5, "the second benchmark is right whatever is drawn"


def test_one_prompt_says_nothing_of_the_spread() -> None:
    found = estimate([[0.5]], *SETTINGS)
    assert math.isnan(found.standard_error)


def test_nothing_right_among_prompts_counts_every_prompt_as_one_sample() -> None:
    # Clopper and Pearson's upper end at 0 of n: 1 - 0.025^(1 / n).
    assert share_interval([np.zeros(256)], 0.95) == pytest.approx((0.0, 1 - 0.025 ** (1 / 256)))
    assert share_interval([np.ones(10)], 0.95) == pytest.approx((0.025**0.1, 1.0))


def test_equal_values_are_not_certain_and_one_value_says_nothing() -> None:
    low, high = share_interval([np.full(20, 0.25)], 0.95)
    assert low == pytest.approx(0.0866, abs=1e-4), "as 5 right of 20"
    assert high == pytest.approx(0.4910, abs=1e-4)
    assert np.isnan(share_interval([[0.5], [0.0, 1.0]], 0.95)).all()


def test_a_benchmark_without_a_right_answer_adds_its_own_width() -> None:
    other = np.tile([0.0, 1.0], 5000)
    _, high = share_interval([np.zeros(10), other], 0.95)
    assert high - 0.25 >= (1 - 0.025**0.1) / 2


def test_no_more_samples_are_effective_than_were_drawn() -> None:
    nearly = np.full(100, 0.5)
    nearly[0] = 0.625
    low, high = share_interval([nearly], 0.95, samples_per_value=8)
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / math.sqrt(800), rel=0.05)


def test_two_prompts_that_both_got_better_may_have_been_chance() -> None:
    low, high = difference_interval([np.ones(2)], 0.95)
    assert low < 0 < high == 1.0


def test_few_differences_that_vary_have_students_interval() -> None:
    # mean 0.03, standard error 0.01 / √3, t(2) = 4.302653
    reach = 4.302653 * 0.01 / math.sqrt(3)
    found = difference_interval([[0.02, 0.03, 0.04]], 0.95)
    assert found == pytest.approx((0.03 - reach, 0.03 + reach), abs=1e-6)


@pytest.mark.parametrize("prior", ["rare", "one in 200", "half"])
def test_intervals_hold_the_truth_as_often_as_they_say(prior: str) -> None:
    random = np.random.default_rng(1)
    truth = {"rare": 2.3e-4, "one in 200": 0.9 / 200, "half": 0.59 / 1.86}[prior]
    num_inside, width, of_student = 0, 0.0, 0.0
    for _ in range(1000):
        rates = np.full(256, truth)
        if prior == "one in 200":
            rates = 0.9 * (random.random(256) < 1 / 200)
        if prior == "half":
            rates = random.beta(0.59, 1.27, 256)
        values = random.binomial(8, rates) / 8
        low, high = share_interval([values], 0.95, 8)
        num_inside += low <= truth <= high
        width += high - low
        of_student += 2 * stdtrit(255, 0.975) * values.std(ddof=1) / 16
    assert num_inside >= 940
    if prior == "half":
        assert width <= 1.05 * of_student
