"""The packer: complete, balanced, within the budget, equally many micro-batches per rank."""

import math
from collections import Counter
from itertools import chain

import numpy as np
import pytest

from nemo_brorl.algorithm.packing import Packer, Sharing, fresh_in_the_last, plan_update, stratify
from nemo_brorl.types import TrainBatch, TurnEnds, UpdatePlan
from tests.support.fakes import make_group


def make_plan(sizes: list[int], **settings: object) -> UpdatePlan:
    random = np.random.default_rng(0)
    groups = [
        make_group([0.0] * size, uid=f"train/{index}", lengths=random.integers(1, 30, size).tolist())
        for index, size in enumerate(sizes)
    ]
    batch = TrainBatch(
        tuple(groups), tuple(np.zeros(size, np.float32) for size in sizes), tuple(np.arange(size) for size in sizes)
    )
    defaults = dict(num_mini_batches=4, data_parallel_size=2, token_budget=200, sharing=Sharing(), version=1,
                    learning_rate=1.0,
                    objective="ppo_clip", seed=3)  # fmt: skip
    return plan_update(batch, **(defaults | settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("shared_prompt", [True, False])
def test_every_rollout_is_trained_exactly_once(shared_prompt: bool) -> None:
    plan = make_plan([64, 16, 48], sharing=Sharing(shared_prompt))
    seen: Counter[tuple[int, int]] = Counter()
    ranks = chain.from_iterable(plan.mini_batches)
    for micro in chain.from_iterable(ranks):
        for group_slice in micro.slices:
            seen.update((group_slice.group, rollout) for rollout in group_slice.rollouts)
    assert set(seen.values()) == {1}
    assert len(seen) == 64 + 16 + 48


def test_micro_batches_stay_within_the_budget_and_ranks_have_equally_many() -> None:
    for mini in make_plan([64, 16, 48]).mini_batches:
        assert len({len(rank) for rank in mini}) == 1
        assert all(micro.num_tokens <= 200 for rank in mini for micro in rank)


def test_token_counts_are_those_of_the_layout() -> None:
    # one group of 3 prompt tokens, responses of 4, 5, 6: shared 3 + 15, unshared 3 * 3 + 15
    packer = Packer([3], [np.asarray([4, 5, 6], np.int32)], token_budget=100, sharing=Sharing())
    ((micro,),) = packer.pack([(0, 0), (0, 1), (0, 2)], 1)
    assert (micro.num_tokens, micro.num_loss_tokens, len(micro.slices)) == (18, 15, 1)
    packer.shares_prompt = False
    ((micro,),) = packer.pack([(0, 0), (0, 1), (0, 2)], 1)
    assert (micro.num_tokens, micro.num_loss_tokens, len(micro.slices)) == (24, 15, 3)


def test_rows_are_filled_by_all_tokens_and_the_loss_is_divided_by_the_sampled_ones() -> None:
    lengths = [np.array([4, 5, 6], np.int32)]
    num_sampled = [np.array([4, 2, 3], np.int32)]
    packer = Packer([3], lengths, token_budget=100, sharing=Sharing(), num_sampled=num_sampled)
    ((micro,),) = packer.pack([(0, 0), (0, 1), (0, 2)], 1)
    assert (micro.num_tokens, micro.num_loss_tokens) == (18, 9)


def test_a_rollout_above_the_budget_gets_a_micro_batch_of_its_own() -> None:
    packer = Packer([3], [np.asarray([50, 2, 2], np.int32)], token_budget=20, sharing=Sharing())
    ((first, *rest),) = packer.pack([(0, 0), (0, 1), (0, 2)], 1)
    assert first.slices[0].rollouts == (0,)
    assert sum(len(micro.slices[0].rollouts) for micro in rest) == 2


def test_ranks_get_nearly_equal_tokens() -> None:
    for mini in make_plan([256, 256], token_budget=100_000).mini_batches:
        first, second = (sum(micro.num_tokens for micro in rank) for rank in mini)
        assert abs(first - second) <= 30 + 3  # one response and one prompt


def test_every_mini_batch_takes_an_equal_share_of_every_group() -> None:
    for part in stratify([range(16), range(8)], 4, seed=0):
        assert Counter(group for group, _ in part) == {0: 4, 1: 2}


def test_groups_of_one_spread_over_all_mini_batches() -> None:
    assert [len(part) for part in stratify([range(1)] * 12, 4, seed=0)] == [3, 3, 3, 3]


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert make_plan([32, 32]).mini_batches == make_plan([32, 32]).mini_batches
    assert make_plan([32, 32]).mini_batches != make_plan([32, 32], seed=4).mini_batches


def test_the_denominator_counts_response_tokens_over_all_ranks() -> None:
    plan = make_plan([8], num_mini_batches=1)
    assert plan.num_loss_tokens(0) == int(np.random.default_rng(0).integers(1, 30, 8).sum())


def test_a_group_above_the_budget_is_cut_over_ranks_and_micro_batches() -> None:
    lengths = np.random.default_rng(0).integers(8, 57, 512).astype(np.int32)
    packer = Packer([200], [lengths], token_budget=2000, sharing=Sharing())
    ranks = packer.pack([(0, rollout) for rollout in range(512)], 4)
    counts = {len(rank) for rank in ranks}
    # 16.4k response tokens over 4 ranks are 4.1k each, in at least 3 pieces of 1,800 beside a prompt of 200
    assert counts == {3}
    assert all(len(micro.slices) == 1 and micro.num_tokens <= 2000 for rank in ranks for micro in rank)
    tokens = [micro.num_tokens for rank in ranks for micro in rank]
    assert max(tokens) - min(tokens) <= 2 * 56  # each of the two cuts is within one response
    assert [rollout for rank in ranks for micro in rank for rollout in micro.slices[0].rollouts] == list(range(512))


def test_unequal_groups_still_give_every_rank_as_many_micro_batches_and_tokens() -> None:
    lengths = [np.full(64, length, np.int32) for length in (4, 60, 12, 200)]
    packer = Packer([30, 5, 80, 20], lengths, token_budget=1000, sharing=Sharing())
    ranks = packer.pack([(group, rollout) for group in range(4) for rollout in range(64)], 3)
    assert len({len(rank) for rank in ranks}) == 1
    tokens = [sum(micro.num_tokens for micro in rank) for rank in ranks]
    assert max(tokens) - min(tokens) <= 200 + len(ranks[0]) * 20  # a response, and a copy of the prompt per micro-batch
    assert max(micro.num_tokens for rank in ranks for micro in rank) <= 1000


def test_a_shared_prompt_counts_once_in_the_balance_and_unshared_every_time() -> None:
    # 8 responses of 10 tokens with a prompt of 100, then 8 of 10 with a prompt of 2: shared the costs are 180 and 82,
    # unshared 880 and 96, so the first of two ranks takes fewer of the first group where its prompt is repeated
    items = [(group, rollout) for group in range(2) for rollout in range(8)]
    lengths = [np.full(8, 10, np.int32)] * 2
    shared, unshared = (
        Packer([100, 2], lengths, 10_000, Sharing(is_shared)).pack(items, 2) for is_shared in (True, False)
    )
    assert [len(rank[0].slices[0].rollouts) for rank in shared] == [6, 2]
    assert [len(rank[0].slices) for rank in unshared] == [5, 11]


def test_a_long_tail_is_filled_into_as_few_parts_as_hold_it_the_fullest_as_empty_as_can_be() -> None:
    lengths = [np.array([1, 1, 1, 6, 1, 1, 1, 1], np.int32)]
    ranks = Packer([1], lengths, token_budget=8, sharing=Sharing()).pack([(0, rollout) for rollout in range(8)], 1)
    # Two parts of equal cost would begin with the first four rollouts, 10 tokens. Filled to 8: 4, 8, 4; to 7: 4, 7, 5.
    assert [micro.slices[0].rollouts for micro in ranks[0]] == [(0, 1, 2), (3,), (4, 5, 6, 7)]
    assert [micro.num_tokens for micro in ranks[0]] == [4, 7, 5]


def ends_of(*rollouts: list[tuple[int, int]]) -> TurnEnds:
    """Ends of turns, each as (tokens until there, key)."""
    ends = np.array(rollouts)
    return TurnEnds(ends[..., 0].astype(np.int32), ends[..., 1].astype(np.uint64))


def test_turns_that_trajectories_share_count_once_and_lie_side_by_side() -> None:
    # turns a and b of 40 tokens, then a c of 30 more; a response of 10 tokens each after them
    a, ac, b = (40, 1), (70, 2), (40, 3)
    lengths = [np.array([80, 50, 80, 50, 50], np.int32)]
    ends = [ends_of([a, ac], [b, (50, 4)], [a, ac], [b, (50, 5)], [a, (50, 6)])]
    everything = [(0, rollout) for rollout in range(5)]
    packer = Packer([100], lengths, 1000, Sharing(min_tokens=20), turn_ends=ends)
    ((micro,),) = packer.pack(everything, 1)
    assert micro.slices[0].rollouts in {(4, 0, 2, 1, 3), (0, 2, 4, 1, 3)}
    assert micro.num_tokens == 100 + 40 + 30 + 10 + 10 + 10 + 40 + 10 + 10
    ((plain,),) = Packer([100], lengths, 1000, Sharing(), turn_ends=ends).pack(everything, 1)
    assert plain.num_tokens == 100 + 310
    # 30 tokens more are too few: they are part of what follows
    ((less,),) = Packer([100], lengths, 1000, Sharing(min_tokens=31), turn_ends=ends).pack(everything, 1)
    assert less.num_tokens == 100 + 40 + 40 + 40 + 10 + 40 + 10 + 10


def test_a_cut_copies_what_lies_on_both_sides_and_the_budget_counts_it() -> None:
    lengths = [np.array([50, 50, 50, 50], np.int32)]
    ends = [ends_of(*([(40, 1), (50, 2 + rollout)] for rollout in range(4)))]
    packer = Packer([10], lengths, 75, Sharing(min_tokens=20), turn_ends=ends)
    (ranks,) = packer.pack([(0, rollout) for rollout in range(4)], 1)
    assert [micro.num_tokens for micro in ranks] == [70, 70]
    first, second = packer.pack([(0, rollout) for rollout in range(4)], 2)
    assert [micro.num_tokens for micro in (*first, *second)] == [70, 70]


def taken(plan: UpdatePlan) -> Counter[tuple[int, int]]:
    """How often every rollout is in the plan."""
    found: Counter[tuple[int, int]] = Counter()
    for micro in chain.from_iterable(chain.from_iterable(plan.mini_batches)):
        for group_slice in micro.slices:
            found.update((group_slice.group, rollout) for rollout in group_slice.rollouts)
    return found


def test_a_batch_that_a_deadline_has_cut_makes_fewer_mini_batches() -> None:
    plan = make_plan([3, 2], num_mini_batches=4, data_parallel_size=2)
    assert len(plan.mini_batches) == 2
    assert set(taken(plan).values()) == {1}
    assert len(taken(plan)) == 5
    assert len(make_plan([3], num_mini_batches=4, data_parallel_size=1).mini_batches) == 3


@pytest.mark.parametrize("ranks", [4, 5, 8])
def test_fewer_rollouts_than_ranks_are_all_taken_equally_often(ranks: int) -> None:
    plan = make_plan([3], num_mini_batches=4, data_parallel_size=ranks)
    assert len(plan.mini_batches) == 1
    assert all(len(rank) > 0 for rank in plan.mini_batches[0])
    assert set(taken(plan).values()) == {math.ceil(ranks / 3)}
    assert plan.num_responses(0) == 3 * math.ceil(ranks / 3)


def test_a_group_is_measured_where_its_other_rollouts_disagree_by_themselves() -> None:
    groups = (make_group([1, 1, 0, 0, 1, 0, 1, 0]), make_group([0, 0, 0, 1], uid="train/1"))
    everything = tuple(np.arange(len(group.rewards)) for group in groups)
    batch = TrainBatch(groups, (), everything, min_reward_range=0.0)
    assert fresh_in_the_last(batch, [(0, 0), (0, 1), (1, 3)]) == [True, False]
    assert fresh_in_the_last(batch, [(0, 0), (0, 1), (1, 2)]) == [True, True]
    everything_kept = TrainBatch(groups, (), everything)
    assert fresh_in_the_last(everything_kept, [(0, 0), (0, 1), (1, 3)]) == [True, True]
    chosen = TrainBatch(groups, (), (np.arange(4), np.arange(4)))
    assert fresh_in_the_last(chosen, [(0, 0)]) == [False, True], "half of the first were chosen by reward"
