"""The driver holds references and asks little of Ray: a step of 8,192 rollouts through its real code."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.driver_bulk import MAX_CALLS_PER_1000, Load, measure
from tests.support.ray_cluster import use_ray

pytestmark = pytest.mark.end_to_end


def test_a_large_step_needs_few_calls_and_little_memory(tmp_path: Path) -> None:
    use_ray(num_cpus=2, object_store_memory=300 * 2**20)
    result = measure(Load(prompts=12, rollouts=512, tokens=8, engines=2), tmp_path)
    assert result["groups"] == 12
    assert result["sampled_rollouts"] >= 12 * 512
    assert result["calls_per_1000_rollouts"] < MAX_CALLS_PER_1000
    assert result["bytes_above_idle"] < 200 * 2**20
