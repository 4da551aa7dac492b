"""Attention of sequences that lie end to end, in plain torch: stands in for the flash kernels of a GPU. It cannot show
their rounding, their limits on sizes, or whether torch's arguments mean on CUDA what their names say."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nemo_brorl.policy.model.attention_flash import AttentionSequences


class PlainKernel:
    """A `Kernel` that writes down all scores of a sequence, and counts what it is asked for."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.num_scores = 0  # of forward calls

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, sequences: AttentionSequences, scale: float
    ) -> tuple[Tensor, Tensor]:
        self.num_calls += 1
        output = torch.full_like(query, torch.nan)
        log_sums = torch.full((query.size(1), len(query)), torch.nan)
        for rows, columns in cut(sequences, query, key):
            scores = scored(query[rows], key[columns], sequences.is_causal, scale)
            self.num_scores += scores[0].numel()
            log_sums[:, rows] = scores.logsumexp(-1)
            output[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), spread(value[columns], query))
        return output, log_sums

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        log_sums: Tensor,
        sequences: AttentionSequences,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As flash attention does it: probabilities from the log-sum-exps given, dS = P (dP - dO · O)."""
        assert all(part.is_contiguous() for part in (grad, output, log_sums)), "as torch's kernel wants them"
        query_grad, key_grad, value_grad = (torch.zeros_like(part) for part in (query, key, value))
        for rows, columns in cut(sequences, query, key):
            keys, values = spread(key[columns], query), spread(value[columns], query)
            p = (scored(query[rows], key[columns], sequences.is_causal, scale) - log_sums[:, rows, None]).exp()
            of_p = torch.einsum("qhd,khd->hqk", grad[rows], values)
            of_scores = p * (of_p - (grad[rows] * output[rows]).sum(-1).T[..., None]) * scale
            query_grad[rows] = torch.einsum("hqk,khd->qhd", of_scores, keys)
            key_grad[columns] = gathered(torch.einsum("hqk,qhd->khd", of_scores, query[rows]), key)
            value_grad[columns] = gathered(torch.einsum("hqk,qhd->khd", p, grad[rows]), value)
        return query_grad, key_grad, value_grad


def cut(sequences: AttentionSequences, query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice]]:
    """Rows of the queries and of the keys of every sequence; checks what a kernel relies on."""
    query_ends, key_ends = sequences.query_ends.tolist(), sequences.key_ends.tolist()
    assert sequences.query_ends.dtype == sequences.key_ends.dtype == torch.int32
    assert query_ends[0] == key_ends[0] == 0 and (query_ends[-1], key_ends[-1]) == (len(query), len(key))
    pairs = list(zip(map(slice, query_ends, query_ends[1:]), map(slice, key_ends, key_ends[1:]), strict=True))
    assert max(rows.stop - rows.start for rows, _ in pairs) == sequences.longest_query
    assert max(columns.stop - columns.start for _, columns in pairs) == sequences.longest_key
    return iter(pairs)


def spread(heads: Tensor, query: Tensor) -> Tensor:
    """[C, K, D] to [C, H, D]."""
    return heads.repeat_interleave(query.size(1) // heads.size(1), 1)


def gathered(grad: Tensor, heads: Tensor) -> Tensor:
    """[C, H, D] summed to [C, K, D]."""
    return grad.unflatten(1, (heads.size(1), -1)).sum(2)


def scored(query: Tensor, key: Tensor, is_causal: bool, scale: float) -> Tensor:
    """[H, R, C]."""
    scores = torch.einsum("qhd,khd->hqk", query, spread(key, query)) * scale
    if is_causal:
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores
