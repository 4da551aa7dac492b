"""What the page says of a run before anybody reads a curve: its answers before and after, intervals, hf/."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from brorl_lab.intervals import interval_95
from brorl_lab.page.answers import MAX_CHARACTERS, before_and_after
from brorl_lab.page.runs import RunView, overview

from tests.support.run_folders import put_answers

PASS_AT_1 = "validation/pass_at_1"


def test_the_question_is_one_that_changed_as_most_of_them_did(tmp_path: Path) -> None:
    """Rewards rise by 0, -1, 1 and 1: the first that rose is the third."""
    put_answers(tmp_path, 0, "so", 0.0, 1.0, 0.0, 0.0)
    put_answers(tmp_path, 5, "no", 1.0, 1.0, 0.0, 1.0)
    put_answers(tmp_path, 10, "so, again", 0.0, 0.0, 1.0, 1.0)
    before, after = before_and_after(tmp_path, last_step=10) or []
    assert (before["step"], before["question"], before["response"], before["reward"]) == (0, "What is 2? so", "so", 0)
    assert (after["step"], after["response"], after["is_right"]) == (10, "so, again", True)


def test_of_a_run_that_lost_the_question_is_one_that_it_lost(tmp_path: Path) -> None:
    put_answers(tmp_path, 0, "so", 1.0, 0.0, 1.0)
    put_answers(tmp_path, 5, "no", 1.0, 1.0, -2.0)
    _, after = before_and_after(tmp_path, last_step=5) or []
    assert after["reward"] == -2


def test_a_validation_after_the_last_step_of_a_resumed_run_is_none_of_it(tmp_path: Path) -> None:
    for step in (0, 5, 10):
        put_answers(tmp_path, step, f"of {step}", 0.0)
    _, after = before_and_after(tmp_path, last_step=7) or []
    assert after["step"] == 5
    assert before_and_after(tmp_path, last_step=3) is None


@pytest.mark.parametrize("text", ["", "{", '{"step": 5}\n', '{"step": 5, "uid": "held_out/0", "reward": "much"}\n'])
def test_damaged_answers_are_none(text: str, tmp_path: Path) -> None:
    put_answers(tmp_path, 0, "so", 0.0)
    (tmp_path / "validations" / "step_5.jsonl").write_text(text)
    (tmp_path / "validations" / "step_²7.jsonl").write_text(text)
    assert before_and_after(tmp_path, last_step=9) is None


def test_a_long_response_is_cut(tmp_path: Path) -> None:
    for step in (0, 1):
        put_answers(tmp_path, step, "x" * 10**6, 0.0)
    for row in before_and_after(tmp_path, last_step=1) or []:
        assert len(row["question"]) < MAX_CHARACTERS + 100
        assert row["response"].endswith("… (980,000 more characters)")


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        (PASS_AT_1, {PASS_AT_1: 0.5, f"{PASS_AT_1}_low": 0.4, f"{PASS_AT_1}_high": 0.7}, [0.4, 0.7]),
        (PASS_AT_1, {PASS_AT_1: 0.5, f"{PASS_AT_1}_standard_error": 0.1}, [0.304, 0.696]),
        # a share lies between 0 and 1, a reward does not
        (PASS_AT_1, {PASS_AT_1: 0.1, f"{PASS_AT_1}_standard_error": 0.1}, [0.0, 0.296]),
        ("validation/reward", {"validation/reward": 0.1, "validation/reward_standard_error": 0.1}, [-0.096, 0.296]),
        (
            "mass_balance/measured_gain",
            {"mass_balance/measured_gain": 2, "mass_balance/measured_gain_error": 1},
            [0.04, 3.96],
        ),
    ],
)
def test_an_interval_is_the_recorded_one_or_that_of_the_standard_error(
    name: str, row: dict[str, Any], expected: list[float]
) -> None:
    assert interval_95(row, name) == pytest.approx(expected)


@pytest.mark.parametrize("error", [0.0, None, math.nan, "much", True, 10**400])
def test_an_error_that_says_nothing_makes_no_interval(error: Any) -> None:
    assert interval_95({PASS_AT_1: 0.0, f"{PASS_AT_1}_standard_error": error}, PASS_AT_1) is None


def put(folder: Path, *rows: dict[str, Any]) -> dict[str, Any]:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return overview([RunView(folder, "run")])


def test_metrics_of_panels_have_words(tmp_path: Path) -> None:
    row = {"step": 1, "rollouts/pass_at_64": 0.5, "reward/{sums}": 1, "reward/mean": 1, "policy/approximate_kl": 0.1}
    row |= {"policy/kl_to_reference": 0.2, "rollouts/successes_2_to_5": 0.1, "mass_balance/measured_gain_error": 0.1}
    panels = put(tmp_path, row)["panels"]
    words = {name: word for panel in panels for name, word in zip(panel["metrics"], panel["words"], strict=True)}
    assert words == {
        "rollouts/pass_at_64": "pass@64",
        "reward/{sums}": "{sums}",
        "reward/mean": "raw reward",
        "policy/approximate_kl": "KL of the update",
        "policy/kl_to_reference": "KL to the reference",
        "rollouts/successes_2_to_5": "2 to 5 right",
    }
    assert [panel["metrics"] for panel in panels if "policy/approximate_kl" in panel["metrics"]] == [
        ["policy/approximate_kl"]
    ]


def test_a_run_has_its_seconds_and_intervals_whatever_stands_in_its_rows(tmp_path: Path) -> None:
    first = {"step": 0, PASS_AT_1: 0.5, f"{PASS_AT_1}_standard_error": 0.1, "time/validate_s": 2.5}
    second = {"step": 1, "time/collect_s": 4, "time/update_s": "long", "reward/mean": "much"}
    [run] = put(tmp_path, first, second)["runs"]
    assert run["seconds"] == 6.5
    assert run["intervals"] == {PASS_AT_1: [pytest.approx([0.304, 0.696]), None]}
    assert run["metrics"]["reward/mean"] == [None, None]
    assert run["answers"] is None
    assert run["weights"] is None
