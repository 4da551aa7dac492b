"""Count the bytes of a token that a layer keeps for its backward pass, and what it holds for a moment.

Legend: h hidden size, a heads of d numbers, k key-value heads, f MLP size, b bytes of a number."""

from __future__ import annotations

from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.core.model_shape import ModelShape


def layer_activations(
    shape: ModelShape,
    number_bytes: int,
    layout: ParallelLayout,
    is_moe: bool = False,
) -> float:
    """Bytes per token that one layer keeps for its backward pass on one rank.

    Inputs and outputs of both norms (4 h), queries, keys and values, the first two rotated as well, the attention's
    output and log-sum-exps, the MLP's inside; tensor-parallel ranks share all but the first, which is cut over them by
    sequence parallelism only. Counted as by Korthikanti et al. (arXiv 2205.05198, section 4.1).
    """
    width, queries = shape.hidden_size, shape.num_heads * shape.head_size
    groups = shape.num_key_value_heads * shape.head_size
    whole = 4.0 * width * number_bytes
    # Rotated queries and keys lie beside what they were made of.
    split = (3.0 * queries + 3.0 * groups) * number_bytes
    split += 4.0 * shape.num_heads  # the log-sum-exps
    if layout.sequence_parallel:
        whole /= layout.tensor
    return whole + split / layout.tensor + mlp_activations(shape, number_bytes, layout, is_moe)


def mlp_activations(
    shape: ModelShape,
    number_bytes: int,
    layout: ParallelLayout,
    is_moe: bool = False,
) -> float:
    """The part of `layer_activations` that is inside the MLP, or inside the experts: tokens in the order of experts,
    and the router's probabilities in fp32."""
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
    """Bytes per token that a layer holds for a moment beside what `layer_activations` has: the gradient of its output
    (h) and, at SwiGLU, of SwiGLU's input (2 f; that of its output takes the place of what the next product had kept).

    A mixture needs most in its forward pass (h twice): tokens as they were sent and as they came, and the experts'
    answers as they are and put in order to be sent back, of all chosen experts.
    """
    outside = number_bytes * shape.hidden_size / layout.sequence_ranks
    if shape.moe is None or not is_moe:
        return outside + 2.0 * number_bytes * shape.ffn_size / layout.tensor
    return outside * (2.0 + 4.0 * shape.moe.experts_per_token)
