"""One Slurm cluster of 8 nodes with 8 GPUs each, for all tests of this folder; without Slurm they are skipped, and say
so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.slurm_cluster import SlurmCluster, eight_nodes, why_not


@pytest.fixture(scope="session")
def cluster() -> Iterator[SlurmCluster]:
    if reason := why_not():
        pytest.skip(f"needs a Slurm cluster: {reason}")
    with eight_nodes() as running:
        yield running
