"""Tensors end to end as raw bytes, and the checksums by which both ends of a publication compare them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nemo_brorl.core.errors import WeightSyncError
from nemo_brorl.types import BucketNotice, TensorInfo

# Of the checksum on a GPU: 32 MiB of 64-bit integers at a time.
_CHUNK_WORDS = 1 << 22
_MASK = (1 << 64) - 1
# 2^64 over the golden ratio: the two sums do not cancel out.
_PLAIN_FACTOR = 0x9E3779B97F4A7C15


def dtype_name(dtype: torch.dtype) -> str:
    """Name a dtype as `TensorInfo.dtype` does: "float32", "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def infos_of(named: Sequence[tuple[str, Tensor]]) -> tuple[TensorInfo, ...]:
    """Return the names, shapes and dtypes."""
    infos = []
    for name, tensor in named:
        shape = tuple(tensor.shape)
        infos.append(TensorInfo(name, shape, dtype_name(tensor.dtype)))
    return tuple(infos)


def flatten(named: Sequence[tuple[str, Tensor]]) -> Tensor:
    """Return the raw bytes of tensors end to end, uint8, a copy on their device."""
    pieces = []
    for _, tensor in named:
        values = tensor.detach().contiguous().flatten()
        pieces.append(values.view(torch.uint8))
    return torch.cat(pieces)


def unflatten(tensors: Sequence[TensorInfo], flat: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) of each tensor: views of its bytes where alignment allows."""
    offset = 0
    for info in tensors:
        dtype = getattr(torch, info.dtype)
        piece = flat[offset : offset + info.num_bytes]
        if offset % dtype.itemsize:
            # A bf16 tensor of odd length lies before an fp32 one.
            piece = piece.clone()
        yield info.name, piece.view(dtype).view(info.shape)
        offset += info.num_bytes


def checksum(flat: Tensor) -> int:
    """Return a crc32 on a CPU. On a GPU, where a crc would need the bytes on the host: sums over 32-bit words, plain
    and weighted by place."""
    if flat.is_cuda:
        return word_checksum(flat)
    return zlib.crc32(flat.numpy())


def word_checksum(flat: Tensor) -> int:
    """Return two sums modulo 2^64, so that a changed word and two exchanged words both show."""
    num_missing = -flat.numel() % 4
    padded = flat
    # Padding by nothing would copy all of it, too, and an embedding is one bucket.
    if num_missing:
        padded = torch.nn.functional.pad(flat, (0, num_missing))
    plain = 0
    weighted = 0
    # The place of the next word: from 1, so that the first one counts.
    first = 1
    for part in padded.view(torch.int32).split(_CHUNK_WORDS):
        words = part.to(torch.int64)
        end = first + words.numel()
        places = torch.arange(first, end, dtype=torch.int64, device=flat.device)
        plain += int(words.sum())
        weighted += int((words * places).sum())
        first = end
    return (plain * _PLAIN_FACTOR + weighted) & _MASK


def check_bytes(notice: BucketNotice, flat: Tensor) -> None:
    """Raise WeightSyncError unless the bytes are those that were announced."""
    arrived = checksum(flat)
    if arrived != notice.checksum:
        names = f"{notice.tensors[0].name} to {notice.tensors[-1].name}"
        raise WeightSyncError(f"bucket {names} arrived with checksum {arrived:08x}, it left with {notice.checksum:08x}")
