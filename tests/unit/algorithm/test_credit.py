"""What turns of a trajectory learn by, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nemo_brorl.algorithm.packing import Sharing, plan_update
from nemo_brorl.algorithm.turns import returns_of
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.types import RolloutGroup, ScoredGroup, TrainBatch, TurnRecord
from tests.support.fakes import make_group
from tests.support.train_batches import batch_of


def trajectories(*chunks: list[list[float]]) -> ScoredGroup:
    """A group whose chunks hold trajectories of equally many turns, by the rewards of these; the reward of a trajectory
    is the last one."""
    parts, records = [], []
    for turns in chunks:
        rewards = np.array(turns, np.float32)
        parts.append(make_group(rewards[:, -1].tolist()))
        records.append(TurnRecord(rewards, np.zeros(rewards.shape, bool)))
    group = RolloutGroup(parts[0].prompt, tuple(part.group.chunks[0] for part in parts))
    rewards = np.concatenate([part.rewards for part in parts])
    return replace(parts[0], group=group, rewards=rewards, records=tuple(records))


GROUP = trajectories([[0.5, 0.0, 1.0], [0.0, 0.0, 0.0]], [[0.0]])


def credited(group: ScoredGroup, **algorithm: object) -> TrainBatch:
    config = BroRLConfig()
    config.algorithm.advantage = "dr_grpo"
    for name, value in algorithm.items():
        setattr(config.algorithm, name, value)
    return batch_of([group], config)


def test_a_return_is_the_discounted_sum_from_its_turn_on() -> None:
    assert returns_of(GROUP, GROUP.rewards, 0.5).tolist() == [[0.75, 0.5, 1.0], [0, 0, 0], [0, 0, 0]]
    assert returns_of(GROUP, GROUP.rewards, 1.0)[0].tolist() == [1.5, 1.0, 1.0]


def test_what_shaping_takes_off_is_part_of_the_last_turn() -> None:
    shaped = GROUP.rewards - np.array([0.25, 0, 0.5], np.float32)
    assert returns_of(GROUP, shaped, 0.5).tolist() == [[0.6875, 0.375, 0.75], [0, 0, 0], [-0.5, 0, 0]]


def test_a_rollout_of_no_environment_has_one_turn() -> None:
    group = make_group([1.0, 0.0])
    assert returns_of(group, group.rewards, 0.5).tolist() == [[1.0], [0.0]]


def test_outcome_looks_at_the_reward_and_return_at_all_turns() -> None:
    assert credited(GROUP).advantages[0].tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    discounted = credited(GROUP, credit="return", turn_discount=0.5)
    assert discounted.advantages[0].tolist() == [0.5, -0.25, -0.25]
    assert discounted.turn_advantages == ()


def test_turns_are_compared_with_the_groups_at_the_same_turn() -> None:
    batch = credited(GROUP, credit="turn")
    (values,) = batch.turn_advantages
    np.testing.assert_allclose(values, [[1, 0.5, 0.5], [-0.5, -0.5, -0.5], [-0.5, 0, 0]])
    np.testing.assert_allclose(batch.advantages[0], [2 / 3, -0.5, -0.5], rtol=1e-6)  # the means over their turns


def test_whoever_comes_further_than_all_others_has_nothing_to_be_compared_with() -> None:
    group = trajectories([[0.0, 1.0]], [[0.0], [1.0]])
    (values,) = credited(group, credit="turn", advantage="rloo").turn_advantages
    np.testing.assert_allclose(values, [[0.5, 0], [-1, 0], [0.5, 0]])


def test_deviations_are_over_all_turns_of_the_batch() -> None:
    (values,) = credited(GROUP, credit="turn", advantage="reinforce_plus_plus_baseline").turn_advantages
    centred = np.array([1, 0.5, 0.5, -0.5, -0.5, -0.5, -0.5])
    np.testing.assert_allclose(values[0, 0], 1 / np.sqrt((centred**2).mean()), rtol=1e-6)


def test_a_plan_has_the_advantages_of_turns_and_counts_turns() -> None:
    batch = credited(GROUP, credit="turn")
    plan = plan_update(
        batch, num_mini_batches=1, data_parallel_size=1, token_budget=100, sharing=Sharing(), version=1,
        learning_rate=1.0, objective="ppo_clip", seed=0,
    )  # fmt: skip
    assert plan.groups[0].advantages.shape == (3, 3)
    assert plan.num_turns(0) == 3 + 3 + 1
    assert plan.num_responses(0) == 3
