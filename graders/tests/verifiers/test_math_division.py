"""Division by zero and the like, of which sympy makes 0, nothing or any number, earn nothing in any process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest
from brorl_graders.verifiers.math.answer import score

from graders.tests.support.math_corpus import cases, pairs
from graders.tests.support.places import CODE_PATH

WITHOUT_VALUE = [
    "\\frac{0}{1-1}",
    "4 0/0",
    "-4 0/0",
    "\\frac{1}{0}",
    "\\frac{0}{0}",
    "\\frac{0\\cdot 5}{0}",
    "0^{-1}",
    "0^{-2}",
    "0^{1-2}",
    "0\\cdot 0^{-1}",
    "1/(2-2)",
    "0/(2-2)",
    "\\frac{2-2}{0^2}",
    "\\frac{0}{0.5-0.5}",
    "\\frac{0}{\\sqrt{4}-2}",
    "\\frac{0}{\\sqrt{2}\\sqrt{3}-\\sqrt{6}}",
    "\\frac{0}{\\ln 1}",
    "\\frac{0}{\\sin(0)}",
    "\\frac{0}{\\cot(\\frac{\\pi}{2})}",
    "\\frac{x}{x-x}",
    "\\frac{0}{(x+1)^2-x^2-2x-1}",
    "\\frac{0}{1-\\sin^2 x-\\cos^2 x}",
    "\\frac{1}{\\frac{1}{0}}",
    "\\frac{1}{\\frac{1}{1-1}}",
    "\\frac{0}{1-1}+1",
    "\\frac{0}{1-1}-\\frac{0}{1-1}",
    "x+\\frac{0}{1-1}",
    "x\\cdot\\frac{0}{1-1}",
    "2^{\\frac{0}{1-1}}",
    "\\sqrt{\\frac{0}{1-1}}",
    "|\\frac{0}{1-1}|",
    "\\frac{0}{1-1}\\%",
    "\\frac{0}{1-1}\\text{ cm}",
    "0\\ln(0)",
    "\\frac{1}{\\ln 0}",
    "\\log_1 5",
    "(1-1)\\cot(0)",
    "\\cot(0)\\cdot 0",
    "0\\infty",
    "\\infty-\\infty",
    "\\frac{\\infty}{\\infty}",
]
VALUES = ["0", "0.0", "1", "2", "x", "x+1", "\\infty", "undefined", "\\frac{7}{1-1}"]
# To math-verify alone each of these equals some numbers or all of them.
EQUAL_TO_MUCH = [
    "|(1-1)\\infty|",
    "|\\infty(2-2)|+5",
    "|(1-1)\\log(1-1)|",
    "e^{|(1-1)\\ln(0)|}",
    "\\sqrt{0\\cdot\\log(1-1)}",
    "\\sqrt{\\frac{\\ln(1-1)}{\\ln(1-1)}}",
    "\\sqrt{0\\cdot\\prod_{n=0}^{2}\\frac{1}{n}}",
    "\\sqrt{\\frac{0}{\\sum_{n=1}^{2}(n-n)}}",
    "|5+|\\log(0)\\cdot(2-2)||",
    "|5+|\\prod_{n=0}^{2}\\frac{1}{n}||",
]
NUMBERS = ["0", "1", "5", "42", "-5", "0.5", "\\frac{7}{3}", "-\\frac{7}{13}", "\\sqrt{2}", "\\pi", "1000000"]
# With 0 in the place of {0}, the response would be right.
AMONG_OTHERS = [
    ("(0,2)", "({0},2)"),
    ("(0,2,3)", "({0},2,3)"),
    ("[0,2)", "x \\in [{0},2)"),
    ("\\{0,2\\}", "\\{{{0},2\\}}"),
    ("0, 2", "{0}, 2"),
    ("\\begin{pmatrix}0\\\\2\\end{pmatrix}", "\\begin{{pmatrix}}{0}\\\\2\\end{{pmatrix}}"),
    ("\\begin{pmatrix}0&2\\\\4&6\\end{pmatrix}", "2\\begin{{pmatrix}}{0}&1\\\\2&3\\end{{pmatrix}}"),
    ("x<0", "x<{0}"),
    ("x<0", "(-\\infty,{0})"),
    ("x=0", "x={0}"),
    ("(0,\\infty)", "x>{0}"),
    ("(-\\infty,0)\\cup(1,2)", "(-\\infty,{0})\\cup(1,2)"),
    ("y=x", "y=x+{0}"),
]
NAUGHT = ["\\frac{0}{1-1}", "4 0/0", "\\frac{1}{\\frac{1}{1-1}}"]
# What is small, or has no value for some values of x only.
WITH_VALUE = [
    ("10^{70}", "\\frac{1}{10^{-70}}"),
    ("e^{300}", "\\frac{1}{e^{-300}}"),
    ("\\sqrt{2}+1", "\\frac{1}{\\sqrt{2}-1}"),
    ("\\frac{2}{2x-1.22}", "\\frac{1}{x-0.61}"),
    ("\\frac{3}{3|x|+3x}", "\\frac{1}{|x|+x}"),
    ("\\frac{2x}{2\\lfloor x\\rfloor}", "\\frac{x}{\\lfloor x\\rfloor}"),
    ("(x+1)^{-1}", "\\frac{x-1}{x^2-1}"),
    ("\\begin{pmatrix}\\frac{1}{x-y}\\\\2\\end{pmatrix}", "\\begin{pmatrix}\\frac{x+y}{x^2-y^2}\\\\2\\end{pmatrix}"),
    ("\\frac{2(\\lfloor n/2\\rfloor-1)!}{2}", "(\\lfloor n/2\\rfloor-1)!"),
    ("\\ln(x)+\\ln 2", "\\ln(2x)"),
    ("0", "\\frac{0}{5-4}"),
    ("0", "\\frac{1-1}{5}"),
    ("0", "0^2"),
]
SEEDS = range(6)
SAMPLE = 25  # answers of the corpus of each kind
PRINT_VERDICTS = """
import json, sys
from brorl_graders.verifiers.math import answer, library
cases = json.load(sys.stdin)
both = []
for order in (cases, cases[::-1]):
    answer._is_equal.cache_clear()
    library._parsed.cache_clear()
    both.append([answer.score({"answer": reference}, response) for reference, response in order])
print(json.dumps([both[0], both[1][::-1]]))
"""
Case = tuple[str, str]  # reference, response


def boxed(text: str) -> str:
    return f"\\boxed{{{text}}}"


@pytest.mark.parametrize("given", WITHOUT_VALUE)
def test_a_division_by_zero_equals_no_value(given: str) -> None:
    earned = {value: score({"answer": value}, boxed(given)) for value in VALUES}
    assert earned == dict.fromkeys(VALUES, 0.0)
    assert score({"answer": given}, boxed("0")) == 0.0
    assert score({"answer": "0"}, f"The answer is ${given}$.") == 0.0


@pytest.mark.parametrize("given", EQUAL_TO_MUCH)
def test_no_answer_equals_every_number(given: str) -> None:
    assert {number: score({"answer": number}, boxed(given)) for number in NUMBERS} == dict.fromkeys(NUMBERS, 0.0)
    assert score({"answer": "(42,2)"}, boxed(f"({given},2)")) == 0.0


@pytest.mark.parametrize("given", ["\\infty", "+\\infty"])
def test_infinity_is_an_answer(given: str) -> None:
    verdicts = [score({"answer": reference}, boxed(given)) for reference in ("\\infty", "-\\infty", "1")]
    assert verdicts == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(("reference", "form"), AMONG_OTHERS)
def test_a_division_by_zero_among_other_parts_makes_the_whole_wrong(reference: str, form: str) -> None:
    assert score({"answer": reference}, boxed(form.format("0"))) == 1.0
    assert [score({"answer": reference}, boxed(form.format(naught))) for naught in NAUGHT] == [0.0] * len(NAUGHT)


def test_a_division_by_zero_is_right_only_letter_for_letter() -> None:
    verdicts = []
    for given in ("\\frac{0}{1-1}", "\\dfrac{0}{1 - 1}", "\\frac{0}{2-2}", "0/(1-1)+0", "\\frac{0}{0}"):
        verdicts.append(score({"answer": "\\frac{0}{1-1}"}, boxed(given)))
    assert verdicts == [1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(("reference", "given"), WITH_VALUE)
def test_what_is_divided_by_a_small_number_or_by_what_is_zero_at_points_has_a_value(reference: str, given: str) -> None:
    assert score({"answer": reference}, boxed(given)) == 1.0


def all_cases() -> list[Case]:
    found: list[Case] = [("0", "4 0/0"), ("0", "-4 0/0")]
    found.extend(("0", boxed(given)) for given in WITHOUT_VALUE)
    for reference, form in AMONG_OTHERS:
        found.append((reference, boxed(form.format("4 0/0"))))
    for case in (*cases(SAMPLE, is_right=True), *cases(SAMPLE, is_right=False)):
        found.append((case.reference, case.response))
    for case in pairs(SAMPLE):
        found.append((case.reference, boxed(case.response)))
    return found


def verdicts_elsewhere(seed: int, given: list[Case]) -> tuple[list[float], list[float]]:
    """Return the verdicts of another process with this hash of texts, made forwards and then backwards."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": CODE_PATH}
    command = [sys.executable, "-c", PRINT_VERDICTS]
    text = json.dumps(given)
    done = subprocess.run(command, env=environment, input=text, capture_output=True, text=True, check=True)
    forwards, backwards = json.loads(done.stdout)
    return forwards, backwards


@pytest.mark.slow
def test_a_verdict_is_the_same_in_every_process_and_after_any_other() -> None:
    given = all_cases()
    with ThreadPoolExecutor(2) as threads:
        by_seed = threads.map(lambda seed: verdicts_elsewhere(seed, given), SEEDS)
        runs = list(chain.from_iterable(by_seed))
    assert len(runs) == 2 * len(SEEDS)
    varying = {}
    for case, *verdicts in zip(given, *runs, strict=True):
        if len(set(verdicts)) > 1:
            varying[case] = verdicts
    assert varying == {}
