"""Paired tests, on numbers worked by hand and against scipy's own test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from brorl_lab.paired_test import paired_test, sign_flip_p
from scipy import stats

SETTINGS = (0.95, 2000, 0)


def test_one_prompt_is_no_evidence() -> None:
    assert math.isnan(paired_test([[0.5]], *SETTINGS).p_value)


def test_a_paired_test_of_four_prompts_by_hand() -> None:
    # differences 1/2, 1/4, 0, 1/4: mean 1/4, variance 1/24, error sqrt(1/96), t = sqrt(6)
    found = paired_test([[0.5, 0.25, 0.0, 0.25]], *SETTINGS)
    assert found.difference.value == 0.25
    assert found.t == pytest.approx(math.sqrt(6))
    assert found.degrees_of_freedom == 3
    assert found.p_value == 2 / 2**3, "of the three that are not 0 all have one sign"


def test_the_p_value_is_scipys() -> None:
    differences = np.random.default_rng(1).normal(0.03, 0.2, 200)
    expected = stats.ttest_1samp(differences, 0.0)
    found = paired_test([differences.tolist()], *SETTINGS)
    assert (found.t, found.p_value) == pytest.approx((expected.statistic, expected.pvalue))
    assert found.bootstrap_p_value == pytest.approx(expected.pvalue, abs=0.03)


def test_no_difference_at_all_is_not_significant() -> None:
    none = paired_test([[0.0] * 5], *SETTINGS)
    assert (none.t, none.p_value, none.bootstrap_p_value) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("num", [2, 3, 5, 12, 13, 20])
def test_equal_differences_are_as_likely_by_chance_as_equal_signs(num: int) -> None:
    found = paired_test([[0.25] * num, [0.0] * 3], *SETTINGS)
    assert found.p_value >= 2 / 2**num
    assert found.bootstrap_p_value >= 2 / 2**num
    low, high = paired_test([[1.0] * num], *SETTINGS).difference.interval
    assert low < high


def test_sign_flips_count_sums_that_are_as_far_from_zero() -> None:
    # 1 + 2 + 3 = 6 of all sums ±1 ±2 ±3; for 1 + 2 - 3 = 0 every sum is as far.
    assert sign_flip_p(np.array([1.0, 2.0, 3.0])) == 2 / 8
    assert sign_flip_p(np.array([3.0, 2.0, -1.0])) == 4 / 8
    assert sign_flip_p(np.array([1.0, 2.0, -3.0])) == 1.0


@pytest.mark.parametrize("num", [10, 30, 256])
@pytest.mark.parametrize("rates", [(0.59, 1.27), (0.05, 5.0), (0.56, 0.13)])
def test_chance_alone_is_called_a_difference_as_seldom_as_it_says(num: int, rates: tuple[float, float]) -> None:
    random = np.random.default_rng(0)
    false_alarms = 0
    for _ in range(400):
        rate = random.beta(*rates, num)
        differences = (random.binomial(8, rate) - random.binomial(8, rate)) / 8
        false_alarms += paired_test([differences], 0.95, 2, 0).p_value < 0.05
    assert false_alarms / 400 <= 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5


def test_strata_have_the_freedom_of_welch_and_satterthwaite() -> None:
    one, other = [0.1, 0.3, -0.1, 0.5], [0.0, 0.2, 0.4, -0.2, 0.1, 0.3]
    squares = [np.var(values, ddof=1) / len(values) for values in (one, other)]
    found = paired_test([one, other], *SETTINGS)
    assert found.difference.standard_error == pytest.approx(math.sqrt(sum(squares)) / 2)
    assert found.degrees_of_freedom == pytest.approx(sum(squares) ** 2 / (squares[0] ** 2 / 3 + squares[1] ** 2 / 5))
