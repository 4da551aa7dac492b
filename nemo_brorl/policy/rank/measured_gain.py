"""Measure the gain of an update: how much it changed the chance of good responses."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from nemo_brorl.algorithm.token_batch import TokenBatch

_MAX_LOG = 20.0  # nats; bound of a response's log-ratio, so that its exponential stays finite


class MeasuredGain:
    """Sums over responses for the measured gain of one update, on one rank.

    The gain is what an update did to the chance of good responses, measured and not predicted. Every mini-batch holds
    an equal, seeded share of every group, sampled by the policy that the update starts from. No step has trained on the
    last mini-batch when its turn comes. Its log-probs at that time and before the first step are both known already.
    The mean of A (π_now / π_old − 1) over its responses estimates how much the earlier steps have raised the expected
    advantage. With REINFORCE++-baseline an advantage is in standard deviations of the batch's rewards.

    The last mini-batch is a fresh sample only of groups that its own rollouts did not bring into the batch. Dynamic
    sampling keeps a group because its rewards disagree. So for a prompt with success rate p, rollouts of kept groups
    succeed with p / (1 − (1 − p)^N), which is 3.6 p for p = 0.02 and N = 16. Only groups count whose other rollouts
    disagree by themselves (`algorithm/packing.py`, `fresh_in_the_last`). Given these rollouts, the last ones are
    sampled from the policy, and the estimate is unbiased for these groups. With `train_rollouts` no group counts,
    because rollouts are chosen by reward.

    Two biases remain. An advantage is relative to a mean that includes the rollout itself, a factor of 1 − 1/N.
    Rollouts of older weights count as if the update's initial weights had sampled them.
    """

    def __init__(self) -> None:
        self.num = 0
        # Sums stay on the device, because reading one waits for all queued work of the GPU.
        self.total: Any = 0.0
        self.squares: Any = 0.0

    def add(self, batch: TokenBatch, measured: Tensor) -> None:
        """Add responses of the last mini-batch to the sums that measure an update's gain in expected advantage.

        `measured` [M] int64 holds the indices of the responses that count among those of a row of tokens. Collective
        over the ranks that share the responses' tokens.
        """
        sequences = batch.sequences
        lengths = sequences.lengths.clamp(min=1)  # a response without tokens counts with a gain of 0
        advantages = (sequences.sums(batch.advantages) / lengths).double()
        log_ratios = sequences.sums(batch.log_probs - batch.old_log_probs).double()
        ratios = log_ratios.clamp(-_MAX_LOG, _MAX_LOG).exp()
        # Indexing by a mask would wait for the GPU, which alone knows the size of the result.
        gains = (advantages * (ratios - 1))[measured]
        self.num += len(gains)
        self.total += gains.sum()
        self.squares += gains.square().sum()

    def on_host(self) -> MeasuredGain:
        """Return the sums that measure an update's gain in expected advantage as Python numbers instead of tensors."""
        gain = MeasuredGain()
        gain.num, gain.total, gain.squares = self.num, float(self.total), float(self.squares)
        return gain

    def merge(self, other: MeasuredGain) -> None:
        """Add another policy rank's sums that measure an update's gain in expected advantage."""
        self.num += other.num
        self.total += other.total
        self.squares += other.squares

    def metrics(self) -> dict[str, float]:
        """Return the measured gain of an update in expected advantage, its standard error, and their ratio.

        The error is over responses. The result is empty for fewer than two responses.
        """
        if self.num < 2:
            return {}
        mean = float(self.total) / self.num
        variance = max(float(self.squares) / self.num - mean**2, 0.0)
        error = math.sqrt(variance / (self.num - 1))
        ratio = mean / error if error > 0 else 0.0
        return {
            "mass_balance/measured_gain": mean,
            "mass_balance/measured_gain_error": error,
            "mass_balance/signal_to_noise": ratio,
        }
