"""Estimate the bytes per token that a layer keeps for its backward pass, and those that it needs temporarily.

Legend: h hidden size, a heads of d numbers, k key-value heads, f MLP size, b bytes of a number.
"""

from __future__ import annotations

from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.core.model_shape import ModelShape


def layer_activations(
    shape: ModelShape,
    number_bytes: int,
    layout: ParallelLayout,
    is_moe: bool = False,
) -> float:
    """Return the bytes per token that one transformer layer keeps for its backward pass on one rank.

    They are the inputs of norms and sublayers (in most families four tensors of the hidden size), queries, keys and
    values, queries and keys once more after rotation, the attention's output and log-sum-exps, and the tensors inside
    the MLP. A norm over all heads keeps queries and keys twice in fp32. Tensor-parallel ranks split all of them but the
    tensors of the hidden size, which only sequence parallelism splits. Counted as by Korthikanti et al. (arXiv
    2205.05198, section 4.1).
    """
    width, queries = shape.hidden_size, shape.num_heads * shape.head_size
    groups = shape.num_key_value_heads * shape.head_size
    whole = (2.0 + shape.num_norms) * width * number_bytes
    # Rotated queries and keys are kept in addition to the unrotated ones.
    split = (3.0 * queries + 3.0 * groups) * number_bytes
    split += 4.0 * shape.num_heads  # the log-sum-exps
    if shape.has_joint_qk_norm:
        split += 8.0 * (queries + groups)
    if layout.sequence_parallel:
        whole /= layout.tensor
    return whole + split / layout.tensor + mlp_activations(shape, number_bytes, layout, is_moe)


def mlp_activations(
    shape: ModelShape,
    number_bytes: int,
    layout: ParallelLayout,
    is_moe: bool = False,
) -> float:
    """Return the bytes per token that a layer's MLP or experts keep for the backward pass on one rank.

    Experts keep the tokens sorted by expert, and the router keeps its probabilities in fp32.
    """
    if shape.moe is None or not is_moe:
        return 3.0 * number_bytes * shape.ffn_size / layout.tensor
    sent = 1.0 * shape.hidden_size * number_bytes
    hidden = 3.0 * number_bytes * shape.moe.ffn_size / layout.expert_tensor
    chosen = shape.moe.experts_per_token * (sent + hidden)
    return (chosen + 8.0 * shape.moe.num_experts) / layout.sequence_ranks


def layer_scratch(
    shape: ModelShape,
    number_bytes: int,
    layout: ParallelLayout,
    is_moe: bool = False,
) -> float:
    """Return the bytes per token that a layer needs temporarily in its backward pass, besides the kept activations.

    They are the gradient of the layer's output (hidden size) and, at SwiGLU, of SwiGLU's input (twice the MLP's size).
    The gradient of SwiGLU's output reuses the memory of the next product's input. A mixture-of-experts layer needs most
    in its forward pass: twice the hidden size, and for every chosen expert four times the hidden size (the token as
    sent and as received, and the expert's output as computed and in the order to be sent back).
    """
    outside = number_bytes * shape.hidden_size / layout.sequence_ranks
    if shape.moe is None or not is_moe:
        return outside + 2.0 * number_bytes * shape.ffn_size / layout.tensor
    return outside * (2.0 + 4.0 * shape.moe.experts_per_token)
