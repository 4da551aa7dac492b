"""The math verifier: where answers are found, what counts as equal, and strings that are neither."""

from __future__ import annotations

import random
from itertools import product

import pytest
from brorl_graders.base.errors import DataError
from brorl_graders.verifiers.math.answer import find_answer, score
from brorl_graders.verifiers.math.library import equal_by_library
from brorl_graders.verifiers.math.notation import in_one_notation
from brorl_graders.verifiers.registry import check_payload

EQUAL = [
    # where it stands
    ("42", "<think>41?</think>The answer is 42."),
    ("42", "<answer>42</answer>"),
    ("42", "<answer>the value is 42</answer>"),
    ("42", "first $\\boxed{41}$, and after checking once more the result changes: $\\boxed{42}$"),
    ("42", "$\\boxed{41}$. Final answer is $42$."),
    ("42", "Final answer is 41. No: $\\boxed{42}$"),
    ("1,2", "$x=\\boxed{2}$ or $x=\\boxed{1}$"),
    ("#### 72", "the total is 72"),
    ("so we have $x=\\boxed{7}$", "\\boxed{7}"),
    # numbers
    ("0.5", "$\\frac{1}{2}$"),
    ("\\frac12", "0.5"),
    ("0.333333", "1/3"),
    ("1000", "$1,000$"),
    ("1 000", "1000"),
    ("50\\%", "\\boxed{50\\%}"),
    ("50%", "0.5"),
    ("2\\pi", "6.283185"),
    ("-3", "\\boxed{-3}"),
    ("7:32", "\\boxed{7:32}"),
    ("3+4i", "$4i+3$"),
    # units and words
    ("12", "\\boxed{12 \\text{ cm}}"),
    ("12 cm", "\\boxed{12}"),
    ("\\$5", "\\boxed{5}"),
    ("Yes", "\\boxed{\\text{yes}}"),
    ("north east", "it is \\boxed{\\text{North East}}"),
    # expressions, equations, sets, intervals, matrices
    ("x^2+2x+1", "\\boxed{(x+1)^2}"),
    ("\\sqrt{8}", "$2\\sqrt{2}$"),
    ("\\sin^2 x+\\cos^2 x", "$1$"),
    ("x=5", "5"),
    ("5", "$x = 5$"),
    ("{1,2}", "\\boxed{\\{2, 1\\}}"),
    ("\\{1, \\frac12\\}", "$\\{0.5, 1\\}$"),
    ("(1,2]", "$(1, 2]$"),
    ("[1,2)\\cup(3,4)", "\\boxed{(3,4)\\cup[1,2)}"),
    ("1<x<2", "$(1,2)$"),
    ("(5,10]", "\\boxed{\\left( 5, 10 \\right]}"),
    ("(1,2,3)", "\\boxed{(1, 2, 3)}"),
    ("(3,-1)", "$(3, -1)$"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\boxed{\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}}"),
    ("9^{9^{9}}", "\\boxed{9^{9^{9}}}"),
]

UNEQUAL = [
    ("42", ""),
    ("42", "41"),
    ("42", "<think>so it is 42"),
    ("42", "$\\boxed{42}$. Final answer is $41$."),
    ("42", "<answer>41</answer> or 42"),
    ("42", "<answer></answer>"),
    ("42", "42 is not it: \\boxed{43}"),
    ("1,2", "\\boxed{1}"),
    ("1/3", "0.33"),
    ("12", "\\boxed{13 \\text{ cm}}"),
    ("x^2+2x+1", "\\boxed{(x+2)^2}"),
    ("\\{1, 2\\}", "$\\{1, 2, 3\\}$"),
    ("(1,2]", "$[1, 2]$"),
    ("1<x<2", "$(1,3)$"),
    ("(5,10]", "\\boxed{(5,10)}"),
    ("(5,10]", "\\boxed{(5,11]}"),
    ("(1,2,3)", "\\boxed{(1,2,4)}"),
    ("(3,-1)", "$(-1, 3)$"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\boxed{\\begin{pmatrix}2\\\\1\\end{pmatrix}}"),
    ("5", "\\boxed{9^{9^{9^{9}}}}"),
    ("5", "\\boxed{2^{2024^{2025}}}"),
    ("5", "\\boxed{123456789!}"),
    ("Yes", "\\boxed{no}"),
]


@pytest.mark.parametrize(("answer", "response"), EQUAL)
def test_equal_answers_earn_one(answer: str, response: str) -> None:
    assert score({"answer": answer}, response) == 1.0


@pytest.mark.parametrize(("answer", "response"), UNEQUAL)
def test_other_answers_earn_nothing(answer: str, response: str) -> None:
    assert score({"answer": answer}, response) == 0.0


# Written for this table after what math-verify says of itself: each pair with its verdict.
@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ("$\\frac{3}{4}$", "so $\\dfrac{3}{4}$"),
        ("$\\frac{3}{4}$", "$\\frac34$"),
        ("$10^{3}$", "1,000"),
        ("$\\sqrt{2}+1$", "$1+\\sqrt 2$"),
        ("$x > 2$", "$(2,\\infty)$"),
        ("$x \\ge 3$", "$3 \\le x$"),
        ("$\\pm 3$", "$\\{-3, 3\\}$"),
        ("$\\text{Odd}$", "$\\text{odd}$"),
        ("$90^\\circ$", "$90$"),
        ("$\\log_2 8$", "$3$"),
        ("$\\binom{5}{2}$", "$10$"),
        ("$5!$", "$120$"),
        ("$|{-4}|$", "$4$"),
    ],
)
def test_latex_that_means_the_same(reference: str, candidate: str) -> None:
    assert score({"answer": reference}, candidate) == 1.0


def test_a_place_may_be_demanded() -> None:
    assert score({"answer": "42", "extract": "boxed"}, "\\boxed{42}") == 1.0
    assert score({"answer": "42", "extract": "boxed"}, "The answer is 42.") == 0.0
    assert score({"answer": "42", "extract": "tags"}, "<answer>\\boxed{42}</answer>") == 1.0
    assert score({"answer": "42", "extract": "tags"}, "\\boxed{42}") == 0.0


def test_any_of_several_references_is_right() -> None:
    assert [score({"answer": ["2", 3]}, f"\\boxed{{{number}}}") for number in (2, 3, 4)] == [1.0, 1.0, 0.0]


def test_only_the_answer_itself_is_compared_so_that_verdicts_are_shared() -> None:
    assert find_answer("A long way: $1+1=2$. So $x=\\boxed{ 5\\% }$, as we said.") == "5\\%"
    assert find_answer("another way to $$\\boxed{5}$$") == "5"
    assert find_answer("\\boxed{1} and then, \\boxed{\\frac{1}{2}}") == "1, \\frac{1}{2}"


def test_powers_that_would_fill_the_memory_equal_nothing() -> None:
    for text in ("9^{9^9}", "2^{9^{9^9}}", "2^{12345678}", "1234567!", "(1000000)!"):
        assert not equal_by_library(in_one_notation(text), in_one_notation(text)), text
    for text in ("x^{2^{8}}", "2^{100}", "10^6", "2004!", "x^{10}", "10^{10}+1"):
        assert equal_by_library(in_one_notation(text), in_one_notation(text)), text


def test_a_payload_without_an_answer_is_refused() -> None:
    for payload, message in (
        ({}, "'answer' is None"),
        ({"answer": " "}, "'answer' is ' '"),
        ({"answer": "1", "extract": "end"}, "anywhere"),
    ):
        with pytest.raises(DataError, match=message):
            check_payload("math", payload)
    check_payload("math", {"answer": ["1", 2, 0.5]})


EXPRESSIONS = [
    "x^2+2x+1",
    "(x+1)^2",
    "\\sqrt{x^2}",
    "|x|",
    "\\log(x^2)",
    "2\\log x",
    "1+\\sqrt{2}",
    "\\binom{n}{2}",
    "\\frac{n(n-1)}{2}",
    "e^{-x}",
]


def test_expressions_told_apart_by_a_value_are_those_that_the_library_tells_apart() -> None:
    from math_verify import parse, verify

    parsed = {text: parse(f"${text}$", parsing_timeout=None) for text in EXPRESSIONS}
    for one, other in product(EXPRESSIONS, repeat=2):
        assert score({"answer": one}, f"${other}$") == float(
            verify(parsed[one], parsed[other], timeout_seconds=None)
        ), (one, other)


PIECES = r"""
\frac { } 1 2 9 x y i e \sqrt ^ _ ( ) [ ] \left \right $ $$ \boxed{ \text{cm} \% % , ; = < > \le \in \cup \infty \pi + -
* / \int \sum \lim ! | \begin{pmatrix} \end{pmatrix} & \\ é 漢 \mathbb{R} 10^{10} \binom \circ x= 1,000 0.5 or and
\overline \{ \} \emptyset mod \to answer:
"""


def test_no_string_raises_anything() -> None:
    rng = random.Random(1)
    pieces = [*PIECES.split(), " ", "\n", "\x00", "final answer is"]
    references = ("42", "\\frac{1}{2}", "(1, 2]", "\\{1,2\\}", "x^2+1", "x=5", "12 cm", "1<x<2", "3+4i", "AB")
    for number in range(1000):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 30)))
        response = (f"\\boxed{{{text}}}", f"<answer>{text}</answer>", f"so ${text}$.", text)[number % 4]
        assert score({"answer": rng.choice(references)}, response) in (0.0, 1.0)
