"""Every parallel layout computes the same thing: 3 updates in fp32, checkpoints across layouts, and real Ray actors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray

from nemo_brorl.config.parallel_layout import layout_of
from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.core.errors import ModelError, TrainingError
from nemo_brorl.policy.driver import megatron_policy
from nemo_brorl.policy.driver.megatron_policy import MegatronPolicy
from tests.support.closeness import LOG_PROB_BOUND
from tests.support.model_factory import VOCAB_SIZE, make_config, make_model, make_plan
from tests.support.policy_ranks import Outcome, Scenario, outcomes_of, run_scenario

pytestmark = [pytest.mark.end_to_end, pytest.mark.numbers]

NUM_UPDATES = 3
PIECES = 4  # micro-batches of a mini-batch, over all data-parallel ranks
TP2 = {"tensor_model_parallel_size": 2}
PP2 = {"pipeline_model_parallel_size": 2}
VP2 = {**PP2, "virtual_pipeline_model_parallel_size": 2}
DP2 = {"data_parallel_size": 2}
METRICS = (
    "policy/loss",
    "policy/grad_norm",
    "policy/kl_to_reference",
    "policy/log_prob_mismatch",
    "policy/entropy",
    "policy/collision_probability",
)
LAYOUTS = {
    "TP2": TP2,
    "TP2 with sequence parallelism": {**TP2, "sequence_parallel": True},
    "PP2": PP2,
    "TP2 x PP2": {**TP2, **PP2},
    "PP2 with virtual stages": VP2,
    "TP2 x PP2 with sequence parallelism and virtual stages": {**TP2, **VP2, "sequence_parallel": True},
    "DP2": DP2,
    "full recompute": {"recompute": "full"},
}


def scenario(
    model_folder: Path, policy: dict, first: int = 0, num: int = NUM_UPDATES, pieces: int = PIECES, **parts: object
) -> Scenario:
    config = make_config(**policy)
    data = layout_of(config).data
    plans = tuple(make_plan(data, micro_batches=pieces // data, seed=seed) for seed in range(first, first + num))
    return Scenario(config, model_folder, plans=plans, **parts)


def curve(case: Scenario, outcomes: list[Outcome], name: str) -> list[float]:
    return [metrics[name] for metrics in outcomes[layout_of(case.config).report_rank].metrics]


@pytest.fixture(scope="module")
def single(model_folder: Path) -> list[Outcome]:
    return outcomes_of(scenario(model_folder, {}))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_layout_gives_the_loss_curve_of_a_single_rank(
    layout: dict, model_folder: Path, single: list[Outcome]
) -> None:
    case = scenario(model_folder, layout)
    outcomes = outcomes_of(case)
    assert single[0].metrics[0].keys() == outcomes[layout_of(case.config).report_rank].metrics[0].keys()
    for name in METRICS:
        expected = curve(scenario(model_folder, {}), single, name)
        assert curve(case, outcomes, name) == pytest.approx(expected, rel=1e-4), name


def test_virtual_stages_take_any_number_of_micro_batches(model_folder: Path, single: list[Outcome]) -> None:
    case = scenario(model_folder, VP2, num=2, pieces=3)  # the schedule wants an even number
    outcomes = run_scenario(case)
    for name in METRICS:
        expected = curve(scenario(model_folder, {}), single, name)[:2]
        assert curve(case, outcomes, name) == pytest.approx(expected, rel=1e-4), name


@pytest.mark.parametrize("layout", [{}, DP2], ids=["one rank", "DP2"])
def test_repeating_a_run_is_bit_identical(layout: dict, model_folder: Path) -> None:
    case = scenario(model_folder, layout)
    first, second = outcomes_of(case), run_scenario(case)
    assert [outcome.checksum for outcome in first] == [outcome.checksum for outcome in second]
    assert [outcome.metrics for outcome in first] == [outcome.metrics for outcome in second]


@pytest.mark.parametrize("layouts", [({**TP2, **DP2}, PP2, TP2), (VP2, TP2, {})], ids=["TP2xDP2-PP2-TP2", "VP2-TP2-1"])
def test_a_checkpoint_of_one_layout_continues_under_another(
    layouts: tuple[dict, ...], model_folder: Path, other_weights: Path, single: list[Outcome], tmp_path: Path
) -> None:
    """One update under each of them."""
    run_scenario(scenario(model_folder, layouts[0], num=1, save_to=tmp_path / "0"))
    for number, layout in enumerate(layouts[1:], start=1):
        files = {"load_from": tmp_path / f"{number - 1}", "save_to": tmp_path / f"{number}"}
        case = scenario(other_weights, layout, first=number, num=1, **files)
        outcomes = run_scenario(case)
        for name in ("policy/loss", "policy/grad_norm", "policy/kl_to_reference"):
            expected = curve(scenario(model_folder, {}), single, name)[number]
            assert curve(case, outcomes, name) == [pytest.approx(expected, rel=1e-4)], name


@pytest.mark.parametrize("layout", [{**TP2, **PP2}, VP2], ids=["TP2 x PP2", "PP2 with virtual stages"])
def test_an_export_of_any_layout_scores_the_same_in_transformers(
    layout: dict, model_folder: Path, tmp_path: Path
) -> None:
    from nemo_brorl.policy.rank.hf_log_probs import hf_log_probs

    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, VOCAB_SIZE, length).tolist() for length in (1, 5, 9)]
    responses = [rng.integers(0, VOCAB_SIZE, length).tolist() for length in (4, 1, 6)]
    case = scenario(model_folder, layout, num=1, export_to=tmp_path / "hf", score=(prompts, responses))
    mine = run_scenario(case)[layout_of(case.config).report_rank].log_probs
    theirs = hf_log_probs(tmp_path / "hf", prompts, responses, 1.0)
    assert mine is not None
    for own, expected in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(own, expected, atol=LOG_PROB_BOUND)


@pytest.mark.parametrize("layout", [DP2, PP2], ids=["DP2", "PP2"])
def test_all_ranks_skip_a_mini_batch_that_is_not_finite_on_one(layout: dict, model_folder: Path) -> None:
    case = scenario(model_folder, layout, num=1)
    plan = case.plans[0]
    broken = replace(
        plan.groups[0], advantages=np.where(np.arange(8) == 0, np.nan, plan.groups[0].advantages)
    )  # in mini-batch 0
    skipping = run_scenario(replace(case, plans=(replace(plan, groups=(broken, *plan.groups[1:])),)))
    without = run_scenario(replace(case, plans=(replace(plan, mini_batches=plan.mini_batches[1:]),)))
    assert [outcome.num_skipped for outcome in skipping] == [1, 1]
    assert [outcome.checksum for outcome in skipping] == [outcome.checksum for outcome in without]


@pytest.fixture(scope="module")
def actors(cluster: None, model_folder: Path) -> Iterator[MegatronPolicy]:
    """Two ranks; the last test that has them ends one."""
    policy = MegatronPolicy(RankSettings.from_config(make_config(**TP2, offload="optimizer")), model_folder)
    policy.wait_ready()
    yield policy
    policy.close()


def test_ray_actors_compute_what_plain_processes_do(
    actors: MegatronPolicy, single: list[Outcome], tmp_path: Path
) -> None:
    """Also while a checkpoint is written and the policy makes room for engines."""
    reports = [actors.update(make_plan(1, micro_batches=PIECES, seed=0))]
    actors.begin_update(make_plan(1, micro_batches=PIECES, seed=1))
    while (report := actors.finish_update(timeout_s=0.0)) is None:
        time.sleep(0.01)
    reports.append(report)
    buckets = ray.get([bucket.message for bucket in actors.weight_stream()])
    actors.begin_save(tmp_path / "checkpoint")
    actors.offload()
    while actors.finish_save(wait=False) is None:
        time.sleep(0.01)
    actors.onload()
    actors.load(tmp_path / "checkpoint")
    again = ray.get([bucket.message for bucket in actors.weight_stream()])
    losses = [metrics["policy/loss"] for metrics in single[0].metrics[:2]]
    assert [report.metrics["policy/loss"] for report in reports] == pytest.approx(losses, rel=1e-4)
    assert [report.num_updates for report in reports] == [2, 2]
    assert buckets[0].tensors[0].name == "model.embed_tokens.weight"
    assert [bucket.checksum for bucket in buckets] == [bucket.checksum for bucket in again]


def test_a_dead_rank_is_named(actors: MegatronPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    ray.kill(actors.ranks[1])
    with pytest.raises(TrainingError, match="policy rank 1 of 2 is gone"):
        actors.update(make_plan())
    monkeypatch.setattr(megatron_policy, "_CLOSE_TIMEOUT_S", 2.0)  # the other one waits for it
    actors.close()


def test_a_truncated_weights_file_is_one_clear_error(cluster: None, model_folder: Path, tmp_path: Path) -> None:
    broken = make_model(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes((model_folder / "model.safetensors").read_bytes()[:1000])
    policy = MegatronPolicy(RankSettings.from_config(make_config()), broken)
    try:
        with pytest.raises(ModelError, match="model.safetensors of 1,000 bytes is no safetensors file"):
            policy.wait_ready()
    finally:
        policy.close()
