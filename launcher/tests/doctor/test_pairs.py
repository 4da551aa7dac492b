"""Who is at fault when all nodes together fail: worked out by hand, and by fake nodes in step."""

from __future__ import annotations

import socket
import threading

import pytest
from brorl_launcher.doctor import rendezvous
from brorl_launcher.doctor.collective import Pair, find_fault, nodes_at_fault, pair_rounds, with_blame
from brorl_launcher.doctor.rendezvous import NodeRank, join_rendezvous
from brorl_launcher.doctor.report import FAIL, OK, Check, NodeReport

FAILED = Check("all-reduce, job", FAIL, "nccl over 32 ranks: timed out", "", is_shared=True)


@pytest.mark.parametrize("num", [3, 4, 5, 8])
def test_every_neighbourhood_is_tried_once_and_nobody_twice_at_a_time(num: int) -> None:
    nodes = [str(index) for index in range(num)]
    tried = [pair for edges in pair_rounds(nodes) for pair in edges]
    assert sorted(tried) == sorted((node, nodes[(index + 1) % num]) for index, node in enumerate(nodes))
    for edges in pair_rounds(nodes):
        members = [node for pair in edges for node in pair]
        assert len(members) == len(set(members))


def test_who_fails_with_both_neighbours_is_at_fault_unless_all_do() -> None:
    pairs = {("a", "b"): False, ("b", "c"): False, ("c", "d"): True, ("d", "a"): True}
    assert nodes_at_fault("abcd", pairs) == ["b"]
    assert nodes_at_fault("abcd", pairs | {("c", "d"): False}) == ["b", "c"]
    assert nodes_at_fault("abcd", dict.fromkeys(pairs, False)) == []
    assert nodes_at_fault("abcd", dict.fromkeys(pairs, True)) == []


def test_the_one_at_fault_is_refused_and_the_others_are_not() -> None:
    reports = {node: NodeReport(node, [with_blame(FAILED, node, ["b"])]) for node in "ab"}
    assert (reports["a"].is_ok, reports["b"].is_ok) == (True, False)
    assert "at fault: b" in reports["a"].checks[0].found
    assert NodeReport("a", [with_blame(FAILED, "a", [])]).is_ok


def test_nodes_in_step_agree_on_who_is_at_fault_and_others_only_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "torch_fault", lambda: "")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    nodes, found = tuple("abcdex"), dict[str, list[str]]()

    def try_pair(between: NodeRank, pair: Pair) -> Check:
        assert between.node in pair and between.address == "127.0.0.1"
        return Check("pair", FAIL if "c" in pair else OK, "")

    def be(rank: int) -> None:
        this = NodeRank(rank, nodes, "127.0.0.1", port)
        with join_rendezvous(this, 20) as together:
            found[this.node] = find_fault(this, together, "abcde", try_pair, 20)

    threads = [threading.Thread(target=be, args=(rank,), daemon=True) for rank in range(len(nodes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a node still waits"
    assert found == {node: ["c"] for node in nodes}
