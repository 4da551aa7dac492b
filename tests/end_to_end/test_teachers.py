"""Two teachers by task under every layout of ranks, rows of other tasks among theirs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nemo_brorl.config.parallel_layout import layout_of
from nemo_brorl.types import UpdatePlan
from tests.support.model_factory import make_config, make_model, make_plan
from tests.support.policy_ranks import Scenario, outcomes_of, run_scenario

pytestmark = [pytest.mark.end_to_end, pytest.mark.numbers]

PIECES = 4  # micro-batches of a mini-batch, over all data-parallel ranks; each has prompts of one task
TASKS = ("a", "none", "b", "a")
TP2 = {"tensor_model_parallel_size": 2}
PP2 = {"pipeline_model_parallel_size": 2}
DP2 = {"data_parallel_size": 2}
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
