"""Rank and names of nodes as Slurm has them, and how nodes meet: fake nodes in threads."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from brorl_launcher.doctor import rendezvous
from brorl_launcher.doctor.rendezvous import NodeRank, expand_node_list, join_rendezvous, rank_in_job, torch_fault

from nemo_brorl.core.errors import ConfigError, ResourceError
from tests.support.ports import reserved_port

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("node3", ["node3"]),
        ("gpu[01-03,7]", ["gpu01", "gpu02", "gpu03", "gpu7"]),
        ("a[0-1]-ib,login", ["a0-ib", "a1-ib", "login"]),
        ("r[0-1]n[8-9]", ["r0n8", "r0n9", "r1n8", "r1n9"]),
    ],
)
def test_slurms_lists_of_nodes_are_read(written: str, names: list[str]) -> None:
    assert list(expand_node_list(written)) == names


@pytest.mark.parametrize("written", ["a[0-", "a[x-3]", "a]b", "a,,b"])
def test_what_is_no_list_of_nodes_is_refused(written: str) -> None:
    with pytest.raises(ConfigError):
        list(expand_node_list(written))


def test_outside_of_a_step_the_doctor_says_how_to_call_it() -> None:
    with pytest.raises(ConfigError, match="srun --ntasks-per-node=1"):
        rank_in_job({})


def test_two_tasks_on_one_node_are_refused() -> None:
    with pytest.raises(ConfigError, match="task 0 of 2 runs on 1 nodes"):
        rank_in_job({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "node0"})


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ImportError('libcudart.so.13 is missing')", "exit code 1: ImportError: libcudart.so.13 is missing"),
        ("import time; time.sleep(600)", "no answer within 2 s"),
    ],
)
def test_a_torch_that_does_not_load_is_known_even_where_it_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    (tmp_path / "torch.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(":")]))
    monkeypatch.setattr(rendezvous, "TORCH_S", 2.0 if "sleep" in source else 60.0)
    assert torch_fault() == reason


def test_a_node_that_sends_too_late_is_left_out_and_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "torch_fault", lambda: "")
    nodes = ("a", "b", "c")
    found: dict[int, list[dict[int, str]]] = {}
    errors = {}
    has_heard = threading.Event()

    def be(rank: int, port: int) -> None:
        with join_rendezvous(NodeRank(rank, nodes, "127.0.0.1", port), 20) as together:
            found[rank] = [together.exchange(nodes[rank], 20)]
            if rank == 2:
                time.sleep(1.5)
            try:
                found[rank] += [together.exchange(number, 0.5) for number in range(2)]
            except ResourceError as error:
                errors[rank] = str(error)
                has_heard.set()
            has_heard.wait(20)

    with reserved_port() as port:
        threads = [threading.Thread(target=be, args=(rank, port), daemon=True) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a node still waits"
    everyone = {0: "a", 1: "b", 2: "c"}
    assert found[0] == found[1] == [everyone, {0: 0, 1: 0}, {0: 1, 1: 1}]
    assert found[2] == [everyone]
    assert errors == {2: "c was too late in the middle of the checks, and left out"}
