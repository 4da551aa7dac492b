"""Reward shaping, with numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_brorl.algorithm.shaping import cosine_length, is_on, overlong, shaped_rewards, stop_properly
from nemo_brorl.config.rewards import CosineLengthConfig, ShapingConfig
from nemo_brorl.types import Prompt, RolloutChunk, RolloutGroup, RolloutRequest, SampledMass, Sampling, ScoredGroup

MASS = SampledMass(2, 2, 0.0, 0.0, 0.0, 0.0)


def group(
    rewards: list[float], lengths: list[int], is_stopped: list[bool], repetition: list[float] | None = None
) -> ScoredGroup:
    prompt = Prompt("p", "task", "exact_match", (1, 2), {})
    request = RolloutRequest(prompt, 0, len(rewards), 0, Sampling(1.0, 1.0, 100))
    chunk = RolloutChunk(request, request.indices, np.array(lengths, np.int32), np.array(is_stopped), 0, 0, 0, None)
    group = RolloutGroup(prompt, (chunk,))
    return ScoredGroup(
        group, np.array(rewards, np.float32), 0, np.array(repetition or [0.0] * len(rewards), np.float32), MASS
    )


def test_without_settings_rewards_stay_as_they_are() -> None:
    scored = group([1, 0, 0.5], [100, 3, 50], [False, True, True])
    np.testing.assert_array_equal(shaped_rewards(scored, ShapingConfig(), 100, 1), scored.rewards)


def test_truncated_responses_keep_a_share_of_their_reward_but_all_of_a_penalty() -> None:
    result = stop_properly(np.array([1.0, 1.0, -0.5]), np.array([True, False, False]), 0.1)
    np.testing.assert_allclose(result, [1.0, 0.1, -0.5])


def test_the_overlong_buffer_falls_in_a_line_to_minus_one() -> None:
    # limit 100, buffer 20: free up to 80, half way at 90
    np.testing.assert_allclose(overlong(np.array([10, 80, 85, 90, 100], np.int32), 100, 20), [0, 0, -0.25, -0.5, -1])


def test_the_cosine_reward_prefers_short_right_and_long_wrong_answers() -> None:
    config = CosineLengthConfig(correct_short=1.0, correct_long=0.5, wrong_short=-1.0, wrong_long=0.0)
    lengths = np.array([0, 50, 100], np.int32)
    np.testing.assert_allclose(cosine_length(np.ones(3), lengths, 100, config), [1.0, 0.75, 0.5])
    np.testing.assert_allclose(cosine_length(np.zeros(3), lengths, 100, config), [-1.0, -0.5, 0.0], atol=1e-12)
    np.testing.assert_allclose(cosine_length(np.full(1, 0.5), lengths[:1], 100, config), [0.0])


def test_the_length_reward_follows_its_on_and_off_steps() -> None:
    config = CosineLengthConfig(enabled=True, on_steps=2, off_steps=3)
    assert [is_on(config, step) for step in range(1, 8)] == [True, True, False, False, False, True, True]
    assert is_on(CosineLengthConfig(enabled=True, on_steps=2, off_steps=0), 99)


def test_repetition_costs_its_share_of_the_penalty() -> None:
    scored = group([1, 1], [10, 10], [True, True], repetition=[0.0, 0.5])
    assert shaped_rewards(scored, ShapingConfig(repetition_penalty=0.4), 100, 1) == pytest.approx([1.0, 0.8])


def test_shaping_combines_and_leaves_the_raw_reward_alone() -> None:
    scored = group([1, 1], [90, 100], [True, False])
    config = ShapingConfig(truncated_factor=0.5, overlong_buffer=20, overlong_penalty=0.4)
    # 1 − 0.4 · 0.5, and (1 − 0.4) · 0.5
    assert shaped_rewards(scored, config, 100, 1) == pytest.approx([0.8, 0.3])
    assert scored.rewards.tolist() == [1, 1]
