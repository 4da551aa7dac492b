"""Shaping, choice of rollouts and advantages, in their order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nemo_brorl.algorithm.advantages import ADVANTAGES
from nemo_brorl.config.schema import BroRLConfig
from tests.support.fakes import make_group
from tests.support.train_batches import batch_of


def test_all_rollouts_are_trained_unless_told_otherwise() -> None:
    batch = batch_of([make_group([1, 0, 0, 0])], BroRLConfig())
    assert batch.rollouts[0].tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(batch.advantages[0], np.array([0.75, -0.25, -0.25, -0.25]) / np.sqrt(3 / 16), rtol=1e-6)


def test_advantages_of_a_subset_compare_within_it() -> None:
    config = BroRLConfig()
    config.algorithm.advantage_params = {"train_rollouts": 2, "train_rollouts_compared": "subset"}
    config.algorithm.advantage = "dr_grpo"
    batch = batch_of([make_group([0, 0, 1, 0])], config)
    assert batch.rollouts[0].tolist() == [0, 2]
    assert batch.advantages[0].tolist() == [-0.5, 0, 0.5, 0]  # mean of one right and one wrong


def test_success_of_chosen_rollouts_is_judged_by_their_raw_rewards() -> None:
    config = BroRLConfig()
    config.algorithm.advantage_params = {"train_rollouts": 2, "train_rollouts_compared": "subset"}
    config.algorithm.advantage, config.algorithm.pass_at_k = "pass_at_k", 1
    config.rollouts.max_response_tokens, config.rewards.shaping.overlong_buffer = 8, 4
    group = make_group([0, 1, 0], lengths=[2, 6, 2])  # the only right answer is shaped to 1/2
    batch = batch_of([group], config)
    assert batch.rollouts[0].tolist() == [0, 1]
    np.testing.assert_allclose(batch.advantages[0], [-1, 1, 0], rtol=1e-6)


def test_the_choice_sees_shaped_rewards_and_groups_keep_the_raw_ones() -> None:
    config = BroRLConfig()
    config.algorithm.advantage_params, config.rollouts.max_response_tokens = {"train_rollouts": 2}, 8
    config.rewards.shaping.overlong_buffer = 4
    group = make_group([1, 1, 1, 0], lengths=[2, 8, 2, 2])  # the long right answer is punished down to 0
    batch = batch_of([group], config)
    assert batch.rollouts[0].tolist() in ([0, 1], [1, 2], [0, 3], [2, 3])
    assert batch.groups[0].rewards.tolist() == [1, 1, 1, 0]
    assert sum(batch.advantages[0]) == pytest.approx(0, abs=1e-6)


def test_a_tail_is_judged_within_its_group_and_trained_alone() -> None:
    config = BroRLConfig()
    config.algorithm.advantage = "dr_grpo"
    tail = replace(make_group([0, 0, 0, 1]), train_indices=np.array([1, 3]))
    batch = batch_of([tail], config)
    assert batch.advantages[0].tolist() == [0, -0.25, 0, 0.75]
    assert batch.rollouts[0].tolist() == [1, 3]


@pytest.mark.parametrize("advantage", ["reinforce_plus_plus_baseline", "grpo", "dr_grpo", "rloo", "maxrl", "pass_at_k"])
@pytest.mark.parametrize("num_right", [1, 3, 20, 60])
def test_trained_rollouts_stand_for_the_whole_group(advantage: str, num_right: int) -> None:
    config = BroRLConfig()
    config.algorithm.advantage, config.algorithm.pass_at_k = advantage, 4
    group = make_group([1.0] * num_right + [0.0] * (64 - num_right))
    (whole,) = batch_of([group], config).advantages
    config.algorithm.advantage_params = {"train_rollouts": 16}
    batch = batch_of([group], config)
    assert len(batch.rollouts[0]) == 16
    for kind in (slice(0, num_right), slice(num_right, 64)):
        # A score that rollouts of a kind share: its mean over the 16 is that over the 64.
        assert batch.advantages[0][kind].sum() / 16 == pytest.approx(whole[kind].sum() / 64, rel=1e-5)


def test_a_subset_that_leaves_a_reward_out_is_compared_within_itself() -> None:
    config = BroRLConfig()
    config.algorithm.advantage, config.algorithm.advantage_params = "dr_grpo", {"train_rollouts": 2}
    batch = batch_of([make_group([0.0, 0.5, 1.0, 0.5])], config)
    assert batch.advantages[0].tolist() == [-0.5, 0.0, 0.5, 0.0]


@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_a_batch_of_groups_that_were_all_cut_to_one_rollout_has_no_advantage(advantage: str) -> None:
    config = BroRLConfig()
    config.algorithm.advantage = advantage
    batch = batch_of([make_group([1.0]), make_group([0.0])], config)
    assert [values.tolist() for values in batch.advantages] == [[0.0], [0.0]]
