"""What the lab's tests share: a process without Ray."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_ray() -> None:
    """Without Ray the object store is a plain reference. An end-to-end test before may have left Ray up in this
    process."""
    ray_cluster = sys.modules.get("tests.support.ray_cluster")
    if ray_cluster is not None:
        ray_cluster.end_ray()
