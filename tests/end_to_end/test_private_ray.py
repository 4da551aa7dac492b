"""Ray as we start it serves nobody else, neither who has no token nor another user of the machine, and its processes
have one heap each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

RUN = """
import os, sys
import psutil
import ray
from nemo_brorl.cluster.ray_cluster import RayCluster
from nemo_brorl.config.load import load_config
trainer = load_config("brorl_cpu", []).trainer
with RayCluster(trainer):
    pass
with RayCluster(trainer):  # the second one of a process
    context = ray.get_runtime_context()
    raylet = next(child for child in psutil.Process().children(recursive=True) if child.name() == "raylet")
    heaps = raylet.environ()["MALLOC_ARENA_MAX"]
    print(context.gcs_address, ray._private.worker._global_node.get_session_dir_path(), heaps, flush=True)
    sys.stdin.readline()
"""

# A guest of this machine, of our own user but without our environment.
GUEST = """
import sys
import ray
try:
    ray.init(address=sys.argv[1], logging_level="ERROR")
    print("connected")
except ConnectionError:
    print("refused")
"""

STRANGER = """
import os, sys
os.setgid(65534)
os.setuid(65534)
try:
    print("entered", os.listdir(sys.argv[1]))
except PermissionError:
    print("shut out")
"""


class Run(NamedTuple):
    """A cluster that another process has started."""

    address: str
    folder: str  # of its session
    heaps: str  # that its processes may have


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=without_ray()
    )
    assert process.stdout is not None
    address, folder, heaps = process.stdout.readline().split()
    yield Run(address, folder, heaps)
    process.communicate("go on\n", timeout=60)
    assert process.returncode == 0


def test_who_has_no_token_cannot_run_anything(run: Run) -> None:
    environment = without_ray() | {"HOME": "/nonexistent", "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-c", GUEST, run.address]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert seen.stdout == "refused\n", seen.stderr[-2000:]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_enter_the_folder_of_sockets_and_logs(run: Run) -> None:
    command = [sys.executable, "-c", STRANGER, run.folder]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert seen.stdout == "shut out\n", seen.stderr[-2000:]


def test_on_cpu_the_processes_that_ray_starts_have_one_heap(run: Run) -> None:
    assert run.heaps == "1"


def without_ray() -> dict[str, str]:
    """This process's environment but for what it says of Ray and of heaps."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MALLOC_"))}
