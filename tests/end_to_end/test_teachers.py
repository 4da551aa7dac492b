"""Two teachers by task under every layout of ranks, rows of other tasks among theirs; resuming without a teacher."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nemo_brorl.config.parallel_layout import layout_of
from nemo_brorl.types import UpdatePlan
from tests.support.loop import small_config
from tests.support.model_factory import make_config, make_model, make_plan
from tests.support.policy_ranks import Scenario, outcomes_of, run_ranks, run_scenario
from tests.support.real_policy import train

pytestmark = [pytest.mark.end_to_end, pytest.mark.numbers]

PIECES = 4  # micro-batches of a mini-batch, over all data-parallel ranks; each has prompts of one task
TASKS = ("a", "none", "b", "a")
TP2 = {"tensor_model_parallel_size": 2}
PP2 = {"pipeline_model_parallel_size": 2}
DP2 = {"data_parallel_size": 2}
TIMINGS = ("_s", "/seconds")  # ends of names of metrics
METRICS = ("policy/loss", "policy/grad_norm", "policy/kl_to_teacher", "policy/kl_to_teacher/b")


def taught(plan: UpdatePlan) -> UpdatePlan:
    groups = []
    for group, task in zip(plan.groups, TASKS, strict=True):
        groups.append(replace(group, advantages=np.zeros_like(group.advantages), task=task))
    return replace(plan, groups=tuple(groups))


def scenario(folder: Path, kind: str, layout: dict) -> Scenario:
    """The models are the same for all layouts."""
    for seed, name in enumerate(("policy", "a", "b")):
        if not (folder / name).exists():
            make_model(folder / name, kind, seed=seed)
    config = make_config(**layout)
    config.algorithm.kl.coefficient = 1.0
    config.algorithm.kl.teachers = {name: str(folder / name) for name in "ab"}
    data = layout_of(config).data
    plans = tuple(taught(make_plan(data, micro_batches=PIECES // data, seed=seed)) for seed in range(2))
    return Scenario(config, folder / "policy", plans=plans)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("qwen2", TP2),
        ("qwen2", PP2),
        ("qwen2", {**TP2, **PP2}),
        ("qwen2", DP2),
        ("qwen3_moe", {**DP2, "expert_model_parallel_size": 2}),
    ],
    ids=["TP2", "PP2", "TP2 x PP2", "DP2", "EP2"],
)
def test_teachers_give_the_losses_of_a_single_rank(kind: str, layout: dict, models: Path) -> None:
    alone = outcomes_of(scenario(models / kind, kind, {}))[0].metrics
    case = scenario(models / kind, kind, layout)
    found = run_scenario(case)[layout_of(case.config).report_rank].metrics
    for name in METRICS:
        assert [row[name] for row in found] == pytest.approx([row[name] for row in alone], rel=1e-4), name


def run_of(folder: Path, model_folder: Path, teacher: Path, *dies_in_step: int) -> dict[int, dict[str, float]]:
    """Metrics of the steps that a run in a folder takes until it ends, without timings."""
    config = small_config(max_steps=4)
    config.exp_manager.explicit_log_dir = str(folder)
    config.algorithm.kl.coefficient, config.algorithm.kl.teacher = 1.0, str(teacher)
    # The save of a step waits for that of the step before, so a run killed in step 4 has step 2 at least.
    config.trainer.save_interval = 1
    config.parity.max_step_mismatch = 100.0  # tokens of the fake engines are no policy's
    [steps] = run_ranks(config, train, config, model_folder, *dies_in_step)
    return {step: {name: row[name] for name in row if not name.endswith(TIMINGS)} for step, row in steps.items()}


def test_a_run_killed_and_resumed_without_its_teachers_folder_equals_the_uninterrupted_one(
    model_folder: Path, tmp_path: Path
) -> None:
    teacher, killed = make_model(tmp_path / "teacher", seed=5), tmp_path / "killed"
    whole = run_of(tmp_path / "whole", model_folder, teacher)
    with pytest.raises(AssertionError, match=r"exit codes of the ranks: \[-9\]"):
        run_of(killed, model_folder, teacher, 4)
    shutil.rmtree(teacher)
    resumed = run_of(killed, model_folder, teacher)
    assert 4 in resumed
    assert resumed == {step: whole[step] for step in resumed}
    assert all(row["policy/kl_to_teacher"] > 0.01 for row in resumed.values())
