"""One Slurm cluster of 8 nodes with 8 GPUs each, for all tests of this folder; without Slurm they are skipped, and say so."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.slurm_cluster import SlurmCluster, why_not


@pytest.fixture(scope="session")
def cluster() -> Iterator[SlurmCluster]:
    if reason := why_not():
        pytest.skip(f"needs a Slurm cluster: {reason}")
    folder = Path(tempfile.mkdtemp(prefix="brorl_cluster_", dir="/var/tmp"))
    with SlurmCluster(folder, num_nodes=8, num_gpus=8) as running:
        yield running
    shutil.rmtree(folder, ignore_errors=True)
