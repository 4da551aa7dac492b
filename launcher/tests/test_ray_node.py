"""Ray on a node of a job: started again where it, or its head, was too slow, and only there; not at all where somebody
else could have put compiled kernels."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import ray
from brorl_launcher.job import ray_node
from brorl_launcher.job.ray_ports import RayPorts

from nemo_brorl.config.load import load_config
from nemo_brorl.config.run_sizes import CPUS_PER_GPU
from nemo_brorl.scoring.pool import CPUS_PER_WORKER

PROGRAM = """
import sys
from pathlib import Path
from brorl_launcher.job.ray_node import RayNode

with RayNode(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[2], "session")) as node:
    code = node.run(["bash", "-c", sys.argv[3]])
sys.exit(code)
"""
# What a try leaves behind: a process, whose id it notes in a file.
LEAVE = "sleep 600 & echo $! >> {pids}"
# What a job would do on this node, where the head has nothing to listen on.
HEAD = ["-m", "brorl_launcher.job.ray_node", "--gpus", "0", "--interface", "no_such_interface"]
JOB = Path(ray_node.__file__).parent
# What a job sets of Ray and of compilers, unless the site has set it.
SET = {
    "RAY_health_check_period_ms": "5000",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_worker_register_timeout_seconds": "180",
    "RAY_num_workers_soft_limit": "16",
    "RAY_prestart_worker_first_driver": "0",
    "TORCHINDUCTOR_COMPILE_THREADS": "4",
}
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT")


def run(folder: Path, ray: str) -> tuple[int, str, list[int]]:
    """Exit code of the node, its events, and the ids of what its tries have left."""
    pids = folder / "pids"
    command = f"{LEAVE.format(pids=pids)}; {ray}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder.name, str(folder / "logs"), command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, [int(line) for line in pids.read_text().split()]


@pytest.mark.parametrize("said", ["The node timed out during startup.", "No node info found for head node in GCS."])
def test_ray_that_was_too_slow_is_started_again_once_all_it_left_is_gone(tmp_path: Path, said: str) -> None:
    second = f"if [ $(wc -l < {tmp_path / 'pids'}) = 2 ]; then exit 3; fi"
    first_is_there = f"kill -0 $(head -1 {tmp_path / 'pids'}) && echo still there"
    code, events, pids = run(tmp_path, f"{first_is_there}; {second}; echo {said}; exit 1")
    assert (code, len(pids)) == (1, 2)
    assert events == f"dead {tmp_path.name} Ray ended by itself with exit code 3\n"
    log = (tmp_path / "logs" / f"ray_{tmp_path.name}.log").read_text()
    assert log.count("still there") == 1, "its own process, and not that of the try before"
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize(
    ("ray", "tries"), [("echo no such address; exit 1", 1), ("echo timed out during startup; exit 4", 4)]
)
def test_ray_that_fails_otherwise_or_four_times_is_given_up(tmp_path: Path, ray: str, tries: int) -> None:
    code, events, pids = run(tmp_path, ray)
    assert (code, len(pids)) == (1, tries)
    assert f"dead {tmp_path.name} Ray ended by itself with exit code" in events


def start_head(**settings: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in CACHES}
    environment |= {"SLURMD_NODENAME": "node3", **settings}
    return subprocess.run(
        [sys.executable, *HEAD], capture_output=True, text=True, timeout=60, check=False, env=environment
    )


def test_a_planted_folder_of_kernels_ends_the_step_before_ray_starts(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    done = start_head(BRORL_CACHE=str(cache))
    assert done.returncode == 2, done.stderr
    assert done.stdout == (
        f"dead node3 {cache} may be entered by others (mode 0777, not 0700), so what is in it cannot be trusted: "
        "remove it, or set BRORL_CACHE to a folder of your own\n"
    )


def test_a_planted_folder_in_tmpdir_ends_the_step_before_ray_starts() -> None:
    with tempfile.TemporaryDirectory(prefix="b", dir="/tmp") as root:
        planted = Path(root, f"brorl-{os.getuid()}")
        planted.symlink_to("/var")
        done = start_head(TMPDIR=root)
    assert (done.returncode, done.stdout.startswith(f"dead node3 {planted} is a symbolic link")) == (2, True), done


def test_kernels_get_a_private_folder_on_the_node_before_anything_uses_it(tmp_path: Path) -> None:
    done = start_head(BRORL_CACHE=str(tmp_path / "cache"))
    assert (done.returncode, "no_such_interface" in done.stdout) == (2, True), done
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def job_environment(**given: str) -> dict[str, str]:
    """The environment of a job's processes where the site has set `given`."""
    printed = subprocess.run(
        ["bash", "-c", f"source {JOB / 'environment.sh'}; env -0"],
        env={"PATH": os.environ["PATH"], "BRORL_ROOT": "/nowhere", **given},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return dict(line.split("=", 1) for line in printed.split("\0") if line)


def test_a_job_sets_limits_of_ray_that_survive_a_busy_node_and_a_site_may_set_others() -> None:
    own = job_environment()
    assert {name: own.get(name) for name in SET} == SET
    for name in SET:
        assert job_environment(**{name: "7"})[name] == "7"


def test_ray_knows_every_limit_that_a_job_sets() -> None:
    # Ray ignores a name that it does not know.
    raylet = (Path(ray.__file__).parent / "core" / "src" / "ray" / "raylet" / "raylet").read_bytes()
    names = [name.removeprefix("RAY_") for name in SET if name.startswith("RAY_")]
    assert [name for name in names if name.encode() not in raylet] == []


def ray_command(gpus: int, slots: int = 0) -> list[str]:
    options = argparse.Namespace(gpus=gpus, slots=slots, object_store_gb=0.0, join=None)
    return ray_node.ray_command(options, "10.0.0.1", RayPorts(20000), Path("/tmp/session"))


def test_a_node_has_slots_for_its_gpus_and_verifiers_whatever_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "224")
    assert "--num-cpus=48" in ray_command(8)  # 2 * 8 + 32
    assert "--num-cpus=32" in ray_command(0)
    assert "--num-cpus=100" in ray_command(8, slots=100)
    workers = load_config("brorl_64gpu").rewards.num_workers
    assert ray_node.cpu_slots(8) >= 8 * CPUS_PER_GPU + 20 * workers * CPUS_PER_WORKER
