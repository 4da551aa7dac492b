"""The model of a cluster: ways to hand out rollouts, and what issue 4 asks of ours."""

import numpy as np
import pytest

from lab.studies.cluster_model.bounds import lower_bound_s, unmoved_bound_s
from lab.studies.cluster_model.cluster import Cluster, ClusterResult, Dispatcher
from lab.studies.cluster_model.curve import ASSUMED_H100, EngineCurve
from lab.studies.cluster_model.dispatch import BASELINES, Planned, warm_history
from lab.studies.cluster_model.load import ClusterShape, Load
from lab.studies.cluster_model.workload import LengthDistribution, draw_load, recorded_distribution
from nemo_brorl.core.errors import DataError
from nemo_brorl.generation.placement.lengths import LengthHistory
from nemo_brorl.rollouts.ledger import fitting_chunk_size

pytestmark = pytest.mark.slow

SLOW = EngineCurve(step_s=1.0, rollout_s=0.5, context_s=0.0, prefill_tokens_per_s=10.0, source="test")
LAW = LengthDistribution()


def result(dispatcher: Dispatcher, load: Load, shape: ClusterShape) -> ClusterResult:
    return Cluster(shape, dispatcher).run(load)


def test_the_bound_is_the_longest_rollout_or_the_work_shared() -> None:
    shape = ClusterShape(2, SLOW, max_batch=4)
    work = 2 * 1.0 + (1.0 / 4 + 0.5) * (3 * 4 + 6)
    assert lower_bound_s(Load([10, 10], [[3, 3], [3, 3, 6]], ["t", "t"]), shape) == pytest.approx(
        max(work / 2, 1.0 + 6 * 1.5)
    )
    many = Load([10, 10], [[3] * 20, [3] * 20], ["t", "t"])
    assert lower_bound_s(many, shape) == pytest.approx((2 * 1.0 + 0.75 * 120) / 2)


def test_the_bound_without_moves_counts_the_steps_of_long_rollouts() -> None:
    """Four rollouts of 10 tokens, a batch of 4, work 0.5 per token. Two engines: 20 work, so T · 2 ≥ 20 + k · 10 with k
    = 20 / (T − 10): T = 20 would do for one engine each; with T < 20 both have a long rollout, so T ≥ 10 + 10. One
    engine: 10 steps and 20 work."""
    load = Load([0], [[10] * 4], ["t"])
    assert unmoved_bound_s(load, ClusterShape(1, SLOW, max_batch=4)) == pytest.approx(30)
    assert unmoved_bound_s(load, ClusterShape(2, SLOW, max_batch=4)) == pytest.approx(20)
    assert lower_bound_s(load, ClusterShape(2, SLOW, max_batch=4)) == pytest.approx(15)


def test_no_way_beats_the_bounds() -> None:
    load, shape = draw_load(LAW, 6, 32, 100, seed=0), ClusterShape(4, ASSUMED_H100, max_batch=16)
    for way in BASELINES.values():
        found = result(way(load, shape), load, shape)
        assert found.bound_s <= found.unmoved_bound_s <= found.makespan_s


def test_one_engine_with_one_batch_takes_as_long_as_by_hand() -> None:
    shape = ClusterShape(1, SLOW, max_batch=4, latency_s=0.0)
    for way in BASELINES.values():
        load = Load([10], [[2, 2]], ["t"])
        assert result(way(load, shape), load, shape).makespan_s == pytest.approx(1.0 + 2 * 2.0)


@pytest.mark.parametrize("way", [*BASELINES, "ours"])
def test_every_rollout_is_sampled_once(way: str) -> None:
    load, shape = draw_load(LAW, 8, 48, 100, seed=0), ClusterShape(3, ASSUMED_H100, max_batch=16)
    dispatcher = (
        Planned(load, shape, LengthHistory(), LAW.max_tokens, 8) if way == "ours" else BASELINES[way](load, shape)
    )
    cluster = Cluster(shape, dispatcher)
    cluster.run(load)
    assert cluster.num_sampled == 8 * 48


def test_whole_groups_compute_a_prompt_once_and_scattered_samples_everywhere() -> None:
    load, shape = draw_load(LAW, 8, 48, 100, seed=0), ClusterShape(4, ASSUMED_H100, max_batch=16)
    ratios = {name: result(way(load, shape), load, shape).prefill_ratio for name, way in BASELINES.items()}
    assert (ratios["whole groups"], ratios["static split"], ratios["per-sample scatter"]) == (1.0, 1.0, 4.0)


def test_at_64_engines_ours_is_balanced_like_scattered_samples_at_a_fraction_of_the_prefill() -> None:
    """What issue 4 asks for; without any knowledge of true lengths, after one step of the task."""
    load, shape = draw_load(LAW, 128, 512, 1000, seed=0), ClusterShape(64, CPU_LIKE, max_batch=256)
    ours = result(
        Planned(load, shape, warm_history(draw_load(LAW, 64, 128, 1000, seed=1)), LAW.max_tokens), load, shape
    )
    whole = result(BASELINES["whole groups, pulled"](load, shape), load, shape)
    assert ours.idle_share < whole.idle_share / 2
    assert ours.prefill_ratio < 64 / 5, "scattered samples compute each prompt on all 64 engines"
    assert ours.over_bound < 1.1
    assert ours.num_messages < 200 * 65.536, "Ray calls"


CPU_LIKE = EngineCurve(
    3.8e-3, 129e-6, 1e-9, 20_000, "vLLM's CPU build, 2.4 M parameters: from samples/s at batches of 64 and 512"
)


def test_engines_that_never_hear_from_each_other_lose_a_lot() -> None:
    """Progress is what fills slots: reports with finished chunks alone leave them empty until a chunk's longest rollout
    ends."""
    load = draw_load(LAW, 32, 256, 1000, seed=0)
    history = [warm_history(draw_load(LAW, 64, 128, 1000, seed=1)) for _ in range(2)]
    told, untold = (
        ClusterShape(16, ASSUMED_H100, 128),
        ClusterShape(16, ASSUMED_H100, 128, report_every=10**9, report_s=1e9),
    )
    often = result(Planned(load, told, history[0], LAW.max_tokens), load, told)
    seldom = result(Planned(load, untold, history[1], LAW.max_tokens), load, untold)
    assert often.makespan_s < 0.95 * seldom.makespan_s


def test_a_law_has_its_median_and_its_limit() -> None:
    lengths = np.array(draw_load(LAW, 400, 64, 100, seed=0).lengths)
    assert np.median(lengths) == pytest.approx(3000, rel=0.1)
    assert lengths.max() == 8192
    within, total = np.log(lengths).std(axis=1).mean(), np.log(lengths).std()
    assert within < 0.85 * total, "rollouts of one prompt are alike"


def test_a_recorded_law_has_the_mean_and_the_share_at_the_limit() -> None:
    row = {"rollouts/response_tokens": 20.0, "rollouts/response_tokens_max": 32.0, "rollouts/truncated": 0.1}
    lengths = np.array(draw_load(recorded_distribution([row, row]), 400, 64, 10, seed=0).lengths)
    assert lengths.mean() == pytest.approx(20, rel=0.03)
    assert (lengths == 32).mean() == pytest.approx(0.1, abs=0.03)
    with pytest.raises(DataError, match="response_tokens"):
        recorded_distribution([{"step": 1}])


def test_chunks_shrink_when_there_are_few_rollouts_for_many_engines() -> None:
    assert fitting_chunk_size(128 * 512, 64, 64) == 64
    assert fitting_chunk_size(128 * 512, 512, 64) == 8
    assert fitting_chunk_size(8, 1024, 64) == 8  # no smaller: every chunk costs its calls
