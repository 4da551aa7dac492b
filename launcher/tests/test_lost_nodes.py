"""Nodes that are lost before Ray is up: the watch names them, and the job waits for that name."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest
from brorl_launcher.job import ray_watch

pytestmark = pytest.mark.slow

# As srun of Slurm 22.05 says it; it ends the step on the other nodes, too.
UNREACHED = "srun: error: Task launch for StepId=1.1 failed on node node1: Communication connection failure"
FAILED = "srun: error: Node failure on node1"
EXPAND = 'scontrol() { echo "$3"; }'  # `scontrol show hostnames node1`
JOB = Path(ray_watch.__file__).parent
DOCTOR = """
{expand}
source {job}/job_events.sh
source {job}/job_steps.sh
on() {{
  echo "asked $1" >&2
  if [[ $1 == *node1* ]]; then
    echo "{unreached}" >>"$logs/doctor.log"
    return 1
  else
    for node in ${{1//,/ }}; do echo '{{"ok": true}}' >"$BRORL_JOB_FOLDER/doctor/try_1/$node.json"; done
  fi
}}
BRORL_JOB_FOLDER={folder} logs={folder} try=1 BRORL_DOCTOR_S=60 BRORL_PORT_BASE=20000 BRORL_PYTHON=python
BRORL_SKIP_DOCTOR=0 BRORL_SPARES=1
container_make=() arguments=() allocated=(node0 node1 node2) num_nodes={num_nodes}
open_queue
choose_nodes
echo "$?|${{nodes[*]}}|${{bad_nodes[*]}}|$cause"
"""
WORKERS = """
{expand}
source {job}/job_events.sh
logs={logs} nodes=(node0 node1 node2)
echo "{unreached}" >"$logs/workers.log"
open_queue
echo "ended workers 233" >&"$queue"
await ready watch
echo "$?|$exit_code|${{bad_nodes[*]}}|$cause"
"""


@contextlib.contextmanager
def deaf_host() -> Iterator[int]:
    """A port of this machine that answers nobody, as a host without power does: its queue is full."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(server.getsockname())
        yield server.getsockname()[1]


def test_a_host_that_answers_nobody_is_told_from_one_where_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_watch, "PROBE_S", 0.2)
    with deaf_host() as port:
        assert ray_watch.unreachable_reason("127.0.0.1", port) == "timed out"
    assert ray_watch.unreachable_reason("127.0.0.1", port) == ""
    assert ray_watch.unreachable_reason("no-such-host.invalid", port) == ""


def test_a_node_that_is_lost_before_it_has_joined_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_watch, "PROBE_S", 0.2)
    monkeypatch.setattr(ray_watch, "KNOCK_S", 0.0)
    events: Queue[str] = Queue()
    with deaf_host() as port, ray_watch.HostProbes(["127.0.0.1"], port, events.put):
        event = events.get(timeout=60)
    assert event == "lost 127.0.0.1 does not answer (timed out), and has not joined Ray"


@pytest.mark.parametrize("said", [UNREACHED, FAILED])
def test_a_node_that_srun_cannot_start_ray_on_or_loses_is_named_and_left_out(tmp_path: Path, said: str) -> None:
    script = WORKERS.format(job=JOB, logs=tmp_path, unreached=said, expand=EXPAND)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    cause = f"node node1 does not answer srun; see {tmp_path}/workers.log"
    assert done.stdout.strip().split("|") == ["1", "1", "node1", cause]


def choose(folder: Path, num_nodes: int) -> tuple[list[str], list[str]]:
    """What the job has chosen of three nodes of which srun does not reach the second, and whom the doctor was asked
    about."""
    script = DOCTOR.format(job=JOB, folder=folder, unreached=UNREACHED, num_nodes=num_nodes, expand=EXPAND)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    asked = [line.removeprefix("asked ") for line in done.stderr.splitlines() if line.startswith("asked ")]
    return done.stdout.strip().split("|"), asked


def test_a_node_that_srun_does_not_reach_is_left_out_and_the_others_are_asked_again(tmp_path: Path) -> None:
    chosen, asked = choose(tmp_path, num_nodes=2)
    assert chosen == ["0", "node0 node2", "", ""]
    assert asked == ["node0,node1,node2", "node0,node2"]


def test_only_the_node_that_srun_does_not_reach_is_blamed_where_all_are_needed(tmp_path: Path) -> None:
    chosen, asked = choose(tmp_path, num_nodes=3)
    assert chosen == ["1", "", "node1", "3 nodes are needed, and the doctor has not passed node1"]
    assert asked == ["node0,node1,node2"]
