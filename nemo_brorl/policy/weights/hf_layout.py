"""Layout of Megatron parameters: the Hugging Face tensors each is made of and how ranks share it.

For Qwen2, Qwen3, Qwen3-MoE and Llama.

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
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nemo_brorl.core.model_shape import ModelShape


@dataclass(frozen=True)
class Slot:
    """One Megatron parameter as Hugging Face names it; `kind` says how the ranks share it."""

    names: tuple[str, ...]
    kind: str  # copy, rows_of_input, gate_up, vocab, qkv
    is_expert: bool = False


_QKV_WEIGHTS = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")
_QKV_BIASES = ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")
# Megatron's suffix within a layer; the two fused norms are Transformer Engine's names.
_LAYER_SLOTS = {
    "input_layernorm.weight": Slot(("input_layernorm.weight",), "copy"),
    "self_attention.linear_qkv.layer_norm_weight": Slot(("input_layernorm.weight",), "copy"),
    "self_attention.linear_qkv.weight": Slot(_QKV_WEIGHTS, "qkv"),
    "self_attention.linear_qkv.bias": Slot(_QKV_BIASES, "qkv"),
    "self_attention.q_layernorm.weight": Slot(("self_attn.q_norm.weight",), "copy"),
    "self_attention.k_layernorm.weight": Slot(("self_attn.k_norm.weight",), "copy"),
    "self_attention.linear_proj.weight": Slot(("self_attn.o_proj.weight",), "rows_of_input"),
    "pre_mlp_layernorm.weight": Slot(("post_attention_layernorm.weight",), "copy"),
    "mlp.linear_fc1.layer_norm_weight": Slot(("post_attention_layernorm.weight",), "copy"),
    "mlp.linear_fc1.weight": Slot(("mlp.gate_proj.weight", "mlp.up_proj.weight"), "gate_up"),
    "mlp.linear_fc2.weight": Slot(("mlp.down_proj.weight",), "rows_of_input"),
    "mlp.router.weight": Slot(("mlp.gate.weight",), "copy"),
}
# On CPU local_experts.3.linear_fc1.weight, in Transformer Engine's grouped product linear_fc1.weight3.
_LOCAL_EXPERT = re.compile(r"mlp\.experts\.local_experts\.(?P<expert>\d+)\.linear_(?P<layer>fc[12])\.weight")
_GROUPED_EXPERT = re.compile(r"mlp\.experts\.linear_(?P<layer>fc[12])\.weight(?P<expert>\d+)")
_EXPERT_SLOTS = {
    "fc1": Slot(("gate_proj", "up_proj"), "gate_up"),
    "fc2": Slot(("down_proj",), "rows_of_input"),
}
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
    names = tuple(f"model.layers.{layer}.{name}" for name in slot.names)
    return replace(slot, names=names)


def _expert_slot(suffix: str, first_expert: int) -> Slot | None:
    """None: not a weight of an expert."""
    match = _LOCAL_EXPERT.fullmatch(suffix) or _GROUPED_EXPERT.fullmatch(suffix)
    if match is None:
        return None
    expert = first_expert + int(match["expert"])
    parts = _EXPERT_SLOTS[match["layer"]]
    names = tuple(f"mlp.experts.{expert}.{part}.weight" for part in parts.names)
    return Slot(names, parts.kind, is_expert=True)


def share_of(
    kind: str,
    size: Sequence[int],
    ranks: int,
    rank: int,
) -> tuple[slice, ...]:
    """Where the share of one of the ranks that split a slot lies in one of its Hugging Face tensors of this size.

    Under `vocab` the last shares may be short or empty: the rest is padding.
    """
    share = [slice(0, length) for length in size]
    if kind == "copy":
        return tuple(share)
    split_dim = _split_dim(kind)
    whole = size[split_dim]
    length = -(-whole // ranks)
    start = min(rank * length, whole)
    share[split_dim] = slice(start, min(start + length, whole))
    return tuple(share)


def _split_dim(kind: str) -> int:
    """The dimension of a Hugging Face tensor along which ranks split it."""
    return 1 if kind == "rows_of_input" else 0


def views(kind: str, local: Tensor, shape: ModelShape) -> list[Tensor]:
    """One rank's Megatron tensor as a view per Hugging Face tensor: its share, with heads of a query group on their own
    axis."""
    if kind == "gate_up":
        return list(local.chunk(2))
    if kind != "qkv":
        return [local]
    num_query = shape.num_heads // shape.num_key_value_heads
    group = (-1, num_query + 2, shape.head_size)
    grouped = local.unflatten(0, group)  # [groups, heads of a group, D, ...]
    return list(grouped.split([num_query, 1, 1], dim=1))


def pack(
    kind: str,
    shares: Sequence[Tensor],
    local: Tensor,
    shape: ModelShape,
) -> None:
    """Write a rank's shares of Hugging Face tensors into its Megatron tensor; padding becomes zero."""
    if kind == "vocab":
        (share,) = shares
        local[: len(share)] = share
        local[len(share) :] = 0
        return
    local_views = views(kind, local, shape)
    for view, share in zip(local_views, shares, strict=True):
        view.copy_(share.reshape(view.shape))


def unpack(kind: str, locals_: Sequence[Tensor], shape: ModelShape) -> list[Tensor]:
    """The Megatron tensors of all ranks that split a slot to its Hugging Face tensors."""
    if kind == "copy":
        return [locals_[0]]
    if kind == "vocab":
        padded = torch.cat(list(locals_))
        return [padded[: shape.vocab_size]]
    views_by_rank = [views(kind, local, shape) for local in locals_]
    wholes = []
    for shares in zip(*views_by_rank, strict=True):
        if kind == "qkv":  # query groups, their heads and the head size are the rows
            shares = tuple(share.flatten(0, 2) for share in shares)
        wholes.append(torch.cat(shares, _split_dim(kind)))
    return wholes
