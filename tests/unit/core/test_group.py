"""Broadcast groups over Gloo, their members as threads of this process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from nemo_brorl.core.errors import ReceiverLostError, WeightSyncError
from nemo_brorl.core.weight_wire import broadcast_group
from nemo_brorl.types import WeightLink

HOST = "127.0.0.1"


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Run them at the same time; a call's result is its exception if it raises one."""
    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(call) for call in calls]
        return [future.exception() or future.result() for future in futures]


def link_to(*receivers: str, workers: int = 1, timeout_s: float = 20.0) -> tuple[WeightLink, Any]:
    store = broadcast_group.open_store(HOST)
    return WeightLink(HOST, store.port, receivers, workers, "gloo", timeout_s), store


def test_every_worker_gets_the_bytes_of_rank_0() -> None:
    link, store = link_to("engine 0", "engine 1", workers=2)
    buffers = [torch.arange(6, dtype=torch.uint8), *(torch.zeros(6, dtype=torch.uint8) for _ in range(4))]
    members = together(
        lambda: broadcast_group.wait_for_receivers(link, store),
        *(
            lambda receiver=number // 2, worker=number % 2: broadcast_group.join(link, receiver, worker)
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
        lambda: broadcast_group.wait_for_receivers(link, store),
        lambda: broadcast_group.join(link, 0, 0),
        lambda: broadcast_group.join(link, 2, 0),
    )
    assert [type(outcome) for outcome in outcomes] == [ReceiverLostError] * 3
    assert {str(outcome) for outcome in outcomes} == {"engine 1 did not join the weight group within 0.5 s"}


def test_of_a_tensor_parallel_engine_the_worker_is_named() -> None:
    link, store = link_to("engine 0", workers=2, timeout_s=0.3)
    waiting, _ = together(
        lambda: broadcast_group.wait_for_receivers(link, store), lambda: broadcast_group.join(link, 0, 1)
    )
    assert str(waiting) == "engine 0 worker 0 did not join the weight group within 0.3 s"


def test_a_sender_that_says_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast_group, "_VERDICT_S", 0.1)
    link, _store = link_to("engine 0", timeout_s=0.3)
    with pytest.raises(WeightSyncError, match=r"policy rank 0 did not open the weight group within 0.3 s"):
        broadcast_group.join(link, 0, 0)
