"""FP8 emulated in the whole policy: layouts agree, recomputing changes nothing, the delayed history survives a
checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nemo_brorl.config.parallel_layout import layout_of
from tests.support.fp8_ranks import histories, score_twice
from tests.support.model_factory import make_config, make_model, make_plan
from tests.support.policy_ranks import Outcome, Scenario, outcomes_of, run_ranks, run_scenario

pytestmark = [pytest.mark.end_to_end, pytest.mark.numbers]

TENSORWISE = {"fp8": "hybrid"}
BLOCKWISE = {"fp8": "e4m3", "fp8_recipe": "blockwise"}
DELAYED = {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_amax_history": 4}
TP2_SP = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
PP2 = {"pipeline_model_parallel_size": 2}
DP2 = {"data_parallel_size": 2}
FULL = {"recompute": "full"}
PIECES = 4  # micro-batches of a mini-batch, over all data-parallel ranks
SCORED = ([[3, 1, 4], [1, 5]], [[9, 2, 6, 5], [3, 5, 8]])


def scenario(
    folder: Path, policy: dict, first: int = 0, num: int = 2, mini_batches: int = 2, **parts: object
) -> Scenario:
    config = make_config(**policy)
    data = layout_of(config).data
    seeds = range(first, first + num)
    plans = tuple(make_plan(data, mini_batches, micro_batches=PIECES // data, seed=seed) for seed in seeds)
    return Scenario(config, folder, plans=plans, **parts)


def reported(case: Scenario) -> Outcome:
    """Of the rank that reports. Everything is a function of the case, which is played once."""
    play = run_scenario if case.load_from else outcomes_of
    return play(case)[layout_of(case.config).report_rank]


@pytest.mark.parametrize(
    ("recipe", "layout"),
    [(DELAYED, PP2), (DELAYED, FULL), (BLOCKWISE, FULL), (TENSORWISE, {**FULL, **PP2})],
    ids=["delayed PP2", "delayed recompute", "blockwise recompute", "tensorwise recompute PP2"],
)
def test_a_layout_that_adds_up_in_the_same_order_trains_as_one_rank_does(
    recipe: dict, layout: dict, model_folder: Path
) -> None:
    tolerance = 1e-5 if "pipeline_model_parallel_size" in layout else 0
    expected = reported(scenario(model_folder, recipe)).metrics
    found = reported(scenario(model_folder, {**recipe, **layout})).metrics
    for own, other in zip(found, expected, strict=True):
        for name in ("policy/loss", "policy/grad_norm", "policy/kl_to_reference", "policy/fp8_mismatch"):
            assert own[name] == pytest.approx(other[name], rel=tolerance, abs=0), name


# Relative. Replicas quantise what one rank does, and add up gradients after it. Tensor-parallel ranks add up what is
# quantised next: some number falls to the other side of a rounding, which is an eighth of it in e5m2.
@pytest.mark.parametrize(("recipe", "layout", "tolerance"), [(TENSORWISE, DP2, 1e-5), (DELAYED, TP2_SP, 0.05)])
def test_a_layout_that_adds_up_in_another_order_has_the_gradient_of_one_rank(
    recipe: dict, layout: dict, tolerance: float, model_folder: Path
) -> None:
    """Goes up to the first step of Adam, after which other numbers are rounded to the other side."""
    first_step = {"num": 1, "mini_batches": 1}
    (expected,) = reported(scenario(model_folder, recipe, **first_step)).metrics
    (found,) = reported(scenario(model_folder, {**recipe, **layout}, **first_step)).metrics
    names = ["policy/loss", "policy/grad_norm"]
    # Every replica measures a row of its own.
    if layout != DP2:
        names.append("policy/fp8_mismatch")
    for name in names:
        assert found[name] == pytest.approx(expected[name], rel=tolerance, abs=0), name


@pytest.mark.parametrize("recipe", [TENSORWISE, BLOCKWISE, DELAYED], ids=["tensorwise", "blockwise", "delayed"])
def test_without_fp8_the_same_weights_give_the_plain_log_probs(recipe: dict, model_folder: Path) -> None:
    """And the mismatch that an update reports is that of the two, on the row that is trained first."""
    plain = reported(scenario(model_folder, {}, num=0, score=SCORED)).log_probs
    config = make_config(**recipe)
    with_fp8, without = run_ranks(config, score_twice, config, model_folder, *SCORED)[0]
    for own, expected, quantised in zip(without, plain, with_fp8, strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-6)
        assert 0 < np.abs(quantised - expected).max() < 1
    metrics = reported(scenario(model_folder, recipe, num=1)).metrics[0]
    assert 0 < metrics["policy/fp8_mismatch"] < 0.5
    assert metrics["policy/fp8_mismatch"] < metrics["policy/fp8_mismatch_max"]


def test_scoring_without_fp8_leaves_the_history_alone(model_folder: Path) -> None:
    config = make_config(**DELAYED)
    plans = scenario(model_folder, DELAYED, num=1).plans
    (before,), (after,) = (run_ranks(config, histories, model_folder, config, plans, off) for off in (False, True))
    assert len(before) == 4 * 4  # layers x linears
    assert all(torch.equal(*states) for states in zip(before, after, strict=True))
    for state in before:
        assert (state[:, 0] != 1).all(), "every tensor has a scale of its own by now"
        assert (state[:, 1] == 0).all(), "the last pass was a step"


def test_ranks_share_a_history(model_folder: Path) -> None:
    policy = {**DELAYED, "tensor_model_parallel_size": 2, **DP2}
    ranks = run_ranks(
        make_config(**policy),
        histories,
        model_folder,
        make_config(**policy),
        scenario(model_folder, policy, num=1).plans,
    )
    for rank in ranks[1:]:
        assert all(torch.equal(*states) for states in zip(ranks[0], rank, strict=True))


@pytest.mark.parametrize(("loaded", "tolerance"), [({}, 0), (PP2, 1e-5)], ids=["same layout", "PP2"])
def test_a_run_goes_on_from_its_history(loaded: dict, tolerance: float, model_folder: Path, tmp_path: Path) -> None:
    whole = reported(scenario(model_folder, DELAYED, num=3))
    run_scenario(scenario(model_folder, DELAYED, num=2, save_to=tmp_path / "checkpoint"))
    other_weights = make_model(tmp_path / "other", seed=9)
    case = scenario(other_weights, {**DELAYED, **loaded}, first=2, num=1, load_from=tmp_path / "checkpoint")
    rest = reported(case)
    for name in ("policy/loss", "policy/grad_norm", "policy/fp8_mismatch"):
        assert rest.metrics[0][name] == pytest.approx(whole.metrics[2][name], rel=tolerance, abs=0), name
    if not loaded:
        assert rest.checksum == whole.checksum


def test_layers_left_in_bf16_are_not_quantised(model_folder: Path) -> None:
    num = {name: reported(scenario(model_folder, {**TENSORWISE, **policy}, num=1)).metrics[0]["policy/fp8_mismatch"]
           for name, policy in {"all": {}, "one": {"fp8_bf16_first_layers": 1, "fp8_bf16_last_layers": 2,
           **PP2}}.items()}  # fmt: skip
    assert 0 < num["one"] < num["all"]


def test_a_mixture_of_experts_trains_with_quantised_experts(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "moe", "qwen3_moe")
    case = scenario(folder, BLOCKWISE, num=1)
    found = reported(case).metrics[0]
    again = reported(replace(case, config=make_config(**BLOCKWISE, recompute="full"))).metrics[0]
    assert found["policy/grad_norm"] == again["policy/grad_norm"] > 0
    assert 0 < found["policy/fp8_mismatch"] < 0.5
