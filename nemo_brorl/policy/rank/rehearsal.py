"""Rehearse an update on one rank: every pass and exchange of it, with full rows, but no optimizer step.

All replicas get the same rows. In a second pass their losses have factors that add up to zero, and so do their
gradients, unless the exchange leaves out or repeats a replica.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from megatron.core import parallel_state
from torch import Tensor

from nemo_brorl.core.errors import ResourceError
from nemo_brorl.core.machine import GIB
from nemo_brorl.policy.model.log_probs import TokenScores
from nemo_brorl.policy.model.precision import fp8_off
from nemo_brorl.policy.process.rank_progress import PROGRESS
from nemo_brorl.policy.rank.pipeline import score_rows, train_rows
from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response, Row
from nemo_brorl.policy.state.rank_state import RankState
from nemo_brorl.types import RankRehearsal
from nemo_brorl.weights.flat import word_checksum

PROMPT_TOKENS = 256  # most tokens of the prompt of a row


def rehearse_update(state: RankState, num_tokens: int) -> RankRehearsal:
    """Score and train on rows of `num_tokens` tokens without a step, and gather the weights. Collective.

    Raises ResourceError if this rank runs out of memory.
    """
    on_gpu = state.settings.layout.on_gpu
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    # Every pass adds to the scales of the delayed recipe, which a run must find as they were.
    is_delayed = state.settings.policy.fp8 is not None and state.settings.policy.fp8_recipe == "delayed"
    try:
        with fp8_off(state.models) if is_delayed else nullcontext():
            # As many rows as a pipeline has under way at a time.
            rows = state.rows([_full_row(state, num_tokens)] * state.settings.layout.pipeline, 1.0)
            PROGRESS.mark_part("scores")
            _score(state, rows)
            PROGRESS.mark_part("gradients")
            grad_norm = _exchanged_norm(state, rows, 1.0)
            own_norm = _own_norm(state)
            replicas = parallel_state.get_data_parallel_world_size()
            factor = opposed_factor(parallel_state.get_data_parallel_rank(), replicas)
            opposed_norm = _exchanged_norm(state, rows, factor)
        PROGRESS.mark_part("weights")
        is_unchanged = _gathers_same_weights(state)
    except torch.OutOfMemoryError as error:
        raise ResourceError(
            f"policy rank {torch.distributed.get_rank()} ran out of GPU memory in the dress rehearsal, on a row of "
            f"{num_tokens} tokens: set policy.recompute=selective, then full, or lower policy.tokens_per_micro_batch "
            f"or generation.gpu_memory_utilization ({error})"
        ) from error
    peak_gib, room_gib = _memory() if on_gpu else (None, None)
    return RankRehearsal(grad_norm, opposed_norm, own_norm, is_unchanged, peak_gib, room_gib)


def opposed_factor(replica: int, num_replicas: int) -> float:
    """Return a replica's factor of the loss, ±1 in turn. The factors add up to zero, also of an odd number: 1, 1, -2.

    A single replica gets 0.
    """
    if num_replicas == 1:
        return 0.0
    from_last = num_replicas - 1 - replica
    if num_replicas % 2 and from_last < 3:
        return -2.0 if from_last == 0 else 1.0
    return 1.0 - 2.0 * (replica % 2)


def _full_row(state: RankState, num_tokens: int) -> list[PackedGroup]:
    """Return a prompt and responses of random tokens that fill a row, the same ones on all ranks."""
    rng = np.random.default_rng(0)
    longest = state.settings.rollouts.max_response_tokens
    prompt = rng.integers(0, state.shape.vocab_size, min(PROMPT_TOKENS, num_tokens // 2), dtype=np.int32)
    responses: list[Response] = []
    left = num_tokens - len(prompt)
    while left > 0:
        tokens = rng.integers(0, state.shape.vocab_size, min(left, longest), dtype=np.int32)
        left -= len(tokens)
        no_log_probs = np.zeros(len(tokens), np.float32)
        responses.append(Response(0, len(responses), tokens, no_log_probs, 1.0, is_fresh=True))
    return [PackedGroup(prompt, tuple(responses))]


def _score(state: RankState, rows: Sequence[Row]) -> None:
    score_rows(state.chunks, rows)
    for reference in state.references:
        with reference.swapped_in():
            score_rows(state.chunks, rows)


def _exchanged_norm(state: RankState, rows: Sequence[Row], factor: float) -> float:
    """Return the norm of the exchanged gradients of all ranks for losses that are multiplied by this rank's factor."""

    def loss(index: int, row: Row, scores: TokenScores) -> tuple[Tensor, dict[str, Tensor]]:
        return -factor * scores.log_probs.sum(), {}

    train_rows(state.chunks, rows, loss)
    state.optimizer.prepare_grads()
    return float(state.optimizer.get_grad_norm())


def _own_norm(state: RankState) -> float | None:
    """Return the norm of the gradients that this rank's optimizer would use, or None if it has no parameters."""
    squares = []
    for part in state.optimizer.chained_optimizers:
        # Megatron has an empty optimizer where a rank has no parameters of a kind.
        if not getattr(part, "is_stub_optimizer", False):
            squares += [float(gradient.square().sum()) for gradient in part.get_main_grads_for_grad_norm()]
    return math.sqrt(sum(squares)) if squares else None


def _gathers_same_weights(state: RankState) -> bool:
    """Return whether this rank's weights are the same after each replica has sent its share of them to the others."""
    before = _checksums(state)
    for chunk in state.chunks:
        chunk.start_param_sync(force_sync=True)
        chunk.zero_grad_buffer()
    return _checksums(state) == before


def _checksums(state: RankState) -> list[int]:
    found = []
    for chunk in state.chunks:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            found.append(word_checksum(buffer.param_data.detach().view(torch.uint8)))
    return found


def _memory() -> tuple[float, float]:
    """Return the GiB of the GPU that this process has taken at most, and what of the GPU was free then."""
    free, _ = torch.cuda.mem_get_info()
    peak = torch.cuda.max_memory_reserved()
    return peak / GIB, (free + torch.cuda.memory_reserved() - peak) / GIB
