"""The nodes of a job among each other: fake nodes in threads, and two real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from brorl_launcher.doctor import job, rendezvous
from brorl_launcher.doctor.job import (
    CLOCK_FAIL_S,
    DoctorVerdict,
    JobCheckSettings,
    check_clock,
    check_same,
    examine_job,
    judge_sights,
)
from brorl_launcher.doctor.rendezvous import NodeRank
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check, NodeReport

from tests.support.ports import reserved_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _torch_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not loaded anew for every node in a thread."""
    monkeypatch.setattr(rendezvous, "torch_fault", lambda: "")


def run_nodes(
    ranks: Sequence[int], size: int, folders: Sequence[Path], looks: dict[int, Check] | None = None
) -> dict[int, DoctorVerdict]:
    """The verdicts of fake nodes, one thread each; `folders` is where each one's run folder is."""
    nodes, verdicts = tuple(f"node{rank}" for rank in range(size)), dict[int, DoctorVerdict]()

    def be(rank: int, port: int) -> None:
        check = (looks or {}).get(rank, Check("disk", OK, "enough"))
        wanted = JobCheckSettings(
            folders[rank] / "doctor", folders[rank] / "reports", num_gpus=0, rendezvous_s=2.0, all_reduce_s=0
        )
        this = NodeRank(rank, nodes, "127.0.0.1", port)
        verdicts[rank] = examine_job(this, wanted, lambda: NodeReport(nodes[rank], [check], {"torch": "2.13.0"}))

    with reserved_port() as port:
        threads = [threading.Thread(target=be, args=(rank, port), name=nodes[rank], daemon=True) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a node still waits"
    return verdicts


def status(report: NodeReport, name: str) -> str:
    return next(check.status for check in report.checks if check.name == name)


def test_nodes_that_are_in_order_agree_on_it(tmp_path: Path) -> None:
    verdicts = run_nodes(range(4), 4, [tmp_path] * 4)
    assert [verdict.is_ok for verdict in verdicts.values()] == [True] * 4
    assert [report.node for report in verdicts[0].reports] == ["node0", "node1", "node2", "node3"]
    assert [status(report, "clock") for report in verdicts[0].reports[1:]] == [OK] * 3
    assert not list((tmp_path / "doctor").iterdir())


def test_a_node_that_does_not_come_is_named_and_gets_a_report(tmp_path: Path) -> None:
    verdicts = run_nodes((0, 1), 3, [tmp_path] * 3)
    assert not verdicts[0].is_ok
    assert not verdicts[1].is_ok
    left = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "reports").glob("*.json")}
    assert {node: data["ok"] for node, data in left.items()} == {"node0": True, "node1": True, "node2": False}
    assert "node2 did not come" in left["node2"]["problems"][0]


def test_a_first_node_that_does_not_come_is_blamed_by_the_others(tmp_path: Path) -> None:
    verdicts = run_nodes((1,), 2, [tmp_path] * 2)
    assert not verdicts[1].is_ok
    assert json.loads((tmp_path / "reports" / "node0.json").read_text())["ok"] is False
    assert json.loads((tmp_path / "reports" / "node1.json").read_text())["ok"] is True


def test_a_node_that_cannot_reach_a_first_node_that_is_up_blames_itself(tmp_path: Path) -> None:
    (tmp_path / "doctor").mkdir()
    (tmp_path / "doctor" / "node0.word").write_text("up")
    verdicts = run_nodes((1,), 2, [tmp_path] * 2)
    assert [report.node for report in verdicts[1].reports if not report.is_ok] == ["node1"]
    os.utime(tmp_path / "doctor" / "node0.word", (1, 1))  # of an earlier try
    verdicts = run_nodes((1,), 2, [tmp_path] * 2)
    assert [report.node for report in verdicts[1].reports if not report.is_ok] == ["node0"]


def without_torch(monkeypatch: pytest.MonkeyPatch, node: str) -> None:
    """On one of the fake nodes torch does not load."""
    monkeypatch.setattr(
        rendezvous, "torch_fault", lambda: "ImportError" if threading.current_thread().name == node else ""
    )


def test_a_node_whose_torch_does_not_load_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_torch(monkeypatch, "node1")
    verdicts = run_nodes(range(3), 3, [tmp_path] * 3)
    assert [report.is_ok for report in verdicts[0].reports] == [True, False, True]
    assert "does not load on node1: ImportError" in verdicts[0].reports[1].problems[0]
    assert not verdicts[1].has_joined


def test_a_first_node_whose_torch_does_not_load_is_blamed_by_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_torch(monkeypatch, "node0")
    verdicts = run_nodes(range(2), 2, [tmp_path] * 2)
    assert [(report.node, report.is_ok) for report in verdicts[1].reports] == [("node0", False), ("node1", True)]
    assert "does not load on node0: ImportError" in verdicts[1].reports[0].problems[0]


def test_one_nodes_failure_refuses_the_job_on_every_node_and_blames_that_one(tmp_path: Path) -> None:
    verdicts = run_nodes(range(3), 3, [tmp_path] * 3, {1: Check("gpus", FAIL, "7 of 8", "look")})
    assert [verdict.is_ok for verdict in verdicts.values()] == [False] * 3
    assert [report.is_ok for report in verdicts[0].reports] == [True, False, True]
    assert json.loads((tmp_path / "reports" / "node1.json").read_text())["problems"] == ["gpus: 7 of 8; look"]


def test_a_node_with_another_run_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "EXCHANGE_S", 4.0)  # half of it the others' marks are waited for
    verdicts = run_nodes(range(3), 3, [tmp_path / "shared", tmp_path / "shared", tmp_path / "own"])
    assert [status(report, "shared folder") for report in verdicts[0].reports] == [OK, OK, FAIL]
    assert "is not the one of node0, node1" in verdicts[0].reports[2].problems[0]


def test_of_two_nodes_that_do_not_share_the_first_is_believed(tmp_path: Path) -> None:
    found = judge_sights(("a", "b"), {"a": ["a"], "b": ["b"]}, tmp_path)
    assert (found["a"].status, found["b"].status) == (OK, FAIL)


def test_a_first_node_apart_from_all_others_is_at_fault(tmp_path: Path) -> None:
    found = judge_sights(("a", "b", "c"), {"a": ["a"], "b": ["b", "c"], "c": ["b", "c"]}, tmp_path)
    assert {node: check.status for node, check in found.items()} == {"a": FAIL, "b": OK, "c": OK}


def test_the_node_with_other_packages_is_named() -> None:
    reports = [
        NodeReport(node, [], {"torch": version, "code": "x"})
        for node, version in (("a", "2.13.0"), ("b", "2.13.0"), ("c", "2.12.0"))
    ]
    check_same(reports)
    assert [report.is_ok for report in reports] == [True, True, False]
    assert reports[2].problems[0].startswith("same versions: torch 2.12.0, elsewhere 2.13.0")


def test_clocks_may_differ_by_a_second_and_refuse_from_half_a_minute_on() -> None:
    assert [check_clock(offset).status for offset in (0.9, -1.5, CLOCK_FAIL_S, -100.0)] == [OK, WARN, FAIL, FAIL]


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port(num_after=1) as held:  # the rendezvous, then the all-reduce
        yield held


def test_two_processes_meet_reduce_and_leave_their_reports(tmp_path: Path, port: int) -> None:
    arguments = [
        sys.executable,
        "-m",
        "nemo_brorl",
        "doctor",
        "--config-name",
        "sums_cpu",
        "--job",
        "--report",
        str(tmp_path / "reports"),
        "--all-reduce",
        "60",
    ]
    arguments += [
        "--address",
        f"127.0.0.1:{port}",
        f"exp_manager.explicit_log_dir={tmp_path / 'run'}",
        "sft.new.output=none",
        "policy.model=none",
    ]
    environment = {**os.environ, "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "node[0-1]", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    processes = [
        subprocess.Popen(
            arguments,
            cwd=ROOT,
            env={**environment, "SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"node{rank}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [process.communicate(timeout=300)[0] for process in processes]
    reports = [json.loads((tmp_path / "reports" / f"node{rank}.json").read_text()) for rank in range(2)]
    checks = [{check["name"]: check for check in report["checks"]} for report in reports]
    assert [found["all-reduce, job"]["status"] for found in checks] == [OK, OK], printed[0]
    assert "gloo over 2 ranks" in checks[1]["all-reduce, job"]["found"]
    assert [found["shared folder"]["status"] for found in checks] == [OK, OK]
    assert [process.returncode for process in processes] == [0, 0], printed[0]
    assert "ok: 2 nodes can run this" in printed[0]
    assert printed[1] == ""
