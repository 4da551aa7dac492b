"""Long and deep answers cost no more than their length, and none is parsed that would take the library long."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from brorl_graders.base.answer import boxed_answers
from brorl_graders.verifiers.math import library
from brorl_graders.verifiers.math.answer import MAX_TAIL, find_answer, is_equal, score
from brorl_graders.verifiers.math.equality import USUAL, are_equal
from brorl_graders.verifiers.math.notation import in_one_notation
from brorl_graders.verifiers.math.reading import read

LONG = [
    "\n",
    "(",
    "{",
    "answer is {",
    "answer is ",
    "$",
    "\\(",
    "\\boxed{",
    "\\boxed{}",
    "<answer>",
    "1 or ",
    "√(",
]
SLOW = [
    "(" * 500,
    "{" * 500 + "x" + "}" * 500,
    "x^" * 60 + "x",
    "x_" * 60 + "x",
    "x^{" * 20 + "2" + "}" * 20,
    "\\frac{1}{" * 24 + "x" + "}" * 24,
    "1+x+" * 400 + "1",
    "9^{9^{9^{9}}}+x",
]


@pytest.mark.parametrize("piece", LONG)
def test_twice_the_text_is_twice_the_work(piece: str) -> None:
    short = _lines_run(lambda: score({"answer": "5"}, piece * 4000))
    double = _lines_run(lambda: score({"answer": "5"}, piece * 8000))
    assert double <= 2.1 * short + 1000


@pytest.mark.parametrize("piece", LONG)
def test_only_the_end_of_a_long_text_is_searched(piece: str) -> None:
    found = find_answer(piece * 8000)
    assert found is None or len(found) <= MAX_TAIL or boxed_answers(piece * 8000)
    assert score({"answer": "5"}, piece * 8000) == 0.0


@pytest.mark.parametrize("given", SLOW)
def test_what_the_library_would_not_finish_is_not_given_to_it(given: str) -> None:
    assert not library.equal_by_library(in_one_notation(given), in_one_notation(given))
    assert not is_equal("x+1", given)


@pytest.mark.parametrize("given", ["(10^9)!", "\\binom{10^9}{5}", "2^{(10^9)}+x", "x+2^{5^{9}}", "(2+3)^{(4+5)^9}"])
def test_a_huge_number_is_not_written_out(given: str) -> None:
    assert not is_equal("x+1", given)


@pytest.mark.parametrize("entry", ["(10^9)!", "2^{(10^9)}"])
def test_a_huge_number_in_a_matrix_is_not_written_out(entry: str) -> None:
    assert not is_equal("\\begin{pmatrix}1\\\\2\\end{pmatrix}", f"\\begin{{pmatrix}}{entry}\\\\2\\end{{pmatrix}}")


@pytest.mark.parametrize("group", ["(45,78]", "(2,3)", "[x+1,2x)"])
def test_an_interval_or_a_tuple_is_told_from_an_expression_without_it(group: str) -> None:
    interval = read(in_one_notation(group))
    expression = read(in_one_notation("45x+\\frac{3}{7}"))
    assert interval is not None and expression is not None
    assert are_equal(interval, expression, USUAL) is False
    assert are_equal(expression, interval, USUAL) is False


def test_usual_answers_are_given_to_it() -> None:
    for text in ("x^{2^{8}}", "x^2y^2z^2", "\\frac{\\sqrt{1+\\sqrt{x}}}{(x+1)^{n-1}}", "2^{100}", "a_1+a_2+a_3"):
        assert library.equal_by_library(in_one_notation(text), in_one_notation(text)), text


def _lines_run(work: Callable[[], object]) -> int:
    """Lines of Python that run in it."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
