"""Advantages of groups that grew in waves, with numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nemo_brorl.algorithm.advantages import GroupRewards
from nemo_brorl.algorithm.train_batch import BY_WAVE, WaveMembers, advantages_by_wave, make_train_batch
from nemo_brorl.config.algorithm import ADVANTAGES_BY_WAVE, AlgorithmConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.types import Float32, Wave
from tests.support.fakes import make_group


def group(*rewards: float) -> GroupRewards:
    array = np.asarray(rewards, np.float32)
    return GroupRewards(array, array, np.full(len(rewards), 2, np.int32))


def members(weight: float, *rollouts: int) -> WaveMembers:
    return WaveMembers(np.asarray(rollouts), weight, len(rollouts))


def test_the_config_knows_which_advantages_go_by_wave() -> None:
    assert set(ADVANTAGES_BY_WAVE) == BY_WAVE.keys()


@pytest.mark.parametrize("name", ["dr_grpo", "rloo"])
def test_a_wave_is_compared_with_itself_alone(name: str) -> None:
    # one group of 4, mean size 4: (r − 1/2) · w / (2 − 1) · 4
    (result,) = advantages_by_wave(
        [group(1, 0, 5, 3)], [[members(0.5, 0, 1), members(0.5, 2, 3)]], AlgorithmConfig(advantage=name)
    )
    np.testing.assert_allclose(result, [1, -1, 2, -2])


def test_the_sum_over_the_batch_is_the_mean_of_the_estimates_of_its_groups() -> None:
    rewards, random = [group(1, 0, 0, 1, 1), group(0, 1)], np.random.default_rng(0)
    waves = [[members(-0.3, 0, 1), members(1.1, 2, 3, 4)], [members(0.8, 0, 1)]]
    scores = [random.normal(size=5), random.normal(size=2)]
    advantages = advantages_by_wave(rewards, waves, AlgorithmConfig(advantage="rloo"))
    batch_mean = sum(a @ s for a, s in zip(advantages, scores, strict=True)) / 7

    def estimate(values: Float32, score: np.ndarray) -> float:
        return float((values - values.mean()) @ score / (len(values) - 1))

    first = -0.3 * estimate(rewards[0].raw[:2], scores[0][:2]) + 1.1 * estimate(rewards[0].raw[2:], scores[0][2:])
    second = 0.8 * estimate(rewards[1].raw, scores[1])
    assert batch_mean == pytest.approx((first + second) / 2, rel=1e-5)


def test_one_deviation_for_all_waves_of_the_batch() -> None:
    # centred ±1/2 (2) and ±1 (2): root mean square √(5/8), the weights do not enter it
    result = advantages_by_wave(
        [group(1, 0), group(2, 0)], [[members(0.1, 0, 1)], [members(1.0, 0, 1)]], AlgorithmConfig()
    )
    np.testing.assert_allclose(result[0], 0.1 * 2 * np.array([0.5, -0.5]) / np.sqrt(5 / 8), rtol=1e-6)
    np.testing.assert_allclose(result[1], 2 * np.array([1, -1]) / np.sqrt(5 / 8), rtol=1e-6)


def test_a_lonely_rollout_has_nothing_to_be_compared_with() -> None:
    (result,) = advantages_by_wave(
        [group(1, 1, 0)], [[members(0.5, 0), members(0.5, 1, 2)]], AlgorithmConfig(advantage="dr_grpo")
    )
    assert result.tolist() == pytest.approx([0, 0.75, -0.75])
    assert not advantages_by_wave([group(1)], [[members(1.0, 0)]], AlgorithmConfig())[0].any()


def test_a_learning_batch_tells_waves_apart_by_place_and_takes_whole_groups_as_one() -> None:
    config = BroRLConfig()
    config.algorithm.advantage = "rloo"
    grown = replace(make_group([1, 0, 0, 1, 0, 0]), waves=(Wave(2, 1.0, 0.4), Wave(4, 0.5, 0.6)))
    batch = make_train_batch([grown, make_group([1, 0], uid="train/1")], config, 1)  # sizes 6 and 2: 4 on average
    np.testing.assert_allclose(batch.advantages[0][:2], np.array([0.5, -0.5]) * 0.4 * 4)
    np.testing.assert_allclose(batch.advantages[0][2:], np.array([-0.25, 0.75, -0.25, -0.25]) * 0.6 / 3 * 4, rtol=1e-6)
    np.testing.assert_allclose(batch.advantages[1], np.array([0.5, -0.5]) * 4)
    assert batch.rollouts[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_cut_wave_and_its_rest_together_count_as_the_whole_wave() -> None:
    """A bandit: reward 1 with probability p = 0.3, score r − p, gradient p (1 − p). Six of eight rollouts are learnt
    from in one step, the other two in the next; both steps also hold a whole group, so that nothing but the shares
    scales them."""
    random, p, num = np.random.default_rng(0), 0.3, 40_000
    config = AlgorithmConfig(advantage="dr_grpo")
    rewards = (random.random((num, 8)) < p).astype(np.float32)
    waves, groups = [[WaveMembers(np.arange(6), 1.0, 8)], [WaveMembers(np.arange(8), 1.0, 8)]], []
    for row in rewards:
        groups += [group(*row[:6]), group(*row)]
    advantages = advantages_by_wave(groups, waves * num, config)
    scores = rewards - p
    first = (np.array(advantages[::2]) * scores[:, :6]).sum(1) / 8  # mean size
    rest = (np.array(advantages[1::2]) * scores)[:, 6:].sum(1) / 8
    both = first + rest
    assert abs(both.mean() - p * (1 - p)) < 4 * both.std() / np.sqrt(num)
    assert first.mean() == pytest.approx(6 / 8 * p * (1 - p), abs=4 * first.std() / np.sqrt(num))


def test_rollouts_still_to_come_count_only_where_they_do_come() -> None:
    cut = replace(make_group([1, 0, 0]), waves=(Wave(4, 1.0, 1.0),))
    config = BroRLConfig()
    config.algorithm.advantage = "rloo"
    alone = make_train_batch([cut], config, 1).advantages[0]
    np.testing.assert_allclose(alone, np.array([2 / 3, -1 / 3, -1 / 3]) / 2 * 3, rtol=1e-6)
    config.rollouts.unfinished = "resume"
    resumed = make_train_batch([cut], config, 1).advantages[0]
    np.testing.assert_allclose(resumed, np.array([2 / 3, -1 / 3, -1 / 3]) / 2 * (3 / 4) * 4, rtol=1e-6)
