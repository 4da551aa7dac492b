"""Files of a checkpoint, written by a thread while the rank goes on training.

Megatron's own asynchronous save forks a writer process. A rank is a Ray actor with gRPC and Gloo threads, which a fork
may catch holding a lock, and its manager process outlives a rank that is killed. So Megatron only plans here: a thread
writes the planned buckets with Megatron's own file writer (writing and fsync give up the interpreter's lock), and the
results are put together by `finish`. Nothing touches a file before the thread runs, so a full disk never leaves some
ranks waiting inside a collective.
"""

from __future__ import annotations

import io
import os
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.common import COMMON_STATE_FNAME
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch import Tensor
from torch.serialization import set_crc32_options

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.files import FileSum, file_sum, write_sums
from nemo_brorl.policy.device import host_like, wait_for_copies

_BACKEND, _VERSION = "torch_dist", 1
_INDEX_FILES = (".metadata", "metadata.json")  # torch's and Megatron's
_CANNOT_WRITE = (OSError, RuntimeError)  # torch's zip writer turns a full disk into a RuntimeError


class _Plan(TorchDistSaveShardedStrategy):
    """Megatron's way of writing sharded tensors, stopped once every rank knows what it will write."""

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any) -> Any:
        return writer, save_state_dict_ret[1]


class BackgroundSave:
    """One save on one rank: planned by the constructor, written by its thread, put together by `finish`."""

    def __init__(
        self,
        sharded_state: dict[str, Any],
        folder: Path,
        live: Sequence[Tensor],
        validate: bool,
    ) -> None:
        """Collective. Returns once the state is copied to host memory that nothing else writes to.

        `live` are the tensors on the host that training changes in place. `validate`: check across ranks that the
        shards of every tensor cover it exactly once.
        """
        # The queue on which Megatron's writer hands back results never leaves this process; by default it starts a
        # manager process.
        filesystem_async._results_queue = queue.Queue()
        self.folder = folder
        sharded, common = save_preprocess(sharded_state, validate)
        self.writer, self.metadata = _Plan(_BACKEND, _VERSION).async_save(sharded, folder)
        self.buckets = _private_copies(self.writer.write_buckets, live)
        self.common = io.BytesIO()
        torch.save(common, self.common)
        self.results: list[Any] = []
        self.sums: dict[str, FileSum] = {}  # of this rank's files, by name
        self.failure = "its writer ended without a result"
        self.seconds = 0.0
        self.thread = threading.Thread(
            target=self._write,
            name="checkpoint writer",
            daemon=True,
        )
        self.thread.start()

    def is_written(self) -> bool:
        """Whether this rank's files are written, or failed."""
        return not self.thread.is_alive()

    def finish(self) -> float:
        """Collective: wait for all files and write the index over them. Returns seconds of writing on this rank.

        Raises CheckpointError on every rank when the files of any of them could not be written.
        """
        self.thread.join()
        outcomes: list[Any] | None = None
        if dist.get_rank() == 0:
            outcomes = [None] * dist.get_world_size()
        dist.gather_object((self.failure, self.results, self.sums), outcomes, dst=0)
        failure = [""]
        if outcomes is not None:
            failure[0] = self._write_index(outcomes)
        dist.broadcast_object_list(failure, src=0)
        if failure[0]:
            raise CheckpointError(f"the checkpoint in {self.folder} could not be written ({failure[0]})")
        return self.seconds

    def _write(self) -> None:
        start = time.perf_counter()
        set_crc32_options(False)  # sums that torch does not check when it loads, for half of the processor time
        try:
            if dist.get_rank() == 0:
                self._write_common()
            for number, bucket in enumerate(self.buckets):
                self.results += self._write_bucket(number, bucket)
                self._sum_up(Path(bucket[0]).name)
            self.failure = ""
        except _CANNOT_WRITE as error:
            self.failure = f"{type(error).__name__}: {error}"
        self.buckets = []
        self.seconds = time.perf_counter() - start

    def _write_common(self) -> None:
        with (self.folder / COMMON_STATE_FNAME).open("wb") as file:
            file.write(self.common.getvalue())
            file.flush()
            os.fsync(file.fileno())
        self._sum_up(COMMON_STATE_FNAME)

    def _sum_up(self, name: str) -> None:
        """Note the sum of a file that was just written: it is read from memory, not from the disk."""
        self.sums[name] = file_sum(self.folder / name)

    def _write_bucket(self, number: int, bucket: Any) -> list[Any]:
        """One file through Megatron's writer, which reports an error in place of its results."""
        results: queue.Queue[Any] = queue.Queue()
        running: queue.Queue[int] = queue.Queue()
        running.put(number)
        transforms = []
        if hasattr(self.writer, "transforms"):
            transforms.append(self.writer.transforms)
        FileSystemWriterAsync.write_preloaded_data(transforms, number, bucket, results, running, use_fsync=True)
        outcome = results.get()[1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _write_index(self, outcomes: list[Any]) -> str:
        """Rank 0's last files: where every tensor lies, Megatron's mark of a whole checkpoint, and the sums of all
        files. What went wrong, or ""."""
        failures = []
        results = []
        for rank, (failure, results_of_rank, sums) in enumerate(outcomes):
            results.append(results_of_rank)
            self.sums |= sums
            if failure:
                failures.append(f"rank {rank}: {failure}")
        if failures:
            return "; ".join(failures)
        try:
            self.writer.finish(self.metadata, results)
            save_config(CheckpointingConfig(_BACKEND, _VERSION), str(self.folder))
            for name in _INDEX_FILES:
                self._sum_up(name)
            write_sums(self.folder, self.sums)
        except _CANNOT_WRITE as error:
            return f"{type(error).__name__}: {error}"
        return ""


def _private_copies(buckets: Sequence[Any], live: Sequence[Tensor]) -> list[Any]:
    """Buckets whose tensors are on the host and share no memory with `live`."""
    in_use = {tensor.untyped_storage().data_ptr() for tensor in live}
    copies = []
    for path, key, (data, tensors) in buckets:
        private = []
        for item, tensor in tensors:
            # others were gathered for this save, or cut out of a larger storage by Megatron's planner
            if not tensor.is_cpu or tensor.untyped_storage().data_ptr() in in_use:
                tensor = host_like(tensor).copy_(tensor.detach(), non_blocking=True)
            private.append((item, tensor))
        copies.append((path, key, (data, private)))
    wait_for_copies()
    return copies
