"""One end of the process group in which policy rank 0 broadcasts weights to every engine's workers.

Each bucket is one broadcast of a flat tensor. Both sides know its size from the bucket's notice. CPU processes use
Gloo, GPUs use NCCL. Gloo raises when a member has exited. NCCL's kernel waits for it, and torch's watchdog would then
end the remaining processes, policy rank 0 among them. So the watchdog is switched off here, and every broadcast has a
time limit.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_brorl.types import WeightLink

# Torch's own time limit as a multiple of ours. The driver notices a failure first and can explain it.
_GROUP_TIMEOUT_FACTOR = 4
_DEVICES = {"nccl": "cuda", "gloo": "cpu"}
_GPU_POLL_S = 0.0005
# Environment variable that torch reads when a group is made. 2 aborts communicators and lets the process live
# (`CleanUpOnly` in ProcessGroupNCCL.hpp).
_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_CLEAN_UP_ONLY = "2"


class WeightGroup:
    """One end of the broadcast group: the sender on policy rank 0, or a receiver in an engine's worker."""

    def __init__(
        self,
        link: WeightLink,
        store: dist.Store,
        rank: int,
    ) -> None:
        """Build the process group of a weight broadcast, and wait until all members have connected.

        `rendezvous.open_store` and `rendezvous.join` come before. `rank` 0 is the sender.
        """
        timeout = timedelta(seconds=link.timeout_s * _GROUP_TIMEOUT_FACTOR)
        meeting = dist.PrefixStore("broadcast", store)
        # The group uses the store for every new connection, so the store must live as long as the group.
        self._store = store
        self._is_nccl = link.backend == "nccl"
        self._timeout_s = link.timeout_s
        self._group: dist.ProcessGroup
        if self._is_nccl:
            self._group = _nccl_group(meeting, rank, link.world_size, timeout)
        else:
            self._group = _gloo_group(meeting, rank, link, timeout)
        # The first collective opens the connections. Over many nodes that takes longer than a bucket may take.
        first = torch.zeros(1, dtype=torch.uint8, device=_DEVICES[link.backend])
        self._broadcast(first, 2 * link.timeout_s)

    def broadcast(self, flat: Tensor) -> None:
        """Fill `flat` with rank 0's bytes and return when they have arrived.

        All members pass a tensor of equal size. Raises RuntimeError after a failure or the time limit. The group is
        unusable after that.
        """
        self._broadcast(flat, self._timeout_s)

    def close(self) -> None:
        """Leave the broadcast group without waiting for members that may have exited. Call nothing else after it."""
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

    def _wait_for_gpu(self, work: dist.Work, timeout_s: float) -> None:
        ends_at = time.monotonic() + timeout_s
        while not work.is_completed():
            if time.monotonic() > ends_at:
                # Without an abort NCCL's kernel would wait forever.
                self.close()
                raise RuntimeError(
                    f"a broadcast of weights has not ended within {timeout_s:g} s: a member is late or gone"
                )
            time.sleep(_GPU_POLL_S)


def _nccl_group(
    meeting: dist.Store,
    rank: int,
    world_size: int,
    timeout: timedelta,
) -> dist.ProcessGroup:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    with _process_outlives_errors():
        return dist.ProcessGroupNCCL(meeting, rank, world_size, options)


def _gloo_group(
    meeting: dist.Store,
    rank: int,
    link: WeightLink,
    timeout: timedelta,
) -> dist.ProcessGroup:
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    # By default Gloo listens on the address of the host's name, often 127.0.1.1.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=_own_address(link))]
    return dist.ProcessGroupGloo(meeting, rank, link.world_size, options)


@contextmanager
def _process_outlives_errors() -> Iterator[None]:
    """Keep torch from ending the process when a process group that is made inside this context fails."""
    before = os.environ.get(_ERROR_HANDLING)
    os.environ[_ERROR_HANDLING] = _CLEAN_UP_ONLY
    try:
        yield
    finally:
        del os.environ[_ERROR_HANDLING]
        if before is not None:
            os.environ[_ERROR_HANDLING] = before


def _own_address(link: WeightLink) -> str:
    """Return this process's IP address on the route to policy rank 0.

    Inference engines that receive weights may be on other nodes.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((link.host, link.port))
        return str(probe.getsockname()[0])
