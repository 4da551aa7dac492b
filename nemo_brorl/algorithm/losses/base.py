"""What a loss takes and gives. Sums, not means: the caller divides by the number of response tokens of the whole
mini-batch, over all micro-batches and data-parallel ranks, so the result does not depend on how the mini-batch was cut.

Legend: T response tokens of this rank's part of a micro-batch, R responses of the micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_brorl.config.schema import AlgorithmConfig


@dataclass(frozen=True)
class Sequences:
    """Which response each token is of. Under context parallelism a response's tokens lie on several ranks."""

    index: Tensor  # [T] int64, into R
    lengths: Tensor  # [R] float32, tokens of the whole responses
    group: dist.ProcessGroup | None = None  # of the ranks that hold the other tokens; None: there are none

    @torch.no_grad()
    def sums(self, values: Tensor) -> Tensor:
        """Sum of values [T] over every whole response [R]; without gradient. Collective over the group."""
        total = torch.zeros_like(self.lengths, dtype=values.dtype).index_add_(0, self.index, values.detach())
        if self.group is not None:
            dist.all_reduce(total, group=self.group)
        return total

    def sum_of(self, values: Tensor) -> Tensor:
        """Every token's response's sum [T]."""
        return self.sums(values)[self.index]

    def mean_of(self, values: Tensor) -> Tensor:
        """Every token's response's mean [T]."""
        return (self.sums(values) / self.lengths)[self.index]


@dataclass(frozen=True)
class TokenBatch:
    """Response tokens of one micro-batch, all [T] float32."""

    log_probs: Tensor  # under the weights being trained; carries the gradient
    entropies: Tensor  # of the distributions these tokens were scored under, nats; carries the gradient
    old_log_probs: Tensor  # Megatron, at the start of the update
    sampled_log_probs: Tensor  # vLLM, when the token was drawn
    reference_log_probs: Tensor | None  # None: no KL term
    advantages: Tensor
    weights: Tensor  # of the tokens in the mean, see aggregation.py
    sequences: Sequences


@dataclass(frozen=True)
class LossSums:
    """Sums over the tokens of one micro-batch."""

    loss: Tensor  # scalar with gradient
    metrics: dict[str, Tensor]  # scalars without gradient; divide by the number of tokens


Loss = Callable[[TokenBatch, AlgorithmConfig], LossSums]
