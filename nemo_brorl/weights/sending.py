"""The current weights of all ranks as a stream under their Hugging Face names, one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_brorl.core.model_shape import ModelShape, hf_shapes
from nemo_brorl.weights.names import NamedTensors, Slot, SlotParam, local_slots
from nemo_brorl.weights.parameters import plain
from nemo_brorl.weights.shares import RankGroups, unpack


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
        models: Sequence[NamedTensors],
        shape: ModelShape,
        device: torch.device,
        groups: RankGroups,
    ) -> None:
        """Gather what all ranks hold. Collective."""
        self.shape = shape
        self.device = device
        self.params: dict[str, SlotParam] = {}  # by the first Hugging Face name
        for slot, param in local_slots(models, shape, groups.experts):
            self.params[slot.names[0]] = (slot, param)
        self.groups = groups
        self.entries = self._gather_entries()

    def _gather_entries(self) -> dict[str, _Entry]:
        """Return the entries of all stages and experts, on every rank."""
        stage = self.groups.pipeline.rank()
        entries = {}
        for name, (slot, param) in self.params.items():
            expert_rank = self.groups.experts.rank() if slot.is_expert else 0
            size = tuple(param.shape)
            entries[name] = _Entry(slot, size, param.dtype, stage, expert_rank)
        for group in (self.groups.experts, self.groups.pipeline):
            gathered: list[Any] = [None] * group.size()
            dist.all_gather_object(gathered, entries, group=group)
            entries = {}
            # The first stage that holds a slot sends it: the last stage also has a copy of a tied embedding.
            for entries_of_rank in reversed(gathered):
                entries.update(entries_of_rank)
        return entries

    @torch.no_grad()
    def stream(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, whole tensor) on every rank, in the order of `hf_shapes`, one parameter in memory at a time."""
        ready: dict[str, Tensor] = {}
        for name in hf_shapes(self.shape):
            if name in self.entries:
                ready |= self._tensors_of(name)
            yield name, ready.pop(name).contiguous()

    def _tensors_of(self, name: str) -> dict[str, Tensor]:
        """Return the Hugging Face tensors of the slot whose first one has this name."""
        slot = self.entries[name].slot
        shares = self._collect(name)
        wholes = unpack(slot.kind, shares, self.shape)
        return dict(zip(slot.names, wholes, strict=True))

    def _collect(self, name: str) -> list[Tensor]:
        """Return all shares of one slot: sent over the expert-parallel ranks of its stage, then over the stages, then
        gathered."""
        entry = self.entries[name]
        is_of_this_stage = entry.stage == self.groups.pipeline.rank()
        if is_of_this_stage and name in self.params:
            _, param = self.params[name]
            share = plain(param).contiguous()
        else:
            share = torch.empty(entry.size, dtype=entry.dtype, device=self.device)
        if is_of_this_stage and entry.slot.is_expert:
            _broadcast(share, self.groups.experts, entry.expert_rank)
        _broadcast(share, self.groups.pipeline, entry.stage)
        group = self.groups.splitting(entry.slot)
        if group.size() == 1 or entry.slot.kind == "copy":
            return [share]
        shares = [torch.empty_like(share) for _ in range(group.size())]
        dist.all_gather(shares, share, group=group)
        return shares


def _broadcast(
    tensor: Tensor,
    group: dist.ProcessGroup,
    source: int,
) -> None:
    """Send a tensor from one rank of a group to the others, in place."""
    if group.size() > 1:
        global_rank = dist.get_global_rank(group, source)
        dist.broadcast(tensor, global_rank, group=group)
