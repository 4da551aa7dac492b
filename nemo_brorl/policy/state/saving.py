"""Save and load checkpoints through megatron.core.dist_checkpointing, in a format that any parallel layout can load.

A thread writes the files while the rank continues to train. Megatron's own asynchronous save forks a writer process. A
rank is a Ray actor with gRPC and Gloo threads, which a fork may catch holding a lock. Megatron's manager process also
outlives a rank that is killed. So Megatron only plans here, and a thread writes the planned buckets with Megatron's own
file writer. Writing and fsync release the interpreter lock. `finish` joins the results. Nothing touches a file before
the thread runs, so a full disk never leaves some ranks waiting inside a collective.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pickle
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingConfig, CheckpointingException, save_config
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies.common import COMMON_STATE_FNAME
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException
from torch.serialization import set_crc32_options

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.file_sums import FileSum, all_damage, file_sum, read_sums, share_of, write_sums
from nemo_brorl.core.torch_device import host_like, wait_for_copies
from nemo_brorl.policy.adapters.megatron_adapter import SavePlan, keep_results_in_process
from nemo_brorl.policy.cpu.fp8_emulation import histories
from nemo_brorl.policy.state.checkpoint_pickles import check_index, check_scales
from nemo_brorl.policy.state.optimizer import state_tensors
from nemo_brorl.policy.state.rank_state import RankState
from nemo_brorl.policy.state.reference import ReferenceWeights

_BACKEND, _VERSION = "torch_dist", 1
_INDEX_FILES = (".metadata", "metadata.json")  # index files of torch and of Megatron
_CANNOT_WRITE = (OSError, RuntimeError)  # torch's zip writer raises RuntimeError for a full disk

_DATA_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # variable that makes every torch.load read only tensors and plain data
# Errors that Megatron, torch and pickle raise for files that are missing, cut short or overwritten.
_UNREADABLE = (
    CheckpointingException,
    CheckpointException,
    OSError,
    EOFError,
    KeyError,
    ValueError,
    AssertionError,
    RuntimeError,
    pickle.UnpicklingError,
)


class BackgroundSave:
    """One checkpoint save on one rank: the constructor plans it, a thread writes it, and `finish` completes it."""

    def __init__(
        self,
        sharded_state: dict[str, Any],
        folder: Path,
        live: Sequence[Tensor],
        validate: bool,
    ) -> None:
        """Plan the save of a checkpoint and start to write its files.

        Collective. Returns once the state has been copied to host memory that nothing else writes to. `live` are the
        host tensors that training changes in place. `validate` checks across ranks that the shards of every tensor
        cover it exactly once.
        """
        keep_results_in_process()
        self.folder = folder
        sharded, common = save_preprocess(sharded_state, validate)
        self.writer, self.metadata = SavePlan(_BACKEND, _VERSION).async_save(sharded, folder)
        self.buckets = _private_copies(self.writer.write_buckets, live)
        # The common state is pickled now, because training may change it as soon as this returns.
        self.common = io.BytesIO()
        torch.save(common, self.common)
        self.results: list[Any] = []
        self.sums: dict[str, FileSum] = {}  # checksums of this rank's files by name
        self.failure = "its writer ended without a result"
        self.seconds = 0.0
        self.thread = threading.Thread(
            target=self._write,
            name="checkpoint writer",
            daemon=True,
        )
        self.thread.start()

    def is_written(self) -> bool:
        """Return whether this rank's checkpoint files have been written, or have failed."""
        return not self.thread.is_alive()

    def finish(self) -> float:
        """Wait for all files of a checkpoint, write its index, and return the seconds of writing on this rank.

        Collective. Raises CheckpointError on every rank when the files of any rank could not be written.
        """
        self.thread.join()
        outcomes: list[Any] | None = None
        if dist.get_rank() == 0:
            outcomes = [None] * dist.get_world_size()
        # A rank that failed comes here too, because the others wait for it in this collective.
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
        # Torch never checks these checksums when it loads, and they would take half of the processor time.
        set_crc32_options(False)
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
        """Compute the checksum of a checkpoint file that was just written, from the page cache instead of the disk."""
        self.sums[name] = file_sum(self.folder / name)

    def _write_bucket(self, number: int, bucket: Any) -> list[Any]:
        """Write one checkpoint file through Megatron's writer, and raise the error if the writer returns one."""
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
        """Write a checkpoint's last files on rank 0, and return an error text, or "" without an error.

        These files are the index of all tensors, Megatron's mark of a complete checkpoint, and the checksums of all
        files.
        """
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
    """Return what Megatron will write to a checkpoint, with tensors in host memory that `live` tensors do not share.

    `live` are the tensors that training changes in place.
    """
    in_use = {tensor.untyped_storage().data_ptr() for tensor in live}
    copies = []
    for path, key, (data, tensors) in buckets:
        private = []
        for item, tensor in tensors:
            # Other tensors were gathered for this save, or Megatron's planner cut them out of a larger storage.
            if not tensor.is_cpu or tensor.untyped_storage().data_ptr() in in_use:
                tensor = host_like(tensor).copy_(tensor.detach(), non_blocking=True)
            private.append((item, tensor))
        copies.append((path, key, (data, private)))
    wait_for_copies()
    return copies


def begin_save(rank: RankState, folder: Path, validate: bool) -> BackgroundSave:
    """Copy weights, optimizer state and KL reference to the host, and start to write them as a checkpoint.

    Collective. The method `finish` of the returned save is collective too.
    """
    state = _sharded_state(rank, is_loading=False)
    live = list(_live_on_host(rank))
    return BackgroundSave(state, folder, live, validate)


def load(rank: RankState, folder: Path) -> None:
    """Load weights, optimizer state and KL reference from a checkpoint that was saved under any parallel layout.

    Collective. It runs no code that a checkpoint file names, so files of strangers are safe. Raises CheckpointError for
    a checkpoint that cannot be read, and then has changed nothing.
    """
    if not (folder / "metadata.json").exists():
        raise CheckpointError(f"{folder} holds no policy checkpoint")
    # Checksums come first, so that a damaged pickle is reported as damaged, not as a reader's error.
    check_files(folder)
    try:
        check_index(folder / ".metadata")
        with _data_only():
            state = dist_checkpointing.load(_sharded_state(rank, is_loading=True), str(folder))
        for index, model in enumerate(rank.models):
            check_scales(state[f"model{index}"], plain=histories(model))
    except _UNREADABLE as error:
        raise CheckpointError(f"the policy checkpoint in {folder} cannot be read: {error}") from error
    for index, model in enumerate(rank.models):
        # Nothing is changed before this line, and everything unreadable has raised by now.
        model.load_state_dict(state[f"model{index}"])
    # fp32 parameters are views of leaves that are filled in place, which autograd forbids.
    with torch.no_grad():
        rank.optimizer.load_state_dict(state["optimizer"])
    for prefix, reference in _references(rank):
        for name, copy in reference.copies.items():
            copy.copy_(state[prefix + name])


def check_files(folder: Path) -> None:
    """Check the checksum of every file of a checkpoint, each rank a share of the files. Collective.

    Raises CheckpointError on all ranks, naming the damaged files.
    """
    sums = read_sums(folder)
    own_files = share_of(list(sums), dist.get_rank(), dist.get_world_size())
    damage_by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(damage_by_rank, all_damage(folder, {name: sums[name] for name in own_files}))
    damaged = sorted(itertools.chain.from_iterable(damage_by_rank))
    if damaged:
        raise CheckpointError(f"damaged since it was saved: {'; '.join(damaged)}")


@contextlib.contextmanager
def _data_only() -> Iterator[None]:
    before = os.environ.get(_DATA_ONLY)
    os.environ[_DATA_ONLY] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_DATA_ONLY]
        else:
            os.environ[_DATA_ONLY] = before


def _live_on_host(rank: RankState) -> Iterator[Tensor]:
    """Yield the weights, optimizer state and KL reference of a rank, which the next training steps change in place."""
    for model in rank.models:
        yield from model.parameters()
        yield from model.buffers()
    yield from state_tensors(rank.optimizer)
    for reference in rank.references:
        yield from reference.copies.values()


def metadata() -> dict[str, Any]:
    """Return Megatron's options for the layout of a checkpoint, the same for every parallel layout."""
    return {
        "distrib_optim_sharding_type": "fully_reshardable",
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "chained_optim_avoid_prefix": True,  # experts have their own optimizer, which some pipeline stages lack
    }


def _sharded_state(rank: RankState, is_loading: bool) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for index, model in enumerate(rank.models):
        state[f"model{index}"] = model.sharded_state_dict(metadata=metadata())
    models = dict(state)
    if len(rank.models) == 1:
        models = {"model": state["model0"]}
    state["optimizer"] = rank.optimizer.sharded_state_dict(models, is_loading, metadata=metadata())
    for prefix, reference in _references(rank):
        state |= _reference_state(rank, prefix, reference)
    return state


def _references(rank: RankState) -> list[tuple[str, ReferenceWeights]]:
    """Return the references, each with the prefix of its tensors in a checkpoint: reference, reference1, and so on."""
    return [(f"reference{number or ''}.", reference) for number, reference in enumerate(rank.references)]


def _reference_state(rank: RankState, prefix: str, reference: ReferenceWeights) -> dict[str, Any]:
    """Return the weights of a reference as sharded tensors for a checkpoint, whose names start with `prefix`."""
    state = {}
    for index, model in enumerate(rank.models):
        sharded = model.sharded_state_dict(prefix=prefix, metadata=metadata())
        for name, _ in model.named_parameters():
            tensor = sharded[prefix + name]
            key = f"chunk{index}.{name}"
            tensor.data = reference.copies[key]
            state[prefix + key] = tensor
    return state
