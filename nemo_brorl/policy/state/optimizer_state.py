"""Save the distributed optimizer's state as whole tensors, shaped like the parameters and copied to the host once.

The format is Megatron's fully reshardable one, which its own code loads. Megatron 0.16.1 gets there by filling zeroed
buffers with the shards, gathering these on every data-parallel rank into more zeroed buffers, and joining and copying
them again. That is some six passes over the memory while training waits. Here a shard that is a whole parameter is
copied once. Others are gathered bucket by bucket and copied only on the rank that writes them. All data-parallel ranks
write, each its part of the parameters. In Megatron only the first one writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory, is_main_replica
from megatron.core.dist_checkpointing.utils import extract_sharded_tensors_and_factories
from megatron.core.optimizer import MegatronOptimizer
from torch import Tensor

from nemo_brorl.core.torch_device import host_like, wait_for_copies
from nemo_brorl.policy.adapters.megatron_adapter import optimizer_states

_KEYS = ("param", "exp_avg", "exp_avg_sq")
_PREFIX = "optimizer.state"  # Megatron's prefix of keys


def copy_state_once(optimizer: MegatronOptimizer) -> None:
    """Make checkpoints save this optimizer's state as whole tensors that are copied to the host once.

    It replaces the method of Megatron behind `optimizer.sharded_state_dict`.
    """
    for part in optimizer.chained_optimizers:
        megatrons = part.sharded_param_state_fully_reshardable
        part.sharded_param_state_fully_reshardable = partial(_sharded_state, part, megatrons)


def _sharded_state(
    part: Any,
    megatrons: Any,
    model_state: dict[str, Any],
    is_loading: bool,
    metadata: Mapping[str, Any],
) -> dict[int, dict[str, Any]]:
    """Return each parameter's optimizer state for a checkpoint, by its number in the order of the gradient buffers.

    Megatron numbers parameters in this way too.
    """
    if is_loading:
        return megatrons(model_state, is_loading, metadata)
    model_entries, _ = extract_sharded_tensors_and_factories(model_state)
    sharded = {entry.data: entry for entry in nested_values(model_entries)}
    state: dict[int, dict[str, Any]] = {}
    num_ranks = part.data_parallel_group.size()
    loads = [0] * num_ranks
    for number, buffer in enumerate(part.buffers):
        for param in buffer.param_index_map:
            writer = least_loaded(loads, param.numel())
            sharded[param] = _written_by(sharded[param], writer, num_ranks)
        whole: dict[tuple[Tensor, str], Tensor] = {}
        for param, key, flat in _flat_states(part, number):
            if is_main_replica(sharded[param].replica_id):
                whole[param, key] = _on_host(flat).view(param.shape)
            else:
                whole[param, key] = _nothing(flat).expand(param.shape)
        for param in buffer.param_index_map:
            entries = {}
            for key in _KEYS:
                entries[key] = _entry(sharded[param], key, whole[param, key])
            state[len(state)] = entries
    wait_for_copies()
    return state


def least_loaded(loads: list[int], size: int) -> int:
    """Return the rank that has the least to write to a checkpoint so far, and add `size` to its load.

    All ranks get the same result.
    """
    rank = loads.index(min(loads))
    loads[rank] += size
    return rank


def _written_by(sharded: Any, writer: int, num_ranks: int) -> Any:
    """Return a parameter's checkpoint entry, whose main replica is now on data-parallel rank `writer`.

    Megatron numbers replicas by pipeline, tensor and data rank, and the replica (0, 0, 0) writes.
    """
    pipeline, tensor, data = sharded.replica_id
    turned = (data - writer) % num_ranks
    return replace(sharded, replica_id=(pipeline, tensor, turned))


def _flat_states(part: Any, number: int) -> Iterator[tuple[Tensor, str, Tensor]]:
    """Yield (parameter, key, optimizer state [numel] on the device) for every parameter of a gradient buffer.

    The key is param, exp_avg or exp_avg_sq. A yielded state is overwritten later.
    """
    (ranges,) = part.gbuf_ranges[number].values()
    group = part.data_parallel_group
    buffer = part.buffers[number]
    for bucket, bucket_ranges in zip(buffer.buckets, ranges, strict=True):
        if group.size() == 1:
            yield from _own_states(part, bucket_ranges["param_map"])
            continue
        for key in _KEYS:
            gathered = _gather(part, bucket, bucket_ranges["param_map"], key)
            for param in bucket.params_list:
                start, end, _ = buffer.param_index_map[param]
                start -= bucket.offset
                end -= bucket.offset
                yield param, key, gathered[start:end]


def _own_states(part: Any, params: Iterable[Tensor]) -> Iterator[tuple[Tensor, str, Tensor]]:
    """Yield (parameter, key, optimizer state) for the parameters whose whole optimizer state is on this rank."""
    for param in params:
        states = optimizer_states(part, param)
        for key in _KEYS:
            yield param, key, states[key]


def _gather(
    part: Any,
    bucket: Any,
    param_map: Mapping[Tensor, Any],
    key: str,
) -> Tensor:
    """Return one kind of optimizer state of a gradient bucket, [numel], from the shards of all data-parallel ranks.

    `key` is the kind: param, exp_avg or exp_avg_sq. Collective.
    """
    group = part.data_parallel_group
    size = bucket.grad_data.numel()
    device = bucket.grad_data.device
    gathered = torch.empty(size, dtype=torch.float32, device=device)
    shard_size = size // group.size()
    shard = torch.zeros(shard_size, dtype=torch.float32, device=device)
    for param, places in param_map.items():
        states = optimizer_states(part, param)
        place = places["gbuf_local"]
        shard[place.start : place.end] = states[key].detach()
    dist.all_gather_into_tensor(gathered, shard, group=group)
    return gathered


def _on_host(flat: Tensor) -> Tensor:
    return host_like(flat).copy_(flat.detach(), non_blocking=True)


def _nothing(flat: Tensor) -> Tensor:
    """Return a placeholder with the state's dtype and one element for optimizer state that another rank writes."""
    return torch.empty(1, dtype=flat.dtype)


def _entry(sharded: Any, key: str, state: Tensor) -> Any:
    changes: dict[str, Any] = {"key": f"{_PREFIX}.{key}.{sharded.key}", "data": state}
    if not isinstance(sharded, ShardedTensorFactory):
        changes["dtype"] = state.dtype
    entry = replace(sharded, **changes)
    entry.validate_metadata_integrity()
    return entry
