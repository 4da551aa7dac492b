"""Plain numbers: what they are worth as written, and when two are the same."""

from __future__ import annotations

from fractions import Fraction

import pytest
from brorl_graders.verifiers.math.answer import score
from brorl_graders.verifiers.math.notation import in_one_notation
from brorl_graders.verifiers.math.tokens import text_of
from brorl_graders.verifiers.math.value import read_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-12", Fraction(-12)),
        ("(-3)", Fraction(-3)),
        ("−3", Fraction(-3)),
        ("1{,}000", Fraction(1000)),
        ("62\\,459\\,740", Fraction(62459740)),
        ("62 459 740", Fraction(62459740)),
        ("5.", Fraction(5)),
        (".25", Fraction(1, 4)),
        ("**5**", Fraction(5)),
        ("3\\frac12", Fraction(7, 2)),
        ("-3 1/2", Fraction(-7, 2)),
        ("\\dfrac{-3}{4}", Fraction(-3, 4)),
        ("½", Fraction(1, 2)),
        ("0.\\overline{3}", Fraction(1, 3)),
        ("0.1\\bar{6}", Fraction(1, 6)),
        ("0.(142857)", Fraction(1, 7)),
        ("0.333\\ldots", Fraction(1, 3)),
        ("6.63\\times10^{-34}", Fraction(663, 10**36)),
        ("6.63 × 10⁻³⁴", Fraction(663, 10**36)),
        ("8.8\\cdot 10^2", Fraction(880)),
        ("1.6e-19", Fraction(16, 10**20)),
        ("1E5", Fraction(100000)),
        ("2 x 10^3", Fraction(2000)),
        ("10^{-2}", Fraction(1, 100)),
    ],
)
def test_a_number_is_read_exactly(text: str, value: Fraction) -> None:
    number = read_number(text_of(in_one_notation(text)))
    assert number is not None
    assert number.value == value


@pytest.mark.parametrize("text", ["", "1,00", "2 3", "5x", "1/0", "0/0", "10^{9999}", "1.2.3", "(3,4)", "\\frac{1}{x}"])
def test_anything_else_is_no_plain_number(text: str) -> None:
    assert read_number(text_of(in_one_notation(text))) is None


SAME = [
    ("880", "8.8\\times 10^{2}"),
    ("440000000", "4.4\\times10^{8}"),
    ("1/3", "0.333333"),
    ("2/3", "0.666667"),
    ("2/3", "0.66666666666"),
    ("0.30000000000000004", "0.3"),
    ("6.63\\times10^{-34}", "6.63e-34"),
    ("0", "0.000"),
]
DIFFERENT = [
    ("6.63\\times10^{-34}", "0.0000001"),
    ("6.63\\times10^{-34}", "10^{-50}"),
    ("6.63\\times10^{-34}", "0"),
    ("6.63\\times10^{-34}", "0/0"),
    ("6.63\\times10^{-34}", "10^{-50}\\sqrt{2}"),
    ("1.6\\times10^{-19}", "9.1\\times10^{-31}"),
    ("0", "10^{-50}"),
    ("0.0", "0.0000001"),
    ("1/3", "0.333"),
    ("3.14", "3.1415926"),
    ("12345678901", "12345678902"),
    ("1234567890.1", "1234567890.2"),
]


@pytest.mark.parametrize(("answer", "given"), SAME)
def test_the_same_number_written_otherwise_earns_one(answer: str, given: str) -> None:
    for response in (f"\\boxed{{{given}}}", f"<answer>{given}</answer>"):
        assert score({"answer": answer}, response) == 1.0, response


@pytest.mark.parametrize(("answer", "given"), DIFFERENT)
def test_numbers_are_compared_by_their_relative_difference(answer: str, given: str) -> None:
    for response in (f"\\boxed{{{given}}}", f"<answer>{given}</answer>", f"The answer is ${given}$."):
        assert score({"answer": answer}, response) == 0.0, response


@pytest.mark.parametrize("given", ["3^5^7", "9^9^9", "3^{5^7}", "0/0", "1/0", "10^{400}", "2^{1000000}"])
def test_an_odd_answer_is_wrong_and_no_failure(given: str) -> None:
    for response in (f"The answer is {given}.", f"\\boxed{{{given}}}", f"<answer>{given}</answer>"):
        assert score({"answer": "5"}, response) == 0.0
