"""Run rows through Megatron's pipeline schedules (none, 1F1B, interleaved), forward only or with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from nemo_brorl.policy.model.log_probs import TokenScores
from nemo_brorl.policy.process.rank_progress import PROGRESS
from nemo_brorl.policy.rows.packed_rows import Row

TensorMetrics = dict[str, Tensor]
# Takes index, row and scores of a row. Returns the loss sum and metric sums.
RowLoss = Callable[[int, Row, TokenScores], tuple[Tensor, TensorMetrics]]
Counted = tuple[Tensor, Tensor, TensorMetrics]  # Megatron's triple: loss sum, number of tokens, metrics

# Megatron's attributes for selective recomputation. It reads them in evaluation mode too.
_RECOMPUTES = ("recompute_mlp", "moe_layer_recompute")


def score_rows(chunks: Sequence[Any], rows: Sequence[Row]) -> list[TokenScores]:
    """Return log-prob, entropy and collision mass [n] of the tokens in each packed row under the current weights.

    Gradients are off. The list is empty except on the last pipeline stage. Collective over the ranks that share the
    model.
    """
    # Without gradients recomputation saves nothing, and Transformer Engine would remember the pass.
    with torch.no_grad(), _nothing_recomputed(chunks):
        return _run(chunks, rows, _keep_scores, forward_only=True, collect_non_loss_data=True)


@contextmanager
def _nothing_recomputed(chunks: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Put model chunks into evaluation mode without activation recomputation, and back afterwards.

    In training mode Transformer Engine stores the FP8 scales of every recomputed forward pass, and backward passes take
    them back one by one. If a forward pass had no backward pass, the backward pass of a later one would take its
    scales.
    """
    switched: list[tuple[torch.nn.Module, str]] = []
    for chunk in chunks:
        chunk.eval()
        switched += _recomputing(chunk)
    for module, name in switched:
        setattr(module, name, False)
    try:
        yield
    finally:
        for module, name in switched:
            setattr(module, name, True)
        for chunk in chunks:
            chunk.train()


def _recomputing(chunk: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str]]:
    """Yield the modules that recompute activations, each with the name of the attribute that switches it on."""
    for module in chunk.modules():
        for name in _RECOMPUTES:
            if getattr(module, name, False):
                yield module, name


def train_rows(
    chunks: Sequence[Any],
    rows: Sequence[Row],
    loss: RowLoss,
) -> list[TensorMetrics]:
    """Compute gradients of the token mean of `loss` over the rows of tokens of all data-parallel ranks.

    The gradients are left in the gradient buffers. Returns the metrics of every row on the last pipeline stage, an
    empty list elsewhere. Collective over all policy ranks.
    """
    for chunk in chunks:
        chunk.zero_grad_buffer()
    return _run(chunks, rows, partial(_apply_loss, loss), forward_only=False, collect_non_loss_data=False)


def _keep_scores(
    index: int,
    row: Row,
    output: Tensor,
    non_loss_data: bool = False,
) -> TokenScores:
    return _by_response(output.detach(), row)


def _by_response(output: Tensor, row: Row) -> TokenScores:
    """Return the scores [n] of all responses' tokens from the model's output [3, u] for distinct tokens.

    A token that several responses share has one score, which counts in each of them.
    """
    if row.score_index is not None:
        output = output.index_select(1, row.score_index)
    return TokenScores(*output)


def _apply_loss(
    loss: RowLoss,
    index: int,
    row: Row,
    output: Tensor,
) -> Counted:
    """Return the triple that Megatron expects of a loss: the sum to differentiate, the number of tokens, and metrics.

    Megatron divides the sum by the number of tokens.
    """
    total, metrics = loss(index, row, _by_response(output, row))
    num_tokens = _int_tensor(row.num_loss_tokens, total)
    return total, num_tokens, metrics


def _leave_out(output: Tensor, non_loss_data: bool = False) -> Counted:
    """Return the loss triple that Megatron expects, with 0 tokens, for a filler row that must not count in the loss."""
    return output.sum(), _int_tensor(0, output), {}


def _int_tensor(number: int, like: Tensor) -> Tensor:
    # The device fills it. Copying a number from the host would wait for all queued work of the GPU.
    return torch.full((), number, dtype=torch.int, device=like.device)


def _run(
    chunks: Sequence[Any],
    rows: Sequence[Row],
    at_end: Callable[..., Any],
    **settings: bool,
) -> list[Any]:
    """Run rows of tokens through Megatron's pipeline, and return the results of `at_end` for each on the last stage."""
    is_interleaved = len(chunks) > 1
    filled = list(rows)
    if is_interleaved:
        filled += _fillers(rows)

    def forward(numbered: Iterator[tuple[int, Row]], model: Any) -> tuple[Tensor, Callable[..., Any]]:
        index, row = next(numbered)
        PROGRESS.mark_step(f"micro-batch {index + 1} of {len(filled)}")
        output = model(row.token_ids, row.positions, None, packed_seq_params=row.packing)
        # Fillers run like other rows to keep the stages in step, but count nothing.
        if index >= len(rows):
            return output, _leave_out
        return output, partial(at_end, index, row)

    # Every chunk of an interleaved pipeline goes through all rows at its own pace.
    iterators = [iter(enumerate(filled)) for _ in chunks]
    results = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=iterators if is_interleaved else iterators[0],
        model=list(chunks) if is_interleaved else chunks[0],
        num_microbatches=len(filled),
        seq_length=_row_length(rows, is_interleaved),
        micro_batch_size=1,
        **settings,
    )
    return results[: len(rows)]


def _fillers(rows: Sequence[Row]) -> list[Row]:
    """Return filler rows, which predict no token, to make the number of rows a multiple of the pipeline stages.

    Megatron's interleaved pipeline schedule needs such a multiple.
    """
    # The last row is repeated: it has the right length and fits into memory.
    num_missing = -len(rows) % parallel_state.get_pipeline_model_parallel_world_size()
    last = rows[-1]
    packing = last.packing
    assert packing.source_rows is not None and packing.targets is not None
    no_targets = replace(packing, source_rows=packing.source_rows[:0], targets=packing.targets[:0])
    filler = replace(
        last,
        packing=no_targets,
        sampled_log_probs=last.sampled_log_probs[:0],
        advantages=last.advantages[:0],
        turn_lengths=last.turn_lengths[:0],
        is_fresh=last.is_fresh[:0],
        responses=(),
    )
    return [filler] * num_missing


def _row_length(rows: Sequence[Row], is_interleaved: bool) -> int:
    """Return the number of tokens in the longest packed row, counted over all context-parallel ranks.

    Interleaved pipeline stages need it, with rows of equal length (`RankState.rows`). Otherwise stages would send each
    other the lengths of their rows. Over Gloo, the messages of two stages that are each before and after the other
    would be mixed up. Without interleaving, stages exchange the true lengths.
    """
    lengths = {row.token_ids.size(1) for row in rows}
    assert len(lengths) == 1 or not is_interleaved, f"an interleaved pipeline got rows of {sorted(lengths)} tokens"
    return max(lengths) * parallel_state.get_context_parallel_world_size()
