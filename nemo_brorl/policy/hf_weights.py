"""Hugging Face weights to Megatron's and back, for Qwen2, Qwen3 and Llama, on any tensor x pipeline layout.

One `Slot` is one Megatron parameter and the Hugging Face tensors it is made of. Layouts that differ:

    linear_qkv   per query group its query heads, then its key head, then its value head; ranks split the groups
    linear_fc1   per rank the gate rows, then the up rows
    linear_proj, linear_fc2   split on the input side (dim 1)
    embedding, output layer   padded with zero rows to a multiple of the ranks
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nemo_brorl.errors import ModelError
from nemo_brorl.policy.model import PolicyModel
from nemo_brorl.policy.model_shape import ModelShape


@dataclass(frozen=True)
class Slot:
    """One Megatron parameter as Hugging Face names it; `kind` says how the ranks share it."""

    names: tuple[str, ...]
    kind: str  # copy, rows_of_input, gate_up, vocab, qkv


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
}
_EMBEDDING = Slot(("model.embed_tokens.weight",), "vocab")
_TOP_SLOTS = {
    "embedding.word_embeddings.weight": _EMBEDDING,
    "decoder.final_layernorm.weight": Slot(("model.norm.weight",), "copy"),
    "output_layer.weight": Slot(("lm_head.weight",), "vocab"),
}
_NO_WEIGHTS = ("rotary_emb.inv_freq",)  # buffers that old checkpoints carry along


def hf_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every tensor a Hugging Face checkpoint of this model holds, in the order of the weight stream."""
    width, heads = shape.hidden_size, shape.num_heads * shape.head_size
    groups = shape.num_key_value_heads * shape.head_size
    layer: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (width,)}
    for part, rows in (("q", heads), ("k", groups), ("v", groups)):
        layer[f"self_attn.{part}_proj.weight"] = (rows, width)
    if shape.has_qkv_bias:
        layer |= {f"self_attn.{part}_proj.bias": (rows,) for part, rows in (("q", heads), ("k", groups), ("v", groups))}
    if shape.has_qk_norm:
        layer |= {f"self_attn.{part}_norm.weight": (shape.head_size,) for part in "qk"}
    layer["self_attn.o_proj.weight"] = (width, heads)
    layer["post_attention_layernorm.weight"] = (width,)
    layer |= {f"mlp.{part}_proj.weight": (shape.ffn_size, width) for part in ("gate", "up")}
    layer["mlp.down_proj.weight"] = (width, shape.ffn_size)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, width)}
    for index in range(shape.num_layers):
        shapes |= {f"model.layers.{index}.{name}": size for name, size in layer.items()}
    shapes["model.norm.weight"] = (width,)
    return shapes if shape.is_tied else shapes | {"lm_head.weight": (shape.vocab_size, width)}


def local_slots(models: Sequence[PolicyModel]) -> list[tuple[Slot, Tensor]]:
    """Every parameter of this rank with its slot."""
    return [(_slot_of(model, name), param) for model in models for name, param in model.named_parameters()]


def _slot_of(model: PolicyModel, name: str) -> Slot:
    if not name.startswith("decoder.layers."):
        is_tied_copy = name == "output_layer.weight" and model.share_embeddings_and_output_weights
        return _EMBEDDING if is_tied_copy else _TOP_SLOTS[name]
    _, _, index, suffix = name.split(".", 3)
    slot = _LAYER_SLOTS[suffix]
    layer = model.decoder.layers[int(index)].layer_number - 1  # counts over all pipeline stages
    return Slot(tuple(f"model.layers.{layer}.{part}" for part in slot.names), slot.kind)


def pack(kind: str, tensors: Sequence[Tensor], shape: ModelShape, tensor_parallel: int, rank: int) -> Tensor:
    """Hugging Face tensors to the Megatron tensor of one tensor-parallel rank."""
    if kind == "copy":
        return tensors[0]
    if kind == "rows_of_input":
        return tensors[0].chunk(tensor_parallel, 1)[rank]
    if kind == "gate_up":
        return torch.cat([tensor.chunk(tensor_parallel, 0)[rank] for tensor in tensors])
    if kind == "vocab":
        missing = shape.padded_vocab_size(tensor_parallel) - shape.vocab_size
        padded = torch.cat([tensors[0], tensors[0].new_zeros(missing, shape.hidden_size)])
        return padded.chunk(tensor_parallel, 0)[rank]
    groups = [tensor.unflatten(0, (shape.num_key_value_heads, -1, shape.head_size)) for tensor in tensors]
    return torch.cat(groups, dim=1).flatten(0, 2).chunk(tensor_parallel, 0)[rank]


def unpack(kind: str, shards: Sequence[Tensor], shape: ModelShape) -> list[Tensor]:
    """The Megatron tensors of all tensor-parallel ranks to the Hugging Face tensors; the inverse of `pack`."""
    if kind == "copy":
        return [shards[0]]
    if kind == "rows_of_input":
        return [torch.cat(list(shards), 1)]
    if kind == "gate_up":
        halves = [shard.chunk(2, 0) for shard in shards]
        return [torch.cat([half[part] for half in halves]) for part in range(2)]
    if kind == "vocab":
        return [torch.cat(list(shards))[: shape.vocab_size]]
    whole = torch.cat(list(shards)).unflatten(0, (shape.num_key_value_heads, -1, shape.head_size))
    num_query = shape.num_heads // shape.num_key_value_heads
    return [part.flatten(0, 2) for part in whole.split([num_query, 1, 1], dim=1)]


@torch.no_grad()
def load_hf(models: Sequence[PolicyModel], shape: ModelShape, folder: Path) -> None:
    """Fill this rank's parameters from the safetensors of a folder, reading only what it needs, one tensor at a time.

    Raises ModelError when tensors are missing, left over or of another shape, with their names.
    """
    files = tensor_files(folder)
    _check_names(files, shape, folder)
    expected = hf_shapes(shape)
    size, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
    opened = {path: safe_open(path, framework="pt") for path in set(files.values())}
    for slot, param in local_slots(models):
        tensors = [opened[files[name]].get_tensor(name) for name in slot.names]
        for name, tensor in zip(slot.names, tensors, strict=True):
            if tuple(tensor.shape) != expected[name]:
                raise ModelError(f"{files[name]}: {name} has shape {tuple(tensor.shape)}, but config.json says {expected[name]}")
        param.copy_(pack(slot.kind, tensors, shape, size, rank))


def tensor_files(folder: Path) -> dict[str, Path]:
    """Which safetensors file of a folder holds which tensor. Raises ModelError when there is none or one is broken."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return {name: folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    path = folder / "model.safetensors"
    if not path.exists():
        raise ModelError(f"{folder} holds neither model.safetensors nor model.safetensors.index.json")
    try:
        with safe_open(path, framework="pt") as opened:
            return dict.fromkeys(opened.keys(), path)
    except SafetensorError as error:
        raise ModelError(f"{path} is not a whole safetensors file: {error}") from error


def _check_names(files: dict[str, Path], shape: ModelShape, folder: Path) -> None:
    expected = hf_shapes(shape)
    present = {name for name in files if not name.endswith(_NO_WEIGHTS)}
    if shape.is_tied:
        present.discard("lm_head.weight")  # some tools write the tied copy too
    missing, left_over = sorted(set(expected) - present), sorted(present - set(expected))
    if missing or left_over:
        raise ModelError(
            f"the tensors in {folder} are not those its config.json describes: "
            f"missing {', '.join(missing) or 'none'}; left over {', '.join(left_over) or 'none'}"
        )


class HfExport:
    """Streams the current weights under their Hugging Face names. Every rank must run every stream to its end."""

    def __init__(self, models: Sequence[PolicyModel], shape: ModelShape, device: torch.device) -> None:
        self.shape, self.device = shape, device
        self.slots = {slot.names[0]: (slot, param) for slot, param in local_slots(models)}
        stage_slots: list[list[str]] = [[] for _ in range(parallel_state.get_pipeline_model_parallel_world_size())]
        self.pipeline = parallel_state.get_pipeline_model_parallel_group()
        dist.all_gather_object(stage_slots, list(self.slots), group=self.pipeline)
        # The first stage that holds a slot sends it: the last stage also has a copy of a tied embedding.
        self.owner = {name: stage for stage, names in reversed(list(enumerate(stage_slots))) for name in names}
        self.metadata = self._gather_metadata()

    def _gather_metadata(self) -> dict[str, tuple[Slot, tuple[int, ...], torch.dtype]]:
        mine = {name: (slot, tuple(param.shape), param.dtype) for name, (slot, param) in self.slots.items()}
        every: list[dict[str, tuple[Slot, tuple[int, ...], torch.dtype]]] = [{} for _ in range(self.pipeline.size())]
        dist.all_gather_object(every, mine, group=self.pipeline)
        return {name: entry for stage in every for name, entry in stage.items()}

    @torch.no_grad()
    def stream(self) -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor) on every rank, in the order of `hf_shapes`, one parameter in memory at a time."""
        ready: dict[str, Tensor] = {}
        for name in hf_shapes(self.shape):
            if name in self.owner:
                slot, shards = self._collect(name)
                ready |= zip(slot.names, unpack(slot.kind, shards, self.shape), strict=True)
            yield name, ready.pop(name).contiguous()

    def _collect(self, name: str) -> tuple[Slot, list[Tensor]]:
        """All tensor-parallel shards of one slot."""
        slot, size, dtype = self.metadata[name]
        if name in self.slots and self.owner[name] == self.pipeline.rank():
            shard = self.slots[name][1].detach().contiguous()
        else:
            shard = torch.empty(size, dtype=dtype, device=self.device)
        if self.pipeline.size() > 1:
            dist.broadcast(shard, dist.get_global_rank(self.pipeline, self.owner[name]), group=self.pipeline)
        group = parallel_state.get_tensor_model_parallel_group()
        if group.size() == 1 or slot.kind == "copy":
            return slot, [shard]
        shards = [torch.empty_like(shard) for _ in range(group.size())]
        dist.all_gather(shards, shard, group=group)
        return slot, shards
