"""Count the parameters that one policy rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.core.model_shape import ModelShape


@dataclass(frozen=True)
class Parameters:
    """Number of model parameters on one policy rank."""

    dense: int  # parameters replicated over ParallelLayout.replicas
    experts: int  # parameters replicated over ParallelLayout.expert_replicas
    linear: int  # those in matrix products inside layers, dense or expert, which FP8 affects

    @property
    def total(self) -> int:
        return self.dense + self.experts


def attention_size(shape: ModelShape) -> int:
    """Return the parameters of a layer's four attention projections, without biases.

    They are (2 a d + 2 k d) h for a query heads and k key-value heads of size d, and hidden size h.
    """
    return 2 * shape.hidden_size * (shape.num_heads + shape.num_key_value_heads) * shape.head_size


@lru_cache(maxsize=1024)
def rank_parameters(shape: ModelShape, layout: ParallelLayout, stage: int) -> Parameters:
    """Return the number of parameters on a rank of a pipeline stage, with all model chunks if interleaved."""
    width, tensor = shape.hidden_size, layout.tensor
    piece_size = shape.num_layers // (layout.pipeline * layout.chunks)
    layers: list[int] = []
    for piece in range(layout.chunks):
        first = (piece * layout.pipeline + stage) * piece_size
        layers += range(first, first + piece_size)
    bias = 0
    if shape.has_qkv_bias:
        bias = (shape.num_heads + 2 * shape.num_key_value_heads) * shape.head_size
    norms = shape.num_norms * width
    if shape.has_qk_norm:
        norms += 2 * shape.head_size
    if shape.has_joint_qk_norm:
        norms += (shape.num_heads + shape.num_key_value_heads) * shape.head_size // tensor
    attention = attention_size(shape) // tensor
    dense = experts = linear = 0
    for layer in layers:
        dense += attention + bias // tensor + norms
        linear += attention
        if shape.moe is not None and shape.moe.is_moe_layer[layer]:
            dense += shape.moe.num_experts * width
            mine = 3 * shape.moe.ffn_size * width * shape.moe.num_experts // (layout.expert * layout.expert_tensor)
            experts += mine
            linear += mine
        else:
            mlp = 3 * shape.ffn_size * width // tensor
            dense += mlp
            linear += mlp
    vocabulary = shape.padded_vocab_size(tensor) // tensor * width
    is_first = stage == 0
    if is_first:
        dense += vocabulary
    if stage == layout.pipeline - 1:
        dense += width
        if not (shape.is_tied and is_first):
            dense += vocabulary
    return Parameters(dense, experts, linear)
