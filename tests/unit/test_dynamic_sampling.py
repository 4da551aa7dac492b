"""Which groups enter a batch, when more are asked for, and when it gives up."""

import pytest

from nemo_brorl.config.schema import DynamicSamplingConfig
from nemo_brorl.dynamic_sampling import DynamicSampling, judge
from nemo_brorl.errors import StarvationError
from tests.fakes import make_group

CONFIG = DynamicSamplingConfig()


def test_a_group_with_one_success_in_512_is_kept_whole() -> None:
    decision = judge(make_group([0.0] * 511 + [1.0]), CONFIG)
    assert decision.keep
    assert decision.reason == "informative"


@pytest.mark.parametrize(("reward", "reason"), [(0.0, "all_wrong"), (1.0, "all_correct"), (0.3, "all_equal")])
def test_512_equal_rewards_are_dropped_with_their_reason(reward: float, reason: str) -> None:
    decision = judge(make_group([reward] * 512), CONFIG)
    assert not decision.keep
    assert decision.reason == reason


def test_switched_off_it_keeps_everything() -> None:
    assert judge(make_group([1.0, 1.0]), DynamicSamplingConfig(enabled=False)).keep


def test_a_full_batch_asks_for_nothing_and_surplus_is_carried_oldest_first() -> None:
    sampling = DynamicSampling(CONFIG)
    sampling.begin_step(version=0)
    assert sampling.num_to_request(2) == 2
    sampling.offer([make_group([0, 1], uid=f"train/{index}") for index in range(3)])
    assert sampling.num_to_request(2) == 0
    assert [group.prompt.uid for group in sampling.take(2)] == ["train/0", "train/1"]
    sampling.begin_step(version=1)
    assert sampling.num_to_request(2) == 1
    assert sampling.metrics()["dynamic_sampling/num_carried_in"] == 1


def test_a_carried_group_older_than_the_bound_is_dropped_and_counted() -> None:
    sampling = DynamicSampling(DynamicSamplingConfig(max_staleness=1))
    sampling.begin_step(version=0)
    sampling.offer([make_group([0, 1], version=0)])
    sampling.begin_step(version=1)
    assert len(sampling.kept) == 1
    sampling.begin_step(version=2)
    assert sampling.kept == []
    assert sampling.metrics()["dynamic_sampling/stale"] == 1


def test_surplus_is_dropped_when_carrying_is_off() -> None:
    sampling = DynamicSampling(DynamicSamplingConfig(carry_over=False))
    sampling.begin_step(version=0)
    sampling.offer([make_group([0, 1]), make_group([0, 1])])
    sampling.take(1)
    assert sampling.kept == []


def test_a_low_keep_rate_makes_refills_larger() -> None:
    sampling = DynamicSampling(CONFIG)
    sampling.begin_step(version=0)
    sampling.num_to_request(4)
    sampling.offer([make_group([0, 0])] * 4)  # keep rate 0.8 * 1 + 0.2 * 0 = 0.8
    assert sampling.num_to_request(4) == 5  # 4 / 0.8


def test_starvation_names_the_reason_and_the_knobs() -> None:
    sampling = DynamicSampling(DynamicSamplingConfig(max_rounds=2))
    sampling.begin_step(version=0)
    for _ in range(2):
        sampling.offer([make_group([0, 0])] * sampling.num_to_request(1))
    with pytest.raises(StarvationError, match=r"0 of 1 .* all_wrong.*num_per_prompt"):
        sampling.num_to_request(1)


def test_keep_rate_counts_the_groups_sampled_in_this_step() -> None:
    sampling = DynamicSampling(CONFIG)
    sampling.begin_step(version=0)
    sampling.offer([make_group([0, 1]), make_group([0, 0]), make_group([1, 1]), make_group([0, 1])])
    assert sampling.metrics()["dynamic_sampling/keep_rate"] == 0.5
