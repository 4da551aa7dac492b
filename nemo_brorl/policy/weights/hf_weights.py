"""Import and export of Hugging Face weights, one tensor at a time, on any parallel layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from nemo_brorl.policy.numerics.precision import fill, plain
from nemo_brorl.policy.weights.hf_layout import EMBEDDING, Slot, layer_slot, pack, share_of, top_slot, unpack

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
