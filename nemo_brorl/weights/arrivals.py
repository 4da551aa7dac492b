"""The bytes of a bucket as they reach an engine's worker: from the object store, by broadcast, or mapped from a policy
rank's GPU memory."""

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
    """Return a bucket's bytes, on whichever device they came to. Raises WeightSyncError when they are not those that
    were announced."""
    # The actor has compared these already, before the model was touched.
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
    """Return the bucket's bytes, in place."""
    with warnings.catch_warnings():
        # Buckets come read-only from the object store, and nobody writes to these tensors.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(bucket.data)
