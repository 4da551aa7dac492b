"""The two ends of a weight transport, for policy ranks and vLLM's workers alike: a process group of their own, flat
tensors and their checksums, memory of one process mapped by another. Neither the driver nor planning code imports it.

A process group has policy rank 0, which sends, and every engine's workers, which receive. Its life: rank 0 serves a
store; receivers sign in there; when all have, rank 0 says so and everybody builds the group; if some are late, rank 0
writes down who, and everybody who came raises that. Afterwards each bucket is one broadcast of a flat tensor, whose
size both sides know from its notice. Gloo between CPU processes, NCCL between GPUs.

Gloo raises when a member is gone. NCCL's kernel waits for it, and torch's watchdog would then end the process of
whoever is left, policy rank 0 among them. So here NCCL's errors are left to us, and each broadcast has a time.

Memory is mapped by another process on the same GPU by torch's own reductions; no test has run that on a GPU here.
"""

from __future__ import annotations

import os
import socket
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from nemo_brorl.core.errors import ReceiverLostError, WeightSyncError
from nemo_brorl.types import BucketNotice, TensorInfo, WeightLink

_CHUNK_WORDS = 1 << 22  # of the checksum on a GPU: 32 MiB of 64-bit integers at a time
_MASK = (1 << 64) - 1
_PLAIN_FACTOR = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: the two sums do not cancel out


def dtype_name(dtype: torch.dtype) -> str:
    """As in `TensorInfo.dtype`: "float32", "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def infos_of(named: Sequence[tuple[str, Tensor]]) -> tuple[TensorInfo, ...]:
    """Names, shapes and dtypes."""
    infos = []
    for name, tensor in named:
        shape = tuple(tensor.shape)
        infos.append(TensorInfo(name, shape, dtype_name(tensor.dtype)))
    return tuple(infos)


def flatten(named: Sequence[tuple[str, Tensor]]) -> Tensor:
    """The raw bytes of tensors end to end, uint8, a copy on their device."""
    pieces = []
    for _, tensor in named:
        values = tensor.detach().contiguous().flatten()
        pieces.append(values.view(torch.uint8))
    return torch.cat(pieces)


def unflatten(tensors: Sequence[TensorInfo], flat: Tensor) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of each tensor: views of its bytes where alignment allows."""
    offset = 0
    for info in tensors:
        dtype = getattr(torch, info.dtype)
        piece = flat[offset : offset + info.num_bytes]
        if offset % dtype.itemsize:
            piece = piece.clone()  # a bf16 tensor of odd length before an fp32 one
        yield info.name, piece.view(dtype).view(info.shape)
        offset += info.num_bytes


def checksum(flat: Tensor) -> int:
    """crc32 on a CPU. On a GPU, where a crc would need the bytes on the host: sums over 32-bit words, plain and
    weighted by place."""
    if flat.is_cuda:
        return word_checksum(flat)
    return zlib.crc32(flat.numpy())


def word_checksum(flat: Tensor) -> int:
    """Two sums modulo 2^64, so that a changed word and two exchanged words both show."""
    num_missing = -flat.numel() % 4
    padded = flat
    if num_missing:  # padding by nothing would copy all of it, too: an embedding is one bucket
        padded = torch.nn.functional.pad(flat, (0, num_missing))
    plain = 0
    weighted = 0
    first = 1  # place of the next word
    for part in padded.view(torch.int32).split(_CHUNK_WORDS):
        words = part.to(torch.int64)
        end = first + words.numel()
        places = torch.arange(first, end, dtype=torch.int64, device=flat.device)
        plain += int(words.sum())
        weighted += int((words * places).sum())
        first = end
    return (plain * _PLAIN_FACTOR + weighted) & _MASK


def check_bytes(notice: BucketNotice, flat: Tensor) -> None:
    """Raise WeightSyncError unless the bytes are those that were announced."""
    arrived = checksum(flat)
    if arrived != notice.checksum:
        names = f"{notice.tensors[0].name} to {notice.tensors[-1].name}"
        raise WeightSyncError(f"bucket {names} arrived with checksum {arrived:08x}, it left with {notice.checksum:08x}")


_DEVICE_ARGUMENT = 6  # of rebuild_cuda_tensor: the index of the GPU in this process


def gpu_name(device: torch.device) -> str:
    """The same in every process that sees the GPU, whatever its index there."""
    return str(torch.cuda.get_device_properties(device).uuid)


def export_memory(flat: Tensor) -> tuple[str, tuple[Any, ...]]:
    """The GPU's name, and what `map_here` needs. The tensor must live until every process that maps it has let go."""
    torch.cuda.synchronize(flat.device)
    _, arguments = reduce_tensor(flat)
    return gpu_name(flat.device), arguments


def map_memory(handles: Mapping[str, Any], device: torch.device) -> Tensor:
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


_POLL_S = 0.01
_VERDICT_S = 5.0  # that receivers wait longer than rank 0 does, to hear who is late
_GROUP_TIMEOUT_FACTOR = 4  # of torch's own limit: the driver notices first and can say more
_STORE_TIMEOUT = timedelta(minutes=5)
_COMPLETE = "complete"
_LATE = "late"
_DEVICES = {"nccl": "cuda", "gloo": "cpu"}
_GPU_POLL_S = 0.0005
# Of torch, read when a group is made; 2: communicators are given up, and the process lives (`CleanUpOnly` in
# ProcessGroupNCCL.hpp).
_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_CLEAN_UP_ONLY = "2"


class WeightGroup:
    """One end of the broadcast."""

    def __init__(self, link: WeightLink, store: Any, rank: int) -> None:
        """Waits for everybody; `open_store` and `join` come before."""
        timeout = timedelta(seconds=link.timeout_s * _GROUP_TIMEOUT_FACTOR)
        meeting = dist.PrefixStore("broadcast", store)
        self._store = store  # lives as long as the group
        self._is_nccl = link.backend == "nccl"
        self._timeout_s = link.timeout_s
        self._group: Any
        if self._is_nccl:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            with _process_outlives_errors():
                self._group = dist.ProcessGroupNCCL(meeting, rank, link.world_size, options)
        else:
            gloo = dist.ProcessGroupGloo._Options()
            gloo._timeout = timeout
            gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=_own_address(link))]
            self._group = dist.ProcessGroupGloo(meeting, rank, link.world_size, gloo)
        # Connections are made by the first collective, over many nodes in more time than a bucket may take.
        first = torch.zeros(1, dtype=torch.uint8, device=_DEVICES[link.backend])
        self._broadcast(first, 2 * link.timeout_s)

    def broadcast(self, flat: Tensor) -> None:
        """Fill `flat`, of the same size everywhere, with rank 0's bytes; returns when they are there. Raises
        RuntimeError; the group is of no use after that."""
        self._broadcast(flat, self._timeout_s)

    def close(self) -> None:
        """Leave without waiting for members that may be gone. Nothing else may be called after it."""
        if self._is_nccl:
            self._group.abort()

    def _broadcast(self, flat: Tensor, timeout_s: float) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        work = self._group.broadcast([flat], options)
        if self._is_nccl:
            self._wait_for_gpu(work, timeout_s)
        work.wait()
        if flat.is_cuda:
            torch.cuda.synchronize(flat.device)

    def _wait_for_gpu(self, work: Any, timeout_s: float) -> None:
        ends_at = time.monotonic() + timeout_s
        while not work.is_completed():
            if time.monotonic() > ends_at:
                self.close()  # ends the kernel, which would wait for ever
                raise RuntimeError(
                    f"a broadcast of weights has not ended within {timeout_s:g} s: a member is late or gone"
                )
            time.sleep(_GPU_POLL_S)


@contextmanager
def _process_outlives_errors() -> Iterator[None]:
    """Groups that are made inside do not end the process when they fail."""
    before = os.environ.get(_ERROR_HANDLING)
    os.environ[_ERROR_HANDLING] = _CLEAN_UP_ONLY
    try:
        yield
    finally:
        del os.environ[_ERROR_HANDLING]
        if before is not None:
            os.environ[_ERROR_HANDLING] = before


def open_store(host: str, world_size: int | None = None, timeout: timedelta = _STORE_TIMEOUT) -> Any:
    """Meeting point served by this process, on a port that the system picks (`store.port`) of `host` alone: by itself
    torch would listen on all interfaces, and a store asks nobody who they are."""
    family = socket.getaddrinfo(host, None)[0][0]
    with socket.create_server((host, 0), family=family) as listener:
        return dist.TCPStore(
            host,
            listener.getsockname()[1],
            world_size,
            is_master=True,
            wait_for_workers=False,
            timeout=timeout,
            master_listen_fd=listener.detach(),
        )


def wait_for_receivers(link: WeightLink, store: Any) -> WeightGroup:
    """Rank 0's side. Raises ReceiverLostError that names the receivers who did not come in time."""
    names = sign_in_names(link)
    late = _late(store, names, link.timeout_s)
    if late:
        message = f"{', '.join(late)} did not join the weight group within {link.timeout_s:g} s"
        store.set(_LATE, message)
        raise ReceiverLostError(message)
    store.set(_COMPLETE, "")
    return WeightGroup(link, store, 0)


def join(link: WeightLink, receiver: int, worker: int) -> WeightGroup:
    """A worker's side. Raises ReceiverLostError when others are late, WeightSyncError when rank 0 does not answer."""
    number = receiver * link.workers_per_receiver + worker
    silent = f"policy rank 0 did not open the weight group within {link.timeout_s:g} s"
    try:
        timeout = timedelta(seconds=link.timeout_s)
        store = dist.TCPStore(link.host, link.port, None, is_master=False, timeout=timeout)
        names = sign_in_names(link)
        store.set(names[number], "")
        deadline = time.monotonic() + link.timeout_s + _VERDICT_S
        while not store.check([_COMPLETE]):
            if store.check([_LATE]):
                raise ReceiverLostError(store.get(_LATE).decode())
            if time.monotonic() > deadline:
                raise WeightSyncError(silent)
            time.sleep(_POLL_S)
    except dist.DistError as cause:
        raise WeightSyncError(f"{silent}: {cause}") from cause
    return WeightGroup(link, store, number + 1)


def sign_in_names(link: WeightLink) -> list[str]:
    """Names of all receiving workers, in rank order."""
    if link.workers_per_receiver == 1:
        return list(link.receivers)
    names = []
    for receiver in link.receivers:
        for worker in range(link.workers_per_receiver):
            names.append(f"{receiver} worker {worker}")
    return names


def _own_address(link: WeightLink) -> str:
    """The one that this process has on the way to rank 0; receivers may be on other nodes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((link.host, link.port))
        return str(probe.getsockname()[0])


def _late(store: Any, names: Sequence[str], timeout_s: float) -> list[str]:
    """Those who have not signed in when the time is over."""
    deadline = time.monotonic() + timeout_s
    missing = list(names)
    while True:
        missing = [name for name in missing if not store.check([name])]
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(_POLL_S)
