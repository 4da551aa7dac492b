"""Process groups of one rank: opened from a `ParallelLayout`, closed without leaving anything behind."""

from __future__ import annotations

import os
from datetime import timedelta

import psutil
import ray
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.policy.process.device import Device
from nemo_brorl.weights.shares import RankGroups

TIMEOUT = timedelta(minutes=30)


def join_store(host: str, port: int, world_size: int) -> dist.TCPStore:
    """Meeting point of all ranks (`weights.rendezvous.open_store`), as seen by those that do not serve it."""
    return dist.TCPStore(host, port, world_size, is_master=False, timeout=TIMEOUT)


def open_groups(
    layout: ParallelLayout,
    rank: int,
    store: dist.Store,
    device: Device,
    seed: int,
) -> None:
    """Join all process groups of Megatron and seed its random-number tracker. Waits for every rank."""
    os.environ["RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(layout.world_size)
    os.environ["LOCAL_RANK"] = "0"
    dist.init_process_group(
        device.backend,
        store=store,
        rank=rank,
        world_size=layout.world_size,
        timeout=TIMEOUT,
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.expert_tensor,
        # for the optimizer's checkpoints in host memory, which are not used; Gloo wants a host name that resolves
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(seed)


def weight_groups() -> RankGroups:
    """Return the groups between which the model is split, as reading and sending its weights needs them."""
    return RankGroups(
        tensor=parallel_state.get_tensor_model_parallel_group(),
        expert_tensor=parallel_state.get_expert_tensor_parallel_group(),
        experts=parallel_state.get_expert_model_parallel_group(),
        pipeline=parallel_state.get_pipeline_model_parallel_group(),
    )


def close_groups() -> None:
    """Leave all process groups."""
    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def this_host(is_single_node: bool) -> str:
    """The address other ranks reach this one by: the one that Ray's nodes know each other by. A host's own name is no
    help, it often stands for 127.0.1.1."""
    if is_single_node:
        return "127.0.0.1"
    return ray.util.get_node_ip_address()


def choose_interface(address: str) -> None:
    """Have Gloo listen where others reach this node; it would look its name up. What the environment says goes
    before."""
    for name, entries in psutil.net_if_addrs().items():
        if address in [entry.address for entry in entries]:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            return
