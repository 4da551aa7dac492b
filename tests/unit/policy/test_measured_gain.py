"""The measured gain is the true change of the expected advantage, within its error."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nemo_brorl.algorithm.packing import fresh_in_the_last
from nemo_brorl.algorithm.token_batch import ResponseIndex, TokenBatch
from nemo_brorl.policy.rank.measured_gain import MeasuredGain
from nemo_brorl.types import TrainBatch
from tests.support.fakes import make_group

pytestmark = pytest.mark.numbers


def token_batch(old: torch.Tensor, new: torch.Tensor, advantages: torch.Tensor, length: int) -> TokenBatch:
    num = len(old) // length
    zeros = torch.zeros_like(old)
    sequences = ResponseIndex(torch.arange(num).repeat_interleave(length), torch.full((num,), float(length)))
    return TokenBatch(new, zeros, old, old, None, advantages, torch.ones_like(old), sequences)


def test_two_responses_by_hand() -> None:
    # ratios 2 and 1/2 as products over two tokens, advantages 1 and −1: gains 1 and 1/2
    old = torch.zeros(4)
    new = torch.tensor([2.0, 1.0, 0.5, 1.0]).log()
    gain = MeasuredGain()
    gain.add(token_batch(old, new, torch.tensor([1.0, 1.0, -1.0, -1.0]), 2), torch.arange(2))
    metrics = gain.metrics()
    assert metrics["mass_balance/measured_gain"] == pytest.approx(0.75)
    assert metrics["mass_balance/measured_gain_error"] == pytest.approx(0.25)  # half their distance over √1
    assert metrics["mass_balance/signal_to_noise"] == pytest.approx(3.0)


def test_it_is_the_true_change_of_the_expected_advantage() -> None:
    torch.manual_seed(0)
    z = torch.randn(20)
    advantage = torch.randn(20)
    old, new = z.softmax(0), (z + 0.1 * advantage).softmax(0)
    drawn = torch.multinomial(old, 4000, replacement=True)
    gain = MeasuredGain()
    for part in drawn.split(1000):
        gain.add(token_batch(old.log()[part], new.log()[part], advantage[part], 1), torch.arange(1000))
    true = float((new - old) @ advantage)
    metrics = gain.metrics()
    assert metrics["mass_balance/measured_gain"] == pytest.approx(
        true, abs=3 * metrics["mass_balance/measured_gain_error"]
    )
    assert metrics["mass_balance/signal_to_noise"] > 10


def test_ranks_add_up_and_one_response_says_nothing() -> None:
    one, other = MeasuredGain(), MeasuredGain()
    one.add(token_batch(torch.zeros(1), torch.ones(1), torch.ones(1), 1), torch.arange(1))
    assert one.metrics() == {}
    other.add(token_batch(torch.zeros(2), torch.ones(2), torch.ones(2), 1), torch.arange(2))
    one.merge(other)
    assert (one.num, one.metrics()["mass_balance/measured_gain"]) == (3, pytest.approx(torch.e - 1))


def test_a_response_without_tokens_and_one_that_is_not_measured_add_nothing() -> None:
    old, new = torch.zeros(2), torch.tensor([2.0, 3.0]).log()
    sequences = ResponseIndex(torch.tensor([0, 2]), torch.tensor([1.0, 0.0, 1.0]))
    batch = TokenBatch(new, old, old, old, None, torch.ones(2), torch.ones(2), sequences)
    gain = MeasuredGain()
    gain.add(batch, torch.tensor([0, 1]))
    assert gain.metrics()["mass_balance/measured_gain"] == pytest.approx(0.5)  # 1 and 0


def test_groups_that_were_kept_because_they_disagree_do_not_inflate_it() -> None:
    """Prompts with success rate 0.02, N = 16, kept where rollouts disagree; an update raised the rate to 0.025. The
    advantage r − r̄ then gains (1 − 1/16) · 0.005."""
    random, rate, raised, num = np.random.default_rng(0), 0.02, 0.025, 30_000
    rewards = (random.random((num, 16)) < rate).astype(np.float32)
    rewards = rewards[np.ptp(rewards, axis=1) > 0]
    groups = tuple(make_group(row.tolist()) for row in rewards[:2000])
    last = [(group, rollout) for group in range(len(groups)) for rollout in range(12, 16)]
    batch = TrainBatch(groups, (), tuple(np.arange(16) for _ in groups), min_reward_range=0.0)
    is_measured = np.repeat(fresh_in_the_last(batch, last), 4)
    held_out = rewards[: len(groups), 12:]
    advantages = (held_out - rewards[: len(groups)].mean(1, keepdims=True)).ravel()
    log_ratios = np.where(held_out == 1, np.log(raised / rate), np.log((1 - raised) / (1 - rate))).ravel()
    true = (raised - rate) * (1 - 1 / 16)

    def measured(which: np.ndarray) -> tuple[float, float]:
        gain = MeasuredGain()
        zeros = torch.zeros(len(log_ratios))
        gain.add(
            token_batch(zeros, torch.tensor(log_ratios).float(), torch.tensor(advantages).float(), 1),
            torch.from_numpy(np.flatnonzero(which)),
        )
        metrics = gain.metrics()
        return metrics["mass_balance/measured_gain"], metrics["mass_balance/measured_gain_error"]

    value, error = measured(is_measured)
    # Three standard errors of draws that are the same everywhere: no rounding comes near.
    assert value == pytest.approx(true, abs=3 * error)
    inflated, error = measured(np.ones(len(log_ratios)))
    assert inflated > 3 * true + 3 * error, "1 / (1 − 0.98^16) = 3.6 times"
