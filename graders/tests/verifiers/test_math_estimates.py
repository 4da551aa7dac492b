"""Answers with a sign of approximate equality count as the numbers on its two sides, if these are close."""

from __future__ import annotations

import pytest
from brorl_graders.verifiers.math.answer import score
from brorl_graders.verifiers.math.estimate import steps_of_an_estimate
from brorl_graders.verifiers.math.notation import in_one_notation


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("3\\pi \\approx 9.42", ["3\\pi", "9.42"]),
        ("\\ln 2 \\approx 0.693", ["\\ln 2", "0.693"]),
        ("\\frac{7}{3} \\approx 2.33 \\approx 2.3", ["\\frac{7}{3}", "2.33", "2.3"]),
        ("\\arcsin(5/7) \\approx 45.6^\\circ", ["\\arcsin(5/7)", "45.6^\\circ"]),
        ("(\\sqrt{2},1) \\approx (1.41,1)", ["(\\sqrt{2},1)", "(1.41,1)"]),
        ("x \\approx 5", ["5"]),
        ("a+b \\approx 5", ["5"]),
        ("5 \\approx 6", []),
        ("\\ln 2 \\approx 0.7071", []),
        ("1 \\approx 57.3", []),
        ("5\\text{ cm} \\approx 5\\text{ m}", []),
        ("500\\text{ cm} \\approx 5\\text{ m}", ["500\\text{ cm}", "5\\text{ m}"]),
    ],
)
def test_steps_of_an_estimate_are_the_last_one_and_those_that_are_close_to_it(text: str, steps: list[str]) -> None:
    assert steps_of_an_estimate(in_one_notation(text)) == [*map(in_one_notation, steps)]


@pytest.mark.parametrize(
    ("one", "other"),
    [("100", "5\\text{ cm}"), ("|10!|", "e^{2}"), ("(-\\infty,3)", "(1,2)"), ("\\text{Monday}", "3+4i"), ("x=7", "5")],
)
def test_two_answers_with_such_a_sign_between_them_are_not_both_right(one: str, other: str) -> None:
    response = f"\\boxed{{{one} \\approx {other}}}"
    assert sum(score({"answer": reference}, response) for reference in (one, other)) <= 1
