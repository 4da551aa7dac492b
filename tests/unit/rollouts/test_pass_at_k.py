"""pass@k of training groups."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_brorl.rollouts.metrics import coverage_metrics, group_metrics
from tests.support.fakes import make_group


def test_every_power_of_two_up_to_the_group_is_measured_over_all_groups() -> None:
    metrics = coverage_metrics([make_group([1, 0, 0, 0]), make_group([0, 0, 0, 0])])
    # of four with one right: 1/4, 1 − 3/4 · 2/3 = 1/2, 1; the other group 0
    assert metrics == pytest.approx(
        {"rollouts/pass_at_1": 1 / 8, "rollouts/pass_at_2": 1 / 4, "rollouts/pass_at_4": 1 / 2}
    )


def test_a_cut_group_counts_for_the_k_that_it_has() -> None:
    metrics = coverage_metrics([make_group([1, 0, 0]), make_group([0, 0, 0, 0])])
    assert metrics["rollouts/pass_at_1"] == pytest.approx(1 / 6)
    assert metrics["rollouts/pass_at_4"] == 0.0


def test_the_estimate_is_unbiased_over_groups_of_a_hard_prompt() -> None:
    random, rate, num = np.random.default_rng(0), 0.03, 2000
    groups = [make_group((random.random(64) < rate).astype(float).tolist()) for _ in range(num)]
    metrics = coverage_metrics(groups)
    for k in (1, 8, 32):
        true = 1 - (1 - rate) ** k
        error = 0.5 / np.sqrt(num)  # at most
        assert metrics[f"rollouts/pass_at_{k}"] == pytest.approx(true, abs=4 * error)


def test_groups_that_a_deadline_cut_are_left_out_and_counted() -> None:
    # The wrong rollout of the second group was slow: its two right ones would raise pass@1 to 3/4.
    metrics = group_metrics([make_group([1, 0, 0, 1]), make_group([1, 1])], 4)
    assert metrics["rollouts/pass_at_1"] == pytest.approx(0.5)
    assert metrics["rollouts/pass_at_groups_left_out"] == 1
    assert "rollouts/pass_at_groups_left_out" not in group_metrics([make_group([1, 0])], 2)
