"""Map Megatron parameters to the Hugging Face tensors that they are made of.

One `Slot` is one Megatron parameter. Expert weights are one parameter per expert, on CPU
(`local_experts.3.linear_fc1.weight`) and in Transformer Engine's grouped product (`linear_fc1.weight3`), where 3 counts
from the first expert of the rank. Ranks of the expert-parallel group hold consecutive experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from nemo_brorl.core.model_shape import ModelShape

_QKV_WEIGHTS = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")
_QKV_BIASES = ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")

# Names of expert weights: on CPU local_experts.3.linear_fc1.weight, in Transformer Engine's grouped product
# linear_fc1.weight3.
_LOCAL_EXPERT = re.compile(r"mlp\.experts\.local_experts\.(?P<expert>\d+)\.linear_(?P<layer>fc[12])\.weight")
_GROUPED_EXPERT = re.compile(r"mlp\.experts\.linear_(?P<layer>fc[12])\.weight(?P<expert>\d+)")


@dataclass(frozen=True)
class Slot:
    """One Megatron parameter: the Hugging Face tensors that it is made of, and how ranks split it (`kind`)."""

    names: tuple[str, ...]
    kind: str  # copy, rows, rows_of_input, gate_up, fused_gate_up, vocab, qkv
    is_expert: bool = False


# Norms by Megatron's name within a layer. The names of the two fused norms are Transformer Engine's.
_NORMS = {
    "input_layernorm.weight": "before_attention",
    "self_attention.linear_qkv.layer_norm_weight": "before_attention",
    "self_attn_bda.norm.weight": "after_attention",
    "pre_mlp_layernorm.weight": "before_mlp",
    "mlp.linear_fc1.layer_norm_weight": "before_mlp",
    "mlp_bda.norm.weight": "after_mlp",
}
# Other slots by Megatron's name within a layer.
_LAYER_SLOTS = {
    "self_attention.linear_qkv.weight": Slot(_QKV_WEIGHTS, "qkv"),
    "self_attention.linear_qkv.bias": Slot(_QKV_BIASES, "qkv"),
    "self_attention.q_layernorm.weight": Slot(("self_attn.q_norm.weight",), "copy"),
    "self_attention.k_layernorm.weight": Slot(("self_attn.k_norm.weight",), "copy"),
    "self_attention.q_layernorm.joint_weight": Slot(("self_attn.q_norm.weight",), "rows"),
    "self_attention.k_layernorm.joint_weight": Slot(("self_attn.k_norm.weight",), "rows"),
    "self_attention.linear_proj.weight": Slot(("self_attn.o_proj.weight",), "rows_of_input"),
    "mlp.linear_fc1.weight": Slot(("mlp.gate_proj.weight", "mlp.up_proj.weight"), "gate_up"),
    "mlp.linear_fc2.weight": Slot(("mlp.down_proj.weight",), "rows_of_input"),
    "mlp.router.weight": Slot(("mlp.gate.weight",), "copy"),
}
_FUSED_MLP = Slot(("mlp.gate_up_proj.weight",), "fused_gate_up")
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
SlotParam = tuple[Slot, Tensor]


class NumberedLayer(Protocol):
    """A transformer layer that knows its number."""

    layer_number: int  # counted from 1 over all pipeline stages


class Decoder(Protocol):
    """The transformer layers of one pipeline stage."""

    layers: Sequence[NumberedLayer]


class NamedTensors(Protocol):
    """A model, or one pipeline stage of it, whose parameters have Megatron's names."""

    share_embeddings_and_output_weights: bool
    decoder: Decoder

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (Megatron's name, parameter) for every parameter of the model."""


def top_slot(name: str) -> Slot:
    """Return which Hugging Face tensors make up a Megatron parameter outside the layers, and how ranks split it.

    Raises KeyError for an unknown name.
    """
    return _TOP_SLOTS[name]


def layer_slot(
    suffix: str,
    layer: int,
    first_expert: int,
    shape: ModelShape,
) -> Slot:
    """Return which Hugging Face tensors make up a parameter of a transformer layer, and how ranks split it.

    `suffix` is Megatron's name after `decoder.layers.<i>.`. `layer` counts from 0 over all pipeline stages.
    `first_expert` is the first expert that this rank holds. Raises KeyError for an unknown name.
    """
    slot = _expert_slot(suffix, first_expert)
    if suffix in _NORMS:
        slot = Slot((f"{getattr(shape.norms, _NORMS[suffix])}.weight",), "copy")
    elif suffix == "mlp.linear_fc1.weight" and shape.has_fused_mlp:
        slot = _FUSED_MLP
    elif slot is None:
        slot = _LAYER_SLOTS[suffix]
    names = tuple(f"model.layers.{layer}.{name}" for name in slot.names)
    return replace(slot, names=names)


def _expert_slot(suffix: str, first_expert: int) -> Slot | None:
    """Return which Hugging Face tensors make up an expert's weight, or None for a parameter that is not an expert's."""
    match = _LOCAL_EXPERT.fullmatch(suffix) or _GROUPED_EXPERT.fullmatch(suffix)
    if match is None:
        return None
    expert = first_expert + int(match["expert"])
    parts = _EXPERT_SLOTS[match["layer"]]
    names = tuple(f"mlp.experts.{expert}.{part}.weight" for part in parts.names)
    return Slot(names, parts.kind, is_expert=True)


def local_slots(
    models: Sequence[NamedTensors],
    shape: ModelShape,
    experts: dist.ProcessGroup,
) -> list[SlotParam]:
    """Return every Megatron parameter of this rank with its `Slot`, which names the Hugging Face tensors in it.

    `experts` is the group of ranks that hold consecutive experts.
    """
    first_expert = 0
    if shape.moe:
        num_local = shape.moe.num_experts // experts.size()
        first_expert = num_local * experts.rank()
    slots = []
    for model in models:
        for name, param in model.named_parameters():
            slots.append((_slot_of(model, name, first_expert, shape), param))
    return slots


def _slot_of(
    model: NamedTensors,
    name: str,
    first_expert: int,
    shape: ModelShape,
) -> Slot:
    if not name.startswith("decoder.layers."):
        # The last pipeline stage has a copy of a tied embedding under this name.
        if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
            return EMBEDDING
        return top_slot(name)
    _, _, index, suffix = name.split(".", 3)
    # The index in the name counts from 0 in this pipeline stage, `layer_number` from 1 over all stages.
    layer = model.decoder.layers[int(index)]
    return layer_slot(suffix, layer.layer_number - 1, first_expert, shape)
