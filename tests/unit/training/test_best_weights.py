"""Which step's weights are in hf/, whatever the scale of the rewards, and what the folder says of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemo_brorl.core.best_weights import is_better, weights_line
from nemo_brorl.evaluation.validation import EvaluationResult, summarise
from nemo_brorl.training.validations import Validations
from tests.support.fakes import make_group
from tests.support.loop import make_trainer, small_config

PASS_AT_1, REWARD = "validation/pass_at_1", "validation/reward"
# Right responses among 4 of each of 4 questions, by step. Steps 2 and 3 are equal, and 4 is worse.
RIGHT = ((1, 0, 1, 0), (1, 1, 1, 0), (2, 2, 1, 0), (0, 1, 2, 2), (1, 1, 1, 1), (2, 2, 2, 1))


def result_of(num_right: Sequence[int], wrong: float, right: float, **payload: Any) -> EvaluationResult:
    groups = []
    for num in num_right:
        group = make_group([right] * num + [wrong] * (4 - num))
        prompt = replace(group.prompt, payload=payload)
        groups.append(replace(group, group=replace(group.group, prompt=prompt)))
    return EvaluationResult(summarise(groups), {})


def validated(
    folder: Path, results: Sequence[EvaluationResult], monkeypatch: pytest.MonkeyPatch, steps: Sequence[int] = ()
) -> tuple[list[int], Validations]:
    """Return the steps after which weights were exported, and the validations."""
    trainer = make_trainer(folder, small_config())
    validations = trainer.validations
    exported: list[int] = []

    def export(path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / "model.safetensors").write_text(str(now))
        exported.append(now)

    monkeypatch.setattr(trainer.parts.policy, "export", export)
    for now, result in zip(steps or range(len(results)), results, strict=True):
        monkeypatch.setattr(trainer.parts.evaluator, "evaluate", lambda result=result: result)
        validations.evaluate(now)
    return exported, validations


@pytest.mark.parametrize(
    ("wrong", "right"), [(0, 1), (0, 0.9), (-1, 0.5), (1, 10), (-1, 1), (0, 10), (0, 100), (-3, 0), (0.1, 0.3)]
)
def test_weights_are_exported_after_the_same_steps_whatever_the_scale(
    wrong: float, right: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [result_of(num, wrong, right) for num in RIGHT]
    exported, _ = validated(tmp_path, results, monkeypatch)
    assert exported == [1, 2, 3, 5]


def test_with_its_full_mark_a_scale_has_the_pass_at_1_of_rewards_up_to_1() -> None:
    unit = result_of((1, 2, 3, 0), 0.1, 1).overall
    points = result_of((1, 2, 3, 0), 1, 10, **{"data.success_reward": 10}).overall
    assert unit.pass_at_1 == points.pass_at_1 == pytest.approx(6 / 16)
    assert unit.pass_at_n == points.pass_at_n == pytest.approx(3 / 4)
    assert points.reward == pytest.approx(10 * unit.reward)


def test_means_that_differ_by_rounding_alone_are_a_tie_which_the_later_step_wins() -> None:
    before, after = {PASS_AT_1: 0.0, REWARD: 33.333336}, {PASS_AT_1: 0.0, REWARD: 33.333332}
    assert not is_better(before, after)
    assert is_better({PASS_AT_1: 0.0, REWARD: 33.34}, after)


def test_the_folder_says_which_step_it_holds_and_that_the_base_was_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [result_of(num, 0, 1) for num in ((4, 2, 2, 2), (4, 2, 1, 1), (4, 1, 1, 2))]
    exported, _ = validated(tmp_path, results, monkeypatch, steps=(0, 2, 4))
    assert exported == [2, 4]
    record = json.loads((tmp_path / "hf" / "validated.json").read_text())
    assert (record["step"], record["measure"], record["value"]) == (4, "pass@1", pytest.approx(1 / 2))
    assert record["base_value"] == pytest.approx(10 / 16)
    assert record["run"] == str(tmp_path)
    assert record["revision"]
    # shares of the four questions: 1, 1/4, 1/4, 1/2: variance 0.375 / 3, deviation 0.354, over the root of 4 questions
    assert weights_line(tmp_path) == "hf/ holds step 4 (pass@1 50.0% ± 17.7%, base 62.5%: the base was better)"


def test_a_run_that_pass_at_1_says_nothing_about_is_described_by_its_mean_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [result_of(num, -1, 0.5) for num in ((0, 0, 0, 0), (2, 2, 2, 2))]
    validated(tmp_path, results, monkeypatch)
    assert weights_line(tmp_path) == "hf/ holds step 1 (mean reward -0.25 ± 0, base -1)"


def test_a_record_that_was_cut_off_or_changed_by_hand_is_none(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    for text in ("", "{", "[]", '{"step": 3}', '{"measure": "pass@1", "value": "much"}'):
        (tmp_path / "hf" / "validated.json").write_text(text)
        assert weights_line(tmp_path) is None


def test_a_checkpoint_of_an_earlier_version_knows_its_best_validation(tmp_path: Path) -> None:
    history = [{"step": float(step), PASS_AT_1: value} for step, value in ((0, 0.9), (1, 0.2), (2, 0.5), (3, 0.5))]
    validations = make_trainer(tmp_path, small_config()).validations
    validations.load_state_dict({"best_pass_at_1": 0.5, "history": history})
    assert validations.best == history[2]
    restored = make_trainer(tmp_path, small_config()).validations
    restored.load_state_dict(json.loads(json.dumps(validations.state_dict())))
    assert restored.best == history[2]
    assert restored.history == history
