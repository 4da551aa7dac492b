"""Open one rank's process groups from a `ParallelLayout`, and close them without leaving anything behind."""

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

# Ranks import and come at their own pace. `trainer.start_timeout_s` limits the start as a whole.
STORE_TIMEOUT = timedelta(minutes=30)
# Longest wait of a rank for its peers in a collective. No work of one rank alone takes as long.
COLLECTIVE_TIMEOUT = timedelta(minutes=10)


def join_store(host: str, port: int, world_size: int) -> dist.TCPStore:
    """Connect to the TCP store at which all policy ranks meet.

    Rank 0 serves the store (`weights.rendezvous.open_store`).
    """
    return dist.TCPStore(host, port, world_size, is_master=False, timeout=STORE_TIMEOUT)


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
        timeout=COLLECTIVE_TIMEOUT,
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.expert_tensor,
        # Only the optimizer's checkpoints in host memory, which are unused, need these groups. Gloo would also need a
        # host name that resolves.
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(seed)


def weight_groups() -> RankGroups:
    """Return the process groups of ranks between which the model is split, for reading and sending its weights."""
    return RankGroups(
        tensor=parallel_state.get_tensor_model_parallel_group(),
        expert_tensor=parallel_state.get_expert_tensor_parallel_group(),
        experts=parallel_state.get_expert_model_parallel_group(),
        pipeline=parallel_state.get_pipeline_model_parallel_group(),
    )


def close_groups() -> None:
    """Leave all process groups of Megatron and torch.distributed."""
    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def this_host(is_single_node: bool) -> str:
    """Return the address at which other ranks reach this process: the IP address by which Ray knows the node.

    With a single node it is 127.0.0.1. The host's own name is no help, because it often resolves to 127.0.1.1.
    """
    if is_single_node:
        return "127.0.0.1"
    return ray.util.get_node_ip_address()


def choose_interface(address: str) -> None:
    """Make Gloo and NCCL listen on the network interface that has `address`, where the environment names none.

    By default Gloo looks up the host's name, and NCCL takes the first interface, which may be that of a machine's
    service processor.
    """
    for name, entries in psutil.net_if_addrs().items():
        if address in [entry.address for entry in entries]:
            for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(variable, name)
            return
