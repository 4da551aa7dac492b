"""Memory of one process mapped by another on the same GPU. Written after torch's own reductions; no test has run it on
a GPU here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from nemo_brorl.core.errors import WeightSyncError

_DEVICE_ARGUMENT = 6  # of rebuild_cuda_tensor: the index of the GPU in this process


def gpu_name(device: torch.device) -> str:
    """The same in every process that sees the GPU, whatever its index there."""
    return str(torch.cuda.get_device_properties(device).uuid)


def export(flat: Tensor) -> tuple[str, tuple[Any, ...]]:
    """The GPU's name, and what `map_here` needs. The tensor must live until every process that maps it has let go."""
    torch.cuda.synchronize(flat.device)
    _, arguments = reduce_tensor(flat)
    return gpu_name(flat.device), arguments


def map_here(handles: Mapping[str, Any], device: torch.device) -> Tensor:
    """The exported tensor of this GPU, without a copy. Raises WeightSyncError when no policy rank shares the GPU."""
    name = gpu_name(device)
    if name not in handles:
        raise WeightSyncError(
            f"no policy rank is on GPU {name} ({len(handles)} others are): generation.weight_transport=cuda_ipc needs "
            "engines on the policy's GPUs, write object_store"
        )
    arguments = list(handles[name])
    arguments[_DEVICE_ARGUMENT] = device.index
    mapped: Tensor = rebuild_cuda_tensor(*arguments)
    return mapped
