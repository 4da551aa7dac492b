"""NCCL: what one GPU can show of it, and the broadcast of weights where there are two."""

from __future__ import annotations

import multiprocessing as mp
from typing import Any

import pytest
import torch

from nemo_brorl.types import WeightLink

pytestmark = pytest.mark.gpu


def test_the_ranks_collectives_run_on_the_gpu(gpu_device: Any) -> None:
    import torch.distributed as dist

    assert dist.get_backend() == "nccl"
    tensor = torch.arange(4.0, device="cuda")
    dist.all_reduce(tensor)
    gathered = torch.empty(4, device="cuda")
    dist.all_gather_into_tensor(gathered, tensor)
    assert gathered.tolist() == [0, 1, 2, 3]
    every: list[Any] = [None]
    dist.all_gather_object(every, {"a": 1})
    assert every == [{"a": 1}]


def test_a_weight_group_of_one_broadcasts(gpu_device: Any) -> None:
    from nemo_brorl.weights.broadcast_group import WeightGroup
    from nemo_brorl.weights.rendezvous import open_store

    store = open_store("127.0.0.1")
    group = WeightGroup(WeightLink("127.0.0.1", store.port, (), 1, "nccl", 60.0), store, 0)
    flat = torch.arange(100, dtype=torch.uint8, device="cuda")
    group.broadcast(flat)
    assert flat.tolist() == list(range(100))


def receive(link: WeightLink, answers: Any) -> None:
    """Another process on the second GPU."""
    from nemo_brorl.weights.rendezvous import join

    torch.cuda.set_device(1)
    group = join(link, 0, 0)
    flat = torch.zeros(1000, dtype=torch.uint8, device="cuda:1")
    group.broadcast(flat)
    answers.put(flat.cpu().tolist())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL takes one process a GPU, and this machine has one")
def test_weights_arrive_on_another_gpu(gpu_device: Any) -> None:
    from nemo_brorl.weights.rendezvous import open_store, wait_for_receivers

    store = open_store("127.0.0.1")
    link = WeightLink("127.0.0.1", store.port, ("engine 0",), 1, "nccl", 60.0)
    context = mp.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=receive, args=(link, answers))
    process.start()
    flat = (torch.arange(1000, device="cuda") % 251).to(torch.uint8)
    wait_for_receivers(link, store).broadcast(flat)
    assert answers.get(timeout=120) == flat.tolist()
    process.join(timeout=60)
