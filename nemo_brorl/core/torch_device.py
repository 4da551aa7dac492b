"""Memory and threads of the device that a process computes on, a GPU or CPU cores: what needs no other library than
torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nemo_brorl.core.process_memory import trim_heap


def host_like(tensor: Tensor) -> Tensor:
    """Make unfilled host memory for a tensor; pinned for one on a GPU, so that copies run at full speed and without
    waiting."""
    return torch.empty_like(
        tensor,
        device="cpu",
        memory_format=torch.contiguous_format,
        pin_memory=tensor.is_cuda,
    )


def wait_for_copies() -> None:
    """Wait until everything that was queued on this rank's GPU is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def roomy_device(num_bytes: int) -> torch.device:
    """Return the GPU of this rank where so much and a tenth of the card are free, else the CPU."""
    if not torch.cuda.is_initialized():
        return torch.device("cpu")
    free, total = torch.cuda.mem_get_info()
    if free - total // 10 > num_bytes:
        return torch.device("cuda", 0)
    return torch.device("cpu")


@contextmanager
def all_threads() -> Iterator[None]:
    """Inside, a rank with a GPU computes on the CPU with its share of the cores; ranks on CPU keep theirs
    (`policy.num_threads`)."""
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
    """Hand memory that is kept for later back to the GPU, for other processes; also what was shared with processes that
    have let go. On CPU, back to the machine."""
    if torch.cuda.is_initialized():
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
    else:
        trim_heap()
