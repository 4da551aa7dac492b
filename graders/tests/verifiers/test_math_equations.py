"""Chains of equations, qualifiers, functions, factorials, and questions that are written out again."""

from __future__ import annotations

import pytest
from brorl_graders.base.errors import DataError
from brorl_graders.verifiers.math.answer import score
from brorl_graders.verifiers.registry import check_payload

CASES = [
    # chains of equations
    ("7", "3+4=7", 1),
    ("8", "3+4=8", 0),
    ("7", "x=3+4=7", 1),
    ("7", "x=3+5=7", 0),
    ("7", "x=4 \\text{ so } y=7", 0),
    ("7", "x=4 \\text{ since } y=7", 0),
    ("12", "\\text{Area}=\\text{base}\\times\\text{height}=12", 1),
    ("0.67", "\\frac{2}{3}=0.67", 1),
    ("12", "a+b=12", 0),
    ("12", "3x=12", 0),
    ("12", "x^2=12", 0),
    ("12", "f(2)=12", 1),
    ("12", "a_3=12", 1),
    ("4", "x=4\\text{ or } x=4", 1),
    # answers with several names
    ("a=1, b=4; a=2, b=8", "a=1,b=4 \\text{ or } a=2,b=8", 1),
    ("a=1, b=4; a=2, b=8", "b=8,a=2; b=4,a=1", 1),
    ("a=1, b=4; a=2, b=8", "a=1,b=8; a=2,b=4", 0),
    ("(1,4),(2,8)", "x=1,y=4 \\text{ or } x=2,y=8", 1),
    # qualifiers and arguments
    ("f(x)=5x", "f(x)=5x \\text{ for all real } x", 1),
    ("f(x)=5x", "f(x)=4x \\text{ for all real } x", 0),
    ("(2,9)", "(2,9) \\text{ only}", 1),
    ("x^2+C", "x^2+C \\text{ where } C \\text{ is a constant}", 1),
    ("5", "5 \\text{ only}", 1),
    ("f(x)=x^3-x", "f(t)=t^3-t", 1),
    ("f(x)=x^3-x", "f(t)=t^3+t", 0),
    ("f(x)=x^3-x", "f(t)=x^3-t", 0),
    ("f(x)=x^3-x", "g(t)=t^3-t", 0),
    # functions with the same real values, and exact numbers
    ("\\sqrt{\\frac{1}{k}}", "\\frac{1}{\\sqrt{k}}", 1),
    ("\\sqrt{\\frac{1}{k}}", "\\frac{1}{k}", 0),
    ("x", "\\sqrt{x^2}", 0),
    ("\\frac{1}{2500!}", "\\frac{1}{2499!}", 0),
    ("\\frac{1}{2500!}", "\\frac{1}{2500 \\cdot 2499!}", 1),
    ("\\frac{1}{3^{2000}}", "\\frac{1}{3^{2001}}", 0),
    ("\\frac{1}{3^{2000}}", "\\frac{1}{9^{1000}}", 1),
    # an operation that is left to do
    ("1275", "\\sum_{k=1}^{50}k", 0),
    ("2", "\\int_0^2 1\\,dx", 0),
    ("1", "\\lim_{x\\to 0}\\frac{\\sin x}{x}", 0),
    ("2x", "\\frac{d}{dx}x^2", 0),
    ("\\sum_{k=1}^{50}k", "\\sum_{k=1}^{50}k", 1),
    ("\\sum_{k=1}^{50}k", "1275", 1),
    ("120", "5!", 1),
    ("6", "\\sqrt{36}", 1),
]


@pytest.mark.parametrize(("answer", "given", "right"), CASES)
def test_an_equation_or_expression_is_worth_what_it_says(answer: str, given: str, right: int) -> None:
    assert score({"answer": answer}, f"\\boxed{{{given}}}") == right


def test_a_data_set_may_accept_an_operation_that_is_left_to_do() -> None:
    verdicts = [score({"answer": "1275", "form": form}, "\\boxed{\\sum_{k=1}^{50}k}") for form in ("done", "any")]
    assert verdicts == [0.0, 1.0]
    with pytest.raises(DataError, match="form"):
        check_payload("math", {"answer": "1", "form": "all"})


def test_a_long_sum_of_whole_numbers_is_computed_exactly() -> None:
    verdicts = [score({"answer": "\\sum_{k=1}^{700} k\\cdot k!"}, f"\\boxed{{701!-{number}}}") for number in (1, 2)]
    assert verdicts == [1.0, 0.0]
