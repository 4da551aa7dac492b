"""Broadcast groups over Gloo, their members as threads of this process, and over a stand-in for NCCL.

What the stand-in cannot show: that NCCL's kernel ends when its group is aborted, and that torch's watchdog then leaves
the process alone.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from nemo_brorl.core.errors import ReceiverLostError, WeightSyncError
from nemo_brorl.types import WeightLink
from nemo_brorl.weights import broadcast_group, rendezvous

HOST = "127.0.0.1"


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Run them at the same time; a call's result is its exception if it raises one."""
    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(call) for call in calls]
        return [future.exception() or future.result() for future in futures]


def link_to(*receivers: str, workers: int = 1, timeout_s: float = 20.0) -> tuple[WeightLink, Any]:
    store = rendezvous.open_store(HOST)
    return WeightLink(HOST, store.port, receivers, workers, "gloo", timeout_s), store


def test_every_worker_gets_the_bytes_of_rank_0() -> None:
    link, store = link_to("engine 0", "engine 1", workers=2)
    buffers = [torch.arange(6, dtype=torch.uint8), *(torch.zeros(6, dtype=torch.uint8) for _ in range(4))]
    members = together(
        lambda: rendezvous.wait_for_receivers(link, store),
        *(
            lambda receiver=number // 2, worker=number % 2: rendezvous.join(link, receiver, worker)
            for number in range(4)
        ),
    )
    together(
        *(
            lambda member=member, buffer=buffer: member.broadcast(buffer)
            for member, buffer in zip(members, buffers, strict=True)
        )
    )
    assert [buffer.tolist() for buffer in buffers] == [[0, 1, 2, 3, 4, 5]] * 5


def test_everybody_who_came_learns_who_did_not() -> None:
    link, store = link_to("engine 0", "engine 1", "engine 2", timeout_s=0.5)
    outcomes = together(
        lambda: rendezvous.wait_for_receivers(link, store),
        lambda: rendezvous.join(link, 0, 0),
        lambda: rendezvous.join(link, 2, 0),
    )
    assert [type(outcome) for outcome in outcomes] == [ReceiverLostError] * 3
    assert {str(outcome) for outcome in outcomes} == {"engine 1 did not join the weight group within 0.5 s"}


def test_of_a_tensor_parallel_engine_the_worker_is_named() -> None:
    link, store = link_to("engine 0", workers=2, timeout_s=0.3)
    waiting, _ = together(lambda: rendezvous.wait_for_receivers(link, store), lambda: rendezvous.join(link, 0, 1))
    assert str(waiting) == "engine 0 worker 0 did not join the weight group within 0.3 s"


def test_a_sender_that_says_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_VERDICT_S", 0.1)
    link, _store = link_to("engine 0", timeout_s=0.3)
    with pytest.raises(WeightSyncError, match=r"policy rank 0 did not open the weight group within 0.3 s"):
        rendezvous.join(link, 0, 0)


class FakeNccl:
    """Group as `WeightGroup` uses torch's; members are there for the first `num_ends` broadcasts."""

    Options = type("Options", (), {})
    num_ends = 1
    handling = ""  # torch's way with errors when the last group was made

    def __init__(self, *unused: Any) -> None:
        self.num_broadcasts = 0
        self.is_aborted = False
        FakeNccl.handling = os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Any:
        self.num_broadcasts += 1
        return FakeWork(is_done=self.num_broadcasts <= self.num_ends)

    def abort(self) -> None:
        self.is_aborted = True


class FakeWork:
    """Kernel that has ended, or waits for ever: torch's `wait` returns at once either way."""

    def __init__(self, is_done: bool) -> None:
        self.is_done = is_done

    def is_completed(self) -> bool:
        return self.is_done

    def wait(self) -> None:
        pass


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> WeightLink:
    monkeypatch.setattr(broadcast_group.dist, "ProcessGroupNCCL", FakeNccl, raising=False)
    monkeypatch.setitem(broadcast_group._DEVICES, "nccl", "cpu")
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    return WeightLink(HOST, 0, ("engine 0",), 1, "nccl", 0.05)


def test_a_member_that_is_gone_does_not_hold_the_others_in_nccl(nccl: WeightLink) -> None:
    group = broadcast_group.WeightGroup(nccl, rendezvous.open_store(HOST), 0)
    with pytest.raises(RuntimeError, match=r"not ended within 0.05 s: a member is late or gone"):
        group.broadcast(torch.zeros(4, dtype=torch.uint8))
    assert group._group.is_aborted


def test_an_error_of_nccl_ends_the_weight_group_and_not_the_process(nccl: WeightLink) -> None:
    """Otherwise policy rank 0 would die with the engine; ranks keep what the job says for their own groups."""
    group = broadcast_group.WeightGroup(nccl, rendezvous.open_store(HOST), 0)
    assert FakeNccl.handling == "2"
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    group.close()
    assert group._group.is_aborted
