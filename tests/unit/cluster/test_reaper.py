"""The process that ends what Ray has started, with real processes in the place of Ray's."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from nemo_brorl.core.processes import end_processes, is_running

pytestmark = pytest.mark.slow

DRIVER = """
import subprocess, sys, time
from nemo_brorl.cluster.reaper import Reaper
other = subprocess.Popen(["sleep", "61"], stdout=subprocess.DEVNULL)
reaper = Reaper()
with reaper.marking():
    raylet = subprocess.Popen(["sh", "-c", "env -i setsid sleep 62 & sleep 63 & wait"], stdout=subprocess.DEVNULL)
later = subprocess.Popen(["sleep", "64"], stdout=subprocess.DEVNULL)
print("ready", flush=True)
sys.stdin.readline()
reaper.close()
"""


@contextlib.contextmanager
def driver() -> Iterator[tuple[subprocess.Popen[str], dict[str, psutil.Process]]]:
    """A process that has started a reaper and, as Ray's would be, a shell with two children, of which one knows no
    variables; and its processes by their command line."""
    process = subprocess.Popen([sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    by_name: dict[str, psutil.Process] = {}
    while not {"61", "62", "63", "64"} <= by_name.keys():
        children = psutil.Process(process.pid).children(recursive=True)
        by_name = {" ".join(child.cmdline()).split(" ")[-1]: child for child in children}
    try:
        yield process, by_name
    finally:
        end_processes(list(by_name.values()), 0.0)
        process.kill()
        process.communicate()


def test_a_driver_that_is_killed_leaves_none_of_the_processes_that_ray_has_started() -> None:
    with driver() as (process, by_name):
        assert {"61", "62", "63", "64"} < by_name.keys()
        process.kill()
        of_ray = [child for name, child in by_name.items() if name not in ("61", "64")]
        assert len(of_ray) == 4, "the shell, its two children and the reaper"
        _, left = psutil.wait_procs(of_ray, timeout=20)
        assert left == []
        assert is_running(by_name["61"]) and is_running(by_name["64"]), "begun before and after Ray's"


def test_a_driver_that_ends_in_order_sees_to_the_processes_of_ray_itself() -> None:
    with driver() as (process, by_name):
        process.communicate("\n", timeout=30)
        assert process.returncode == 0
        assert all(is_running(by_name[name]) for name in ("61", "62", "63", "64"))
        num_running = sum(is_running(child) for child in by_name.values())
        assert num_running == 5, "the shell is there, the reaper is not"
