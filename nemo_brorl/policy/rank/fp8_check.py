"""Measure what FP8 changes in log-probs during training, and initialise the scales of the delayed recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from nemo_brorl.config.policy import PolicyConfig
from nemo_brorl.policy.model.log_probs import TokenScores
from nemo_brorl.policy.model.precision import fp8_off
from nemo_brorl.policy.rank.pipeline import score_rows, train_rows
from nemo_brorl.policy.rows.packed_rows import Row
from nemo_brorl.policy.state.optimizer import gather_weights


class Fp8Check:
    """Check of one rank that measures what FP8 changes in log-probs.

    It does nothing without `policy.fp8`. Its methods are collective.
    """

    def __init__(
        self,
        policy: PolicyConfig,
        models: Sequence[Any],
        chunks: Sequence[Any],
    ) -> None:
        """Take the policy rank's model chunks, as built (`models`) and as wrapped for training (`chunks`)."""
        self.is_on = policy.fp8 is not None
        self.needs_scales = self.is_on and policy.fp8_recipe == "delayed"
        self.models = models
        self.chunks = chunks

    def first_scales(self, row: Row) -> None:
        """Give the delayed FP8 recipe an amax history before log-probs of the first row of tokens are computed.

        The first scales of the recipe are 1, which rounds weights of 0.01 to a few values and many gradients to zero.
        Two forward and backward passes over a row fill the history. After the first pass, layers behind the first one
        have only seen wrong inputs. The weights do not change.
        """
        if self.needs_scales:
            train_rows(self.chunks, [row, row], _likelihood)
            gather_weights(self.chunks)
        self.needs_scales = False

    def loaded(self) -> None:
        """Note that a checkpoint has restored the FP8 scales, so that no forward pass is needed to initialise them."""
        self.needs_scales = False

    def mismatch(self, row: Row) -> dict[str, float]:
        """Return the metrics `policy/fp8_mismatch` and `policy/fp8_mismatch_max` of a row of tokens, in nats.

        They are mean and maximum of |log p with FP8 − log p without FP8| under the current weights, over the row's
        response tokens on all data-parallel ranks. The result is empty except on the last pipeline stage. Pass the row
        that is trained on next. Then the pass with FP8 adds nothing to the delayed recipe's amax history that training
        would not add. The pass without FP8 leaves the history alone.
        """
        if not self.is_on:
            return {}
        self.first_scales(row)
        with_fp8 = score_rows(self.chunks, [row])
        with fp8_off(self.models):
            without = score_rows(self.chunks, [row])
        if not parallel_state.is_pipeline_last_stage(ignore_virtual=True):
            return {}
        difference = with_fp8[0].log_probs - without[0].log_probs
        return _over_data_ranks(difference.abs().double())


def _over_data_ranks(difference: Tensor) -> dict[str, float]:
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    total = difference.sum()
    num_tokens = torch.full_like(total, len(difference))
    largest = torch.zeros_like(total)
    if len(difference):
        largest = difference.amax()
    dist.all_reduce(total, group=group)
    dist.all_reduce(num_tokens, group=group)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return {
        "policy/fp8_mismatch": float(total) / max(float(num_tokens), 1.0),
        "policy/fp8_mismatch_max": float(largest),
    }


def _likelihood(
    index: int,
    row: Row,
    scores: TokenScores,
) -> tuple[Tensor, dict[str, Tensor]]:
    return -scores.log_probs.sum(), {}
