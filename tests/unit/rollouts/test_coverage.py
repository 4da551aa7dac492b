"""pass@k of training groups, and the warning where pass@1 is bought with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nemo_brorl.config.rollouts import CoverageConfig
from nemo_brorl.rollouts.metrics import CoverageWatch, coverage_metrics
from nemo_brorl.types import ScoredGroup, Wave
from tests.support.fakes import make_group


def test_every_power_of_two_up_to_the_group_is_measured_over_all_groups() -> None:
    metrics = coverage_metrics([make_group([1, 0, 0, 0]), make_group([0, 0, 0, 0])])
    # of four with one right: 1/4, 1 − 3/4 · 2/3 = 1/2, 1; the other group 0
    assert metrics == pytest.approx(
        {"rollouts/pass_at_1": 1 / 8, "rollouts/pass_at_2": 1 / 4, "rollouts/pass_at_4": 1 / 2}
    )


def test_of_a_group_in_waves_the_first_one_counts() -> None:
    grown = replace(make_group([1, 0, 0, 0, 0, 0]), waves=(Wave(2, 1.0, 0.5), Wave(4, 0.5, 0.5)))
    assert coverage_metrics([grown]) == {"rollouts/pass_at_1": 0.5, "rollouts/pass_at_2": 1.0}


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


def step(right_of_four: list[int]) -> list[ScoredGroup]:
    return [make_group([1.0] * num + [0.0] * (4 - num)) for num in right_of_four]


BROAD = [1, 1, 1, 1]  # pass@1 1/4, pass@4 1
NARROW = [4, 4, 0, 0]  # pass@1 1/2, pass@4 1/2


def test_a_warning_comes_once_when_pass_at_1_was_bought_with_pass_at_k(caplog: pytest.LogCaptureFixture) -> None:
    watch = CoverageWatch(CoverageConfig(window=2, max_fall=0.1))
    for counts in (BROAD, BROAD, BROAD):
        watch.note(step(counts))
    assert watch.metrics() == {}, "one newer step is too few"
    for counts in (NARROW, NARROW, NARROW):
        watch.note(step(counts))
    assert watch.metrics() == pytest.approx({"rollouts/pass_at_1_change": 0.25, "rollouts/pass_at_n_change": -0.5})
    assert caplog.text.count("pass@4 has fallen by 0.500") == 1


@pytest.mark.parametrize(
    ("later", "max_fall"),
    [(BROAD, 0.1), (NARROW, None), (NARROW, 0.6), ([2, 2, 2, 2], 0.1), ([0, 0, 0, 1], 0.1)],
)
def test_no_warning_without_a_rise_or_within_the_limit(later: list[int], max_fall: float | None) -> None:
    watch = CoverageWatch(CoverageConfig(window=2, max_fall=max_fall))
    for counts in (BROAD, BROAD, later, later):
        watch.note(step(counts))
    assert not watch.is_warned


def test_it_begins_anew_with_another_n_and_survives_a_restart() -> None:
    watch = CoverageWatch(CoverageConfig(window=2))
    watch.note(step(BROAD))
    again = CoverageWatch(CoverageConfig(window=2))
    again.load_state_dict(watch.state_dict())
    assert again.state_dict() == watch.state_dict()
    again.note([make_group([1.0] * 8)])
    assert (again.k, again.first) == (8, [[1.0, 1.0]])
