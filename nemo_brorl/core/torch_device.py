"""Manage memory and threads of the GPU or CPU that a process computes on, with torch alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nemo_brorl.core.process_memory import trim_heap


def host_like(tensor: Tensor) -> Tensor:
    """Allocate uninitialised host memory of a tensor's shape and type.

    It is pinned for a GPU tensor, so that copies run at full speed and without waiting.
    """
    return torch.empty_like(
        tensor,
        device="cpu",
        memory_format=torch.contiguous_format,
        pin_memory=tensor.is_cuda,
    )


def wait_for_copies() -> None:
    """Block until this rank's GPU has finished all queued work."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def roomy_device(num_bytes: int) -> torch.device:
    """Return this rank's GPU if `num_bytes` and a tenth of its memory are free, else the CPU."""
    if not torch.cuda.is_initialized():
        return torch.device("cpu")
    free, total = torch.cuda.mem_get_info()
    if free - total // 10 > num_bytes:
        return torch.device("cuda", 0)
    return torch.device("cpu")


@contextmanager
def all_threads() -> Iterator[None]:
    """Let a rank with a GPU use its share of the CPU cores inside the context.

    Ranks on CPU keep their number of threads (`policy.num_threads`).
    """
    before = torch.get_num_threads()
    if torch.cuda.is_initialized():
        num_cores = len(os.sched_getaffinity(0))
        num_gpus = max(1, torch.cuda.device_count())
        torch.set_num_threads(max(1, num_cores // num_gpus))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def release_cache() -> None:
    """Return cached memory to the GPU for other processes, or on CPU to the operating system.

    On a GPU this includes shared memory that other processes have released.
    """
    if torch.cuda.is_initialized():
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
    else:
        trim_heap()
