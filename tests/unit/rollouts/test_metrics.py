"""Metrics, with numbers worked by hand."""

import math
from dataclasses import replace

import pytest

from nemo_brorl.algorithm.pass_at_k import pass_at_k, standard_error
from nemo_brorl.rollouts.metrics import domain_metrics, reward_metrics
from nemo_brorl.types import ScoredGroup
from tests.support.fakes import make_group


def test_pass_at_k_is_one_minus_the_chance_of_only_wrong_draws() -> None:
    assert pass_at_k(4, 1, 2) == pytest.approx(
        1 - (3 * 2) / (4 * 3)
    )  # two draws without replacement miss the one success
    assert pass_at_k(16, 4, 1) == pytest.approx(0.25)
    assert pass_at_k(4, 3, 2) == 1.0
    assert pass_at_k(4, 0, 4) == 0.0


def test_standard_error_is_over_prompts() -> None:
    assert standard_error([0.0, 1.0]) == pytest.approx(0.5)  # deviation sqrt(1/2) over sqrt(2)
    assert math.isnan(standard_error([1.0]))


def test_successes_are_counted_by_group() -> None:
    groups = [
        make_group([0.0] * 8),
        make_group([1.0] + [0.0] * 7),
        make_group([1.0] * 4 + [0.0] * 4),
        make_group([1.0] * 8),
    ]
    metrics = reward_metrics(groups)
    shares = {name: metrics[f"rollouts/successes_{name}"] for name in ("0", "1", "2_to_5", "more", "all")}
    assert shares == {"0": 0.25, "1": 0.25, "2_to_5": 0.25, "more": 0.0, "all": 0.25}
    assert metrics["reward/mean"] == pytest.approx(13 / 32)


def test_the_groups_of_a_mixture_are_measured_by_domain() -> None:
    def of(domain: str, rewards: list[float], lengths: list[int]) -> ScoredGroup:
        group = make_group(rewards, lengths=lengths)
        return replace(group, group=replace(group.group, prompt=replace(group.prompt, domain=domain)))

    metrics = domain_metrics([of("math", [1, 0], [2, 4]), of("math", [0, 0], [6, 8]), of("code", [1, 1], [3, 3])])
    math_only = {
        name.removeprefix("domain/math/"): value for name, value in metrics.items() if name.startswith("domain/math/")
    }
    assert math_only == {"groups": 2, "reward": 0.25, "informative": 0.5, "response_tokens": 5, "truncated": 0}
    assert (metrics["domain/code/reward"], metrics["domain/code/informative"]) == (1, 0)
    assert domain_metrics([make_group([1.0, 0.0])]) == {}
