"""Decide the hardware of a rank: NCCL on a GPU, or Gloo on CPU cores. No other module decides that.

`compiled` is torch.compile as the policy uses it: for any number of tokens, as a whole, and never silently uncompiled.
After too many kinds of input torch would run a function uncompiled, and attention would then store every pair of
tokens. With `fullgraph` that is an error, and so is a part of a function that cannot be compiled. Torch's process-wide
switch would also end runs in which one of Megatron's small functions is better off uncompiled. `fix_sizes` marks the
sizes that are constants of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from nemo_brorl.core.errors import ResourceError
from nemo_brorl.policy.adapters.torch_adapter import mark_static
from nemo_brorl.policy.cpu import megatron


@dataclass(frozen=True)
class Device:
    """Torch device of one policy rank, and the backend over which ranks communicate."""

    torch_device: torch.device
    backend: str  # backend of torch.distributed: nccl or gloo


def open_device(on_gpu: bool, num_threads: int) -> Device:
    """Prepare this process for megatron, before its first import, and return the rank's device.

    Ray shows each rank only its own GPU, so the device is always the first one. Raises ResourceError when a GPU was
    requested and torch sees none.
    """
    if on_gpu:
        if not torch.cuda.is_available():
            raise ResourceError(
                "the policy was given GPUs, but torch sees none here: set trainer.gpus_per_node=0 to run on CPU"
            )
        torch.cuda.set_device(0)
        return Device(torch.device("cuda", 0), "nccl")
    megatron.install()
    torch.set_num_threads(num_threads)
    return Device(torch.device("cpu"), "gloo")


@cache
def compiled(function: Any, **constants: Any) -> Any:
    """Return `function` with some arguments fixed, compiled by torch once for inputs of all sizes.

    A number that is not fixed would become one more input of the kernel.
    """
    fixed = partial(function, **constants)

    def call(*args: Any, **kwargs: Any) -> Any:
        return fixed(*args, **kwargs)

    # torch counts kinds of input per code object. All partials share one, so each function gets its own here.
    call.__name__ = function.__name__
    call.__code__ = call.__code__.replace(co_name=function.__name__)
    return torch.compile(call, dynamic=True, fullgraph=True)


def fix_sizes(tensor: Tensor, *dims: int) -> Tensor:
    """Return the tensor, marked so that torch compiles functions for each of its sizes in the dimensions `dims`.

    Use it for sizes that the model fixes. Kernels then divide by constants instead of 64-bit numbers, and read 16 bytes
    at once.
    """
    for dim in dims:
        mark_static(tensor, dim)
    return tensor


def forget_compiled() -> None:
    """Drop all functions that torch has compiled in this process.

    A process that makes several models would otherwise reach torch's limit of kinds of input for a function.
    """
    torch.compiler.reset()
    compiled.cache_clear()
