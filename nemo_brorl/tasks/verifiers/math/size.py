"""Answers that would fill the memory if they were written out, known before anything is computed. Such an answer is
right only when it is the reference letter for letter."""

from __future__ import annotations

import math
import re
from typing import Any

MAX_EXPONENT_DIGITS = 5  # digits of a result, as a power of ten
MAX_FACTORIAL_DIGITS = 5
_POWER = re.compile(r"(?:\^|\*\*)\s*\{?\s*(\d+)(?:\s*(?:\^|\*\*)\s*\{?\s*(\d+))?(\s*(?:\^|\*\*))?")
_FACTORIAL = re.compile(r"(\d+)\s*\)?\s*!")
TOO_LARGE = math.inf


def is_huge(answer: str) -> bool:
    """Whether an answer holds a power or factorial of about 100,000 digits or more, as 9^{9^9}: sympy would write it
    out."""
    for factorial in _FACTORIAL.finditer(answer):
        if len(factorial[1]) > MAX_FACTORIAL_DIGITS:
            return True
    return any(_is_huge_power(power) for power in _POWER.finditer(answer))


def _is_huge_power(power: re.Match[str]) -> bool:
    """Of x^exponent, x^(exponent^tower), or a higher tower."""
    exponent, tower, third = power.groups()
    if third is not None:
        return True
    if tower is not None and len(tower) > MAX_EXPONENT_DIGITS:
        return True
    num_digits = _digits(exponent)
    if tower is not None:
        num_digits *= int(tower)
    return num_digits > MAX_EXPONENT_DIGITS


def _digits(number: str) -> float:
    """The logarithm of a whole number to base 10."""
    plain = number.lstrip("0")
    if len(plain) > MAX_EXPONENT_DIGITS + 1:
        return float(len(plain))
    return math.log10(max(int(plain or "0"), 1))


def is_huge_expression(expression: Any) -> bool:
    """Whether a sympy expression that is not computed yet has a power, factorial or binomial of such a size."""
    return _magnitude(expression) > 10**MAX_EXPONENT_DIGITS


def _magnitude(expression: Any) -> float:
    """Upper bound of the logarithm to base 10 of what is met on the way to an expression's value, symbols being small;
    at least 0."""
    from sympy import Pow, binomial, factorial

    if expression.is_Number or not expression.args:
        return _magnitude_of_number(expression)
    parts = [_magnitude(part) for part in expression.args]
    largest = max(parts)
    if largest > 10**MAX_EXPONENT_DIGITS:
        return TOO_LARGE
    if isinstance(expression, Pow):
        return max(largest, _power(parts[0], parts[1]))
    if isinstance(expression, (factorial, binomial)):
        return max(largest, _power(parts[0], parts[0]))
    if expression.is_Mul:
        return sum(parts)
    return largest + 1.0


def _power(base: float, exponent: float) -> float:
    """Digits of a power, by the logarithms of base and exponent."""
    if exponent > MAX_EXPONENT_DIGITS + 1:
        return TOO_LARGE
    return max(base, 0.3) * 10**exponent


def _magnitude_of_number(number: Any) -> float:
    if not number.is_Rational:
        return 0.0
    return math.log10(max(abs(number.p), number.q))
