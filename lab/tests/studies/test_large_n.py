"""The rig of the study of a large N: rewards, weights and wrong responses, on the untaught model of the repository."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen2ForCausalLM

from lab.studies.cipher_plain import MODEL, log_probs
from lab.studies.large_n import (
    ARMS,
    HELD_OUT,
    LargeRun,
    Task,
    by_counts,
    by_group,
    draw_outcomes,
    success_at,
    table_rows,
    wrong_responses,
)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """Six questions, half of them of an easy family."""
    rows = [{"prompt": f"{'AE'[place % 2]}12345{place} =", "answer": f"98765{place}"} for place in range(6)]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Task(path, 6)


def test_families_tell_which_questions_are_easy(task: Task) -> None:
    assert task.is_easy.tolist() == [True, False] * 3


def test_accepted_and_rejected_right_rollouts_have_their_chances() -> None:
    random = np.random.default_rng(0)
    drawn = draw_outcomes(np.full(20_000, 0.6), np.full(20_000, 0.5), 16, random)
    assert drawn.accepted.mean() / 16 == pytest.approx(0.3, abs=0.003)
    assert drawn.rejected.mean() / 16 == pytest.approx(0.3, abs=0.003)
    assert (drawn.accepted + drawn.rejected).max() <= 16


def test_wrong_responses_are_wrong(task: Task) -> None:
    model = Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    places = torch.arange(6)
    with torch.no_grad():
        right = log_probs(model, task.questions.prompts, 1, task.answers) * task.mask
    rows = torch.arange(6).repeat_interleave(50)
    found = wrong_responses(model, task, places, rows, right, torch.Generator().manual_seed(0))
    equal = (found[:, : task.length] == task.answers[rows]) | ~task.mask[rows]
    assert not equal.all(dim=1).any()


def test_weights_are_those_of_their_advantages() -> None:
    rates, earlier = np.array([0.5, 0.1]), np.array([0.25, 0.0])
    np.testing.assert_allclose(by_group(rates, earlier), [2.0, 1 / 0.3])
    np.testing.assert_allclose(by_counts(rates, earlier), [4.0, 512.0])


def test_every_question_comes_once_before_any_comes_again(task: Task) -> None:
    run = LargeRun(task, MODEL, ARMS["grpo512"], 1e-4, 1, rollouts=32_768)
    seen = np.concatenate([run.next_places() for _ in range(32)])
    assert len(set(seen.tolist())) == len(seen) == 2048
    assert seen.min() == HELD_OUT


def test_curves_are_read_at_equal_cost() -> None:
    lines = [{"sampled": 0, "prompts": 0, "mean": 0.0}, {"sampled": 100, "prompts": 10, "mean": 1.0}]
    assert success_at(lines, "mean", 0.0, 50) == 0.5
    assert success_at(lines, "mean", 10.0, 50) == 0.25


def test_seed_0_is_not_counted(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        lines = []
        points = [("grpo16", 0, 0.1), ("grpo16", 100, 0.2), ("grpo512", 0, 0.1), ("grpo512", 100, 0.3)]
        for arm, sampled, value in points:
            line = {"arm": arm, "seed": seed, "sampled": sampled, "prompts": 1, "mean": value, "hard": value}
            lines.append(json.dumps(line))
        (tmp_path / f"seed_{seed}.jsonl").write_text("\n".join(lines) + "\n")
    (row,) = table_rows(tmp_path)
    assert row[:2] == ["grpo512", "2"]
    assert row[3].startswith("+10.0 (")
