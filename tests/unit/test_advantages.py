"""Advantages, with numbers worked by hand."""

import numpy as np

from nemo_brorl.advantages import grpo, reinforce_plus_plus_baseline


def rewards(*groups: list[float]) -> list[np.ndarray]:
    return [np.asarray(group, np.float32) for group in groups]


def test_reinforce_plus_plus_baseline_subtracts_the_group_mean_and_divides_by_the_batch_deviation() -> None:
    # centred: ±0.5 (4 of them) and ±1 (2 of them) -> mean square (4 * 0.25 + 2 * 1) / 6 = 0.5
    result = reinforce_plus_plus_baseline(rewards([1, 0, 1, 0], [2, 0]))
    np.testing.assert_allclose(result[0], np.array([0.5, -0.5, 0.5, -0.5]) / np.sqrt(0.5), rtol=1e-6)
    np.testing.assert_allclose(result[1], np.array([1, -1]) / np.sqrt(0.5), rtol=1e-6)


def test_grpo_gives_every_group_unit_deviation() -> None:
    # one success in four: mean 1/4, deviation sqrt(3)/4 -> sqrt(3) and -1/sqrt(3)
    (result,) = grpo(rewards([1, 0, 0, 0]))
    np.testing.assert_allclose(result, [np.sqrt(3), *[-1 / np.sqrt(3)] * 3], rtol=1e-6)


def test_the_only_success_of_512_gets_the_largest_advantage() -> None:
    group = np.zeros(512, np.float32)
    group[7] = 1
    (result,) = reinforce_plus_plus_baseline([group])
    assert result.argmax() == 7
    np.testing.assert_allclose(result[7], 511 / np.sqrt(511), rtol=1e-5)  # (1 - 1/512) / sqrt(1/512 * 511/512)


def test_equal_rewards_give_zero_not_nan() -> None:
    for advantage in (grpo, reinforce_plus_plus_baseline):
        assert np.array_equal(advantage(rewards([0.3] * 512))[0], np.zeros(512, np.float32))
