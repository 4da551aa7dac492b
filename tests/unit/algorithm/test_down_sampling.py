"""Maximum-variance subsets, by hand and against trying all subsets."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from nemo_brorl.algorithm.train_batch import max_variance_subset


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
