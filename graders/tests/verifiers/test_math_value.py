"""Values of plain expressions, and that nothing is told apart by them which math-verify holds equal."""

from __future__ import annotations

import math
import random

import pytest
from brorl_graders.verifiers.math.answer import is_equal
from brorl_graders.verifiers.math.library import equal_by_library
from brorl_graders.verifiers.math.notation import in_one_notation
from brorl_graders.verifiers.math.value import Value, compare, read_value

PIECES = (
    r"\frac{1}{2} \dfrac{3}{4} 1 2 12 3.5 x y n ( ) \left( \right) \pi + - * / \cdot ^2 ^{2} \sqrt{2} 2x (x+1) 0.5 i e"
)
REFERENCES = (
    "1",
    "-1",
    "\\frac{1}{2}",
    "0.5",
    "x^2",
    "\\sqrt{2}",
    "3x+1",
    "x=5",
    "(1, 2)",
    "[0,1]",
    "50\\%",
    "12 cm",
    "\\text{cat}",
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-2^2", -4),
        ("2\\cdot 3+4\\times5/2", 16),
        ("\\dfrac{1}{2}\\left(3+5\\right)", 4),
        ("2(3)(4)", 24),
        ("\\sqrt{16}\\pi", 4 * math.pi),
        ("$ 2^{10} - 24 $", 1000),
        ("1/2/2", 0.25),
        ("10^-1", None),
        ("9^{99999}", None),
        ("1/0", None),
        ("0^{-1}", None),
    ],
)
def test_plain_expressions_have_their_value(text: str, value: float | None) -> None:
    found = _read(text)
    if value is None:
        assert found is None
    else:
        assert found is not None
        assert complex(found.value) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "2\\frac{1}{2}",
        "xy",
        "x(y+1)",
        "1/2x",
        "x^23",
        "x2",
        "2 000",
        "1,000",
        "3!!",
        "50\\%",
        "x=5",
        "|x|",
        "x",
        "",
        "2^{3",
    ],
)
def test_what_has_two_readings_or_none_has_no_value(text: str) -> None:
    assert _read(text) is None


def test_deep_and_long_expressions_have_no_value() -> None:
    assert _read("(" * 99 + "1" + ")" * 99) is None
    assert _read("1+" * 150 + "1") is None


def test_nothing_that_the_library_holds_equal_is_told_apart() -> None:
    rng, texts = random.Random(3), set[str]()
    while len(texts) < 20:
        text = "".join(rng.choice(PIECES.split()) for _ in range(rng.randint(1, 5)))
        texts |= {text} if _read(text) is not None else set()
    pairs = [(reference, text) for reference in REFERENCES for text in texts]
    apart = [(reference, text) for reference, text in pairs if not is_equal(reference, text)]
    assert len(apart) > 200
    assert [pair for pair in apart if equal_by_library(*map(in_one_notation, pair))] == []


def test_different_values_are_told_apart_and_equal_ones_with_variables_left_to_the_library() -> None:
    assert _verdict("\\frac{1}{2}", "\\frac{1}{3}") is False
    assert _verdict("(x+1)^2", "x^2+1") is False
    assert _verdict("10^{-50}\\sqrt{2}", "10^{-34}\\sqrt{3}") is False
    assert _verdict("(x+1)^2", "x^2+2x+1") is None
    assert _verdict("X+1", "x+1") is None
    assert _verdict("(\\sqrt{2})^{2}", "2") is None, "computed with an error, so sympy must say"
    assert is_equal("(x+1)^2", "x^2+2x+1")


def test_equal_values_without_variables_are_equal() -> None:
    assert _verdict("\\sqrt{16}+\\frac{1}{2}", "4.5") is True
    assert _verdict("\\frac{\\pi}{6}", "\\pi/6") is True
    assert _verdict("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}") is True
    assert _verdict("3+4i", "4i+3") is True
    assert _verdict("10^{20}+1", "10^{20}") is False, "whole numbers are exact"


def test_what_cancels_out_in_floating_point_is_left_to_the_library() -> None:
    assert _verdict("\\sqrt{10^{20}+2}-10^{10}", "10^{-10}") is None


def _read(text: str) -> Value | None:
    return read_value(in_one_notation(text))


def _verdict(one: str, other: str) -> bool | None:
    first = _read(one)
    second = _read(other)
    assert first is not None
    assert second is not None
    return compare(first, second)
