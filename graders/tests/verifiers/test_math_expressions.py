"""The parser of expressions reads a text as a whole or not at all, and SymPy is given its trees only."""

from __future__ import annotations

from fractions import Fraction

import pytest
import sympy
from brorl_graders.verifiers.math.answer import score
from brorl_graders.verifiers.math.expression import Unreadable, parse
from brorl_graders.verifiers.math.notation import in_one_notation

ONE, TWO, THREE = Fraction(1), Fraction(2), Fraction(3)
TREES = [
    ("2\\sqrt{x}+1", ("+", ("*", TWO, ("root", TWO, "x")), ONE)),
    ("2\\frac{1}{3}", ("+", TWO, ("/", ONE, THREE))),
    ("2 1/3", ("+", TWO, ("/", ONE, THREE))),
    ("\\sin 2x", ("sin", ("*", TWO, "x"))),
    ("\\sin(2)x", ("*", ("sin", TWO), "x")),
    ("f'(2)", ("call", "f'", TWO)),
    ("a_{n+1}", "a_n+1"),
    ("||x|-1|", ("abs", ("+", ("abs", "x"), ("-", ONE)))),
]
UNREADABLE = ["x^2^3", "3!!", "x2", "2 000", "5 apples", "\\hat{4}", "4'", "\\frac{1}", "(1,2)", "x+", "()", "\u8ba1 5"]
CASES = [
    ("\\frac{16 \\pm 2\\sqrt{3}}{2}", "8 \\pm \\sqrt{3}", 1),
    ("\\frac{16 \\pm 2\\sqrt{3}}{2}", "8 + \\sqrt{3}", 0),
    ("y=2x", "x=\\frac{y}{2}", 1),
    ("2x+y>4", "x+\\frac{y}{2}>2", 1),
    ("y>2x", "-y>-2x", 0),
    ("[\\ln 2, \\infty)", "x \\ge \\ln 2", 1),
    ("(-\\infty,2)\\cup(5,\\infty)", "\\mathbb{R} \\setminus [2, 5]", 1),
    ("(-\\infty,2)\\cup(5,\\infty)", "\\mathbb{R} \\setminus (2, 5)", 0),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "[[1, 2], [3, 4]]", 1),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}^T", 0),
    ("m=3, n=4", "m=3 \\text{ or } n=4", 0),
    ("m=3, n=4", "m=3, m=4", 0),
    ("March 25, 1940", "1940-03-25", 1),
    ("March 25, 1940", "25 April 1940", 0),
    ("9:05 AM", "09:05 am", 1),
    ("40\\%", "40‰", 0),
    ("40\\%", "40 \\text{ basis points}", 0),
    ("x^2+C", "x^2+\\text{constant}", 1),
]
SENTENCES = [
    ("30", "The answer is the 30th prime.", 0),
    ("30", "The answer isn't 30.", 0),
    ("30", "The answer is 30 at most.", 0),
    ("30", "Die Antwort ist mehr als 30.", 0),
    ("30", "\u7b54\u6848\u662f30\u4e07\u3002", 0),
    ("30", "\u7b54\u6848\u5927\u4e8e30\u3002", 0),
    ("30", "\u7b54\u300130\u3067\u3059\u3002", 1),
    ("3/7", "So the probability is 3/7 which cannot be reduced.", 1),
    ("5 hours 20 minutes", "The trip takes 5 hours and 20 minutes.", 1),
    ("November 23", "It happens on November 23.", 1),
]


@pytest.mark.parametrize(("text", "tree"), TREES)
def test_an_expression_has_a_tree(text: str, tree: object) -> None:
    assert parse(in_one_notation(text)) == tree


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_is_not_understood_as_a_whole_has_no_tree(text: str) -> None:
    with pytest.raises(Unreadable):
        parse(in_one_notation(text))


@pytest.mark.parametrize(("answer", "given", "right"), CASES)
def test_answers_are_compared_by_their_kinds(answer: str, given: str, right: int) -> None:
    assert score({"answer": answer}, f"\\boxed{{{given}}}") == right


@pytest.mark.parametrize(("answer", "response", "right"), SENTENCES)
def test_words_around_an_answer_are_read(answer: str, response: str, right: int) -> None:
    assert score({"answer": answer}, response) == right


def test_no_text_reaches_a_parser_of_sympy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a text was parsed")

    monkeypatch.setattr(sympy.parsing.sympy_parser, "parse_expr", refuse)
    given = ["(x+1)^2", "\\sin^2 x", "__import__('os').system('true')", "\\int_0^1 x\\,dx", "x.__class__"]
    assert [score({"answer": "x^2+2x+1"}, f"\\boxed{{{text}}}") for text in given] == [1, 0, 0, 0, 0]
