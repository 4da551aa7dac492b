"""Sigmoids of reward over compute."""

from __future__ import annotations

import numpy as np
import pytest
from brorl_lab.theory.scaling import Points, Sigmoid, fit_runs, fit_sigmoid, hold_back

COMPUTE = np.array([1e3, 2e3, 4e3, 8e3, 16e3, 32e3, 64e3, 128e3])


def test_half_of_the_way_is_gone_at_the_middle() -> None:
    curve = Sigmoid(bottom=0.1, top=0.7, middle=8000.0, slope=2.0)
    # (8000 / 4000)² = 4: 0.1 + 0.6 / 5; (8000 / 16000)² = 1/4: 0.1 + 0.6 / 1.25
    assert curve.reward_at(np.array([4000.0, 8000.0, 16000.0])) == pytest.approx([0.22, 0.4, 0.58])


def test_points_of_a_sigmoid_give_it_back() -> None:
    curve = Sigmoid(bottom=0.17, top=0.66, middle=12e3, slope=1.5)
    found = fit_sigmoid(COMPUTE, curve.reward_at(COMPUTE))
    assert found is not None
    assert found == pytest.approx(curve, rel=1e-3)


def test_four_points_are_too_few() -> None:
    assert fit_sigmoid(COMPUTE[:4], np.array([0.1, 0.2, 0.3, 0.4])) is None


def test_the_interval_of_the_top_holds_the_true_one_in_most_draws() -> None:
    curve = Sigmoid(bottom=0.1, top=0.8, middle=10e3, slope=1.5)
    random = np.random.default_rng(3)
    num_held = 0
    for trial in range(8):
        runs = [
            Points(COMPUTE, curve.reward_at(COMPUTE) + 0.01 * random.standard_normal(len(COMPUTE))) for _ in range(3)
        ]
        fit = fit_runs(runs, seed=trial, num_resamples=20)
        assert fit is not None
        low, high = fit.interval("top")
        assert high - low < 0.1
        num_held += low <= curve.top <= high
    assert num_held >= 6  # 91 of 100 with 60 resamples


def test_what_is_held_back_lies_past_a_share_of_the_shortest_run() -> None:
    long = Points(COMPUTE, COMPUTE / 1e6)
    short = Points(COMPUTE[:6], COMPUTE[:6] / 1e6)  # up to 32,000
    seen, kept_back = hold_back([long, short], share=0.5)
    assert [run.compute.tolist() for run in seen] == [[1e3, 2e3, 4e3, 8e3, 16e3]] * 2
    assert [run.compute.tolist() for run in kept_back] == [[32e3, 64e3, 128e3], [32e3]]


def test_a_curve_is_foretold_with_its_interval() -> None:
    curve = Sigmoid(bottom=0.1, top=0.8, middle=10e3, slope=1.5)
    fit = fit_runs([Points(COMPUTE, curve.reward_at(COMPUTE))] * 2, num_resamples=5)
    assert fit is not None
    value, low, high = fit.predict(256e3)
    assert value == pytest.approx(curve.reward_at(np.array([256e3]))[0], abs=1e-3)
    assert low <= value + 1e-6
    assert high >= value - 1e-6


def test_one_run_has_a_curve_and_no_interval() -> None:
    curve = Sigmoid(bottom=0.1, top=0.8, middle=10e3, slope=1.5)
    fit = fit_runs([Points(COMPUTE, curve.reward_at(COMPUTE) + 0.01 * (-1) ** np.arange(len(COMPUTE)))])
    assert fit is not None
    assert np.isnan(fit.interval("top")).all()
    value, low, high = fit.predict(256e3)
    assert 0.7 < value < 0.9
    assert np.isnan([low, high]).all()
