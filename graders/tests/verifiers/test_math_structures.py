"""Answers of several parts, sets of real numbers, dates, congruences, formulas, and marks that tell symbols apart."""

from __future__ import annotations

import pytest
from brorl_graders.verifiers.math.answer import score

CASES = [
    # values of several names
    ("m=3, c=2", "c = 2 \\text{ and } m = 3", 1),
    ("m=3, c=2", "c = 3, m = 2", 0),
    ("m=3, c=2", "(m, c) = (3, 2)", 1),
    ("m=3, c=2", "(m, c) = (2, 3)", 0),
    ("(3, 4)", "x = 3,\\; y = 4", 1),
    ("(3, 4)", "x = 4, y = 3", 0),
    ("1, -2", "x_1 = -2, x_2 = 1", 1),
    ("(5, 8), (8, 5)", "(x, y) = (5, 8) \\quad \\text{and} \\quad (8, 5)", 1),
    ("1, 1, 2", "1, 2, 2", 0),
    ("1, 1, 2", "1, 2", 0),
    ("1, 1, 2", "2, 1, 1", 1),
    ("(1, 2), (3, 4)", "(3, 4), (1, 2), (3, 4)", 1),
    # sets of real numbers
    ("[-2,7]", "\\{x \\in \\mathbb{R} \\mid -2 \\leq x \\leq 7\\}", 1),
    ("[-2,7]", "\\{x : 2x \\leq 14\\}", 0),
    ("(2,\\infty)", "\\{x : x \\ge 2\\}", 0),
    ("(-7,12]", "x > -7 \\text{ and } x \\le 12", 1),
    ("(-\\infty,-2)\\cup(11,\\infty)", "x < -2 \\text{ and } x > 11", 0),
    ("(-\\infty,3)\\cup(3,\\infty)", "x \\ne 3", 1),
    ("(-\\infty,3)\\cup(3,\\infty)", "\\mathbb{R} \\backslash \\{3\\}", 1),
    ("(-\\infty,3)\\cup(3,\\infty)", "x \\ne -3", 0),
    ("(-\\infty,\\infty)", "x \\in \\mathbb{R}", 1),
    ("(-4,6]", "]-4,6]", 1),
    ("(-4,6]", "]-4,6[", 0),
    ("\\emptyset", "\\{\\emptyset\\}", 0),
    ("\\emptyset", "\\text{no real solutions}", 1),
    ("(-\\infty,\\infty)", "\\text{the set of all real numbers}", 1),
    ("(-\\infty,4)\\cup(4,\\infty)", "\\text{All reals except } 4", 1),
    # general solutions
    ("x = \\frac{\\pi}{5} + 2k\\pi, k \\in \\mathbb{Z}", "2\\pi k + \\frac{\\pi}{5}", 1),
    ("\\frac{\\pi}{5} + 2k\\pi", "x = \\frac{\\pi}{5} + 2k\\pi \\quad (k \\in \\mathbb{Z})", 1),
    ("\\frac{\\pi}{5} + 2k\\pi", "\\frac{\\pi}{5} + 2k\\pi, k \\in \\mathbb{N}", 0),
    ("\\frac{\\pi}{5} + 2k\\pi", "\\frac{\\pi}{5} + k\\pi, k \\in \\mathbb{Z}", 0),
    ("(4,\\infty)", "x > 4, x \\in \\mathbb{Z}", 0),
    # vectors
    ("\\langle 3, 0, -1\\rangle", "3\\mathbf{i} - \\mathbf{k}", 1),
    ("\\langle 3, 0, -1\\rangle", "3\\hat{i} - \\hat{j}", 0),
    ("\\langle 3, -1\\rangle", "3\\hat{\\imath} - \\hat{\\jmath}", 1),
    ("\\langle 3, -1\\rangle", "<3, -1>", 1),
    ("\\langle 3, -1\\rangle", "\\vec{v} = \\begin{bmatrix} 3 \\\\ -1 \\end{bmatrix}", 1),
    ("\\langle 3, -1\\rangle", "\\begin{pmatrix} 3 & -1 \\end{pmatrix}^T", 1),
    ("\\langle 3, -1\\rangle", "\\begin{pmatrix} -1 \\\\ 3 \\end{pmatrix}", 0),
    # times of 24 hours
    ("3:45 PM", "15:45", 1),
    ("3:45 AM", "15:45", 0),
    ("3:45 PM", "3:45", 0),
    ("3:45 PM", "15:46", 0),
    ("9:15 AM", "9\\text{:}15\\text{ AM}", 1),
    # commands with two backslashes
    ("$x \\in [-2,7]$", "$-2 \\\\le x \\\\le 7$", 1),
    ("\\frac{1}{2}", "\\\\frac{1}{2}", 1),
    ("\\frac{1}{2}", "\\\\frac{1}{3}", 0),
    # congruences, columns, formulas, binomials
    ("x\\equiv 4\\pmod{14}", "4 mod 14", 1),
    ("x\\equiv 4\\pmod{14}", "x ≡ 18 (mod 14)", 1),
    ("x\\equiv 4\\pmod{14}", "x \\equiv 4 \\bmod 28", 0),
    ("4", "x \\equiv 4 \\pmod{14}", 0),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\langle 1, 2\\rangle", 1),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "(2, 1)", 0),
    ("\\mathrm{C_6H_{12}O_6}", "C6H12O6", 1),
    ("\\mathrm{C_6H_{12}O_6}", "C6H6O6", 0),
    ("10", "C(5,2)", 1),
    ("(5,2)", "C(5,2)", 1),
    # dates, durations, thousands
    ("March 5", "the 5th of March", 1),
    ("March 5", "March 6", 0),
    ("5", "5 marbles", 1),
    ("1950-07-05", "1950-05-07", 0),
    ("7 hours 30 minutes", "450 minutes", 1),
    ("7 hours 30 minutes", "7 minutes 30 hours", 0),
    ("1234567", "1.234.567", 1),
    ("1234567", "12,34,567", 1),
    ("12,34,567", "12, 34, 567", 1),
    ("24", "2 dozens", 1),
    ("3.5", "3. 5", 0),
    # lists that go on
    ("1,2,3,...", "1, 2, 3, 4, \\ldots", 1),
    ("1,2,3,...", "1,2", 0),
    ("1,2,3,...", "1,2,3", 0),
    ("1,2,3,...", "1,2,4,...", 0),
    ("1,2,3...", "1,2,3,\\dots", 1),
    ("1,3", "1,3,\\dots", 0),
    ("1,2,3,...", "1,2,...", 0),
    ("\\{2,4,6,\\ldots,20\\}", "2, 4, 6, \\dots, 20", 1),
    ("\\{2,4,\\ldots,20\\}", "2, 4, 6, \\dots, 22", 0),
    ("0.333...", "\\frac13", 1),
    # marks and capitals
    ("f'(2)", "f^{\\prime}(2)", 1),
    ("f'(2)", "f(2)", 0),
    ("y'=2x", "\\frac{dy}{dx}=2x", 1),
    ("y'=2x", "y''=2x", 0),
    ("7", "f'(2)=7", 1),
    ("42", "42^*", 0),
    ("42", "\\hat{42}", 0),
    ("42", "42'", 0),
    ("x^2-4", "X^2-4", 0),
    ("AB", "BA", 0),
    ("\\angle ABC", "\\angle CBA", 1),
    ("\\triangle ABC", "\\triangle ACB", 0),
    ("\\triangle ABC", "\\angle ABC", 0),
    ("YES", "yes", 1),
    # names, steps and estimates
    ("12", "x+y=12", 0),
    ("12", "xy=12", 0),
    ("12", "V_{\\text{max}} = 12", 1),
    ("0.75", "P(A \\cap B) = \\frac{3}{4}", 1),
    ("4950", "\\sum_{k=1}^{99} k = 4950", 1),
    ("2\\sqrt{3}", "2\\sqrt{3}\\text{ cm} \\approx 3.46 \\text{ cm}", 1),
    ("5", "5 \\approx 6", 0),
    ("72", "72+", 0),
    ("D", "\\textbf{(D) } 17", 1),
    ("D", "\\text{(D) or (E)}", 0),
    ("5", "5 \\text{ (to the nearest integer)}", 1),
    ("\\frac{1}{2}", "\\sin 30^\\circ", 1),
]


@pytest.mark.parametrize(("answer", "given", "right"), CASES)
def test_an_answer_is_worth_what_its_parts_say(answer: str, given: str, right: int) -> None:
    assert score({"answer": answer}, f"\\boxed{{{given}}}") == right


@pytest.mark.parametrize(
    ("answer", "response", "right"),
    [
        ("(-14,1]", "Final answer: ]-14,1]", 1),
        ("37, 12, 29", "The answer is 37, 12, and 29.", 1),
        ("42", "<answer>more than 42 eggs</answer>", 0),
        ("42", "<answer>42 is wrong</answer>", 0),
        ("72", "The answer is 72 percent of 3.", 0),
        ("72", "The answer is not yet known, but 72 was the number of clips.", 0),
        ("1.5", "The answer is 1.5 (or 3/2).", 1),
        ("No", "**No**", 1),
        ("Yes", "Yes, because the sum is even.", 1),
        ("No", "No, wait. Yes.", 0),
        ("220", "R\u00e9ponse: Janeth aura encore 220 $ \u00e0 payer d'ici 12 mois.", 1),
    ],
)
def test_a_whole_clause_is_read(answer: str, response: str, right: int) -> None:
    assert score({"answer": answer}, response) == right
