"""The rig of the study of a large N: rewards, weights and wrong responses, on the untaught model of the repository."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lab.studies.cipher_plain import MODEL
from lab.studies.exact_groups import draw_outcomes
from lab.studies.large_n import (
    ARMS,
    HELD_OUT,
    STEPS,
    HalfHard,
    LargeRun,
    by_counts,
    by_group,
    decision_rows,
    end_rows,
    read_runs,
    success_at,
    table_rows,
)


@pytest.fixture
def task(tmp_path: Path) -> HalfHard:
    """Six questions, half of them of an easy family."""
    rows = [{"prompt": f"{'AE'[place % 2]}12345{place} =", "answer": f"98765{place}"} for place in range(6)]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return HalfHard(path, 6)


def test_families_tell_which_questions_are_easy(task: HalfHard) -> None:
    assert task.is_easy.tolist() == [True, False] * 3


def test_accepted_and_rejected_right_rollouts_have_their_chances() -> None:
    random = np.random.default_rng(0)
    drawn = draw_outcomes(np.full(20_000, 0.6), np.full(20_000, 0.5), 16, random)
    assert drawn.accepted.mean() / 16 == pytest.approx(0.3, abs=0.003)
    assert drawn.rejected.mean() / 16 == pytest.approx(0.3, abs=0.003)
    assert (drawn.accepted + drawn.rejected).max() <= 16


def test_weights_are_those_of_their_advantages() -> None:
    rates, earlier = np.array([0.5, 0.1]), np.array([0.25, 0.0])
    np.testing.assert_allclose(by_group(rates, earlier), [2.0, 1 / 0.3])
    np.testing.assert_allclose(by_counts(rates, earlier), [4.0, 512.0])


def test_every_question_comes_once_before_any_comes_again(task: HalfHard) -> None:
    run = LargeRun(task, MODEL, ARMS["grpo512"], 1e-4, 1, rollouts=32_768)
    seen = np.concatenate([run.next_places() for _ in range(32)])
    assert len(set(seen.tolist())) == len(seen) == 2048
    assert seen.min() == HELD_OUT


def test_curves_are_read_at_equal_cost() -> None:
    lines = [{"sampled": 0, "prompts": 0, "mean": 0.0}, {"sampled": 100, "prompts": 10, "mean": 1.0}]
    assert success_at(lines, "mean", 0.0, 50) == 0.5
    assert success_at(lines, "mean", 10.0, 50) == 0.25


def write_seeds(folder: Path, ends: dict[str, list[float]]) -> None:
    """Write lines of each arm and seed, from 0.1 to the arm's end of that seed, and a rate of 1 for all."""
    for seed in range(3):
        lines = []
        for arm, of_seeds in ends.items():
            # The last line is of a step beyond the study's.
            for step, sampled, value in ((0, 0, 0.1), (STEPS, 100, of_seeds[seed]), (STEPS + 5, 200, 0.99)):
                measured = {"step": step, "sampled": sampled, "prompts": 1, "mean": value, "hard": value, "easy": value}
                lines.append(json.dumps({"arm": arm, "seed": seed, "rate": 1, **measured}))
            # A rate that was not chosen.
            lines.append(json.dumps({"arm": arm, "seed": seed, "rate": 2, "mean": 0.9}))
        (folder / f"seed_{seed}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "rates.json").write_text(json.dumps(dict.fromkeys(ends, 1)))


def test_seed_0_and_rates_that_were_not_chosen_are_not_counted(tmp_path: Path) -> None:
    write_seeds(tmp_path, {"grpo16": [0.8, 0.2, 0.2], "grpo512": [0.1, 0.3, 0.3]})
    (row,) = table_rows(read_runs(tmp_path))
    assert [[name, seeds, both] for name, seeds, *_, both in end_rows(read_runs(tmp_path))] == [
        ["grpo16", "2", "20.0"],
        ["grpo512", "2", "30.0"],
    ]
    assert row[:2] == ["grpo512", "2"]
    assert row[3].startswith("+10.0 (")


def test_seed_0_chooses_the_arms_of_the_decision_and_holm_doubles_the_lower_p(tmp_path: Path) -> None:
    ends = {
        "grpo16": [0.2, 0.9, 0.9],
        "maxrl16": [0.3, 0.2, 0.2],
        "grpo64": [0.4, 0.3, 0.3],
        "grpo512": [0.3, 0.9, 0.9],
    }
    write_seeds(tmp_path, ends)
    rows = decision_rows(read_runs(tmp_path))
    assert [row[:3] for row in rows] == [["P3", "grpo64 - maxrl16", "2"], ["P4", "grpo64 - maxrl16", "2"]]
    # Two equal signs have p = 1/2, and Holm doubles the lower of two.
    assert [row[4] for row in rows] == ["1.000", "1.000"]
