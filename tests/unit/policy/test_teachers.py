"""Teachers: other models as references of the KL term, one for all prompts or one by task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ModelError
from nemo_brorl.policy.rank.pipeline import score_rows
from nemo_brorl.types import UpdatePlan
from tests.support.model_factory import make_config, make_model, make_plan

pytestmark = pytest.mark.numbers

NewLearner = Callable[[Path, BroRLConfig], Any]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two other models of the policy's shape."""
    return [make_model(tmp_path_factory.mktemp(f"teacher{seed}"), seed=seed) for seed in (5, 6)]


def taught(**kl: Any) -> BroRLConfig:
    config = make_config()
    for name, value in {"coefficient": 1.0, **kl}.items():
        setattr(config.algorithm.kl, name, value)
    return config


def without_rewards(plan: UpdatePlan, tasks: Sequence[str] = ("", "", "", "")) -> UpdatePlan:
    """The plan with advantages of zero, and the tasks of its four groups."""
    groups = []
    for group, task in zip(plan.groups, tasks, strict=True):
        groups.append(replace(group, advantages=np.zeros_like(group.advantages), task=task))
    return replace(plan, groups=tuple(groups))


def params(learner: Any) -> list[torch.Tensor]:
    return [param.detach().clone() for model in learner.state.models for param in model.parameters()]


def are_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_the_policy_starts_as_it_is_and_moves_to_a_teacher_that_stays(
    new_learner: NewLearner, model_folder: Path, folders: list[Path]
) -> None:
    learner = new_learner(model_folder, taught(teacher=str(folders[0])))
    assert are_equal(params(learner), params(new_learner(model_folder, make_config())))
    teacher = params(new_learner(folders[0], make_config()))
    plan = without_rewards(make_plan(num_mini_batches=1))
    distances = [learner.update(plan).metrics["policy/kl_to_teacher"] for _ in range(8)]
    assert distances[0] > 0.01
    assert distances[-1] < 0.8 * distances[0]
    with learner.state.references[0].swapped_in():
        assert are_equal(params(learner), teacher)


def test_the_policy_itself_as_the_teacher_changes_no_bit_of_a_weight(
    new_learner: NewLearner, model_folder: Path
) -> None:
    learner = new_learner(model_folder, taught(teacher=str(model_folder)))
    before = params(learner)
    for seed in range(3):
        assert learner.update(without_rewards(make_plan(seed=seed))).metrics["policy/kl_to_teacher"] == 0
    assert are_equal(params(learner), before)


def test_each_task_has_the_kl_to_its_own_teacher(
    new_learner: NewLearner, model_folder: Path, folders: list[Path]
) -> None:
    """Rows hold prompts of all tasks."""
    plan = without_rewards(make_plan(num_mini_batches=1, micro_batches=1), ["b", "a", "none", "b"])
    alone = {}
    for task, folder in zip("ab", folders, strict=True):
        metrics = new_learner(model_folder, taught(teacher=str(folder))).update(plan).metrics
        alone[task] = metrics[f"policy/kl_to_teacher/{task}"]
    config = taught(teachers={task: str(folder) for task, folder in zip("ab", folders, strict=True)})
    metrics = new_learner(model_folder, config).update(plan).metrics
    assert "policy/kl_to_reference" not in metrics
    assert "policy/kl_to_teacher/none" not in metrics
    assert {task: metrics[f"policy/kl_to_teacher/{task}"] for task in "ab"} == pytest.approx(alone, rel=1e-5)
    num = [sum(int(chunk.offsets[-1]) for chunk in group.chunks) for group in plan.groups]
    mean = (num[1] * alone["a"] + (num[0] + num[3]) * alone["b"]) / (num[0] + num[1] + num[3])
    assert metrics["policy/kl_to_teacher"] == pytest.approx(mean, rel=1e-5)


def test_prompts_without_a_teacher_have_no_kl(new_learner: NewLearner, model_folder: Path, folders: list[Path]) -> None:
    learner = new_learner(model_folder, taught(teachers={"a": str(folders[0])}))
    before = params(learner)
    metrics = learner.update(without_rewards(make_plan(), ["b"] * 4)).metrics
    assert not [name for name in metrics if "/kl_to_" in name]
    assert are_equal(params(learner), before)
    learner.update(without_rewards(make_plan(), ["b", "b", "a", "b"]))
    assert not are_equal(params(learner), before)


def test_only_rows_with_prompts_of_a_teacher_are_scored_by_it(
    new_learner: NewLearner, model_folder: Path, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = new_learner(model_folder, taught(teachers={task: str(folders[task == "b"]) for task in "abc"}))
    assert len(learner.state.references) == 2, "tasks share a teacher"
    scored = []

    def score(chunks: Any, rows: list[Any]) -> list[Any]:
        scored.append(len(rows))
        return score_rows(chunks, rows)

    monkeypatch.setattr("nemo_brorl.policy.rank.update.score_rows", score)
    # Each of the four rows has one prompt.
    learner.update(without_rewards(make_plan(num_mini_batches=1, micro_batches=4), list("abac")))
    assert scored == [3, 1]


def test_a_checkpoint_has_every_teacher_and_needs_none_of_their_folders(
    new_learner: NewLearner, model_folder: Path, folders: list[Path], tmp_path: Path
) -> None:
    config = taught(teachers={"a": str(folders[1]), "b": str(folders[0])})
    plans = [without_rewards(make_plan(seed=seed), list("abab")) for seed in (1, 2)]
    learner = new_learner(model_folder, config)
    learner.update(plans[0])
    (tmp_path / "checkpoint").mkdir()
    learner.begin_save(tmp_path / "checkpoint")
    learner.finish_save()
    expected = learner.update(plans[1]).metrics
    settings = replace(learner.state.settings, references=[None, None])
    resumed = type(learner)(settings, model_folder, learner.state.device)
    resumed.load(tmp_path / "checkpoint")
    assert resumed.update(plans[1]).metrics == expected
    assert are_equal(params(resumed), params(learner))


def test_a_teacher_of_another_shape_is_refused(new_learner: NewLearner, model_folder: Path, tmp_path: Path) -> None:
    wide = make_model(tmp_path, intermediate_size=64)
    with pytest.raises(ModelError, match=r"has another ffn_size \(64, not 48\) than policy.model. Set algorithm.kl"):
        new_learner(model_folder, taught(teacher=str(wide)))
