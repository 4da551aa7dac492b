"""A rehearsed update over several ranks: whole where nothing is wrong, and it changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import TrainingError
from nemo_brorl.training.dress_rehearsal import check_ranks
from nemo_brorl.types import RankRehearsal
from tests.support.model_factory import make_config, make_model
from tests.support.policy_ranks import run_ranks
from tests.support.rehearsal_ranks import rehearse_ranks

pytestmark = [pytest.mark.end_to_end, pytest.mark.numbers]

DP2 = {"data_parallel_size": 2}
LAYOUTS = {
    "DP3": {"data_parallel_size": 3},
    "DP2 in bf16, overlapped": {**DP2, "precision": "bf16", "overlap_grad_reduce": True, "overlap_param_gather": True},
    "TP2 x PP2": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
    "PP2 x DP2": {**DP2, "pipeline_model_parallel_size": 2},
    "CP2": {"context_parallel_size": 2},
    "virtual stages": {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
    "FP8, delayed": {**DP2, "precision": "bf16", "fp8": "hybrid", "fp8_recipe": "delayed"},
}


def rehearsed(config: BroRLConfig, folder: Path, fault: str = "") -> list[tuple[RankRehearsal, bool]]:
    return run_ranks(config, rehearse_ranks, config, folder, fault)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_layout_passes_and_is_as_it_was(layout: dict, model_folder: Path) -> None:
    results = rehearsed(make_config(**layout), model_folder)
    check_ranks([report for report, _ in results], layout.get("data_parallel_size", 1))
    assert all(is_as_before for _, is_as_before in results)


def test_experts_on_other_ranks_pass(tmp_path: Path) -> None:
    config = make_config(**DP2, expert_model_parallel_size=2)
    results = rehearsed(config, make_model(tmp_path, "qwen3_moe"))
    check_ranks([report for report, _ in results], 2)
    assert all(is_as_before for _, is_as_before in results)


def test_a_rank_without_gradients_is_found(model_folder: Path) -> None:
    results = rehearsed(make_config(**DP2), model_folder, "no gradients")
    with pytest.raises(TrainingError, match="gradients of 2 replicas that cancel each other"):
        check_ranks([report for report, _ in results], 2)


def test_a_gather_that_changes_a_weight_names_the_rank(model_folder: Path) -> None:
    results = rehearsed(make_config(**DP2), model_folder, "other weights")
    reports = [report for report, _ in results]
    assert [report.is_unchanged for report in reports] == [True, False]
