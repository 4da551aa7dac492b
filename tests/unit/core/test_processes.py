"""Waiting for processes and ending them."""

from __future__ import annotations

import subprocess
import sys

import psutil

from nemo_brorl.core.processes import end_processes, is_running, running_after

LEAVE_A_ZOMBIE = "import os, time; pid = os.fork() or os._exit(0); print(pid, flush=True); time.sleep(600)"


def test_a_zombie_that_its_parent_never_reaps_counts_as_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", LEAVE_A_ZOMBIE], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        zombie = psutil.Process(int(parent.stdout.readline()))
        assert end_processes([zombie], 60.0) == 0
        assert zombie.status() == psutil.STATUS_ZOMBIE
        parent.kill()


def test_a_process_that_runs_on_is_killed_and_counted() -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeping, subprocess.Popen(["true"]) as ending:
        processes = [psutil.Process(sleeping.pid), psutil.Process(ending.pid)]
        assert running_after(processes[1:], 60.0) == []
        assert end_processes(processes, 0.0) == 1
        assert not is_running(processes[0])
