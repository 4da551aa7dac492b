"""Maximum-variance subsets, by hand and against trying all subsets."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from nemo_brorl.algorithm.down_sampling import max_variance_subset, with_every_reward
from nemo_brorl.config.schema import BroRLConfig
from tests.support.fakes import make_group
from tests.support.train_batches import batch_of


def test_of_right_and_wrong_answers_half_of_each_are_kept() -> None:
    rewards = np.array([0, 0, 1, 0, 1, 0, 0, 1, 0], np.float32)
    chosen = max_variance_subset(rewards, 4)
    assert sorted(rewards[chosen].tolist()) == [0, 0, 1, 1]


def test_the_only_success_is_always_kept() -> None:
    rewards = np.zeros(512, np.float32)
    rewards[300] = 1
    assert 300 in max_variance_subset(rewards, 16)


@pytest.mark.parametrize("seed", range(20))
def test_no_other_subset_has_more_variance(seed: int) -> None:
    rewards = np.random.default_rng(seed).choice([0.0, 0.2, 0.5, 1.0], 9).astype(np.float32)
    chosen = max_variance_subset(rewards, 4)
    best = max(np.var(rewards[list(subset)]) for subset in combinations(range(9), 4))
    assert len(set(chosen.tolist())) == 4
    assert np.var(rewards[chosen]) == pytest.approx(best, rel=1e-5)


def test_a_group_that_is_small_enough_is_left_whole() -> None:
    assert max_variance_subset(np.zeros(3, np.float32), 8).tolist() == [0, 1, 2]


def test_rare_successes_are_those_of_the_whole_group_not_of_the_chosen_half() -> None:
    # seven of eight are right, of the two that are trained one: weight (1 − 7/8)¹ and not (1 − 1/2)¹
    config = BroRLConfig()
    config.algorithm.advantage = "dr_grpo"
    config.algorithm.advantage_params = {
        "train_rollouts": 2,
        "train_rollouts_compared": "subset",
        "rare_success_exponent": 1.0,
    }
    (values,) = batch_of([make_group([1, 1, 1, 1, 0, 1, 1, 1])], config).advantages
    assert sorted(values[values != 0].tolist()) == pytest.approx([-0.5 / 8, 0.5 / 8])


@pytest.mark.parametrize("scale", [1e-8, 0.9, 100.0])
def test_the_choice_does_not_depend_on_the_scale_of_the_rewards(scale: float) -> None:
    rewards = np.random.default_rng(1).choice([0.0, 0.25, 0.5, 1.0], 64).astype(np.float32)
    chosen = max_variance_subset((rewards * scale).astype(np.float32), 16)
    assert np.var(rewards[chosen]) == pytest.approx(np.var(rewards[max_variance_subset(rewards, 16)]), rel=1e-6)


def test_a_reward_between_keeps_the_weights_of_the_whole_group() -> None:
    # Of 3 wrong ones, 2 of the middle and 3 right ones four are trained on: two of each end, then one gives way.
    rewards = np.array([0, 0, 0, 0.1, 0.1, 1, 1, 1], np.float32)
    trained = with_every_reward(rewards, max_variance_subset(rewards, 4))
    assert rewards[trained].tolist() == pytest.approx([0, 0.1, 1, 1])
    config = BroRLConfig()
    config.algorithm.advantage = "maxrl"
    config.algorithm.advantage_params = {"train_rollouts": 4}
    (values,) = batch_of([make_group(rewards.tolist())], config).advantages
    # MaxRL's advantage is R / mean − 1. With the weights the trained ones have the sums of the group's rewards.
    whole = rewards / rewards.mean() - 1
    for reward in (0.0, 0.1, 1.0):
        chosen = np.isclose(rewards, reward)
        assert values[chosen].sum() / 4 == pytest.approx(whole[chosen].sum() / 8, abs=1e-5)


def test_more_rewards_than_trained_rollouts_leave_the_choice_as_it_is() -> None:
    rewards = np.array([0, 0.1, 0.2, 1], np.float32)
    assert with_every_reward(rewards, np.array([0, 3])).tolist() == [0, 3]
