"""Right answers in the forms that models write, and forms that name several values or none."""

from __future__ import annotations

import pytest

from nemo_brorl.core.errors import DataError
from nemo_brorl.tasks.verifiers.math.answer import score
from nemo_brorl.tasks.verifiers.registry import check_payload

RIGHT = [
    ("5", "<answer>**5**</answer>"),
    ("5", "\\boxed{5.}"),
    ("1/3", "\\boxed{0.\\overline{3}}"),
    ("0.5", "\\boxed{50\\%}"),
    ("62459740", "\\boxed{62\\,459\\,740}"),
    ("\\sqrt{2}", "\\boxed{√2}"),
    ("yes", "\\boxed{YES}"),
    ("true", "\\boxed{\\text{true}}"),
    ("5 cm", "\\boxed{5\\text{ cm}}"),
    ("5 m", "\\boxed{500 cm}"),
    ("5", "\\boxed{5 \\text{ cm}}"),
    ("x\\ge5", "\\boxed{x \\geq 5}"),
    ("[5,\\infty)", "\\boxed{x \\ge 5}"),
    ("\\{1,2\\}", "\\boxed{\\{2,1\\}}"),
    ("101_2", "\\boxed{101_{2}}"),
    ("101_2", "\\boxed{101_{\\text{two}}}"),
    ("3.5", "\\boxed{3\\frac12}"),
    ("3\\frac12", "\\boxed{7/2}"),
    ("1000", "\\boxed{1{,}000}"),
    ("(-\\infty,3)\\cup(5,\\infty)", "\\boxed{(5,\\infty)\\cup(-\\infty,3)}"),
    ("2.5\\times10^3 J", "\\boxed{2500\\text{ J}}"),
    ("\\frac{\\pi}{6}", "\\boxed{\\pi/6}"),
    ("\\frac{\\sqrt{3}}{2}", "\\boxed{\\frac{\\sqrt3}2}"),
    ("3+4i", "\\boxed{4i+3}"),
    ("e^2", "\\boxed{e^{2}}"),
    ("2\\ln 3", "\\boxed{\\ln 9}"),
    ("x^2+2x+1", "\\boxed{(x+1)^2}"),
    ("\\$5", "\\boxed{\\$5.00}"),
    ("5 dollars", "\\boxed{\\$5}"),
    ("$18", "The answer is $18."),
    ("72", "She earned $72 in total. The answer is $72."),
    ("1,2,3", "\\boxed{1}, \\boxed{2}, \\boxed{3}"),
    ("1:2", "\\boxed{1:2}"),
    ("\\text{(A)}", "\\boxed{A}"),
    ("A", "\\boxed{\\text{A}}"),
    ("(2,3)", "\\boxed{(x,y)=(2,3)}"),
    ("4", "\\boxed{x=4\\text{ or } x=4}"),
    ("0", "\\boxed{0}"),
    ("\\infty", "\\boxed{\\infty}"),
    ("-\\infty", "\\boxed{-\\infty}"),
    ("p-q", "\\boxed{p - q}"),
    ("10!", "\\boxed{3628800}"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "<answer>\\begin{pmatrix} 1 & 2 \\\\ 3 & 4\\end{pmatrix}</answer>"),
    ("y=2x+1", "\\boxed{y = 2x + 1}"),
    ("2x+1", "\\boxed{f(x)=2x+1}"),
    ("\\frac{1}{2}", "The answer is one half, i.e. $\\frac12$."),
    ("28%", "The answer is 28%."),
    ("12", "\\boxed{12 \\text{ units}^2}"),
    ("east", "The answer is East."),
    ("0.1", "\\boxed{.1}"),
    ("\\frac{1}{10}", "\\boxed{10^{-1}}"),
    ("2^{10}", "\\boxed{1024}"),
    ("16", "\\boxed{2^4 = 16}"),
    ("6.022e23", "\\boxed{6.022 \\times 10^{23}\\ \\text{mol}^{-1}}"),
    ("30^\\circ", "\\boxed{30}"),
    ("30", "\\boxed{30°}"),
    ("\\dfrac{1}{\\sqrt{2}}", "\\boxed{\\frac{\\sqrt{2}}{2}}"),
    ("7", "### Answer\n7"),
    ("7", "**Answer:**\n\n$$7$$"),
    ("\\frac{x}{2}", "The answer is $\\frac{x}{2}$"),
    ("[1,2]", "<answer>[1, 2]</answer>"),
    ("-2,3", "\\boxed{x=-2, x=3}"),
    ("(1,2),(3,4)", "\\boxed{(1,2)\\text{ and }(3,4)}"),
    ("9\\pi", "\\boxed{28.2743339}"),
    ("a+b", "\\boxed{b+a}"),
    ("n(n+1)", "\\boxed{n^2+n}"),
    ("5", "The final answer is $\\boxed{5}$. I hope it is correct."),
    ("5", "The final answer is 5. I hope it is correct."),
    ("x \\in (1,2)", "\\boxed{(1,2)}"),
    ("(1,2)", "\\boxed{x\\in(1,2)}"),
    ("15", "\\boxed{15\\text{ (square units)}}"),
    ("3\\sqrt{2}", "\\boxed{3\\sqrt{2} \\approx 4.243}"),
    ("\\pi", "\\boxed{\\pi \\approx 3.14}"),
    ("50", "\\boxed{50\\%}"),
    ("1", "\\boxed{\\textbf{1}}"),
    ("\\text{No solution}", "\\boxed{\\text{no solution}}"),
    ("12:00 PM", "\\boxed{12:00\\text{ PM}}"),
    ("\\emptyset", "\\boxed{\\varnothing}"),
    ("2 hours", "\\boxed{120\\text{ minutes}}"),
]
WRONG = [
    ("5", "\\boxed{\\ge 5}"),
    ("5", "\\boxed{\\ne 5}"),
    ("5 m", "\\boxed{5 cm}"),
    ("(1,2)", "\\boxed{\\{1,2\\}}"),
    ("\\{1,2\\}", "\\boxed{(1,2)}"),
    ("101", "\\boxed{101_2}"),
    ("101_2", "\\boxed{5}"),
    ("1", "\\boxed{1\\cup2}"),
    ("2", "\\boxed{1\\cup2}"),
    ("5", "\\boxed{5 \\text{ or } 6}"),
    ("5", "\\boxed{5,6}"),
    ("5", "\\boxed{5-6}"),
    ("5", "The answer is 5 or 6"),
    ("6", "The answer is 5 or 6"),
    ("5", "The answer is between 5 and 6"),
    ("5", "\\boxed{<5}"),
    ("5", "\\boxed{5\\pm1}"),
    ("x=5,y=2", "\\boxed{x=2,y=5}"),
    ("(1,2)", "\\boxed{[1,2]}"),
    ("0", "\\boxed{0/0}"),
    ("5t", "\\boxed{5}"),
    ("5", "\\boxed{5t}"),
    ("5", "\\boxed{5x}"),
    ("5", "\\boxed{}"),
    ("5", "\\boxed{5!}"),
    ("5", "\\boxed{5 6}"),
    ("56", "\\boxed{5 6}"),
    ("5", "\\boxed{5;6}"),
    ("5", "\\boxed{5/6}"),
    ("5", "\\boxed{5|6}"),
    ("5", "\\boxed{5\\mid6}"),
    ("5", "\\boxed{5\\&6}"),
    ("5", "\\boxed{5?}"),
    ("5", "\\boxed{\\text{not }5}"),
    ("5", "The answer is not 5"),
    ("5", "\\boxed{5}\\boxed{6}"),
    ("6", "\\boxed{5}\\boxed{6}"),
    ("5", "\\boxed{\\{5,6\\}}"),
    ("5", "\\boxed{5 \\to 6}"),
    ("5", "\\boxed{[4,6]}"),
    ("5", "\\boxed{x>4}"),
    ("0.5", "\\boxed{5%}"),
    ("0.5%", "\\boxed{50%}"),
    ("5", "\\boxed{\\overline{5}}"),
    ("5", "\\boxed{5_6}"),
    ("5", "\\boxed{5^6}"),
    ("5", "\\boxed{5 \\neq 6}"),
    ("5", "\\boxed{4 < x < 6}"),
    ("5", "\\boxed{5 = 6}"),
    ("6", "\\boxed{x = 5 = 6 = y}"),
    ("5", "<answer>5 6 7</answer>"),
    ("5", "<answer>5\n6</answer>"),
    ("5", "<answer>5? or maybe 6</answer>"),
    ("3.14", "\\boxed{\\pi}"),
    ("5", "\\boxed{\\max(5,6)}"),
    ("-5", "\\boxed{5}"),
    ("5", "\\boxed{5 \\lor 6}"),
    ("5", "\\boxed{5\\text{ to }6}"),
    ("5", "\\boxed{\\text{five or }5}"),
    ("1", "\\boxed{\\frac{0}{0}}"),
    ("5", "\\boxed{5 \\text{ apples or } 6}"),
    ("5", "\\boxed{5 apples, 6 pears}"),
    ("5", "\\boxed{5 \\text{ if } x>0, 6 \\text{ otherwise}}"),
    ("5", "\\boxed{\\sim 5 }"),
]


@pytest.mark.parametrize(("answer", "response"), RIGHT)
def test_a_right_answer_earns_in_the_forms_that_models_write(answer: str, response: str) -> None:
    assert score({"answer": answer}, response) == 1.0


@pytest.mark.parametrize(("answer", "response"), WRONG)
def test_an_answer_that_is_another_or_several_earns_nothing(answer: str, response: str) -> None:
    assert score({"answer": answer}, response) == 0.0


def test_a_data_set_says_what_a_percentage_is() -> None:
    verdicts = []
    for percent in ("either", "exact"):
        for answer in ("50", "0.5", "50\\%"):
            verdicts.append(score({"answer": answer, "percent": percent}, "\\boxed{50\\%}"))
    assert verdicts == [1.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    assert score({"answer": "50%", "percent": "exact"}, "\\boxed{50}") == 0.0
    assert score({"answer": "50%"}, "\\boxed{50}") == 1.0
    assert score({"answer": "0.5%"}, "\\boxed{50%}") == 0.0, "two percentages are compared as such"


def test_a_data_set_says_what_a_unit_is_worth() -> None:
    def verdict(units: str, given: str) -> float:
        return score({"answer": "5 m", "units": units}, f"\\boxed{{{given}}}")

    assert [verdict("agree", given) for given in ("5", "5 m", "500 cm", "5 cm", "5 s")] == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert [verdict("required", given) for given in ("5", "5 m", "500 cm", "5 cm")] == [0.0, 1.0, 1.0, 0.0]
    assert [verdict("ignore", given) for given in ("5", "5 m", "500 cm", "5 cm")] == [1.0, 1.0, 0.0, 1.0]


def test_a_data_set_may_accept_a_relative_difference() -> None:
    payload = {"answer": "9.81", "relative_tolerance": 0.02}
    assert [score(payload, f"\\boxed{{{given}}}") for given in ("9.8", "10", "3.12\\pi", "0")] == [1.0, 1.0, 1.0, 0.0]
    assert score({"answer": "9.81"}, "\\boxed{9.8}") == 0.0


@pytest.mark.parametrize(
    "option", [{"percent": "no"}, {"units": 5}, {"relative_tolerance": 1}, {"relative_tolerance": "1%"}]
)
def test_an_option_of_another_kind_is_refused(option: dict[str, object]) -> None:
    with pytest.raises(DataError, match=next(iter(option))):
        check_payload("math", {"answer": "1", **option})
