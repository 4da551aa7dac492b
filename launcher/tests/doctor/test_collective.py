"""What the results of an all-reduce's ranks say about nodes and network: made-up results, no ranks."""

from __future__ import annotations

from typing import Any

import pytest
from brorl_launcher.doctor import collective
from brorl_launcher.doctor.collective import GLOBAL, LOCAL, NO_GPU, NodeRank, Ring
from brorl_launcher.doctor.probe import ProbeResult
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check


def judged(monkeypatch: pytest.MonkeyPatch, data: dict[str, Any], nodes: int = 2, has_gpus: bool = True) -> Check:
    def run(ring: Ring, node: int, seconds: float) -> list[ProbeResult]:
        return [ProbeResult(data, "")] * ring.per_node

    monkeypatch.setattr(collective, "_run", run)
    names = tuple(f"node{number}" for number in range(nodes))
    this, num_gpus = NodeRank(0, names), 8 if has_gpus else 0
    if nodes == 1:
        return collective.check_node(this, num_gpus, 1.0)
    return collective.check_job(this, names, num_gpus, 1.0)


def test_a_network_below_ten_gib_a_second_is_a_warning_on_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = judged(monkeypatch, {"gib_per_s": 2.5})
    assert (slow.name, slow.status, "2.5 GiB/s a rank" in slow.found) == (GLOBAL, WARN, True)
    assert "NET/Socket" in slow.advice
    assert judged(monkeypatch, {"gib_per_s": 10.5}).status == OK
    assert judged(monkeypatch, {"gib_per_s": 2.5}, has_gpus=False).status == OK
    assert judged(monkeypatch, {"gib_per_s": 2.5}, nodes=1).status == OK


def test_a_node_is_not_blamed_for_a_process_that_came_late(monkeypatch: pytest.MonkeyPatch) -> None:
    for nodes in (1, 2):
        late = judged(monkeypatch, {"absent": [7]}, nodes=nodes)
        assert (late.status, late.is_shared) == (FAIL, True)


def test_without_a_gpu_the_row_of_the_all_reduce_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    check = judged(monkeypatch, {"error": NO_GPU, "is_mine": True}, nodes=1)
    assert (check.name, check.status, check.is_shared) == (LOCAL, FAIL, False)
    assert NO_GPU in check.found and check.advice == "look at the row gpus"


def test_a_rank_on_a_torch_without_gpus_says_so() -> None:
    with pytest.raises(ValueError, match=NO_GPU):
        collective._device({"backend": "nccl", "device": 0})
