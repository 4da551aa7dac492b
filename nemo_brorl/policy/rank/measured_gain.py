"""The measured gain of an update: what it did to the chance of good responses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from nemo_brorl.algorithm.token_batch import TokenBatch

_MAX_LOG = 20.0  # keeps the ratio of a response finite


class MeasuredGain:
    """Sums over responses, of the measured gain of an update; one for an update on a rank.

    The gain is what an update did to the chance of good responses, measured and not predicted. Every mini-batch holds
    an equal, seeded share of every group, drawn from the policy the update starts from. No step has trained on the last
    one when its turn comes. Its log-probs then and before the first step are both there already, and mean A (π_now /
    π_old − 1) over its responses estimates how much the steps so far have raised the expected advantage. With
    REINFORCE++-baseline an advantage is in standard deviations of the batch's rewards.

    The last mini-batch is a fresh sample only of groups that its own rollouts did not bring into the batch. Dynamic
    sampling keeps a group because it disagrees: of a prompt with success rate p the rollouts of kept groups succeed
    with p / (1 − (1 − p)^N), 3.6 p for p = 0.02 and N = 16. So only groups count whose other rollouts disagree by
    themselves (`algorithm/packing.py`, `fresh_in_the_last`); given these, the last ones are drawn from the policy and
    the estimate is unbiased for these groups. None count with `train_rollouts`, whose rollouts are chosen by
    reward. What remains: an advantage is taken against a mean that the rollout itself is part of, a factor 1 − 1/N;
    rollouts of older weights count as if they were of those that the update starts from.
    """

    def __init__(self) -> None:
        self.num = 0
        self.total = 0.0
        self.squares = 0.0

    def add(self, batch: TokenBatch, is_measured: Sequence[bool]) -> None:
        """Count those responses [R] of a row of the last mini-batch that are measured. Collective over the ranks that
        share its responses' tokens."""
        sequences = batch.sequences
        lengths = sequences.lengths.clamp(min=1)  # one without tokens has gained nothing
        advantages = (sequences.sums(batch.advantages) / lengths).double()
        log_ratios = sequences.sums(batch.log_probs - batch.old_log_probs).double()
        ratios = log_ratios.clamp(-_MAX_LOG, _MAX_LOG).exp()
        is_counted = torch.tensor(is_measured, dtype=torch.bool, device=ratios.device)
        gains = (advantages * (ratios - 1))[is_counted]
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
