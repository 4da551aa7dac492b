"""Checkpoints through megatron.core.dist_checkpointing, in the format that any other parallel layout can load."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pickle
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.core import CheckpointingException
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.files import all_damage, read_sums, share
from nemo_brorl.policy.numerics.fp8_emulation import histories
from nemo_brorl.policy.state.background_save import BackgroundSave
from nemo_brorl.policy.state.optimizer import state_tensors
from nemo_brorl.policy.state.rank_state import RankState

_REFERENCE = "reference."
# Functions and classes that torch names in its index of a checkpoint, by module. None of them does more than hold data.
_INDEX_NAMES = {
    "collections": {"OrderedDict"},
    "torch": {"Size", "bfloat16", "float16", "float32", "float64", "int32", "int64", "uint8", "bool"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.planner": {"SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"},
    "torch.serialization": {"_get_layout"},
}
# The same of what Transformer Engine keeps beside a layer's weights: its recipe, and with the delayed one scales.
_SCALE_NAMES = {
    "collections": {"OrderedDict"},
    "megatron.core.extensions.transformer_engine": {"TEDelayedScaling"},
    "torch._utils": {"_rebuild_tensor_v2"},
    "torch.storage": {"_load_from_bytes"},
    "transformer_engine.common.recipe": {
        "DelayedScaling",
        "Float8BlockScaling",
        "Float8CurrentScaling",
        "Format",
        "MMParams",
        "QParams",
        "_FormatHelper",
    },
}
_DATA_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # torch.load then builds tensors and plain data, whoever calls it
# What Megatron, torch and pickle raise on files that are missing, cut short or overwritten.
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


def begin_save(rank: RankState, folder: Path, validate: bool) -> BackgroundSave:
    """Copy weights, optimizer and reference to the host and start writing them. Collective, as is `finish` of what it
    returns."""
    state = _sharded_state(rank, is_loading=False)
    live = list(_live_on_host(rank))
    return BackgroundSave(state, folder, live, validate)


def load(rank: RankState, folder: Path) -> None:
    """Continue from `save` under any layout. Collective. Runs no code that a file names, whoever wrote it. Raises
    CheckpointError."""
    if not (folder / "metadata.json").exists():
        raise CheckpointError(f"{folder} holds no policy checkpoint")
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
        model.load_state_dict(state[f"model{index}"])
    with torch.no_grad():  # fp32 parameters are views of leaves, filled in place
        rank.optimizer.load_state_dict(state["optimizer"])
    if rank.reference:
        for name, copy in rank.reference.copies.items():
            copy.copy_(state[_REFERENCE + name])


def check_files(folder: Path) -> None:
    """Look at every file's bytes, each rank at its share of the files. Collective. Raises CheckpointError on all ranks,
    which names what is damaged."""
    sums = read_sums(folder)
    mine = share(list(sums), dist.get_rank(), dist.get_world_size())
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, all_damage(folder, {name: sums[name] for name in mine}))
    damaged = sorted(itertools.chain.from_iterable(found))
    if damaged:
        raise CheckpointError(f"damaged since it was saved: {'; '.join(damaged)}")


class IndexReader(pickle.Unpickler):
    """Reader of torch's index of a checkpoint that knows the names of such an index and no others."""

    def find_class(self, module: str, name: str) -> Any:
        """Raises UnpicklingError for a name that no index has."""
        if name not in _INDEX_NAMES.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint does: it may be an attack")
        return super().find_class(module, name)


def check_index(path: Path) -> None:
    """Read torch's index of a checkpoint, which is a pickle, as `IndexReader` does: torch's own reader would call
    whatever it names. Raises UnpicklingError."""
    with path.open("rb") as file:
        IndexReader(file).load()


class ScaleReader(pickle.Unpickler):
    """Reader of one layer's `_extra_state`, in which a tensor is a pickle within the pickle."""

    def find_class(self, module: str, name: str) -> Any:
        """Raises UnpicklingError for a name that no layer of Transformer Engine writes."""
        if name not in _SCALE_NAMES.get(module, ()):
            raise pickle.UnpicklingError(f"a layer's scales name {module}.{name}, which none do: it may be an attack")
        if name == "_load_from_bytes":
            return _read_storage
        return super().find_class(module, name)


def _read_storage(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


def check_scales(state: Mapping[str, Any], plain: Collection[str]) -> None:
    """Read what a model's layers are about to unpickle, as `ScaleReader` does: Transformer Engine 2.11 calls whatever a
    `_extra_state` names, FP8 or not. `plain`: names whose layers take them as numbers. Raises UnpicklingError."""
    for name, value in state.items():
        is_unpickled = "._extra_state" in name and name not in plain
        if is_unpickled and isinstance(value, Tensor) and value.numel():
            ScaleReader(io.BytesIO(value.cpu().numpy().tobytes())).load()


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
    """Tensors that the next steps change in place."""
    for model in rank.models:
        yield from model.parameters()
        yield from model.buffers()
    yield from state_tensors(rank.optimizer)
    if rank.reference:
        yield from rank.reference.copies.values()


def metadata() -> dict[str, Any]:
    """How Megatron is to lay a checkpoint out, for `sharded_state_dict`: the same under every layout."""
    return {
        "distrib_optim_sharding_type": "fully_reshardable",
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "chained_optim_avoid_prefix": True,  # experts have an optimizer of their own, and not on every pipeline stage
    }


def _sharded_state(rank: RankState, is_loading: bool) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for index, model in enumerate(rank.models):
        state[f"model{index}"] = model.sharded_state_dict(metadata=metadata())
    models = dict(state)
    if len(rank.models) == 1:
        models = {"model": state["model0"]}
    state["optimizer"] = rank.optimizer.sharded_state_dict(models, is_loading, metadata=metadata())
    if rank.reference:
        state |= _reference_state(rank)
    return state


def _reference_state(rank: RankState) -> dict[str, Any]:
    """The model's sharded tensors under other names, holding the reference's copies."""
    assert rank.reference is not None
    state = {}
    for index, model in enumerate(rank.models):
        sharded = model.sharded_state_dict(prefix=_REFERENCE, metadata=metadata())
        for name, _ in model.named_parameters():
            tensor = sharded[_REFERENCE + name]
            key = f"chunk{index}.{name}"
            tensor.data = rank.reference.copies[key]
            state[_REFERENCE + key] = tensor
    return state
