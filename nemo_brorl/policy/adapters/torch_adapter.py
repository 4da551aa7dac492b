"""Wrap private names of torch, written against torch 2.13.0. No other module of the policy uses such a name.

    torch._fused_adam_, torch._fused_adamw_         one kernel for all parameters, which takes moments and step as they
                                                    are; torch's public Adam has a state that Megatron cannot save
    aten._scaled_dot_product_flash_attention_for_   attention that returns its log-sum-exps, and the backward of one set
      cpu, aten._flash_attention_forward            of keys given those of all: the public function has neither
    torch._dynamo.mark_static                       a size that kernels may count on, while others vary
    cuda.memory._record_memory_history              what filled a GPU's memory when it ran out
      and _dump_snapshot

`tests/unit/policy/test_adapters.py` asserts their signatures, and that this version is the pinned one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VERSION = "2.13.0"

fused_adam = torch._fused_adam_
fused_adamw = torch._fused_adamw_

flash_on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
flash_on_cpu_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
flash_on_gpu = torch.ops.aten._flash_attention_forward.default
flash_on_gpu_backward = torch.ops.aten._flash_attention_backward.default


def mark_static(tensor: Tensor, dim: int) -> None:
    """Make torch.compile compile functions separately for each size that `tensor` has in dimension `dim`."""
    torch._dynamo.mark_static(tensor, dim)


def remember_allocations(cuda: Any, max_events: int) -> None:
    """Make torch record which code allocates GPU memory.

    `cuda` is the module torch.cuda, or a fake in tests.
    """
    cuda.memory._record_memory_history(max_entries=max_events)


def write_allocations(cuda: Any, path: Path) -> None:
    """Write the recorded GPU allocations to a file, in the format of pytorch.org/memory_viz."""
    cuda.memory._dump_snapshot(str(path))
