"""Move a rank's tensors off its device between updates, to make room for engines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer
from torch import Tensor, UntypedStorage

from nemo_brorl.core.torch_device import host_like, wait_for_copies
from nemo_brorl.policy.adapters.megatron_adapter import forget_quantised_weights
from nemo_brorl.policy.state.optimizer import state_tensors


class Offload:
    """Tensors of one rank that make room for colocated engines: optimizer state, gradient buffers and weights.

    `offload` moves them to host memory, `onload` moves them back, and so on in turn.

    Almost every tensor of Megatron is a view: parameters of DDP's buffers, fp32 master weights of parameters, gradients
    of the buffers. So storages are moved instead of tensors. A storage is copied to the host and shrunk to nothing, and
    later grown and filled again. Then every view of it is valid again, bit for bit. On the CPU, where only tests do
    this, storages that numpy has seen cannot shrink: those of weights that have been streamed.
    """

    def __init__(
        self,
        chunks: Sequence[DistributedDataParallel],
        optimizer: MegatronOptimizer,
        with_params: bool,
    ) -> None:
        self.chunks = chunks
        self.optimizer = optimizer
        self.with_params = with_params
        self.copies: list[Tensor] = []  # buffers in host memory, reused by every offload
        self.sizes: dict[UntypedStorage, int] = {}  # bytes of each storage that is not on the device now
        self.moved: list[UntypedStorage] = []

    def offload(self) -> None:
        """Free the device memory of the rank's optimizer state, gradients and weights. Calling it again does nothing.

        Torch caches the memory until `release_cache`. None of these tensors may be used before `onload`.
        """
        if self.sizes:
            return
        self.moved = self._moving()
        sizes = [storage.nbytes() for storage in self.moved]
        if [copy.numel() for copy in self.copies] != sizes:
            self.copies = [host_like(_bytes_of(storage)) for storage in self.moved]
        for storage, copy in zip(self.moved, self.copies, strict=True):
            copy.copy_(_bytes_of(storage), non_blocking=True)
        wait_for_copies()
        for storage in (*self.moved, *self._gradients()):
            self.sizes[storage] = storage.nbytes()
        for storage in self.sizes:
            storage.resize_(0)
        for chunk in self.chunks:
            forget_quantised_weights(chunk.module)

    def onload(self) -> None:
        """Restore the rank's tensors on the device as before `offload`, with gradients set to zero.

        Calling it again does nothing.
        """
        if not self.sizes:
            return
        for storage, size in self.sizes.items():
            storage.resize_(size)
            if storage not in self.moved:
                _bytes_of(storage).zero_()
        for storage, copy in zip(self.moved, self.copies, strict=True):
            _bytes_of(storage).copy_(copy, non_blocking=True)
        wait_for_copies()
        self.sizes = {}
        self.moved = []

    def _moving(self) -> list[UntypedStorage]:
        """Return the torch storages of optimizer state and weights that `offload` copies to the host.

        The optimizer's storages are looked up each time, because loading a checkpoint may replace them.
        """
        params: list[Tensor] = []
        for chunk in self.chunks:
            params += chunk.module.parameters()
        storages = _storages(state_tensors(self.optimizer))
        for address, storage in _storages(params).items():
            if self.with_params:
                storages[address] = storage
            else:
                storages.pop(address, None)
        return list(storages.values())

    def _gradients(self) -> list[UntypedStorage]:
        gradients = []
        for chunk in self.chunks:
            for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
                gradients.append(buffer.grad_data)
        return list(_storages(gradients).values())


def _storages(tensors: Iterable[Tensor]) -> dict[int, UntypedStorage]:
    """Return the torch storages of tensors, each once, by memory address.

    Empty storages are left out.
    """
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            storages[storage.data_ptr()] = storage
    return storages


def _bytes_of(storage: UntypedStorage) -> Tensor:
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage)
