"""What rollouts were spent on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nemo_brorl.rollouts.group_size.success_posterior import Spent, allocation_metrics, relative_weights
from nemo_brorl.types import Wave
from tests.support.fakes import make_group


def test_groups_asked_for_at_once_have_nothing_to_weigh() -> None:
    metrics = allocation_metrics([make_group([1, 0, 0, 0]), make_group([1, 1, 1, 1])], 4)
    assert metrics["rollouts/group_size"] == metrics["rollouts/group_size_p50"] == 4
    assert (metrics["rollouts/extended"], metrics["rollouts/full"]) == (0, 1)
    assert (metrics["rollouts/wave_weight_mean"], metrics["rollouts/wave_weight_variance"]) == (1, 0)
    assert metrics["rollouts/first_wave_reward"] == pytest.approx(5 / 8)


def test_the_reward_of_first_waves_does_not_see_which_groups_were_extended() -> None:
    extended = replace(make_group([1, 0, 1, 1, 1, 1]), waves=(Wave(2, 1.0, 0.25), Wave(4, 0.5, 0.75)))
    stopped = replace(make_group([0, 0]), waves=(Wave(2, 1.0, 0.5),))
    metrics = allocation_metrics([extended, stopped], 6)
    assert metrics["rollouts/first_wave_reward"] == pytest.approx((1 / 2 + 0) / 2)  # all rollouts: 5/8
    assert (metrics["rollouts/extended"], metrics["rollouts/full"], metrics["rollouts/group_size"]) == (0.5, 0.5, 4)
    # a wave of a third of the group with a quarter of the weight counts 3/4-fold, the other 9/8-fold
    assert relative_weights(extended) == pytest.approx([0.75, 1.125])
    assert metrics["rollouts/wave_weight_mean"] == pytest.approx((0.75 + 1.125 + 0.5) / 3)
    assert metrics["rollouts/wave_weight_max"] == pytest.approx(1.125)


def test_totals_grow_and_survive_a_restart() -> None:
    spent = Spent().plus(Spent(400_000, 3, 64)).plus(Spent(100_000, 2, 16))
    assert spent.rollouts == 80
    assert Spent.from_state(spent.state_dict()) == spent
    assert spent.metrics() == {"rollouts/generated_tokens": 500_000, "rollouts/informative_per_million_tokens": 10}
    assert Spent().metrics()["rollouts/informative_per_million_tokens"] == 0
