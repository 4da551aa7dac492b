"""Errors of means over prompts, on numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nemo_brorl.core.statistics import bootstrap_means, estimate

SETTINGS = (0.95, 2000, 0)


def test_the_standard_error_is_that_of_the_prompts() -> None:
    # Means of four prompts 0, 1/2, 1/2, 1: variance (1/4 + 0 + 0 + 1/4) / 3 = 1/6, error sqrt(1/24)
    found = estimate([[0.0, 0.5, 0.5, 1.0]], *SETTINGS)
    assert found.value == 0.5
    assert found.standard_error == pytest.approx(math.sqrt(1 / 24))
    assert found.interval == pytest.approx(
        (0.5 - 3.182446 * math.sqrt(1 / 24), 0.5 + 3.182446 * math.sqrt(1 / 24)), abs=1e-6
    )


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
