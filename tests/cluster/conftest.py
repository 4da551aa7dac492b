"""One Slurm cluster of 8 nodes with 8 GPUs each, for all tests of this folder; without Slurm they are skipped, and say
so."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.cluster.slurm_cluster import SlurmCluster, why_not

LOCK = Path("/var/tmp/brorl_cluster.lock")
TURN_S = 1800


@pytest.fixture(scope="session")
def cluster() -> Iterator[SlurmCluster]:
    if reason := why_not():
        pytest.skip(f"needs a Slurm cluster: {reason}")
    with LOCK.open("w") as lock:
        wait_for_turn(lock)
        for left in Path("/var/tmp").glob(
            "brorl_cluster_*/pids"
        ):  # nobody else has the lock: of tests that were killed
            SlurmCluster(left.parent, num_nodes=8, num_gpus=8).stop()
            shutil.rmtree(left.parent, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix="brorl_cluster_", dir="/var/tmp"))
        try:
            with SlurmCluster(folder, num_nodes=8, num_gpus=8) as running:
                yield running
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def wait_for_turn(lock: IO[str]) -> None:
    """Its networks have fixed names, so a machine has one such cluster at a time."""
    deadline = time.monotonic() + TURN_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            assert time.monotonic() < deadline, f"another cluster has been up for {TURN_S} s ({LOCK} is locked)"
            time.sleep(1)
