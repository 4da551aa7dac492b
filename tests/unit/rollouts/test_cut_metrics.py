"""What cutting slow rollouts does to the weights of prompts, by hand and simulated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from nemo_brorl.rollouts.ledger import OpenGroup
from nemo_brorl.rollouts.metrics import cut_metrics, straggler_bias
from nemo_brorl.types import PartialRollouts, RolloutRequest
from tests.support.fakes import SAMPLING, make_chunk, make_prompt, score_chunk


def cut_group(rewards: Sequence[float], lengths: Sequence[int], num_cut: int) -> OpenGroup:
    """Finished rollouts, and others of one token each that were cut."""
    prompt = make_prompt()
    num = len(rewards)
    chunk = make_chunk(RolloutRequest(prompt, 0, num, 0, SAMPLING), lengths)
    indices = np.arange(num, num + num_cut, dtype=np.int32)
    partial = PartialRollouts(indices, np.ones(num_cut, np.int32), 0, None)
    return OpenGroup(prompt, SAMPLING, scored_chunks=[score_chunk(chunk, rewards)], partial=[partial])


def test_missing_rollouts_are_taken_as_the_longest_finished_ones_by_hand() -> None:
    # 1/2 of four is right, the two longest are wrong; two are missing: 2 of 6 would be right
    metrics = straggler_bias([cut_group([1, 0, 1, 0], [2, 8, 3, 9], num_cut=2)])
    assert metrics["rollouts/straggler_reward_bias"] == pytest.approx(1 / 2 - 1 / 3)
    assert metrics["rollouts/straggler_weight_ratio"] == pytest.approx((1 / 4) / (1 / 3 * 2 / 3))


def test_nothing_is_said_where_nothing_was_cut_or_nothing_had_finished() -> None:
    assert cut_metrics([]) == {}
    assert straggler_bias([cut_group([], [], num_cut=2)]) == {}


def test_of_a_hard_prompt_with_long_wrong_answers_a_cut_raises_the_weight() -> None:
    """Success rate 0.1, exponential lengths, wrong answers twice as long, the slowest quarter is cut: the metric sees
    the direction and no more than the truth."""
    random, rate, num = np.random.default_rng(0), 0.1, 512
    groups, truth = [], []
    for _ in range(40):
        rewards = (random.random(num) < rate).astype(np.float32)
        lengths = np.ceil(random.exponential(np.where(rewards == 1, 100, 200))).astype(int)
        ended = np.sort(np.argsort(lengths)[: num * 3 // 4])
        seen = rewards[ended].mean()
        truth.append(seen * (1 - seen) / (rate * (1 - rate)))
        groups.append(cut_group(rewards[ended].tolist(), lengths[ended].tolist(), num // 4))
    metrics = straggler_bias(groups)
    assert np.mean(truth) == pytest.approx(1.2, abs=0.05)
    assert 1.02 < metrics["rollouts/straggler_weight_ratio"] < np.mean(truth)
    assert metrics["rollouts/straggler_reward_bias"] > 0
