"""The weight stream in buckets: consecutive tensors flattened to raw bytes with a checksum."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from nemo_brorl.config.hf_shapes import hf_shapes
from nemo_brorl.config.model_shape import ModelShape
from nemo_brorl.types import TensorInfo, WeightBucket

BUCKET_BYTES = 64 * 2**20  # big enough to hide the cost of a message, small enough to hold several


def dtype_name(dtype: torch.dtype) -> str:
    """As in `TensorInfo.dtype`: "float32", "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def weight_manifest(shape: ModelShape, dtype: torch.dtype) -> list[TensorInfo]:
    """What the stream of a model will hold, in order."""
    return [TensorInfo(name, size, dtype_name(dtype)) for name, size in hf_shapes(shape).items()]


def buckets(stream: Iterable[tuple[str, Tensor]], bucket_bytes: int) -> Iterator[WeightBucket]:
    """Cut a stream of (name, tensor) into buckets of at most `bucket_bytes`, or of one tensor that is larger."""
    held: list[tuple[str, Tensor]] = []
    num_bytes = 0
    for name, tensor in stream:
        if held and num_bytes + tensor.nbytes > bucket_bytes:
            yield _bucket(held)
            held, num_bytes = [], 0
        held.append((name, tensor))
        num_bytes += tensor.nbytes
    if held:
        yield _bucket(held)


def _bucket(tensors: list[tuple[str, Tensor]]) -> WeightBucket:
    data = np.concatenate([_raw_bytes(tensor) for _, tensor in tensors])
    infos = tuple(TensorInfo(name, tuple(tensor.shape), dtype_name(tensor.dtype)) for name, tensor in tensors)
    return WeightBucket(infos, data, zlib.crc32(data))


def _raw_bytes(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
