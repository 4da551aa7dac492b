"""Ray as we start it serves nobody else, neither who has no token nor another user of the machine; its folder and that
of compiled kernels lie in TMPDIR; its processes have one heap each; its start takes no handler of signals away."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

RUN = """
import os, signal, sys, time
import psutil
import ray
from nemo_brorl.cluster.ray_cluster import RayCluster
from nemo_brorl.config.load import load_config
from nemo_brorl.core.clock import StopRequest
trainer = load_config("brorl_cpu", []).trainer
stop = StopRequest(None)
stop.install()
with RayCluster(trainer):
    stop.install()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
with RayCluster(trainer):  # the second one of a process
    context = ray.get_runtime_context()
    raylet = next(child for child in psutil.Process().children(recursive=True) if child.name() == "raylet")
    heaps, kernels = (raylet.environ()[name] for name in ("MALLOC_ARENA_MAX", "TORCHINDUCTOR_CACHE_DIR"))
    folder = ray._private.worker._global_node.get_session_dir_path()
    print(context.gcs_address, folder, heaps, kernels, stop.reason, flush=True)
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


STARTS = ("RAY_", "MALLOC_", "TORCHINDUCTOR_", "BRORL_CACHE")


class Run(NamedTuple):
    """A cluster that another process has started."""

    address: str
    folder: str  # of its session
    heaps: str  # that its processes may have
    kernels: str  # folder of those that Inductor compiles
    stopped_by: str  # what asked it to stop in its first cluster
    root: Path  # its TMPDIR, which everybody may write to


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    root = Path(tempfile.mkdtemp(prefix="b", dir="/tmp"))  # short, as the names of sockets must be
    root.chmod(0o1777)
    environment = without_ray() | {"TMPDIR": str(root)}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    address, folder, heaps, kernels, stopped_by = process.stdout.readline().split()
    yield Run(address, folder, heaps, kernels, stopped_by, root)
    process.communicate("go on\n", timeout=60)
    shutil.rmtree(root)
    assert process.returncode == 0


def test_who_has_no_token_cannot_run_anything(run: Run) -> None:
    environment = without_ray() | {
        "HOME": "/nonexistent",
        "RAY_AUTH_MODE": "disabled",
        # Twenty of them, a second apart each, would be refused alike.
        "RAY_NUM_REDIS_GET_RETRIES": "1",
    }
    command = [sys.executable, "-c", GUEST, run.address]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert seen.stdout == "refused\n", seen.stderr[-2000:]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_can_enter_neither_the_folder_of_sockets_and_logs_nor_that_of_kernels(run: Run) -> None:
    for folder in (run.folder, run.kernels):
        command = [sys.executable, "-c", STRANGER, folder]
        seen = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert seen.stdout == "shut out\n", seen.stderr[-2000:]


def test_folders_of_sockets_and_of_kernels_lie_in_tmpdir(run: Run) -> None:
    private = run.root / f"brorl-{os.getuid()}"
    assert Path(run.folder).parent == private / "ray"
    assert Path(run.kernels) == private / "cache" / "inductor"


def test_on_cpu_the_processes_that_ray_starts_have_one_heap(run: Run) -> None:
    assert run.heaps == "1"


def test_sigterm_is_a_request_to_stop_also_after_ray_has_started(run: Run) -> None:
    assert run.stopped_by == "SIGTERM"


def without_ray() -> dict[str, str]:
    """This process's environment but for what it says of Ray, heaps and kernels."""
    return {name: value for name, value in os.environ.items() if not name.startswith(STARTS)}
