"""What the mean of the loss runs over, as a weight of each token. The caller divides the sum by the mini-batch's
tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MiniBatchSize:
    """Of a whole mini-batch, over all ranks."""

    num_tokens: int  # response tokens
    num_sequences: int  # responses
    max_tokens: int  # that a response may have


def token_weights(aggregation: str, sequence_lengths: Tensor, size: MiniBatchSize) -> Tensor:
    """[T] from the length of each token's response [T].

    token_mean     1: every token counts alike, long responses more (DAPO, arXiv 2503.14476 equation 12)
    sequence_mean  every response counts alike: mean over its tokens, then over responses (GRPO, arXiv 2402.03300; GSPO)
    constant       sums over responses divided by a constant length, so that no response's length enters (Dr. GRPO,
    arXiv 2503.20783)
    """
    if aggregation == "token_mean":
        return torch.ones_like(sequence_lengths)
    per_sequence = size.num_tokens / size.num_sequences
    if aggregation == "sequence_mean":
        return per_sequence / sequence_lengths
    assert aggregation == "constant", aggregation
    return torch.full_like(sequence_lengths, per_sequence / size.max_tokens)
