"""The lexer gives every spelling of an answer the same tokens of plain LaTeX."""

from __future__ import annotations

import pytest
from brorl_graders.verifiers.math.answer import score
from brorl_graders.verifiers.math.lexer import tokens_of

TOKENS = [
    ("\\frac{1}{2}", ["\\frac{1}{2}", "\\dfrac12", "\\frac 1 2", "\\tfrac{1}2", "½", "$\\displaystyle\\frac{1}{2}$"]),
    ("x^{2}", ["x^2", "x²", "x ^ 2", "x**2", "\\mathbf{x}^{2}", "{x}^2"]),
    ("x^23", ["x^23"]),
    ("12", ["12", "\\bf 12", "\\color{red}12", "\\begin{aligned}12\\end{aligned}", "\\begin{align*}12\\end{align*}"]),
    ("2x+3", ["2x+3", "\\color{blue} 2x+3", "\\textcolor{red} 2x + 3"]),
    ("y\\le 3", ["y <= 3", "y ≤ 3", "y \\leqslant 3"]),
    ("5\\text{cm}", ["5 \\text{ cm}", "5\\,\\mathrm{cm}", "5~{\\rm cm}"]),
    ("5 cm", ["5  cm"]),
    ("3 or 4", ["3 \\text{ or } 4", "3 \\lor 4", "3\\vee4"]),
    ("n!=2", ["n!=2"]),
    ("n\\ne2", ["n != 2"]),
    ("(1, 2]", ["\\left( 1, 2 \\right]", "(1, 2\\big]"]),
    ("\\bigcup A", ["\\bigcup A"]),
    ("3", ["\\mathbf{3 }", "**3**", "`3`", "\\(3\\)"]),
    ("x}", ["x}"]),
]
VERDICTS = [
    ("42", "42\\checkmark", 1),
    ("5 km/h", "5\\text{ kmph}", 1),
    ("x=-1,2", "-1,2", 1),
    ("x=-1,2", "(-1,2)", 0),
    ("x=-1,2", "[-1,2]", 0),
    ("(-\\infty,-2)\\cup(3,\\infty)", "x \\notin [-2,3]", 1),
    ("[-2,3]", "x \\notin [-2,3]", 0),
    ("x > 5", "x \\text{ is greater than } 5", 1),
    ("x \\ge 5", "x \\text{ is at least } 5", 1),
    ("x > 5", "x \\text{ is greater than or equal to } 5", 0),
    ("5", "x \\text{ is greater than } 5", 0),
    ("a_n = 2n+1", "a(n) = 2n+1", 1),
    ("a_n = 2n+1", "a_{n+1} = 2n+1", 0),
    ("f(x) = 2x", "f_x = 2x", 0),
    ("\\det(A) = 5", "\\det A = 5", 1),
    ("\\det A = 5", "\\det B = 5", 0),
    ("\\frac{1}{4}", "\\sin^2 30^\\circ", 1),
    ("x > 5", "x > 5 \\text{ and } x > 3", 1),
    ("1, 4, 9, \\ldots", "1, 4, 9, 16, \\ldots", 1),
    ("1, 4, 9, \\ldots", "1, 4, 8, \\ldots", 0),
    ("1, 4, 9", "1, 4, 9, \\ldots", 0),
    ("5", "\\mathbb{P} (A) = 5", 1),
    ("14, 48, 47", "14, 48 \\text{ ,  and } 47", 1),
    ("5", "\\pmatrix{5}", 0),
    ("\\frac{14}{3}", "\\text{\\frac{14}{3}}", 1),
    ("\\sqrt{7}+\\sqrt{3}", "\\text{\\sqrt{7+\\sqrt3}}", 0),
    ("\\{16, -2\\}", "\\text{\\{16, -2\\}}", 1),
]


def _same(spelling: str) -> str:
    return "".join(tokens_of(spelling))


@pytest.mark.parametrize(("plain", "spellings"), TOKENS)
def test_spellings_have_the_same_tokens(plain: str, spellings: list[str]) -> None:
    assert [_same(spelling).replace(" ", "") for spelling in spellings] == [plain.replace(" ", "")] * len(spellings)


def test_a_space_is_kept_where_it_may_mean_something() -> None:
    assert [_same(text) for text in ("5  cm", "5 - 3", "1, 234", "\\pi r", "2 \\times 3")] == [
        "5 cm", "5-3", "1, 234", "\\pi r", "2\\times3",
    ]  # fmt: skip


def test_what_is_spelled_out_has_the_same_tokens_again() -> None:
    for _, spellings in TOKENS:
        for spelling in spellings:
            assert tokens_of(_same(spelling)) == tokens_of(spelling), spelling


@pytest.mark.parametrize(("reference", "given", "verdict"), VERDICTS)
def test_usual_spellings_of_an_answer_are_read(reference: str, given: str, verdict: int) -> None:
    assert score({"answer": reference}, f"\\boxed{{{given}}}") == verdict
