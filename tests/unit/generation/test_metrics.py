"""Metrics of engines, with numbers worked by hand."""

from nemo_brorl.generation.metrics import generation_metrics
from nemo_brorl.types import EngineStats


def test_generation_metrics_are_differences_and_a_restarted_engine_counts_from_zero() -> None:
    before = [EngineStats(0, 0, 100, 50, 0, 1000, 10), EngineStats(1, 0, 500, 500, 3, 9000, 90)]
    after = [EngineStats(0, 1, 300, 200, 1, 3000, 30), EngineStats(1, 1, 100, 90, 0, 400, 4)]
    metrics = generation_metrics(before, after, seconds=2.0)
    assert metrics["generation/samples_per_s"] == (20 + 4) / 2
    assert metrics["generation/prefix_cache_hit_rate"] == (150 + 90) / (200 + 100)
    assert metrics["generation/num_preemptions"] == 1


def test_faults_of_a_step_are_differences_also_where_an_engine_was_replaced() -> None:
    before = [
        EngineStats(0, 0, 1, 1, 0, 9, 9, num_restarts=1, num_garbage=1, num_resampled=64),
        EngineStats(1, 0, 1, 1, 0, 9, 9),
    ]
    after = [
        EngineStats(0, 0, 1, 1, 0, 9, 9, num_restarts=3, num_garbage=1, num_resampled=192),
        EngineStats(1, 0, 1, 1, 0, 1, 1, 1, 1, 5),
    ]
    metrics = generation_metrics(before, after, seconds=2.0)
    assert metrics["generation/num_restarts"] == 2 + 1
    assert metrics["generation/num_garbage"] == 0 + 1
    assert metrics["generation/num_resampled"] == 128 + 5
