"""Map GPU memory of one process into another process on the same card, by torch's own reductions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from nemo_brorl.core.errors import WeightSyncError

# Parameter of torch's `rebuild_cuda_tensor`: the index of the GPU in the process that maps the memory.
DEVICE_PARAMETER = "storage_device"


def gpu_name(device: torch.device) -> str:
    """Return a name of a GPU that is equal in all processes, whatever index the GPU has there."""
    return str(torch.cuda.get_device_properties(device).uuid)


def export_memory(flat: Tensor) -> tuple[str, dict[str, Any]]:
    """Return a tensor's GPU name and the arguments, by name, with which `map_memory` maps it in another process.

    The tensor must live until every process that maps it has released it.
    """
    # The mapping process does not wait for this CUDA stream, so the bytes must be complete now.
    torch.cuda.synchronize(flat.device)
    _, arguments = reduce_tensor(flat)
    return gpu_name(flat.device), by_name(arguments)


def by_name(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return the positional arguments of `rebuild_cuda_tensor` by name, because torch promises no order."""
    bound = inspect.signature(rebuild_cuda_tensor).bind(*arguments)
    return dict(bound.arguments)


def map_memory(handles: Mapping[str, Any], device: torch.device) -> Tensor:
    """Return a tensor that maps memory on this GPU that another process has exported, without a copy.

    `handles` are the results of `export_memory` by GPU name. Raises WeightSyncError when no policy rank shares the GPU.
    """
    name = gpu_name(device)
    if name not in handles:
        raise WeightSyncError(
            f"no policy rank is on GPU {name} ({len(handles)} others are): generation.weight_transport=cuda_ipc needs "
            "engines on the policy's GPUs. Set it to object_store."
        )
    # The exporting process may have another index for this card.
    arguments = {**handles[name], DEVICE_PARAMETER: device.index}
    mapped: Tensor = rebuild_cuda_tensor(**arguments)
    return mapped
