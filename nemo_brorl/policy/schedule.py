"""Runs rows through Megatron's pipeline schedules (none, 1F1B, interleaved), forward only or with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from nemo_brorl.policy.packed_rows import Row

RowLoss = Callable[[int, Row, Tensor], tuple[Tensor, dict[str, Tensor]]]  # (index, row, log-probs) -> loss sum, metric sums


def score_rows(chunks: Sequence[Any], rows: Sequence[Row]) -> list[Tensor]:
    """Log-probs [n] of every row under the current weights; an empty list except on the last pipeline stage."""
    with torch.no_grad():
        return _run(chunks, rows, _keep_log_probs, forward_only=True, collect_non_loss_data=True)


def train_rows(chunks: Sequence[Any], rows: Sequence[Row], loss: RowLoss) -> list[dict[str, Tensor]]:
    """Gradients of the token mean of `loss` over the rows of all data-parallel ranks, left in the gradient buffers.

    Returns the metrics of every row on the last pipeline stage, an empty list elsewhere.
    """
    for chunk in chunks:
        chunk.zero_grad_buffer()
    return _run(chunks, rows, partial(_apply_loss, loss), forward_only=False, collect_non_loss_data=False)


def _keep_log_probs(index: int, row: Row, log_probs: Tensor, non_loss_data: bool = False) -> Tensor:
    return log_probs.detach()


def _apply_loss(loss: RowLoss, index: int, row: Row, log_probs: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The triple Megatron expects: the sum to differentiate, the tokens it is later divided by, what to hand back."""
    total, metrics = loss(index, row, log_probs)
    return total, torch.tensor(row.num_loss_tokens, dtype=torch.int, device=total.device), metrics


def _run(chunks: Sequence[Any], rows: Sequence[Row], at_end: Callable[..., Any], **settings: bool) -> list[Any]:
    def forward(numbered: Iterator[tuple[int, Row]], model: Any) -> tuple[Tensor, Callable[..., Any]]:
        index, row = next(numbered)
        output = model(row.token_ids, row.positions, None, packed_seq_params=row.packing)
        return output, partial(at_end, index, row)

    numbered = [iter(enumerate(rows)) for _ in chunks]
    return get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=numbered if len(chunks) > 1 else numbered[0],
        model=list(chunks) if len(chunks) > 1 else chunks[0],
        num_microbatches=len(rows),
        seq_length=rows[0].token_ids.size(1),  # a hint only: stages exchange the real shapes
        micro_batch_size=1,
        **settings,
    )
