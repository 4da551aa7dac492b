"""Tensors as one flat run of bytes, on whatever device they are, and its checksum."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nemo_brorl.core.errors import WeightSyncError
from nemo_brorl.types import BucketNotice, TensorInfo

_CHUNK_WORDS = 1 << 22  # of the checksum on a GPU: 32 MiB of 64-bit integers at a time
_MASK = (1 << 64) - 1


def dtype_name(dtype: torch.dtype) -> str:
    """As in `TensorInfo.dtype`: "float32", "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def infos_of(named: Sequence[tuple[str, Tensor]]) -> tuple[TensorInfo, ...]:
    """Names, shapes and dtypes."""
    return tuple(TensorInfo(name, tuple(tensor.shape), dtype_name(tensor.dtype)) for name, tensor in named)


def flatten(named: Sequence[tuple[str, Tensor]]) -> Tensor:
    """The raw bytes of tensors end to end, uint8, a copy on their device."""
    return torch.cat([tensor.detach().contiguous().flatten().view(torch.uint8) for _, tensor in named])


def unflatten(tensors: Sequence[TensorInfo], flat: Tensor) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of each tensor: views of its bytes where alignment allows."""
    offset = 0
    for info in tensors:
        dtype = getattr(torch, info.dtype)
        piece = flat[offset : offset + info.num_bytes]
        if offset % dtype.itemsize:
            piece = piece.clone()  # a bf16 tensor of odd length before an fp32 one
        yield info.name, piece.view(dtype).view(info.shape)
        offset += info.num_bytes


def checksum(flat: Tensor) -> int:
    """crc32 on a CPU. On a GPU, where a crc would need the bytes on the host: sums over 32-bit words, plain and
    weighted by place."""
    if flat.is_cuda:
        return word_checksum(flat)
    return zlib.crc32(flat.numpy())


def word_checksum(flat: Tensor) -> int:
    """Two sums modulo 2^64, so that a changed word and two exchanged words both show."""
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % 4)).view(torch.int32)
    plain, weighted = 0, 0
    for first in range(0, padded.numel(), _CHUNK_WORDS):
        words = padded[first : first + _CHUNK_WORDS].to(torch.int64)
        places = torch.arange(first + 1, first + 1 + words.numel(), dtype=torch.int64, device=flat.device)
        plain += int(words.sum())
        weighted += int((words * places).sum())
    return (plain * 0x9E3779B97F4A7C15 + weighted) & _MASK


def check_bytes(notice: BucketNotice, flat: Tensor) -> None:
    """Raise WeightSyncError unless the bytes are those that were announced."""
    arrived = checksum(flat)
    if arrived != notice.checksum:
        names = f"{notice.tensors[0].name} to {notice.tensors[-1].name}"
        raise WeightSyncError(f"bucket {names} arrived with checksum {arrived:08x}, it left with {notice.checksum:08x}")
