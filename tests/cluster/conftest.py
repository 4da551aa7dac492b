"""One Slurm cluster of 8 nodes with 8 GPUs each, for all tests of this folder, and one run that nobody interrupts;
without Slurm they are skipped, and say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.chain import Chain
from tests.cluster.slurm_cluster import SlurmCluster, eight_nodes, why_not
from tests.cluster.tiny_run import prepare


@pytest.fixture(scope="session")
def cluster() -> Iterator[SlurmCluster]:
    if reason := why_not():
        pytest.skip(f"needs a Slurm cluster: {reason}")
    with eight_nodes() as running:
        yield running


@pytest.fixture(scope="session")
def overrides(cluster: SlurmCluster) -> list[str]:
    """Of a run that takes seconds."""
    return prepare(cluster.shared)


@pytest.fixture(scope="session")
def chain(cluster: SlurmCluster, overrides: list[str]) -> Chain:
    """A chain of two jobs that has ended."""
    return Chain(cluster, overrides)
