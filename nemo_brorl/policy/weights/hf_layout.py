"""Which Hugging Face tensors a Megatron parameter is made of and how ranks share it, for Qwen2, Qwen3, Qwen3-MoE and
Llama.

One `Slot` is one Megatron parameter. Every rank holds an equal share of each of its Hugging Face tensors, so a share is
a plain slice of the file. Layouts that differ from a simple slice:

    linear_qkv   per query group its query heads, then its key head, then its value head; ranks split the groups
    linear_fc1   per rank the gate rows, then the up rows
    embedding, output layer   padded with zero rows to a multiple of the ranks

Expert weights are one parameter per expert, on CPU (`local_experts.3.linear_fc1.weight`) and in Transformer Engine's
grouped product (`linear_fc1.weight3`), where 3 counts from the first expert of the rank. Ranks of the expert-parallel
group hold consecutive experts. Under expert parallelism an expert is whole; otherwise tensor-parallel ranks share it
like a dense MLP.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_brorl.config.model_shape import ModelShape


@dataclass(frozen=True)
class Slot:
    """One Megatron parameter as Hugging Face names it; `kind` says how the ranks share it."""

    names: tuple[str, ...]
    kind: str  # copy, rows_of_input, gate_up, vocab, qkv
    is_expert: bool = False


# Megatron's suffix within a layer; the two fused norms are Transformer Engine's names.
_LAYER_SLOTS = {
    "input_layernorm.weight": Slot(("input_layernorm.weight",), "copy"),
    "self_attention.linear_qkv.layer_norm_weight": Slot(("input_layernorm.weight",), "copy"),
    "self_attention.linear_qkv.weight": Slot(tuple(f"self_attn.{part}_proj.weight" for part in "qkv"), "qkv"),
    "self_attention.linear_qkv.bias": Slot(tuple(f"self_attn.{part}_proj.bias" for part in "qkv"), "qkv"),
    "self_attention.q_layernorm.weight": Slot(("self_attn.q_norm.weight",), "copy"),
    "self_attention.k_layernorm.weight": Slot(("self_attn.k_norm.weight",), "copy"),
    "self_attention.linear_proj.weight": Slot(("self_attn.o_proj.weight",), "rows_of_input"),
    "pre_mlp_layernorm.weight": Slot(("post_attention_layernorm.weight",), "copy"),
    "mlp.linear_fc1.layer_norm_weight": Slot(("post_attention_layernorm.weight",), "copy"),
    "mlp.linear_fc1.weight": Slot(("mlp.gate_proj.weight", "mlp.up_proj.weight"), "gate_up"),
    "mlp.linear_fc2.weight": Slot(("mlp.down_proj.weight",), "rows_of_input"),
    "mlp.router.weight": Slot(("mlp.gate.weight",), "copy"),
}
_EXPERT = re.compile(
    r"mlp\.experts\.(?:local_experts\.(?P<one>\d+)\.linear_(?P<of>fc[12])\.weight|linear_(?P<in>fc[12])\.weight(?P<all>\d+))"
)
_EXPERT_PARTS = {"fc1": (("gate_proj", "up_proj"), "gate_up"), "fc2": (("down_proj",), "rows_of_input")}
EMBEDDING = Slot(("model.embed_tokens.weight",), "vocab")
_TOP_SLOTS = {
    "embedding.word_embeddings.weight": EMBEDDING,
    "decoder.final_layernorm.weight": Slot(("model.norm.weight",), "copy"),
    "output_layer.weight": Slot(("lm_head.weight",), "vocab"),
}


def top_slot(name: str) -> Slot:
    """The slot of a parameter outside the layers, by Megatron's name."""
    return _TOP_SLOTS[name]


def layer_slot(suffix: str, layer: int, first_expert: int) -> Slot:
    """The slot of a parameter of a layer.

    `suffix` is Megatron's name after `decoder.layers.<i>.`; `layer` counts over all pipeline stages; `first_expert` is
    the first expert that this rank holds.
    """
    slot = _expert_slot(suffix, first_expert) or _LAYER_SLOTS[suffix]
    return Slot(tuple(f"model.layers.{layer}.{name}" for name in slot.names), slot.kind, slot.is_expert)


def _expert_slot(suffix: str, first_expert: int) -> Slot | None:
    match = _EXPERT.fullmatch(suffix)
    if match is None:
        return None
    expert = first_expert + int(match["one"] or match["all"])
    parts, kind = _EXPERT_PARTS[match["of"] or match["in"]]
    return Slot(tuple(f"mlp.experts.{expert}.{part}.weight" for part in parts), kind, is_expert=True)


def share_of(kind: str, size: Sequence[int], ranks: int, rank: int) -> tuple[slice, ...]:
    """Where the share of one of the ranks that split a slot lies in one of its Hugging Face tensors of this size.

    Under `vocab` the last shares may be short or empty: the rest is padding.
    """
    if kind == "copy":
        return tuple(slice(0, length) for length in size)
    dim = 1 if kind == "rows_of_input" else 0
    length = -(-size[dim] // ranks)
    start = min(rank * length, size[dim])
    cut = slice(start, min(start + length, size[dim]))
    return tuple(cut if axis == dim else slice(0, size[axis]) for axis in range(len(size)))


def views(kind: str, local: Tensor, shape: ModelShape) -> list[Tensor]:
    """One rank's Megatron tensor as a view per Hugging Face tensor: its share, with heads of a query group on their own
    axis."""
    if kind == "gate_up":
        return list(local.chunk(2))
    if kind != "qkv":
        return [local]
    num_query = shape.num_heads // shape.num_key_value_heads
    grouped = local.unflatten(0, (-1, num_query + 2, shape.head_size))  # [groups, heads of a group, D, ...]
    return list(grouped.split([num_query, 1, 1], dim=1))


def pack(kind: str, shares: Sequence[Tensor], local: Tensor, shape: ModelShape) -> None:
    """Write a rank's shares of Hugging Face tensors into its Megatron tensor; padding becomes zero."""
    if kind == "vocab":
        local[: len(shares[0])] = shares[0]
        local[len(shares[0]) :] = 0
        return
    for view, share in zip(views(kind, local, shape), shares, strict=True):
        view.copy_(share.reshape(view.shape))


def unpack(kind: str, locals_: Sequence[Tensor], shape: ModelShape) -> list[Tensor]:
    """The Megatron tensors of all ranks that split a slot to its Hugging Face tensors."""
    if kind == "copy":
        return [locals_[0]]
    if kind == "vocab":
        return [torch.cat(list(locals_))[: shape.vocab_size]]
    dim = 1 if kind == "rows_of_input" else 0
    shares = [[_flat(kind, view) for view in views(kind, local, shape)] for local in locals_]
    return [torch.cat(same, dim) for same in zip(*shares, strict=True)]


def _flat(kind: str, view: Tensor) -> Tensor:
    return view.flatten(0, 2) if kind == "qkv" else view
