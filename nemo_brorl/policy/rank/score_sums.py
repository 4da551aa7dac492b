"""Sum the scores before an update's first step: the policy's entropy, and its distance from the sampler."""

from __future__ import annotations

import math

import torch

from nemo_brorl.policy.model.log_probs import TokenScores
from nemo_brorl.policy.rank.token_sums import TokenSums
from nemo_brorl.policy.rows.packed_rows import Row


class ScoreSums:
    """Sums over the tokens of one update on one rank.

    For one set of weights, the difference between sampler and trainer is the mismatch of two implementations.
    Carried-over rollouts come from older weights, so their difference is counted separately, as drift.
    """

    def __init__(self) -> None:
        self.undecided = TokenSums()
        self.mismatch = TokenSums()
        self.drift = TokenSums()

    def add(self, row: Row, scores: TokenScores) -> None:
        """Add a packed row's entropies and its log-prob differences of trainer and sampler to the sums for metrics.

        The collision probabilities of its tokens are added too. `scores` are those under the weights before the update.
        """
        undecided = {
            "policy/entropy": scores.entropies.double().sum(),
            "policy/collision_probability": scores.collisions.double().sum(),
        }
        self.undecided.add(undecided, row.num_loss_tokens)
        if row.num_loss_tokens == 0:
            return
        difference = (scores.log_probs - row.sampled_log_probs).abs()
        # Indexing by a mask would wait for the GPU, which alone knows the size of the result.
        mismatch = torch.where(row.is_fresh, difference, 0.0)
        drift = torch.where(row.is_fresh, 0.0, difference)
        total_mismatch = mismatch.double().sum()
        self.mismatch.add({"policy/log_prob_mismatch": total_mismatch}, row.num_fresh_tokens)
        self.mismatch.largest = torch.maximum(mismatch.max(), torch.as_tensor(self.mismatch.largest))
        total_drift = drift.double().sum()
        num_carried = row.num_loss_tokens - row.num_fresh_tokens
        self.drift.add({"policy/log_prob_drift_of_carried": total_drift}, num_carried)

    def metrics(self) -> dict[str, float]:
        """Return means of entropy, mismatch and drift over the tokens of all data-parallel ranks.

        Mismatch is the log-prob difference between trainer and sampler for rollouts of the weights before the update.
        Drift is this difference for rollouts of older weights. Collective. The mismatch is NaN where no rollout is of
        the weights before the update.
        """
        mismatch = self.mismatch.over_data_ranks()
        return {
            "policy/log_prob_mismatch": math.nan,
            **mismatch.means(),
            "policy/log_prob_mismatch_max": mismatch.largest,
            **self.undecided.over_data_ranks().means(),
            **self.drift.over_data_ranks().means(),
        }
