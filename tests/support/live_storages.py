"""Bytes of tensors that are alive on a fake device, by kind, and their peak.

Counted are storages, each with its own size, from the operation that makes them until nothing refers to them. It
cannot show what a kernel takes inside, what an allocator rounds up, keeps or loses between pieces, nor what lies beside
tensors (contexts, communicators, graphs).
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_DEVICE = "cuda"
IN_BACKWARD = "backward"  # kind of what is made in a backward pass, unless a block says otherwise


class LiveStorages(TorchDispatchMode):
    """Watches every operation inside it. `peak` and `at_peak` are of the time since `restart`."""

    def __init__(self) -> None:
        super().__init__()
        self.live: Counter[str] = Counter()  # bytes by kind
        self.at_peak: Counter[str] = Counter()
        self.peak = 0
        self._total = 0
        self._kind = "other"
        self._is_one_kernel = False
        self._known: dict[int, tuple[Any, int, str]] = {}  # by the storage's identity: reference, bytes, kind

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and value.device.type == _DEVICE:
                self._add(value)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._known:
            return
        kind = self._kind
        if kind == "activations" and torch._C._current_graph_task_id() >= 0:
            kind = IN_BACKWARD
        size = storage.nbytes()
        self._known[key] = (weakref.ref(storage, partial(self._remove, key)), size, kind)
        self._grow(kind, size)
        self._note()

    def _remove(self, key: int, reference: Any) -> None:
        _, size, kind = self._known.pop(key)
        self._grow(kind, -size)

    def _grow(self, kind: str, size: int) -> None:
        self.live[kind] += size
        self._total += size

    def _note(self) -> None:
        if self._total > self.peak and not self._is_one_kernel:
            self.peak = self._total
            self.at_peak = self.live.copy()

    def restart(self) -> None:
        """The peak is counted anew."""
        self.peak = 0
        self._note()

    def forget(self) -> None:
        """Nothing is alive."""
        self._known.clear()
        self.live.clear()
        self._total = 0

    def call(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """What tensors hold is of a kind."""
        for tensor in tensors:
            if tensor.device.type != _DEVICE:
                continue
            self._add(tensor)
            key = id(tensor.untyped_storage())
            reference, size, before = self._known[key]
            self._known[key] = (reference, size, kind)
            self.live[before] -= size
            self.live[kind] += size

    @contextmanager
    def counted_as(self, kind: str) -> Iterator[None]:
        """What is made inside is of a kind."""
        before = self._kind
        self._kind = kind
        try:
            yield
        finally:
            self._kind = before

    def of_kind(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that makes what is of a kind."""

        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.counted_as(kind):
                return function(*args, **kwargs)

        return counted

    def one_kernel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that a GPU runs as one kernel: of what it makes, only what it returns or keeps counts."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            before = self._is_one_kernel
            self._is_one_kernel = True
            try:
                result = function(*args, **kwargs)
            finally:
                self._is_one_kernel = before
            self._note()
            return result

        return run
