"""Two models on the same prompts, from what their evaluations have left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from brorl_lab.commands.compare import comparison_rows
from brorl_lab.paired_evaluations import BenchmarkComparison, compare_evaluations, read_evaluation

from nemo_brorl.__main__ import main as brorl
from nemo_brorl.core.errors import CheckpointError

RESAMPLES = 500
BEFORE = {"toy": ["0000", "1000", "1100", "1110"], "more": ["0000", "1111"]}
AFTER = {"toy": ["1100", "1100", "1100", "1111"], "more": ["0000", "1110"]}
TOY = {"toy": BEFORE["toy"]}


def put(folder: Path, right: dict[str, list[str]], questions: str = "q", **settings: Any) -> Path:
    """An evaluation.json with a digit for each sample, 1 for a right one."""
    benchmarks = {}
    for name, digits in right.items():
        prompts = {f"{name}/{index}": samples for index, samples in enumerate(digits)}
        benchmarks[name] = {
            "prompts": prompts,
            "questions": questions,
            "settings": {"samples_per_prompt": 4, "temperature": 1.0, "system_prompt": None, **settings},
        }
    folder.mkdir(exist_ok=True)
    path = folder / "evaluation.json"
    path.write_text(json.dumps({"model": folder.name, "confidence": 0.95, "benchmarks": benchmarks}))
    return path


def compared(folder: Path, before: dict[str, list[str]], after: dict[str, list[str]]) -> dict[str, BenchmarkComparison]:
    paths = [put(folder / "base", before), put(folder / "trained", after)]
    one, other = [read_evaluation(path) for path in paths]
    return compare_evaluations(one, other, RESAMPLES)


def test_a_comparison_of_four_prompts_by_hand(tmp_path: Path) -> None:
    comparison = compared(tmp_path, TOY, {"toy": AFTER["toy"]})
    assert list(comparison) == ["toy"], "one benchmark is all there is"
    found = comparison["toy"]
    # differences 1/2, 1/4, 0, 1/4
    assert (found.before, found.after, found.test.difference.value) == (0.375, 0.625, 0.25)
    assert found.test.p_value == 2 / 2**3, "three prompts differ, all in one direction"
    assert found.test.t == pytest.approx(6**0.5)
    assert (found.wins, found.ties, found.losses) == (3, 1, 0)


def test_several_benchmarks_are_compared_one_by_one_and_together(tmp_path: Path) -> None:
    found = compared(tmp_path, BEFORE, AFTER)
    assert list(found) == ["toy", "more", "all prompts", "mean of benchmarks"]
    assert found["more"].test.difference.value == pytest.approx(-0.125)
    assert found["all prompts"].test.difference.value == pytest.approx((0.5 + 0.25 + 0 + 0.25 + 0 - 0.25) / 6)
    assert found["mean of benchmarks"].test.difference.value == pytest.approx((0.25 - 0.125) / 2)
    assert (found["all prompts"].wins, found["all prompts"].ties, found["all prompts"].losses) == (3, 2, 1)


def test_a_model_against_itself_is_no_different(tmp_path: Path) -> None:
    found = compared(tmp_path, TOY, TOY)["toy"]
    assert (found.test.p_value, found.ties) == (1.0, 4)


@pytest.mark.parametrize(
    ("right", "changed", "message"),
    [
        (TOY, {"samples_per_prompt": 8}, "toy was asked with samples_per_prompt=4, then with 8"),
        (TOY, {"temperature": 0.5}, "toy was asked with temperature=1.0, then with 0.5"),
        (TOY, {"system_prompt": "Think."}, "toy was asked with system_prompt=None, then with Think."),
        ({"toy": ["0000"] * 3}, {}, "toy has 4 prompts in the first and 3 in the second"),
        (TOY, {"questions": "others"}, "toy holds other questions or scores them otherwise"),
        (BEFORE, {}, "the first has no more"),
        ({"more": BEFORE["more"]}, {}, "the second has no toy"),
    ],
)
def test_what_was_asked_otherwise_is_not_compared(
    right: dict[str, list[str]], changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    one = read_evaluation(put(tmp_path / "base", TOY))
    other = read_evaluation(put(tmp_path / "trained", right, **changed))
    with pytest.raises(CheckpointError, match=message):
        compare_evaluations(one, other, RESAMPLES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"model": "a"}',
        '{"model": "a", "benchmarks": {"toy": {}}}',
        '{"model": "a", "confidence": 0.95, "benchmarks": {"toy": {"prompts": {"a": "1"}}}}',
        '{"model": "a", "confidence": 7, "benchmarks": {}}',
        '{"model": "a", "confidence": 0.9, "benchmarks": {"t": {"prompts": {}, "questions": "q", "settings": {}}}}',
        '{"model": "a", "overall": {}, "tasks": {}}',
    ],
)
def test_a_file_that_is_no_evaluation_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text(text)
    with pytest.raises(CheckpointError, match="is no evaluation.json of this version"):
        read_evaluation(tmp_path / "evaluation.json")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_evaluation(tmp_path / "nowhere.json")


def test_prompts_of_other_names_are_other_questions(tmp_path: Path) -> None:
    path = put(tmp_path / "base", TOY)
    text = path.read_text()
    (tmp_path / "other.json").write_text(text.replace("toy/0", "toy/9"))
    with pytest.raises(CheckpointError, match="toy holds other questions"):
        compare_evaluations(read_evaluation(path), read_evaluation(tmp_path / "other.json"), 10)


def test_the_table_says_who_is_ahead_on_how_many_prompts(tmp_path: Path) -> None:
    [row] = comparison_rows(compared(tmp_path, TOY, {"toy": AFTER["toy"]}))
    assert row[:5] == ["toy", "4", "37.5%", "62.5%", "+25.0"]
    assert row[-1] == "3 / 1 / 0"


def test_a_run_is_compared_with_what_was_evaluated_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, {"toy": AFTER["toy"]})
    put(tmp_path / "before", TOY)
    monkeypatch.setattr("sys.argv", ["brorl", "compare", str(tmp_path)])
    assert brorl() == 0
    assert "against before:" in capsys.readouterr().out
