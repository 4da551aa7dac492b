"""The pure parts of the comparison of allocations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.studies.waves import (
    GROUP_SIZE,
    INFORMATIVE,
    PASS_AT_1,
    TOKENS,
    Played,
    at_tokens,
    comparison,
    comparison_rows,
    estimate,
    kept_mean_size,
    mean_and_error,
    mean_group_size,
    play,
    steps_to_go,
)
from nemo_brorl.config.rollouts import PosteriorConfig, WavesConfig
from nemo_brorl.rollouts.group_size.success_posterior import SuccessPosterior
from nemo_brorl.rollouts.group_size.waves import FixedAllocation, WaveAllocation


def run(
    tokens_per_step: float, last: float, final: float, sizes: tuple[float, float] = (512, 512)
) -> list[dict[str, Any]]:
    """Validated before training and at its end, after two steps of 10 and 30 groups."""
    groups = "dynamic_sampling/num_groups"
    return [
        {"step": 0, PASS_AT_1: 0.2},
        {"step": 1, TOKENS: tokens_per_step, INFORMATIVE: last, GROUP_SIZE: sizes[0], groups: 10},
        {"step": 2, TOKENS: 2 * tokens_per_step, INFORMATIVE: last, PASS_AT_1: final, GROUP_SIZE: sizes[1], groups: 30},
    ]


def test_a_run_is_asked_for_the_steps_that_its_tokens_need() -> None:
    assert steps_to_go([], 1000) == 2
    assert steps_to_go(run(200, 1, 0.4), 1000) == 5
    assert steps_to_go(run(450, 1, 0.4), 901) == 3  # at least one more
    assert steps_to_go(run(500, 1, 0.4), 1000) is None


def test_a_run_is_read_off_at_equal_tokens() -> None:
    assert at_tokens(run(200, 1, 0.4), PASS_AT_1, 100) == pytest.approx(0.25)  # a quarter of the way from 0 to 400
    tokens, found = comparison({"fixed": [run(200, 3, 0.4)], "waves": [run(150, 5, 0.5)]})
    assert tokens == 300
    assert found["fixed"] == {INFORMATIVE: [3], PASS_AT_1: [pytest.approx(0.35)], GROUP_SIZE: [512]}
    assert found["waves"] == {INFORMATIVE: [5], PASS_AT_1: [pytest.approx(0.5)], GROUP_SIZE: [512]}


def test_differences_are_taken_by_seed() -> None:
    found = {
        "fixed": {INFORMATIVE: [1, 3], PASS_AT_1: [0.2, 0.4], GROUP_SIZE: [512, 512]},
        "waves": {INFORMATIVE: [2, 4], PASS_AT_1: [0.3, 0.5], GROUP_SIZE: [230, 250]},
        "fixed_mean": {INFORMATIVE: [2, 4], PASS_AT_1: [0.1, 0.5], GROUP_SIZE: [240, 240]},
    }
    rows = comparison_rows(found)
    assert [row[0] for row in rows] == ["fixed", "waves", "fixed_mean", "waves − fixed", "waves − fixed_mean"]
    assert rows[3] == ["waves − fixed", "1.00 ± 0.00", "10.00 ± 0.00", "-272.00 ± 10.00"]
    assert rows[4] == ["waves − fixed_mean", "0.00 ± 0.00", "10.00 ± 10.00", "0.00 ± 10.00"]
    assert mean_and_error([1, 3]) == (2, pytest.approx(1.0))
    assert math.isnan(mean_and_error([1])[1])


def test_the_mean_size_counts_every_group_and_is_decided_once(tmp_path: Path) -> None:
    runs = [run(200, 1, 0.4, sizes=(100, 300)), run(200, 1, 0.4, sizes=(200, 200))]
    assert mean_group_size(runs) == 225  # (10 · 100 + 30 · 300 + 40 · 200) / 80
    assert kept_mean_size(tmp_path / "mean_size.json", runs) == 224
    assert kept_mean_size(tmp_path / "mean_size.json", [run(200, 1, 0.4)]) == 224  # runs with it may be under way


def test_a_waves_estimate_is_unbiased_in_the_simulation_too() -> None:
    random = np.random.default_rng(0)
    found = [estimate(int(random.binomial(8, 0.3)), 8, random) for _ in range(4000)]
    assert np.mean(found) == pytest.approx(0.21, abs=4 * np.std(found) / math.sqrt(4000))


def test_waves_find_more_informative_groups_for_the_same_tokens_than_fixed() -> None:
    def played(is_waves: bool) -> Played:
        beliefs = SuccessPosterior(PosteriorConfig())
        allocation = WaveAllocation(WavesConfig(), 512, beliefs, 0) if is_waves else FixedAllocation(512)
        return play(allocation, beliefs, (0.56, 0.13), 1e7, 0, weighs=True)

    fixed, waves = played(False), played(True)
    assert fixed.mean_size == 512
    assert waves.informative_per_million > 1.5 * fixed.informative_per_million
    assert abs(waves.bias) < 4
