"""Flatten tensors into raw bytes, and compute the checksums with which a weight sync verifies them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nemo_brorl.core.errors import WeightSyncError
from nemo_brorl.types import BucketNotice, TensorInfo

# Words that the GPU checksum converts at a time: 32 MiB as 64-bit integers.
_CHUNK_WORDS = 1 << 22
_MASK = (1 << 64) - 1
# 2^64 over the golden ratio: the two sums do not cancel out.
_PLAIN_FACTOR = 0x9E3779B97F4A7C15


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype as in `TensorInfo.dtype`: "float32", "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def infos_of(named: Sequence[tuple[str, Tensor]]) -> tuple[TensorInfo, ...]:
    """Return the name, shape and dtype of each of several named tensors, in the given order."""
    infos = []
    for name, tensor in named:
        shape = tuple(tensor.shape)
        infos.append(TensorInfo(name, shape, dtype_name(tensor.dtype)))
    return tuple(infos)


def flatten(named: Sequence[tuple[str, Tensor]]) -> Tensor:
    """Return the raw bytes of tensors end to end, as a uint8 copy on their device."""
    pieces = []
    for _, tensor in named:
        values = tensor.detach().contiguous().flatten()
        pieces.append(values.view(torch.uint8))
    return torch.cat(pieces)


def unflatten(tensors: Sequence[TensorInfo], flat: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) for each of the tensors whose raw bytes lie end to end in `flat`.

    A tensor is a view of its bytes where alignment allows, else a copy.
    """
    offset = 0
    for info in tensors:
        dtype = getattr(torch, info.dtype)
        piece = flat[offset : offset + info.num_bytes]
        if offset % dtype.itemsize:
            # An fp32 tensor behind a bf16 tensor of odd length is not aligned.
            piece = piece.clone()
        yield info.name, piece.view(dtype).view(info.shape)
        offset += info.num_bytes


def checksum(flat: Tensor) -> int:
    """Return the checksum of raw bytes: crc32 on a CPU, `word_checksum` on a GPU.

    For a crc32 the bytes of a GPU would have to be copied to the host.
    """
    if flat.is_cuda:
        return word_checksum(flat)
    return zlib.crc32(flat.numpy())


def word_checksum(flat: Tensor) -> int:
    """Return a checksum of raw bytes from two sums modulo 2^64, computed on their device.

    One sum is over 32-bit words, the other weighs each word by its position. So a changed word and two exchanged words
    both show.
    """
    num_missing = -flat.numel() % 4
    padded = flat
    # Padding by zero bytes would also copy everything, and a whole embedding is one bucket.
    if num_missing:
        padded = torch.nn.functional.pad(flat, (0, num_missing))
    plain = 0
    weighted = 0
    # Position of the next word. It starts at 1, so that the first word has a weight.
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
    """Raise WeightSyncError unless the bytes of a weight bucket have the checksum that its notice announced."""
    arrived = checksum(flat)
    if arrived != notice.checksum:
        names = f"{notice.tensors[0].name} to {notice.tensors[-1].name}"
        raise WeightSyncError(f"bucket {names} arrived with checksum {arrived:08x}, it left with {notice.checksum:08x}")
