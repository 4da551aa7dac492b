"""Send one rank's part of a weight sync: cut the stream into buckets and pass each on by the transport in use.

Every rank runs the stream, which gathers from all of them, and reports each bucket. Rank 0 sends.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_brorl.core.model_shape import ModelShape, hf_shapes
from nemo_brorl.core.torch_device import host_like
from nemo_brorl.types import BucketNotice, TensorInfo, WeightBucket
from nemo_brorl.weights.broadcast_group import WeightGroup
from nemo_brorl.weights.buckets import cut
from nemo_brorl.weights.cuda_memory import export_memory
from nemo_brorl.weights.flat import checksum, dtype_name, flatten, infos_of

NamedTensor = tuple[str, Tensor]

# Exported buckets that must stay in memory: one that engines load, one on its way, one the driver has not taken.
_LIVE_EXPORTS = 3


def weight_manifest(shape: ModelShape, dtype: torch.dtype) -> list[TensorInfo]:
    """Return name, shape and dtype of the tensors that a weight sync sends for a model, in order."""
    name_of_dtype = dtype_name(dtype)
    manifest = []
    for name, size in hf_shapes(shape).items():
        manifest.append(TensorInfo(name, size, name_of_dtype))
    return manifest


def named_buckets(stream: Iterable[NamedTensor], limit: int) -> Iterator[list[NamedTensor]]:
    """Yield the tensors of a weight stream in lists of (name, tensor) of at most `limit` bytes each.

    A tensor of more bytes is a list alone.
    """
    return cut(stream, lambda named: named[1].nbytes, limit)


def buckets(stream: Iterable[NamedTensor], limit: int) -> Iterator[WeightBucket]:
    """Yield a stream of (name, tensor) as weight buckets with their bytes on the host.

    Only a bucket of a single larger tensor has more than `limit` bytes.
    """
    return map(host_bucket, named_buckets(stream, limit))


def host_bucket(named: list[NamedTensor]) -> WeightBucket:
    """Return named tensors as one weight bucket with its bytes on the host, ready for Ray's object store."""
    flat = flatten(named)
    if flat.is_cuda:
        # A copy into pinned memory is ten times as fast, and torch reuses that memory.
        flat = host_like(flat).copy_(flat)
    data = flat.numpy()
    return WeightBucket(infos_of(named), data, zlib.crc32(data))


class WeightSender:
    """One rank's side of the weight stream.

    `stream` yields a message for each bucket. Rank 0's are what engines get, other ranks yield None. Work that follows
    a message happens when the next one is requested.
    """

    def __init__(self, transport: str, is_first_rank: bool) -> None:
        messages = {
            "object_store": self._through_store,
            "collective": self._by_broadcast,
            "cuda_ipc": self._by_mapping,
        }
        self._messages_of = messages[transport]
        self._is_first_rank = is_first_rank
        self._exports: deque[Tensor] = deque(maxlen=_LIVE_EXPORTS)
        self.group: WeightGroup | None = None  # rank 0's end of the broadcast group, only for the transport collective

    def stream(self, tensors: Iterable[NamedTensor], limit: int) -> Iterator[Any]:
        """Yield this policy rank's messages of one whole weight sync.

        After a failure the rest of `tensors` is still consumed, because other ranks need this rank to gather tensors.
        """
        tensors = iter(tensors)
        try:
            for named in named_buckets(tensors, limit):
                yield from self._messages_of(named)
        finally:
            # Every tensor is gathered from all ranks. A rank that stopped here would block the others.
            for _ in tensors:
                pass
            self._exports.clear()

    def _through_store(self, named: list[NamedTensor]) -> Iterator[Any]:
        yield host_bucket(named) if self._is_first_rank else None

    def _by_broadcast(self, named: list[NamedTensor]) -> Iterator[Any]:
        if not self._is_first_rank:
            yield None
            return
        assert self.group is not None, "weights were streamed before the weight group was open"
        infos = infos_of(named)
        flat = flatten(named)
        yield BucketNotice(infos, checksum(flat))
        self.group.broadcast(flat)

    def _by_mapping(self, named: list[NamedTensor]) -> Iterator[Any]:
        infos = infos_of(named)
        flat = flatten(named)
        self._exports.append(flat)
        handles: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(handles, export_memory(flat))
        if not self._is_first_rank:
            yield None
            return
        yield BucketNotice(infos, checksum(flat), dict(handles))
