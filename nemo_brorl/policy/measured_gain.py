"""Gain of an update: what it did to the chance of good responses, measured and not predicted.

Every mini-batch holds an equal, seeded share of every group, drawn from the policy the update starts from. So the last
mini-batch is a fresh sample that no step has trained on yet when its turn comes. Its log-probs then and before the
first step are both there already, and mean A (π_now / π_old − 1) over its responses is an unbiased estimate of how much
the steps so far have raised the expected advantage. With REINFORCE++-baseline an advantage is in standard deviations of
the batch's rewards.
"""

from __future__ import annotations

import math

from nemo_brorl.algorithm.loss_inputs import TokenBatch

_MAX_LOG = 20.0  # keeps the ratio of a response finite


class MeasuredGain:
    """Sums over responses; one for an update on a rank."""

    def __init__(self) -> None:
        self.num = 0
        self.total = 0.0
        self.squares = 0.0

    def add(self, batch: TokenBatch) -> None:
        """Count a row of the last mini-batch. Collective over the ranks that share its responses' tokens."""
        sequences = batch.sequences
        advantages = (sequences.sums(batch.advantages) / sequences.lengths).double()
        log_ratios = sequences.sums(batch.log_probs - batch.old_log_probs).double()
        ratios = log_ratios.clamp(-_MAX_LOG, _MAX_LOG).exp()
        gains = advantages * (ratios - 1)
        self.num += len(gains)
        self.total += float(gains.sum())
        self.squares += float(gains.square().sum())

    def merge(self, other: MeasuredGain) -> None:
        """Add another rank's responses."""
        self.num += other.num
        self.total += other.total
        self.squares += other.squares

    def metrics(self) -> dict[str, float]:
        """The gain, its standard error over responses, and one over the other; nothing for less than two responses."""
        if self.num < 2:
            return {}
        mean = self.total / self.num
        variance = max(self.squares / self.num - mean**2, 0.0)
        error = math.sqrt(variance / (self.num - 1))
        ratio = mean / error if error > 0 else 0.0
        return {
            "mass_balance/measured_gain": mean,
            "mass_balance/measured_gain_error": error,
            "mass_balance/signal_to_noise": ratio,
        }
