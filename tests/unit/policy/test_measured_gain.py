"""The measured gain is the true change of the expected advantage, within its error."""

from __future__ import annotations

import pytest
import torch

from nemo_brorl.algorithm.loss_inputs import Sequences, TokenBatch
from nemo_brorl.policy.measured_gain import MeasuredGain


def token_batch(old: torch.Tensor, new: torch.Tensor, advantages: torch.Tensor, length: int) -> TokenBatch:
    num = len(old) // length
    zeros = torch.zeros_like(old)
    sequences = Sequences(torch.arange(num).repeat_interleave(length), torch.full((num,), float(length)))
    return TokenBatch(new, zeros, old, old, None, advantages, torch.ones_like(old), sequences)


def test_two_responses_by_hand() -> None:
    # ratios 2 and 1/2 as products over two tokens, advantages 1 and −1: gains 1 and 1/2
    old = torch.zeros(4)
    new = torch.tensor([2.0, 1.0, 0.5, 1.0]).log()
    gain = MeasuredGain()
    gain.add(token_batch(old, new, torch.tensor([1.0, 1.0, -1.0, -1.0]), 2))
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
        gain.add(token_batch(old.log()[part], new.log()[part], advantage[part], 1))
    true = float((new - old) @ advantage)
    metrics = gain.metrics()
    assert metrics["mass_balance/measured_gain"] == pytest.approx(
        true, abs=3 * metrics["mass_balance/measured_gain_error"]
    )
    assert metrics["mass_balance/signal_to_noise"] > 10


def test_ranks_add_up_and_one_response_says_nothing() -> None:
    one, other = MeasuredGain(), MeasuredGain()
    one.add(token_batch(torch.zeros(1), torch.ones(1), torch.ones(1), 1))
    assert one.metrics() == {}
    other.add(token_batch(torch.zeros(2), torch.ones(2), torch.ones(2), 1))
    one.merge(other)
    assert (one.num, one.metrics()["mass_balance/measured_gain"]) == (3, pytest.approx(torch.e - 1))
