"""Compute the costs of a model from its shape alone: active parameters, operations, keys and values."""

from __future__ import annotations

from functools import lru_cache

from nemo_brorl.config.rank_parameters import attention_size
from nemo_brorl.core.model_shape import ModelShape


@lru_cache(maxsize=64)
def active_parameters(shape: ModelShape) -> int:
    """Return the number of model parameters in the matrix products that one token passes.

    The output layer is included, the embedding is not.
    """
    total = shape.vocab_size * shape.hidden_size
    for layer in range(shape.num_layers):
        total += attention_size(shape)
        if shape.moe is not None and shape.moe.is_moe_layer[layer]:
            experts = 3 * shape.moe.experts_per_token * shape.moe.ffn_size
            total += (experts + shape.moe.num_experts) * shape.hidden_size
        else:
            total += 3 * shape.ffn_size * shape.hidden_size
    return total


def forward_flops(shape: ModelShape, context: float) -> float:
    """Return the floating-point operations of a forward pass for one token that attends to `context` tokens.

    These are 2 per parameter, and 4 a d per layer and attended token, for a heads of size d.
    """
    attention = 4.0 * shape.num_layers * shape.num_heads * shape.head_size * context
    return 2.0 * active_parameters(shape) + attention


def key_value_bytes(shape: ModelShape, number_bytes: int) -> int:
    """Return the bytes of one token's keys and values in all layers: 2 layers k d b.

    k key-value heads have size d, and a number has b = `number_bytes` bytes.
    """
    return 2 * shape.num_layers * shape.num_key_value_heads * shape.head_size * number_bytes
