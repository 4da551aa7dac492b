"""Ratios, points, intervals in words, numerals, times, statements that there is no answer, and counted things."""

from __future__ import annotations

import pytest
from brorl_graders.verifiers.math.answer import score

CASES = [
    # ratios and times
    ("8:9", "8 \\text{ to } 9", 1),
    ("8:9", "16\\colon 18", 1),
    ("3:2:5", "6:4:10", 1),
    ("3:2:5", "3:5:2", 0),
    ("3:2:5", "3:2", 0),
    ("8:9", "9:8", 0),
    ("2:30", "\\frac{1}{15}", 0),
    ("2:30", "1:15", 0),
    ("3:10 \\text{ PM}", "3:10 p.m.", 1),
    ("3:10 \\text{ PM}", "3:10 AM", 0),
    # points, numerals, mixed numbers
    ("(7,-1)", "B(7,-1)", 1),
    ("(7,-1)", "\\text{the point }(7,-1)", 1),
    ("(7,-1)", "B(-1,7)", 0),
    ("(7,-1)", "f(7,-1)", 0),
    ("30042_5", "(30042)_5", 1),
    ("30042_5", "30042 \\text{ (base 5)}", 1),
    ("30042_5", "30042_{\\text{base }6}", 0),
    ("\\frac{95}{14}", "6\\text{ and }\\frac{11}{14}", 1),
    ("6, \\frac{11}{14}", "6\\text{ and }\\frac{11}{14}", 1),
    ("6", "6\\text{ and }\\frac{11}{14}", 0),
    # intervals and solved inequalities
    ("(-\\infty,-8)\\cup(2,\\infty)", "x<-8\\text{ or }x>2", 1),
    ("(-\\infty,-8)\\cup(2,\\infty)", "(-\\infty,-8)\\text{ or }(2,\\infty)", 1),
    ("(-\\infty,-8)\\cup(2,\\infty)", "x<-8\\text{ or }x\\ge 2", 0),
    ("(-\\infty,4]", "4 \\ge x", 1),
    ("[-2,7)", "-2 \\le t < 7", 1),
    ("[-2,7)", "-2 < t < 7", 0),
    ("x \\le 4", "(-\\infty,4]", 1),
    ("(-\\infty,4]", "3x-2\\le 10", 0),
    ("x \\le 4", "3x-2\\le 10", 0),
    ("(-4,4)", "x^2<16", 0),
    ("(-4,4)", "|x|<4", 0),
    ("x+y<4", "y+x<4", 1),
    # no solution and the like
    ("\\text{no solution}", "\\text{There is no solution}", 1),
    ("no solutions", "\\emptyset", 1),
    ("\\text{no solution}", "\\{\\}", 1),
    ("\\text{does not exist}", "\\text{The limit does not exist}", 1),
    ("\\text{infinitely many}", "\\text{There are infinitely many solutions}", 1),
    ("\\text{no solution}", "\\text{infinitely many solutions}", 0),
    ("\\text{no solution}", "\\text{two solutions}", 0),
    ("DNE", "\\infty", 0),
    # a comma that divides two numbers
    ("2.5", "2,5", 0),
    ("2,5", "5, 2", 1),
    ("2,5", "2.5", 0),
    ("0.25", "0,25", 1),
    # units and counted things
    ("7 \\text{ psi}", "7 \\text{ Pa}", 0),
    ("2 \\text{ kcal}", "8368 \\text{ J}", 1),
    ("3 \\text{ quarts}", "12 \\text{ cups}", 1),
    ("4 \\text{ kB}", "4000 \\text{ bytes}", 1),
    ("3 \\text{ apples}", "3 \\text{ pears}", 0),
    ("3 \\text{ apples}", "3 \\text{ apples}", 1),
    ("3 \\text{ apples}", "\\text{3 apples in total}", 1),
    ("3 \\text{ m}", "3 \\text{ apples}", 0),
    ("12", "12 \\text{ sq. units}", 1),
    ("6", "6 \\text{ hundred}", 0),
    ("600", "6 \\text{ hundred}", 1),
    ("2500000", "2.5 million", 1),
    ("2500000 \\text{ dollars}", "2.5 million dollars", 1),
    ("25", "\\text{twenty-five}", 1),
    ("\\frac{2}{3}", "\\text{two thirds}", 1),
    ("25", "\\text{thirty-five}", 0),
    ("6", "6 \\text{ squared}", 0),
    ("6", "6 \\text{ or more}", 0),
    ("6", "6 \\text{ is wrong}", 0),
    ("6", "6 \\text{ times}", 0),
    ("6", "\\text{at least } 6", 0),
    ("6", "\\text{half of } 6", 0),
    ("-6", "\\text{negative } 6", 1),
    ("6", "\\text{minus } 6", 0),
]


@pytest.mark.parametrize(("answer", "given", "right"), CASES)
def test_a_kind_of_answer_equals_only_the_same(answer: str, given: str, right: int) -> None:
    assert score({"answer": answer}, f"\\boxed{{{given}}}") == right


def test_a_required_unit_may_be_one_that_no_table_has() -> None:
    payload = {"answer": "3 \\text{ apples}", "units": "required"}
    verdicts = [score(payload, f"\\boxed{{{given}}}") for given in ("3 \\text{ apples}", "3", "3 \\text{ pears}")]
    assert verdicts == [1.0, 0.0, 0.0]
