"""Whitening over rollouts and over tokens, within a step and over steps, against references written out here."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_brorl.algorithm.advantages import GroupRewards, advantages_of
from nemo_brorl.algorithm.whitening import CarriedMoments
from nemo_brorl.config.algorithm import AlgorithmConfig
from nemo_brorl.types import Float32

BASELINE = "reinforce_plus_plus_baseline"


def group(rewards: list[float], lengths: list[int] | None = None) -> GroupRewards:
    values = np.array(rewards, np.float32)
    return GroupRewards(values, values, np.array(lengths or [5] * len(rewards), np.int32))


def of(groups: list[GroupRewards], carried: CarriedMoments | None = None, **params: object) -> list[Float32]:
    return advantages_of(groups, AlgorithmConfig(advantage=BASELINE, advantage_params=dict(params)), carried)


@pytest.mark.parametrize("num", [2, 16, 512])
def test_over_tokens_every_token_counts_and_their_mean_is_subtracted(num: int) -> None:
    random = np.random.default_rng(num)
    groups = []
    for _ in range(3):
        rewards = np.append((random.random(num - 1) < 0.5).astype(float), 1.0)
        groups.append(group(rewards.tolist(), random.integers(1, 9, num).tolist()))
    tokens = np.concatenate([np.repeat(one.shaped - one.shaped.mean(), one.lengths) for one in groups])
    expected = [(one.shaped - one.shaped.mean() - tokens.mean()) / tokens.std() for one in groups]
    for found, wanted in zip(of(groups, whiten_over="tokens"), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-6)


def test_wrong_answers_of_twice_the_length_weigh_less_over_tokens() -> None:
    # Half right with 1 token and half wrong with 2: mean (1 - 2) / 6 = -1/6, deviation √(1/4 - 1/36) = √2 / 3.
    one = group([1, 0], [1, 2])
    (found,) = of([one], whiten_over="tokens")
    np.testing.assert_allclose(found, [np.sqrt(2), -1 / np.sqrt(2)], rtol=1e-6)
    np.testing.assert_allclose(of([one])[0], [1, -1], rtol=1e-6)


def test_equal_lengths_make_no_difference() -> None:
    groups = [group([1, 0, 0, 0]), group([1, 1, 0, 0])]
    for by_rollouts, by_tokens in zip(of(groups), of(groups, whiten_over="tokens"), strict=True):
        np.testing.assert_allclose(by_rollouts, by_tokens, rtol=1e-6)


@pytest.mark.parametrize("num", [16, 512])
def test_a_lone_success_weighs_the_same_whatever_its_step_holds(num: int) -> None:
    rare = group([1.0] + [0.0] * (num - 1))
    half = group([1.0, 0.0] * (num // 2))
    found = {}
    for name, step in {"alone": [rare], "beside others": [rare] + [half] * 7}.items():
        carried = CarriedMoments()
        for place in range(400):
            of([rare] + [half] * 7 if place % 2 else [rare, half], carried)
        found[name] = of(step, carried)[0][0]
    assert found["alone"] / found["beside others"] == pytest.approx(1, abs=0.05)
    in_one_step = of([rare])[0][0] / of([rare] + [half] * 7)[0][0]
    assert in_one_step > 1.9, "each step by itself"


def test_the_first_step_is_whitened_by_itself_and_memory_0_always_is() -> None:
    step = [group([1, 0, 0, 0])]
    carried = CarriedMoments()
    np.testing.assert_allclose(of(step, carried)[0], of(step)[0], rtol=1e-6)
    of([group([1, 1, 0, 0])] * 8, carried)
    np.testing.assert_allclose(of(step, carried, whiten_memory=0)[0], of(step)[0], rtol=1e-6)
    restarted = CarriedMoments()
    restarted.load_state_dict(carried.state_dict())
    assert restarted.sums == carried.sums


def test_wrong_parameters_are_refused_by_name() -> None:
    (message,) = AlgorithmConfig(advantage_params={"whiten_over": "words"}).wrong_params()
    assert "rollouts" in message
    assert "tokens" in message
