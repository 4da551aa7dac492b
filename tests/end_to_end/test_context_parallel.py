"""Context parallelism computes what one rank does, over Gloo: losses, norms, log-probs and checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nemo_brorl.config.parallel_layout import layout_of
from nemo_brorl.types import UpdatePlan
from tests.support.closeness import LOG_PROB_BOUND
from tests.support.model_factory import VOCAB_SIZE, as_trajectories, make_config, make_group, make_model, micro_batch
from tests.support.policy_ranks import Outcome, Scenario, outcomes_of, run_scenario

pytestmark = pytest.mark.numbers

NUM_UPDATES = 3
PIECES = 2  # micro-batches of a mini-batch, over all data-parallel ranks
CP2 = {"context_parallel_size": 2}
TP2 = {"tensor_model_parallel_size": 2}
# Relative. A gain is e to the power of a response's log-ratios, added up: what the sum is off by, in nats, the gain is
# off by relatively. Here sums are 15, and 4e-5 is seen.
GAIN_BOUND = 1e-3
LAYOUTS = {
    "CP2": CP2,
    "TP2 x CP2 with sequence parallelism": {**CP2, **TP2, "sequence_parallel": True},
    "PP2 x CP2": {**CP2, "pipeline_model_parallel_size": 2},
    "PP2 x CP2, interleaved": {**CP2, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
    "DP2 x CP2": {**CP2, "data_parallel_size": 2},
    "CP2 with full recompute": {**CP2, "recompute": "full"},
}


def make_plan(data_parallel_size: int, seed: int, shared: bool = True) -> UpdatePlan:
    """Three groups: many short responses, which are given to ranks whole, two long ones, which are cut, and a single
    one."""
    rng = np.random.default_rng(seed)
    groups = (
        make_group(rng, 9, rng.integers(1, 6, 14).tolist()),
        make_group(rng, 5, [33, 47, 2, 3]),
        make_group(rng, 4, [7, 1]),
    )
    packed_groups = [[(0, range(14)), (2, [0])], [(1, range(4)), (2, [1])]]
    micros = [micro_batch(groups, packed_group, shared) for packed_group in packed_groups]
    size = PIECES // data_parallel_size
    ranks = tuple(tuple(micros[rank * size : (rank + 1) * size]) for rank in range(data_parallel_size))
    return UpdatePlan(1, "ppo_clip", 1e-3, groups, (ranks, ranks))


def scenario(
    model_folder: Path, policy: dict, first: int = 0, num: int = NUM_UPDATES, shared: bool = True, **parts: object
) -> Scenario:
    config = make_config(**policy)
    plans = tuple(make_plan(layout_of(config).data, seed, shared) for seed in range(first, first + num))
    return Scenario(config, model_folder, plans=plans, **parts)


def check_equal(case: Scenario, outcomes: list[Outcome], expected: list[dict[str, float]]) -> None:
    """Check the metrics of every update."""
    metrics = outcomes[layout_of(case.config).report_rank].metrics
    assert len(metrics) == len(expected)
    for mine, single in zip(metrics, expected, strict=True):
        assert mine.keys() == single.keys()
        for name, value in single.items():
            bound = GAIN_BOUND if name.startswith("mass_balance/measured_gain") else 1e-4
            assert mine[name] == pytest.approx(value, rel=bound, abs=1e-7), name


@pytest.fixture(scope="module")
def single(model_folder: Path) -> list[Outcome]:
    return outcomes_of(scenario(model_folder, {}))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_layout_gives_the_metrics_of_a_single_rank(layout: dict, model_folder: Path, single: list[Outcome]) -> None:
    case = scenario(model_folder, layout)
    check_equal(case, run_scenario(case), single[0].metrics)


def sequence_level(model_folder: Path, layout: dict) -> Scenario:
    """Everything that looks at whole responses, or a whole mini-batch, whose tokens lie on two ranks."""
    case = scenario(model_folder, layout, num=2)
    algorithm = case.config.algorithm
    algorithm.aggregation, algorithm.kl.placement, algorithm.kl.coefficient = "sequence_mean", "reward", 0.1
    algorithm.importance_correction.kind, algorithm.importance_correction.low = "sequence_mask", 0.1
    algorithm.clip_low = algorithm.clip_high = 0.01
    algorithm.loss_params = {"covariance": {"kind": "clip_cov", "share": 0.1, "low": 0.1}}
    return replace(case, plans=tuple(replace(plan, objective="gspo") for plan in case.plans))


@pytest.mark.parametrize("layout", [CP2, {"data_parallel_size": 2}], ids=["CP2", "DP2"])
def test_losses_that_look_beyond_a_rank_do_not_depend_on_the_layout(layout: dict, model_folder: Path) -> None:
    expected = outcomes_of(sequence_level(model_folder, {}))[0].metrics
    assert 0 < expected[1]["policy/importance_masked"] < 1
    assert 0.05 < expected[1]["policy/covariance_tokens"] <= 0.1
    case = sequence_level(model_folder, layout)
    check_equal(case, run_scenario(case), expected)


def trees(model_folder: Path, policy: dict, shared: bool = True) -> Scenario:
    case = scenario(model_folder, {**policy, "min_shared_tokens": 3}, num=2, shared=shared)
    return replace(case, plans=tuple(as_trajectories(plan) for plan in case.plans))


@pytest.mark.parametrize("layout", ["one rank", *LAYOUTS])
def test_trees_of_trajectories_give_the_metrics_of_plain_packing(layout: str, model_folder: Path) -> None:
    expected = outcomes_of(trees(model_folder, {}, shared=False))[0].metrics
    case = trees(model_folder, LAYOUTS.get(layout, {}))
    check_equal(case, run_scenario(case), expected)


def test_plain_packing_gives_them_too(model_folder: Path, single: list[Outcome]) -> None:
    case = scenario(model_folder, CP2, shared=False)
    check_equal(case, run_scenario(case), single[0].metrics)


def test_a_checkpoint_of_two_context_ranks_continues_on_one(
    model_folder: Path, single: list[Outcome], tmp_path: Path
) -> None:
    run_scenario(scenario(model_folder, CP2, num=1, save_to=tmp_path / "checkpoint"))
    other = make_model(tmp_path / "other", seed=9)  # everything must come from the checkpoint
    case = scenario(other, {}, first=1, num=2, load_from=tmp_path / "checkpoint")
    check_equal(case, run_scenario(case), single[0].metrics[1:])


@pytest.mark.parametrize("layout", [CP2, {**CP2, "pipeline_model_parallel_size": 2}], ids=["CP2", "PP2 x CP2"])
def test_log_probs_are_put_together_from_all_ranks(layout: dict, model_folder: Path) -> None:
    rng = np.random.default_rng(3)
    prompts, responses = (
        [rng.integers(0, VOCAB_SIZE, length).tolist() for length in lengths]
        for lengths in ((1, 5, 9, 2), (40, 1, 6, 0))
    )
    case = scenario(model_folder, layout, num=0, score=(prompts, responses))
    rank = layout_of(case.config).report_rank
    mine = run_scenario(case)[rank].log_probs
    expected = outcomes_of(scenario(model_folder, {}, num=0, score=(prompts, responses)))[0].log_probs
    assert mine is not None and expected is not None
    for own, other in zip(mine, expected, strict=True):
        np.testing.assert_allclose(own, other, atol=LOG_PROB_BOUND)
