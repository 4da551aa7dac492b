"""Describe the tokens that a loss is computed over, and weigh them in its mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class ResponseIndex:
    """Assignment of each token to its response, to sum token values over whole responses.

    Under context parallelism the tokens of a response are on several ranks.
    """

    index: Tensor  # [T] int64, response of each token, from 0 to R − 1
    lengths: Tensor  # [R] float32, sampled tokens of each whole response
    group: dist.ProcessGroup | None = None  # ranks that share the responses; None: this rank has them whole

    @torch.no_grad()
    def sums(self, values: Tensor) -> Tensor:
        """Return the sum of token values [T] over every whole response, [R], without gradient.

        Collective over the ranks that share the responses.
        """
        total = torch.zeros_like(self.lengths, dtype=values.dtype).index_add_(0, self.index, values.detach())
        if self.group is not None:
            dist.all_reduce(total, group=self.group)
        return total

    def sum_of(self, values: Tensor) -> Tensor:
        """Return for every token the sum of `values` over its response, [T].

        Collective over the ranks that share the responses.
        """
        return self.sums(values)[self.index]

    def mean_of(self, values: Tensor) -> Tensor:
        """Return for every token the mean of `values` over its response, [T].

        Collective over the ranks that share the responses.
        """
        means = self.sums(values) / self.lengths
        return means[self.index]


@dataclass(frozen=True)
class TokenBatch:
    """Sampled tokens of one micro-batch on one rank. Tensors are [T] float32 unless a comment says otherwise."""

    log_probs: Tensor  # log-probs under the weights being trained; carries the gradient
    entropies: Tensor  # entropies of the next-token distributions, nats; carries the gradient
    old_log_probs: Tensor  # Megatron's log-probs at the start of the update
    sampled_log_probs: Tensor  # vLLM's log-probs when it drew the tokens
    reference_log_probs: Tensor | None  # None: no KL term
    advantages: Tensor
    weights: Tensor  # weights of the tokens in the averaged loss, from `token_weights`
    sequences: ResponseIndex
    has_reference: Tensor | None = None  # bool; tokens that have a KL; None: all, if there are reference log-probs
    covariance_mask: Tensor | None = None  # bool; tokens that the parameter `covariance` selects; None: off


@dataclass(frozen=True)
class LossSums:
    """Loss and metrics, summed over the tokens of one micro-batch."""

    loss: Tensor  # scalar with gradient
    metrics: dict[str, Tensor]  # scalars without gradient, to be divided by the number of tokens


@dataclass(frozen=True)
class MiniBatchSize:
    """Numbers of tokens, responses and turns in a whole mini-batch, over all ranks."""

    num_tokens: int  # sampled tokens
    num_sequences: int  # responses
    num_turns: int  # turns of all responses
    max_tokens: int  # longest response that the settings allow, in tokens


class TokenLengths(NamedTuple):
    """Lengths of what each token belongs to, [T] float32, in sampled tokens."""

    sequence: Tensor  # length of the token's response
    turn: Tensor  # length of the token's turn
    num_turns: Tensor  # number of turns in the token's response


def token_weights(aggregation: str, lengths: TokenLengths, size: MiniBatchSize) -> Tensor:
    """Return the weights [T] of tokens in the averaged loss, by `algorithm.aggregation`.

    The caller divides the weighted sum by the number of tokens of the mini-batch.

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
