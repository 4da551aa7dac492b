"""From a row and its scores to what a loss reads."""

from __future__ import annotations

import torch
from megatron.core import parallel_state
from torch import Tensor

from nemo_brorl.algorithm.losses import MiniBatchSize, Sequences, TokenBatch, token_weights
from nemo_brorl.policy.model.log_probs import TokenScores
from nemo_brorl.policy.rows.packed_rows import Row


def token_batch(
    row: Row, scores: TokenScores, old: Tensor, reference: Tensor | None, size: MiniBatchSize, aggregation: str
) -> TokenBatch:
    """The tokens of a row on this rank; `old` and `reference` are log-probs [n], None without a KL term."""
    device = row.advantages.device
    index = torch.from_numpy(row.response_index).to(device)
    lengths = torch.tensor([len(response.token_ids) for response in row.responses], dtype=torch.float32, device=device)
    is_cut = parallel_state.get_context_parallel_world_size() > 1
    return TokenBatch(
        log_probs=scores.log_probs,
        entropies=scores.entropies,
        old_log_probs=old,
        sampled_log_probs=row.sampled_log_probs,
        reference_log_probs=reference,
        advantages=row.advantages,
        weights=token_weights(aggregation, lengths[index], size),
        sequences=Sequences(index, lengths, parallel_state.get_context_parallel_group() if is_cut else None),
    )
