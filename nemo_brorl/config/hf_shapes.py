"""Every tensor of a Hugging Face checkpoint by name, from the model's shape alone. No torch."""

from __future__ import annotations

from math import prod

from nemo_brorl.config.model_shape import ModelShape, MoeShape

Shapes = dict[str, tuple[int, ...]]


def hf_shapes(shape: ModelShape) -> Shapes:
    """Every tensor a Hugging Face checkpoint of this model holds, in the order of the weight stream."""
    width = shape.hidden_size
    attention, norms = _attention(shape), {"post_attention_layernorm.weight": (width,)}
    dense = _mlp("mlp.", shape.ffn_size, width)
    sparse = _experts(shape.moe, width) if shape.moe else {}
    shapes: Shapes = {"model.embed_tokens.weight": (shape.vocab_size, width)}
    for index in range(shape.num_layers):
        is_moe = shape.moe is not None and shape.moe.is_moe_layer[index]
        layer = attention | norms | (sparse if is_moe else dense)
        shapes |= {f"model.layers.{index}.{name}": size for name, size in layer.items()}
    shapes["model.norm.weight"] = (width,)
    return shapes if shape.is_tied else shapes | {"lm_head.weight": (shape.vocab_size, width)}


def num_parameters(shape: ModelShape) -> int:
    """Of the whole model, norms and biases included; a tied embedding counts once."""
    return sum(prod(size) for size in hf_shapes(shape).values())


def _attention(shape: ModelShape) -> Shapes:
    width, queries = shape.hidden_size, shape.num_heads * shape.head_size
    groups = shape.num_key_value_heads * shape.head_size
    rows = {"q": queries, "k": groups, "v": groups}
    layer: Shapes = {"input_layernorm.weight": (width,)}
    layer |= {f"self_attn.{part}_proj.weight": (num, width) for part, num in rows.items()}
    if shape.has_qkv_bias:
        layer |= {f"self_attn.{part}_proj.bias": (num,) for part, num in rows.items()}
    if shape.has_qk_norm:
        layer |= {f"self_attn.{part}_norm.weight": (shape.head_size,) for part in "qk"}
    return layer | {"self_attn.o_proj.weight": (width, queries)}


def _mlp(prefix: str, ffn_size: int, width: int) -> Shapes:
    return {
        f"{prefix}gate_proj.weight": (ffn_size, width),
        f"{prefix}up_proj.weight": (ffn_size, width),
        f"{prefix}down_proj.weight": (width, ffn_size),
    }


def _experts(moe: MoeShape, width: int) -> Shapes:
    layer: Shapes = {"mlp.gate.weight": (moe.num_experts, width)}
    for expert in range(moe.num_experts):
        layer |= _mlp(f"mlp.experts.{expert}.", moe.ffn_size, width)
    return layer
