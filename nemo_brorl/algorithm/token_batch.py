"""The tokens that a loss is of, and how much each of them counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class ResponseIndex:
    """The response that each token is of. Under context parallelism a response's tokens lie on several ranks."""

    index: Tensor  # [T] int64, into R
    lengths: Tensor  # [R] float32, sampled tokens of the whole responses
    group: dist.ProcessGroup | None = None  # the ranks that hold the other tokens; None: there are none

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
        means = self.sums(values) / self.lengths
        return means[self.index]


@dataclass(frozen=True)
class TokenBatch:
    """Sampled tokens of one micro-batch, all [T] float32."""

    log_probs: Tensor  # under the weights being trained; carries the gradient
    entropies: Tensor  # entropies of the distributions these tokens were scored under, nats; carries the gradient
    old_log_probs: Tensor  # Megatron, at the start of the update
    sampled_log_probs: Tensor  # vLLM, when the token was drawn
    reference_log_probs: Tensor | None  # None: no KL term
    advantages: Tensor
    weights: Tensor  # weight of each token in the mean, see `token_weights`
    sequences: ResponseIndex
    covariance_mask: Tensor | None = None  # bool: held by the parameter `covariance`; None: none is


@dataclass(frozen=True)
class LossSums:
    """Sums over the tokens of one micro-batch."""

    loss: Tensor  # scalar with gradient
    metrics: dict[str, Tensor]  # scalars without gradient; divide by the number of tokens


@dataclass(frozen=True)
class MiniBatchSize:
    """Size of a whole mini-batch, over all ranks."""

    num_tokens: int  # sampled tokens
    num_sequences: int  # responses
    num_turns: int  # of these
    max_tokens: int  # that a response may have


class TokenLengths(NamedTuple):
    """Of each token [T] float32, in sampled tokens."""

    sequence: Tensor  # of its response
    turn: Tensor  # of its turn
    num_turns: Tensor  # that its response has


def token_weights(aggregation: str, lengths: TokenLengths, size: MiniBatchSize) -> Tensor:
    """Weights [T] of tokens in the mean of the loss. The caller divides the weighted sum by the mini-batch's tokens.

    token_mean     1: every token counts alike, long responses more (DAPO, arXiv 2503.14476 equation 12)
    sequence_mean  every response counts alike: mean over its tokens, then over responses (GRPO, arXiv 2402.03300; GSPO)
    constant       sums over responses divided by a constant length, so that no response's length enters (Dr. GRPO,
                   arXiv 2503.20783)
    turn_mean      every turn counts alike: mean over its tokens, then over turns, so that long trajectories count more
    sequence_turn_mean  every response counts alike, and every turn of it: mean over tokens, then turns, then responses
    """
    if aggregation == "token_mean":
        return torch.ones_like(lengths.sequence)
    tokens_per_sequence = size.num_tokens / size.num_sequences
    if aggregation == "sequence_mean":
        return tokens_per_sequence / lengths.sequence
    if aggregation == "turn_mean":
        return size.num_tokens / size.num_turns / lengths.turn
    if aggregation == "sequence_turn_mean":
        return tokens_per_sequence / (lengths.num_turns * lengths.turn)
    assert aggregation == "constant", aggregation
    return torch.full_like(lengths.sequence, tokens_per_sequence / size.max_tokens)
