"""Which groups can teach: no group is kept whose advantages are all 0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nemo_brorl.algorithm.advantages import ADVANTAGES
from nemo_brorl.algorithm.teaching import Teaching, can_teach
from nemo_brorl.algorithm.train_batch import make_train_batch
from nemo_brorl.config.algorithm import AlgorithmConfig
from nemo_brorl.config.rewards import ShapingConfig
from nemo_brorl.config.rollouts import DynamicSamplingConfig
from nemo_brorl.rollouts.dynamic_sampling import judge
from nemo_brorl.rollouts.metrics import group_metrics
from nemo_brorl.types import ScoredGroup
from tests.support.fakes import make_group


def cut(rewards: list[float], truncated: list[bool]) -> ScoredGroup:
    group = make_group(rewards)
    (chunk,) = group.group.chunks
    stopped = replace(chunk, is_stopped=~np.array(truncated))
    return replace(group, group=replace(group.group, chunks=(stopped,)))


@pytest.mark.parametrize("advantage", sorted(set(ADVANTAGES)))
@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0])
def test_no_kept_group_has_only_advantages_of_zero(advantage: str, factor: float) -> None:
    random = np.random.default_rng(0)
    algorithm, shaping = AlgorithmConfig(advantage=advantage, pass_at_k=4), ShapingConfig(truncated_factor=factor)
    teaching = Teaching.from_config(algorithm, shaping)
    for _ in range(100):
        rewards = (random.random(8) < random.random()).astype(float).tolist()
        group = cut(rewards, (random.random(8) < 0.5).tolist())
        is_kept = judge(group, DynamicSamplingConfig(), teaching).keep
        (advantages,) = make_train_batch([group], 1, algorithm, shaping, max_tokens=8).advantages
        teaches = bool(np.abs(advantages).max() > 1e-6)
        assert teaches or not is_kept, rewards
        assert is_kept or not teaches or factor < 1, "only truncation may set right rollouts apart"


def test_right_answers_that_are_all_truncated_teach_nothing_at_a_factor_of_zero() -> None:
    group = cut([1.0, 0.0, 0.0], [True, False, False])
    assert can_teach(group, 0.0)
    assert can_teach(group, 0.0, Teaching(truncated_factor=0.1))
    assert not can_teach(group, 0.0, Teaching(truncated_factor=0.0))


def test_fewer_wrong_ones_than_k_teach_nothing() -> None:
    group = make_group([1.0] * 5 + [0.0] * 3)
    assert can_teach(group, 0.0, Teaching(pass_at_k=3))
    assert not can_teach(group, 0.0, Teaching(pass_at_k=4))


def test_one_rollout_has_none_to_be_compared_with() -> None:
    assert not can_teach(make_group([1.0]), 0.0)


def test_metrics_of_domains_count_what_can_teach() -> None:
    group = make_group([1.0, 1.0, 0.0, 0.0])
    named = replace(group.group, prompt=replace(group.prompt, domain="d"))
    metrics = group_metrics([replace(group, group=named)], 4, Teaching(pass_at_k=3))
    assert metrics["domain/d/informative"] == 0
