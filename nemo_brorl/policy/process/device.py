"""The hardware of a rank: the one file that decides between NCCL on GPUs and Gloo on CPU cores.

`compiled` is torch.compile as the policy uses it: for any number of tokens, as a whole, and never quietly uncompiled.
What torch has compiled for too many kinds of input it runs as it stands, which for attention writes down every pair of
tokens. With `fullgraph` that is an error, as is a part of a function that cannot be compiled; torch's switch for the
whole process would also end runs in which one of Megatron's small functions does better uncompiled. `fix_sizes` says
which sizes are no numbers of tokens.
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
    """Where the tensors of one rank live and how ranks talk."""

    torch_device: torch.device
    backend: str  # of torch.distributed


def open_device(on_gpu: bool, num_threads: int) -> Device:
    """Get this process ready for megatron, before its first import. Raises ResourceError without the GPU that was asked
    for.

    Ray shows each rank its own GPU only, so it is always the first one.
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
    """A function compiled once for inputs of all sizes, with some arguments fixed: a number that could change would be
    one more input of the kernel."""
    fixed = partial(function, **constants)

    def call(*args: Any, **kwargs: Any) -> Any:
        return fixed(*args, **kwargs)

    # torch counts kinds of input by code object, of which partials and its own functions have one together
    call.__name__ = function.__name__
    call.__code__ = call.__code__.replace(co_name=function.__name__)
    return torch.compile(call, dynamic=True, fullgraph=True)


def fix_sizes(tensor: Tensor, *dims: int) -> Tensor:
    """The tensor, marked: its sizes in these dimensions are the model's, and a function is compiled for each of them.
    Kernels then divide by constants, not by 64-bit numbers, and read 16 bytes at once."""
    for dim in dims:
        mark_static(tensor, dim)
    return tensor


def forget_compiled() -> None:
    """Start afresh: a process that makes one model after another would reach the limit of kinds of input."""
    torch.compiler.reset()
    compiled.cache_clear()
