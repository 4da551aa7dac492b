"""Receive the bytes of a bucket in an engine's worker: from the object store, by broadcast, or from GPU memory."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from nemo_brorl.types import BucketNotice, WeightBucket
from nemo_brorl.weights.broadcast_group import WeightGroup
from nemo_brorl.weights.cuda_memory import map_memory
from nemo_brorl.weights.flat import check_bytes


def arrived(
    bucket: WeightBucket | BucketNotice,
    device: torch.device,
    group: WeightGroup | None,
) -> Tensor:
    """Return the raw bytes of a weight bucket as a uint8 tensor, on the device that the transport delivers to.

    Raises WeightSyncError when their checksum is not the announced one.
    """
    # The engine's actor compared their checksum before the model was touched.
    if isinstance(bucket, WeightBucket):
        return on_host(bucket)
    if bucket.handles is not None:
        flat = map_memory(bucket.handles, device)
    else:
        num_bytes = sum(info.num_bytes for info in bucket.tensors)
        flat = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        assert group is not None, "a broadcast was announced before the weight group was joined"
        group.broadcast(flat)
    check_bytes(bucket, flat)
    return flat


def on_host(bucket: WeightBucket) -> Tensor:
    """Return the raw bytes of a weight bucket from Ray's object store as a tensor, without a copy."""
    with warnings.catch_warnings():
        # Buckets from the object store are read-only. That is safe, because these tensors are never written to.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(bucket.data)
