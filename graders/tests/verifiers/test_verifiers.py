"""Verifiers on hand-worked responses."""

from __future__ import annotations

import pytest
from brorl_graders.base.answer import extract_answer
from brorl_graders.verifiers import exact_match, reasoning_gym
from brorl_graders.verifiers.registry import VERIFIERS

from graders.tests.support.gym_questions import gym_payloads

GCD = {"dataset": "gcd", "config": {}, "question": "gcd of 4 and 6?", "answer": "2", "metadata": {}}


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<answer>42</answer>", "42"),
        ("so <answer> 4 2\n</answer> done", "4 2"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>1</answer> or <answer>2", "1"),
        ("<answer>1", None),
        ("1</answer>", None),
        ("</answer><answer>", None),
        ("42", None),
        ("<answer></answer>", ""),
    ],
)
def test_the_answer_is_the_last_complete_one(response: str, answer: str | None) -> None:
    assert extract_answer(response) == answer


def test_reasoning_gym_scores_by_the_tasks_own_rule() -> None:
    assert reasoning_gym.score(GCD, "<answer>2</answer>") == 1.0
    assert reasoning_gym.score(GCD, "<answer>3</answer>") == 0.0
    assert (
        reasoning_gym.score(GCD, "<answer>12</answer>") == 0.5
    )  # the task grants len(right) / len(given) when it is contained


def test_a_response_cut_off_before_the_end_tag_scores_nothing() -> None:
    assert reasoning_gym.score(GCD, "<answer>2") == 0.0
    assert exact_match.score({"answer": "2"}, "<answer>2") == 0.0


def test_exact_match_ignores_white_space_only() -> None:
    payload = {"answer": "New York"}
    assert exact_match.score(payload, "<answer>New  York\n</answer>") == 1.0
    assert exact_match.score(payload, "<answer>new york</answer>") == 0.0
    assert exact_match.score(payload, "New York") == 0.0


def test_a_number_without_decimals_is_right_with_and_without_its_point() -> None:
    assert [exact_match.score({"answer": 50.0}, f"<answer>{text}</answer>") for text in ("50", "50.0")] == [1.0, 1.0]
    assert [exact_match.score({"answer": 0.5}, f"<answer>{text}</answer>") for text in ("0.5", "0")] == [1.0, 0.0]
    assert [exact_match.score({"answer": "50.0"}, f"<answer>{text}</answer>") for text in ("50.0", "50")] == [1.0, 0.0]


@pytest.mark.parametrize(
    "name",
    ["chain_sum", "spell_backward", "number_sorting", "simple_equations", "base_conversion", "calendar_arithmetic"],
)
def test_the_written_answer_of_a_task_earns_one(name: str) -> None:
    for payload in gym_payloads(name, num=5, seed=1):
        assert VERIFIERS["reasoning_gym"].score(payload, f"<answer>{payload['answer']}</answer>") == 1.0
