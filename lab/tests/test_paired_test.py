"""Paired tests, on numbers worked by hand and against scipy's own test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from brorl_lab.paired_test import paired_test
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
    assert found.p_value == pytest.approx(0.0917211, abs=1e-6)


def test_the_p_value_is_scipys() -> None:
    differences = np.random.default_rng(1).normal(0.03, 0.2, 200)
    expected = stats.ttest_1samp(differences, 0.0)
    found = paired_test([differences.tolist()], *SETTINGS)
    assert (found.t, found.p_value) == pytest.approx((expected.statistic, expected.pvalue))
    assert found.bootstrap_p_value == pytest.approx(expected.pvalue, abs=0.03)


def test_no_difference_at_all_is_not_significant_and_the_same_everywhere_is() -> None:
    none, same = paired_test([[0.0] * 5], *SETTINGS), paired_test([[0.25] * 5], *SETTINGS)
    assert (none.t, none.p_value, none.bootstrap_p_value) == (0.0, 1.0, 1.0)
    assert (same.t, same.p_value) == (math.inf, 0.0)


def test_strata_have_the_freedom_of_welch_and_satterthwaite() -> None:
    one, other = [0.1, 0.3, -0.1, 0.5], [0.0, 0.2, 0.4, -0.2, 0.1, 0.3]
    squares = [np.var(values, ddof=1) / len(values) for values in (one, other)]
    found = paired_test([one, other], *SETTINGS)
    assert found.difference.standard_error == pytest.approx(math.sqrt(sum(squares)) / 2)
    assert found.degrees_of_freedom == pytest.approx(sum(squares) ** 2 / (squares[0] ** 2 / 3 + squares[1] ** 2 / 5))
