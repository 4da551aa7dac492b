"""What ends a run from outside: the loss of one of Ray's own processes ends it within seconds, with a message, and a
killed driver leaves none of them."""

import subprocess
import sys
import time

import psutil
import pytest

from nemo_brorl.core.errors import LOST
from nemo_brorl.core.processes import name_of

LOSS = """
import os, signal, sys, time
import psutil, ray
from nemo_brorl.cluster.ray_cluster import RayCluster
from nemo_brorl.core.processes import name_of
from nemo_brorl.config.load import load_config
with RayCluster(load_config("brorl_cpu", []).trainer):
    below = psutil.Process().children(recursive=True)
    print(*[process.pid for process in below], flush=True)
    victim = [process for process in below if name_of(process) == sys.argv[1]]
    victim[0].kill()
    time.sleep(100)
"""


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_a_lost_process_of_ray_ends_the_run_with_a_message_and_leaves_none_behind(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOSS, name], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == LOST, done.stderr[-2000:]
    assert f"error: Ray's {name} is gone" in done.stderr
    left = [int(word) for word in done.stdout.splitlines()[0].split()]
    deadline = time.monotonic() + 10
    while left and time.monotonic() < deadline:  # the one that looks after Ray's processes reads that the run is gone
        left = [pid for pid in left if psutil.pid_exists(pid)]
    assert left == []


STARTING = """
from nemo_brorl.cluster.ray_cluster import RayCluster
from nemo_brorl.config.schema import TrainerConfig
with RayCluster(TrainerConfig()):
    input()
"""


@pytest.mark.parametrize("last", ["gcs_server", "raylet", "ray::RuntimeEnvAgent"])
def test_a_driver_that_is_killed_as_ray_starts_leaves_nothing(last: str) -> None:
    driver = psutil.Popen([sys.executable, "-c", STARTING], stdin=subprocess.PIPE)
    seen: set[psutil.Process] = set()
    while not any(name_of(process).startswith(last[:15]) for process in seen):
        assert driver.poll() is None, f"{last} was not started"
        seen.update(driver.children(recursive=True))
        time.sleep(0.01)
    driver.kill()
    driver.wait()
    _, left = psutil.wait_procs(seen, timeout=20)
    assert left == []
