"""Stand in for `torch.cuda` in Megatron on a machine without CUDA.

Streams do nothing, random numbers come from torch's CPU generator, and the CPU is the only device.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any, Self

import torch


class _Idle:
    """A CUDA stream or event on a machine without CUDA: every method does nothing and returns the object."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., _Idle]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class _Generators:
    """Replacement of torch.cuda.default_generators, by which Megatron's RNG tracker drives torch's CPU generator."""

    def __getitem__(self, index: int) -> torch.Generator:
        return torch.default_generator


class _CudaStandIn(types.SimpleNamespace):
    """Replacement of torch.cuda for megatron.core. Names that it does not have come from torch.cuda itself."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


def do_nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _no_context(*args: Any, **kwargs: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def stand_in() -> _CudaStandIn:
    idle = _Idle()
    device = torch.device("cpu")

    def get_rng_state(device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    return _CudaStandIn(
        current_device=lambda: device,
        device_count=lambda: 1,
        set_device=do_nothing,
        synchronize=do_nothing,
        empty_cache=do_nothing,
        current_stream=lambda *args: idle,
        default_stream=lambda *args: idle,
        stream=_no_context,
        device=_no_context,
        Stream=_Idle,
        Event=_Idle,
        is_current_stream_capturing=lambda: False,
        nvtx=types.SimpleNamespace(
            range_push=do_nothing,
            range_pop=do_nothing,
            range=_no_context,
        ),
        random=types.SimpleNamespace(get_rng_state=get_rng_state),
        get_rng_state=get_rng_state,
        set_rng_state=lambda state, *args, **kwargs: torch.set_rng_state(state),
        manual_seed=torch.manual_seed,
        default_generators=_Generators(),
        _lazy_call=lambda call, **kwargs: call(),
        _lazy_init=do_nothing,
        amp=types.SimpleNamespace(
            custom_fwd=lambda function=None, **kwargs: torch.amp.custom_fwd(function, device_type="cpu", **kwargs),
            custom_bwd=lambda function=None, **kwargs: torch.amp.custom_bwd(function, device_type="cpu"),
        ),
        FloatTensor=torch.FloatTensor,
        HalfTensor=torch.HalfTensor,
        BFloat16Tensor=torch.BFloat16Tensor,
        memory_allocated=lambda *args: 0,
        max_memory_allocated=lambda *args: 0,
        memory_reserved=lambda *args: 0,
    )
