"""Import and export of Hugging Face weights, one tensor at a time, on any parallel layout.

For Qwen2, Qwen3, Qwen3-MoE and Llama it is known which Hugging Face tensors each Megatron parameter is made of, and how
ranks share it. One `Slot` is one Megatron parameter. Every rank holds an equal share of each of its Hugging Face
tensors, so a share is a plain slice of the file. Layouts that differ from a simple slice:

    linear_qkv   per query group its query heads, then its key head, then its value head; ranks split the groups
    linear_fc1   per rank the gate rows, then the up rows
    embedding, output layer   padded with zero rows to a multiple of the ranks

Expert weights are one parameter per expert, on CPU (`local_experts.3.linear_fc1.weight`) and in Transformer Engine's
grouped product (`linear_fc1.weight3`), where 3 counts from the first expert of the rank. Ranks of the expert-parallel
group hold consecutive experts. Under expert parallelism an expert is whole; otherwise tensor-parallel ranks share it
like a dense MLP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_shape import ModelShape, hf_shapes
from nemo_brorl.policy.model.model import PolicyModel
from nemo_brorl.policy.model.precision import fill, plain


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


SlotParam = tuple[Slot, Tensor]

_NO_WEIGHTS = ("rotary_emb.inv_freq",)  # buffers that old checkpoints carry along


def local_slots(models: Sequence[PolicyModel], shape: ModelShape) -> list[SlotParam]:
    """Every parameter of this rank with its slot."""
    first_expert = 0
    if shape.moe:
        num_local = shape.moe.num_experts // parallel_state.get_expert_model_parallel_world_size()
        first_expert = num_local * parallel_state.get_expert_model_parallel_rank()
    slots = []
    for model in models:
        for name, param in model.named_parameters():
            slots.append((_slot_of(model, name, first_expert), param))
    return slots


def _slot_of(model: PolicyModel, name: str, first_expert: int) -> Slot:
    if not name.startswith("decoder.layers."):
        if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
            return EMBEDDING
        return top_slot(name)
    _, _, index, suffix = name.split(".", 3)
    layer = model.decoder.layers[int(index)]
    return layer_slot(suffix, layer.layer_number - 1, first_expert)


def _splitting_group(slot: Slot) -> dist.ProcessGroup:
    """The ranks that share one parameter."""
    if slot.is_expert:
        return parallel_state.get_expert_tensor_parallel_group()
    return parallel_state.get_tensor_model_parallel_group()


@torch.no_grad()
def load_hf(models: Sequence[PolicyModel], shape: ModelShape, folder: Path) -> None:
    """Fill this rank's parameters from the safetensors of a folder, reading only this rank's share of one tensor at a
    time.

    Raises ModelError when tensors are missing, left over or of another shape, with their names.
    """
    files = tensor_files(folder)
    expected = hf_shapes(shape)
    _check_names(files, expected, shape, folder)
    opened = {}
    for path in set(files.values()):
        opened[path] = safe_open(path, framework="pt")
    for slot, param in local_slots(models, shape):
        group = _splitting_group(slot)
        shares = []
        for name in slot.names:
            whole = opened[files[name]].get_slice(name)
            size = tuple(whole.get_shape())
            if size != expected[name]:
                raise ModelError(f"{files[name]}: {name} has shape {size}, but config.json says {expected[name]}")
            own = share_of(slot.kind, size, group.size(), group.rank())
            shares.append(whole[own])
        local = torch.empty(param.shape, dtype=param.dtype)  # on the host: a parameter may be on a GPU, or quantised
        pack(slot.kind, shares, local, shape)
        fill(param, local)


def tensor_files(folder: Path) -> dict[str, Path]:
    """Which safetensors file of a folder holds which tensor. Raises ModelError when there is none or one is broken."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = json.loads(index.read_text())["weight_map"]
        return {name: folder / file for name, file in weight_map.items()}
    path = folder / "model.safetensors"
    if not path.exists():
        raise ModelError(f"{folder} holds neither model.safetensors nor model.safetensors.index.json")
    try:
        with safe_open(path, framework="pt") as opened:
            return dict.fromkeys(opened.keys(), path)
    except SafetensorError as error:
        raise ModelError(f"{path} is not a whole safetensors file: {error}") from error


def _check_names(
    files: dict[str, Path],
    expected: dict[str, tuple[int, ...]],
    shape: ModelShape,
    folder: Path,
) -> None:
    present = {name for name in files if not name.endswith(_NO_WEIGHTS)}
    if shape.is_tied:
        present.discard("lm_head.weight")  # some tools write the tied copy too
    missing = sorted(expected.keys() - present)
    left_over = sorted(present - expected.keys())
    if missing or left_over:
        missing_names = ", ".join(missing) or "none"
        left_over_names = ", ".join(left_over) or "none"
        raise ModelError(
            f"the tensors in {folder} are not those its config.json describes: "
            f"missing {missing_names}; left over {left_over_names}"
        )


@dataclass(frozen=True)
class _Entry:
    """What every rank knows about a slot: its shares' size, and which pipeline stage and expert-parallel rank hold
    it."""

    slot: Slot
    size: tuple[int, ...]
    dtype: torch.dtype
    stage: int
    expert_rank: int


class HfExport:
    """Streams the current weights under their Hugging Face names. Every rank must run every stream to its end."""

    def __init__(
        self,
        models: Sequence[PolicyModel],
        shape: ModelShape,
        device: torch.device,
    ) -> None:
        """Collective."""
        self.shape = shape
        self.device = device
        self.params: dict[str, SlotParam] = {}  # by the first Hugging Face name
        for slot, param in local_slots(models, shape):
            self.params[slot.names[0]] = (slot, param)
        self.pipeline = parallel_state.get_pipeline_model_parallel_group()
        self.experts = parallel_state.get_expert_model_parallel_group()
        self.entries = self._gather_entries()

    def _gather_entries(self) -> dict[str, _Entry]:
        """The entries of all stages and experts, on every rank."""
        stage = self.pipeline.rank()
        entries = {}
        for name, (slot, param) in self.params.items():
            expert_rank = self.experts.rank() if slot.is_expert else 0
            size = tuple(param.shape)
            entries[name] = _Entry(slot, size, param.dtype, stage, expert_rank)
        for group in (self.experts, self.pipeline):
            gathered: list[Any] = [None] * group.size()
            dist.all_gather_object(gathered, entries, group=group)
            entries = {}
            # The first stage that holds a slot sends it: the last stage also has a copy of a tied embedding.
            for entries_of_rank in reversed(gathered):
                entries.update(entries_of_rank)
        return entries

    @torch.no_grad()
    def stream(self) -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor) on every rank, in the order of `hf_shapes`, one parameter in memory at a time."""
        ready: dict[str, Tensor] = {}
        for name in hf_shapes(self.shape):
            if name in self.entries:
                ready |= self._tensors_of(name)
            yield name, ready.pop(name).contiguous()

    def _tensors_of(self, name: str) -> dict[str, Tensor]:
        """The Hugging Face tensors of the slot whose first one has this name."""
        slot = self.entries[name].slot
        shares = self._collect(name)
        wholes = unpack(slot.kind, shares, self.shape)
        return dict(zip(slot.names, wholes, strict=True))

    def _collect(self, name: str) -> list[Tensor]:
        """All shares of one slot: sent over the expert-parallel ranks of its stage, then over the stages, then
        gathered."""
        entry = self.entries[name]
        is_of_this_stage = entry.stage == self.pipeline.rank()
        if is_of_this_stage and name in self.params:
            _, param = self.params[name]
            share = plain(param).contiguous()
        else:
            share = torch.empty(entry.size, dtype=entry.dtype, device=self.device)
        if is_of_this_stage and entry.slot.is_expert:
            _broadcast(share, self.experts, entry.expert_rank)
        _broadcast(share, self.pipeline, entry.stage)
        group = _splitting_group(entry.slot)
        if group.size() == 1 or entry.slot.kind == "copy":
            return [share]
        shares = [torch.empty_like(share) for _ in range(group.size())]
        dist.all_gather(shares, share, group=group)
        return shares


def _broadcast(tensor: Tensor, group: dist.ProcessGroup, source: int) -> None:
    """From one rank of a group to the others, in place."""
    if group.size() > 1:
        global_rank = dist.get_global_rank(group, source)
        dist.broadcast(tensor, global_rank, group=group)
