"""Which groups enter a batch, when more are asked for, and when it gives up."""

import pytest

from nemo_brorl.config.rollouts import DynamicSamplingConfig
from nemo_brorl.core.errors import StarvationError
from nemo_brorl.rollouts.dynamic_sampling import DynamicSampling, judge
from nemo_brorl.types import ScoredGroup
from tests.support.fakes import make_group

CONFIG = DynamicSamplingConfig()


def test_a_group_with_one_success_in_512_is_kept_whole() -> None:
    decision = judge(make_group([0.0] * 511 + [1.0]), CONFIG)
    assert decision.keep
    assert decision.reason == "informative"


@pytest.mark.parametrize(
    ("reward", "reason"),
    [(0.0, "all_wrong"), (1.0, "all_correct"), (0.9999995, "all_correct"), (0.3, "all_equal")],
)
def test_512_equal_rewards_are_dropped_with_their_reason(reward: float, reason: str) -> None:
    decision = judge(make_group([reward] * 512), CONFIG)
    assert not decision.keep
    assert decision.reason == reason


@pytest.mark.parametrize(("best", "keep"), [(0.05, False), (0.1, True), (1.0, True)])
def test_a_difference_below_the_smallest_one_asked_for_is_none(best: float, keep: bool) -> None:
    settings = DynamicSamplingConfig(min_reward_range=0.1)
    decision = judge(make_group([0.0] * 7 + [best]), settings)
    assert (decision.keep, decision.reason) == (keep, "informative" if keep else "all_equal")
    assert judge(make_group([0.0] * 7 + [best]), DynamicSamplingConfig()).keep


def test_switched_off_it_keeps_everything() -> None:
    assert judge(make_group([1.0, 1.0]), DynamicSamplingConfig(enabled=False)).keep


def offer(sampling: DynamicSampling, *groups: ScoredGroup) -> None:
    """Admit and close groups at once."""
    for group in groups:
        sampling.admit([group.prompt.uid])
        sampling.offer(group)


def test_a_full_batch_admits_nothing_and_surplus_is_carried_oldest_first() -> None:
    sampling = DynamicSampling(CONFIG)
    sampling.begin_step(version=0, wanted=2)
    assert sampling.num_to_admit() == 2
    offer(sampling, *[make_group([0, 1], uid=f"train/{index}") for index in range(3)])
    assert sampling.is_full
    assert sampling.num_to_admit() == 0
    assert [group.prompt.uid for group in sampling.take_batch()] == ["train/0", "train/1"]
    sampling.begin_step(version=1, wanted=2)
    assert sampling.num_to_admit() == 1
    assert sampling.metrics()["dynamic_sampling/num_carried_in"] == 1


def test_a_carried_group_older_than_the_bound_is_dropped_and_counted() -> None:
    sampling = DynamicSampling(DynamicSamplingConfig(max_staleness=1))
    sampling.begin_step(version=0, wanted=1)
    offer(sampling, make_group([0, 1], version=0))
    sampling.begin_step(version=1, wanted=1)
    assert len(sampling.kept) == 1
    sampling.begin_step(version=2, wanted=1)
    assert sampling.kept == []
    assert sampling.metrics()["dynamic_sampling/stale"] == 1
    assert sampling.metrics()["dynamic_sampling/wasted_rollouts"] == 2


def test_surplus_that_may_not_wait_is_dropped() -> None:
    sampling = DynamicSampling(DynamicSamplingConfig(max_staleness=0))
    sampling.begin_step(version=0, wanted=1)
    offer(sampling, make_group([0, 1], uid="train/0"), make_group([0, 1], uid="train/1"))
    sampling.take_batch()
    assert sampling.kept == []


def test_every_dropped_group_is_replaced_at_once_and_a_low_keep_rate_admits_more() -> None:
    sampling = DynamicSampling(CONFIG)
    sampling.begin_step(version=0, wanted=4)
    sampling.admit(["train/0", "train/1", "train/2", "train/3"])
    sampling.offer(make_group([0, 0], uid="train/0"))
    # keep rate 0.95; 4 missing need ceil(4 / 0.95) = 5 in flight, 3 are
    assert sampling.num_to_admit() == 2


def test_groups_are_judged_in_the_order_of_their_prompts_whichever_closes_first() -> None:
    def fill(order: list[int]) -> tuple[list[str], int, float]:
        sampling = DynamicSampling(CONFIG)
        sampling.begin_step(version=0, wanted=2)
        sampling.admit([f"train/{index}" for index in range(4)])
        for index in order:
            sampling.offer(make_group([0, index % 2], uid=f"train/{index}"))  # odd ones are informative
        return [group.prompt.uid for group in sampling.take_batch()], sampling._target, sampling.keep_rate

    assert fill([0, 1, 2, 3]) == fill([3, 2, 1, 0]) == fill([1, 3, 0, 2])
    assert fill([3, 2, 1, 0])[0] == ["train/1", "train/3"]


@pytest.mark.parametrize("together", [False, True])
def test_as_many_are_begun_whether_groups_close_one_by_one_or_together(together: bool) -> None:
    sampling = DynamicSampling(CONFIG)
    sampling.keep_rate = 0.5
    sampling.begin_step(version=0, wanted=2)
    assert sampling.num_to_admit() == 4
    sampling.admit(f"train/{index}" for index in range(4))
    begun = 4
    for index, rewards in enumerate([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0]]):
        sampling.offer(make_group(rewards, uid=f"train/{index}"))
        if not together or index == 2:
            num = sampling.num_to_admit()
            sampling.admit(f"train/{begun + place}" for place in range(num))
            begun += num
    assert sampling.is_full
    assert begun == 6, "one was judged and dropped: 1 + 2 / 0.475, rounded up"


def test_a_withdrawn_group_lets_later_ones_be_judged_and_is_replaced() -> None:
    sampling = DynamicSampling(CONFIG)
    sampling.begin_step(version=0, wanted=2)
    sampling.admit(["train/0", "train/1"])
    sampling.offer(make_group([0, 1], uid="train/1"))
    assert len(sampling.kept) == 0
    sampling.withdraw("train/0", "timed_out", num_rollouts=3)
    assert [group.prompt.uid for group in sampling.kept] == ["train/1"]
    assert sampling.num_to_admit() == 1
    assert sampling.metrics()["dynamic_sampling/wasted_rollouts"] == 3


def test_starvation_names_the_reason_and_the_knobs() -> None:
    sampling = DynamicSampling(DynamicSamplingConfig(max_sampled=2))
    sampling.begin_step(version=0, wanted=1)
    for index in range(2):
        assert sampling.num_to_admit() == 1
        offer(sampling, make_group([0, 0], uid=f"train/{index}"))
    with pytest.raises(StarvationError, match=r"0 of 1 .* all_wrong.*num_per_prompt"):
        sampling.num_to_admit()


def test_starvation_counts_the_groups_that_missed_a_deadline_and_wait_for_a_later_step() -> None:
    sampling = DynamicSampling(DynamicSamplingConfig(max_sampled=3))
    sampling.begin_step(version=0, wanted=1)
    for index in range(3):
        sampling.admit([f"train/{index}"])
        sampling.withdraw(f"train/{index}", "postponed", num_rollouts=2)
    with pytest.raises(
        StarvationError, match=r"0 of 1 informative groups among 3 \(dropped or postponed: 3 postponed\)"
    ):
        sampling.num_to_admit()


def test_keep_rate_counts_the_groups_sampled_in_this_step() -> None:
    sampling = DynamicSampling(CONFIG)
    sampling.begin_step(version=0, wanted=4)
    offer(
        sampling, *[make_group(rewards, uid=f"train/{i}") for i, rewards in enumerate([[0, 1], [0, 0], [1, 1], [0, 1]])]
    )
    assert sampling.metrics()["dynamic_sampling/keep_rate"] == 0.5
    assert sampling.metrics()["dynamic_sampling/wasted_rollouts"] == 4
