"""What is not equal: other answers, several at once, none; and what a data set may set."""

from __future__ import annotations

import pytest
from brorl_graders.base.errors import DataError
from brorl_graders.verifiers.math.answer import score
from brorl_graders.verifiers.registry import check_payload

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
    ("0.\\overline{3}", "\\boxed{(0.\\overline{27})}"),
    ("0.\\overline{3}", "\\boxed{(0.\\overline{3}) (0.\\overline{27})}"),
    ("0", "\\boxed{2(0.(27))}"),
    ("5 J", "\\boxed{5\\text{ W}}"),
    ("5 L", "\\boxed{5\\text{ m}^3}"),
    ("0", "\\boxed{x \\cdot 0.y}"),
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
    ("5", "\\boxed{5 \\text{ (or 6)}}"),
    ("5", "\\boxed{5 \\approx 6}"),
    ("6", "\\boxed{5 \\approx 6}"),
    ("5", "\\boxed{x \\approx 5, 6}"),
    ("5", "\\boxed{5 \\equiv 6}"),
    ("5", "\\boxed{5 \\pmod 7}"),
    ("5", "\\boxed{\\{5\\}\\cup\\{6\\}}"),
    ("5", "\\boxed{5 \\quad 6}"),
    ("5", "\\boxed{5, \\ldots, 6}"),
    ("5", "\\boxed{5 \\backslash 6}"),
    ("5", "\\boxed{5\\\\6}"),
    ("5", "\\boxed{\\begin{cases}5\\\\6\\end{cases}}"),
    ("5", "\\boxed{\\begin{matrix}5\\\\6\\end{matrix}}"),
    ("5", "\\boxed{5 \\text{ but not } 6}"),
    ("5", "\\boxed{5 \\neq}"),
    ("5", "\\boxed{5 @ 6}"),
    ("5", "\\boxed{5 # 6}"),
    ("5", "\\boxed{5 ~ 6}"),
    ("5", "\\boxed{5.6.7}"),
    ("5", "\\boxed{5..6}"),
    ("5", "\\boxed{5...6}"),
    ("5", "\\boxed{5---6}"),
    ("5", "\\boxed{(5)(6)}"),
    ("5", "\\boxed{5 \\wedge 6}"),
    ("5", "\\boxed{5 \\text{ / } 6}"),
    ("5", "\\boxed{5 \\text{ maybe } 6}"),
    ("5", "The answer is 5, maybe 6."),
    ("5", "The answer is 5 (or possibly 6)."),
    ("5", "The answer is 5 or possibly 6."),
    ("5", "The answer could be 5, 6, or 7."),
    ("5", "\\boxed{5 \\textbf{ or } 6}"),
    ("5", "\\boxed{5 \\,|\\, 6}"),
    ("5", "\\boxed{5 \\; 6}"),
    ("5", "<answer>5 \\text{or} 6</answer>"),
    ("5", "<answer>5 / 6</answer>"),
    ("5", "<answer>5 (6)</answer>"),
    ("5", "<answer>5 and/or 6</answer>"),
    ("5", "<answer>(5 or 6)</answer>"),
    ("5", "<answer>5 -> 6</answer>"),
    ("5", "<answer>5 => 6</answer>"),
    ("5", "<answer>option 5, option 6</answer>"),
    ("5", "<answer>either 5 or else 6</answer>"),
    ("5", "\\boxed{5 \\in \\{5,6\\}}"),
    ("5", "\\boxed{x\\in\\{5,6\\}}"),
    ("5", "\\boxed{\\mathbb{R}}"),
    ("5", "\\boxed{(-\\infty,\\infty)}"),
    ("5", "\\boxed{x}"),
    ("5", "\\boxed{n}"),
    ("yes", "\\boxed{\\text{yes or no}}"),
    ("yes", "\\boxed{\\text{yes}, \\text{no}}"),
    ("A", "\\boxed{A, B}"),
    ("A", "\\boxed{AB}"),
    ("A", "\\boxed{\\text{A or B}}"),
    ("A", "\\boxed{A/B}"),
    ("1,2", "\\boxed{1,2,3}"),
    ("(1,2)", "\\boxed{(1,2),(2,1)}"),
    ("[1,2]", "\\boxed{[1,2]\\cup[3,4]}"),
    ("x<3", "\\boxed{x\\ne 3}"),
    ("x<3", "\\boxed{x\\le 3}"),
    ("2x+1", "\\boxed{y}"),
    ("x=5", "\\boxed{x=5 \\text{ or } x=6}"),
    ("0.5", "\\boxed{1/2 \\text{ or } 2}"),
    ("50%", "\\boxed{5000\\%}"),
    ("1000", "\\boxed{1,000,0}"),
    ("1000", "\\boxed{10,00}"),
    ("5", "\\boxed{5^{\\circ}6'}"),
    ("5", "\\boxed{5\\deg 6}"),
    ("5", "\\boxed{5 \\text{ apples } 6}"),
    ("5", "\\boxed{5\\,cm\\,6\\,m}"),
    ("5", "The answer is < 5."),
    ("5", "Answer: > 5"),
]


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
