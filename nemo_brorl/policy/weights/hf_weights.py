"""Hugging Face weights into this rank's model and out of all ranks', one tensor at a time, on any parallel layout."""

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

from nemo_brorl.config.model_shape import ModelShape, hf_shapes
from nemo_brorl.core.errors import ModelError
from nemo_brorl.policy.model.model import PolicyModel
from nemo_brorl.policy.numerics.precision import fill, plain
from nemo_brorl.policy.weights.hf_layout import EMBEDDING, Slot, layer_slot, pack, share_of, top_slot, unpack

_NO_WEIGHTS = ("rotary_emb.inv_freq",)  # buffers that old checkpoints carry along


def local_slots(models: Sequence[PolicyModel], shape: ModelShape) -> list[tuple[Slot, Tensor]]:
    """Every parameter of this rank with its slot."""
    num_local = shape.moe.num_experts // parallel_state.get_expert_model_parallel_world_size() if shape.moe else 0
    first_expert = num_local * parallel_state.get_expert_model_parallel_rank()
    return [
        (_slot_of(model, name, first_expert), param) for model in models for name, param in model.named_parameters()
    ]


def _slot_of(model: PolicyModel, name: str, first_expert: int) -> Slot:
    if not name.startswith("decoder.layers."):
        is_tied_copy = name == "output_layer.weight" and model.share_embeddings_and_output_weights
        return EMBEDDING if is_tied_copy else top_slot(name)
    _, _, index, suffix = name.split(".", 3)
    return layer_slot(suffix, model.decoder.layers[int(index)].layer_number - 1, first_expert)


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
    opened = {path: safe_open(path, framework="pt") for path in set(files.values())}
    for slot, param in local_slots(models, shape):
        group = _splitting_group(slot)
        shares = []
        for name in slot.names:
            whole = opened[files[name]].get_slice(name)
            size = tuple(whole.get_shape())
            if size != expected[name]:
                raise ModelError(f"{files[name]}: {name} has shape {size}, but config.json says {expected[name]}")
            shares.append(whole[share_of(slot.kind, size, group.size(), group.rank())])
        local = torch.empty(param.shape, dtype=param.dtype)  # on the host: a parameter may be on a GPU, or quantised
        pack(slot.kind, shares, local, shape)
        fill(param, local)


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


def _check_names(files: dict[str, Path], expected: dict[str, tuple[int, ...]], shape: ModelShape, folder: Path) -> None:
    present = {name for name in files if not name.endswith(_NO_WEIGHTS)}
    if shape.is_tied:
        present.discard("lm_head.weight")  # some tools write the tied copy too
    missing, left_over = sorted(set(expected) - present), sorted(present - set(expected))
    if missing or left_over:
        raise ModelError(
            f"the tensors in {folder} are not those its config.json describes: "
            f"missing {', '.join(missing) or 'none'}; left over {', '.join(left_over) or 'none'}"
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

    def __init__(self, models: Sequence[PolicyModel], shape: ModelShape, device: torch.device) -> None:
        """Collective."""
        self.shape, self.device = shape, device
        self.params = {slot.names[0]: (slot, param) for slot, param in local_slots(models, shape)}
        self.pipeline = parallel_state.get_pipeline_model_parallel_group()
        self.experts = parallel_state.get_expert_model_parallel_group()
        self.entries = self._gather_entries()

    def _gather_entries(self) -> dict[str, _Entry]:
        stage, expert_rank = self.pipeline.rank(), self.experts.rank()
        entries = {
            name: _Entry(slot, tuple(param.shape), param.dtype, stage, expert_rank if slot.is_expert else 0)
            for name, (slot, param) in self.params.items()
        }
        for group in (self.experts, self.pipeline):
            every: list[dict[str, _Entry]] = [{} for _ in range(group.size())]
            dist.all_gather_object(every, entries, group=group)
            # The first stage that holds a slot sends it: the last stage also has a copy of a tied embedding.
            entries = {name: entry for part in reversed(every) for name, entry in part.items()}
        return entries

    @torch.no_grad()
    def stream(self) -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor) on every rank, in the order of `hf_shapes`, one parameter in memory at a time."""
        ready: dict[str, Tensor] = {}
        for name in hf_shapes(self.shape):
            if name in self.entries:
                slot = self.entries[name].slot
                ready |= zip(slot.names, unpack(slot.kind, self._collect(name), self.shape), strict=True)
            yield name, ready.pop(name).contiguous()

    def _collect(self, name: str) -> list[Tensor]:
        """All shares of one slot: sent over the expert-parallel ranks of its stage, then over the stages, then
        gathered."""
        entry = self.entries[name]
        if name in self.params and entry.stage == self.pipeline.rank():
            share = plain(self.params[name][1]).contiguous()
        else:
            share = torch.empty(entry.size, dtype=entry.dtype, device=self.device)
        if entry.slot.is_expert and entry.stage == self.pipeline.rank():
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
        dist.broadcast(tensor, dist.get_global_rank(group, source), group=group)
