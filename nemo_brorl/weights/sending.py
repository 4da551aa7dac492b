"""Stream the current weights of all ranks under their Hugging Face names, one tensor at a time."""

from __future__ import annotations

import re
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

_EXPERT = re.compile(r"(?<=\.experts\.)\d+")  # number of an expert in a name


@dataclass(frozen=True)
class _Entry:
    """Size, dtype and location of one Megatron parameter (`Slot`), as every rank knows it."""

    slot: Slot
    size: tuple[int, ...]  # shape of one rank's share
    dtype: torch.dtype
    stage: int
    expert_rank: int


class HfExport:
    """The current weights as a stream of Hugging Face tensors. Every rank must run every stream to its end."""

    def __init__(
        self,
        models: Sequence[NamedTensors],
        shape: ModelShape,
        device: torch.device,
        groups: RankGroups,
    ) -> None:
        """Gather from all ranks which Megatron parameters they hold. Collective over the ranks of `groups`."""
        self.shape = shape
        self.device = device
        self.params: dict[str, SlotParam] = {}  # parameters of this rank by their first Hugging Face name
        for slot, param in local_slots(models, shape, groups.experts):
            self.params[slot.names[0]] = (slot, param)
        self.groups = groups
        self.entries = self._gather_entries()
        self.experts: dict[str, list[Tensor]] = {}  # shares of experts' parameters, gathered and not yet sent

    def _gather_entries(self) -> dict[str, _Entry]:
        """Return size, dtype and location of every Megatron parameter, by the name of its first Hugging Face tensor.

        It covers all pipeline stages and expert-parallel ranks.
        """
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
            # The last stage also has a copy of a tied embedding. The first stage that holds a slot sends it.
            for entries_of_rank in reversed(gathered):
                entries.update(entries_of_rank)
        return entries

    @torch.no_grad()
    def stream(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (Hugging Face name, whole tensor) of every weight on every rank, in the order of `hf_shapes`.

        One Megatron parameter at a time is gathered in memory, or one of every expert of a layer. Collective: every
        rank must consume the whole stream.
        """
        ready: dict[str, Tensor] = {}
        for name in hf_shapes(self.shape):
            if name in self.entries:
                ready |= self._tensors_of(name)
            yield name, ready.pop(name).contiguous()

    def _tensors_of(self, name: str) -> dict[str, Tensor]:
        """Return, by name, the Hugging Face tensors in the Megatron parameter whose first such tensor is `name`."""
        slot = self.entries[name].slot
        shares = self._collect(name)
        wholes = unpack(slot.kind, shares, self.shape)
        return dict(zip(slot.names, wholes, strict=True))

    def _collect(self, name: str) -> list[Tensor]:
        """Return all ranks' shares of one Megatron parameter. Collective.

        A share is broadcast over the pipeline stages. Then the ranks that split the parameter gather their shares.
        """
        entry = self.entries[name]
        if entry.slot.is_expert:
            if name not in self.experts:
                self.experts |= self._collect_experts(name)
            return self.experts.pop(name)
        if entry.stage == self.groups.pipeline.rank():
            _, param = self.params[name]
            share = plain(param).contiguous()
        else:
            share = torch.empty(entry.size, dtype=entry.dtype, device=self.device)
        return self._gather_shares(share, entry)

    def _collect_experts(self, name: str) -> dict[str, list[Tensor]]:
        """Return all ranks' shares of this parameter of every expert in its layer, by name. Collective.

        A mixture has thousands of experts in all. Gathered one by one they would need as many collectives.
        """
        entry, group = self.entries[name], self.groups.experts
        alike = _EXPERT.sub("", name)
        names = [other for other in self.entries if _EXPERT.sub("", other) == alike]
        names.sort(key=lambda other: self.entries[other].expert_rank)
        share = torch.empty((len(names), *entry.size), dtype=entry.dtype, device=self.device)
        if entry.stage == self.groups.pipeline.rank():
            own = torch.stack([plain(self.params[other][1]) for other in names if other in self.params])
            dist.all_gather(list(share.chunk(group.size())), own, group=group)
        shares = self._gather_shares(share, entry)
        pieces = zip(*shares, strict=True)
        return {other: list(piece) for other, piece in zip(names, pieces, strict=True)}

    def _gather_shares(self, share: Tensor, entry: _Entry) -> list[Tensor]:
        """Return the shares of all ranks that split a parameter. `share` is this rank's, in the stage of `entry`."""
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
    """Broadcast a tensor in place from rank `source` of a group to its other ranks."""
    if group.size() > 1:
        global_rank = dist.get_global_rank(group, source)
        dist.broadcast(tensor, global_rank, group=group)
