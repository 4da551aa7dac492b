"""The value of a plain mathematical expression, a hundred times faster than by a parser of all of LaTeX (10 µs in place
of 4 ms).

Most wrong answers are plain: a number, a fraction, a polynomial, a root. Where such an answer and its reference have
different values, they are not equal, and neither a grammar nor sympy need be asked. What could be read in two ways has
no value here: mixed numbers (`2\\frac12`), names of several letters, `f(x)`, `1/2x`, `x^23`, commas, units, `e`, `i`.
Whether two expressions *are* equal is never decided here.
"""

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Iterator

MAX_LENGTH = 200  # characters
MAX_DEPTH = 30  # of brackets
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<command>\\[a-zA-Z]+)|(?P<sign>[-+*/^(){}])|(?P<letter>[a-zA-Z]))"
)
_DRESS = re.compile(r"\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|\\displaystyle(?![a-zA-Z])|\\[,;:!]|\$")
_FRACTIONS = ("\\frac", "\\dfrac", "\\tfrac")
_BEGINNINGS = ("(", "\\sqrt", "\\pi", *_FRACTIONS)
_PRODUCTS = ("\\cdot", "\\times", "*")
_NO_VARIABLES = frozenset("deio")  # differentials, Euler's number, the imaginary unit, and what looks like zero


class _Unreadable(ValueError):
    """Not a plain expression."""


def are_different(one: str, other: str) -> bool:
    """Whether both are plain expressions whose values differ at a point with positive variables."""
    first = value_of(one)
    second = value_of(other)
    if first is None or second is None:
        return False
    try:
        scale = max(abs(first), abs(second), 1.0)
        return abs(first - second) > 1e-6 * scale
    except OverflowError:
        return False


def value_of(text: str) -> complex | None:
    """The value with fixed positive numbers for variables; None where the text is no plain expression, is one letter,
    or has no finite value."""
    if len(text) > MAX_LENGTH:
        return None
    try:
        reader = _Reader(_DRESS.sub(" ", text))
        is_single = len(reader.tokens) == 2  # with the end
        if is_single and reader.tokens[0].isalpha():
            return None
        value = reader.sum()
        reader.expect("")
    except (_Unreadable, ArithmeticError):
        return None
    return value if cmath.isfinite(value) else None


class _Reader:
    """Recursive descent over the tokens of an expression. Methods return values, and raise _Unreadable or
    ArithmeticError."""

    def __init__(self, text: str) -> None:
        self.tokens = [*_tokens(text), ""]  # "" stands at the end
        self.place = 0
        self.depth = 0

    @property
    def next(self) -> str:
        return self.tokens[self.place]

    def take(self) -> str:
        token = self.next
        self.place += 1
        return token

    def expect(self, token: str) -> None:
        if self.take() != token:
            raise _Unreadable

    def sum(self) -> complex:
        total = complex(0)
        sign = 1
        if self.next in ("+", "-"):
            sign = -1 if self.take() == "-" else 1
        while True:
            total += sign * self.product()
            if self.next not in ("+", "-"):
                return total
            sign = -1 if self.take() == "-" else 1

    def product(self) -> complex:
        """Factors with a sign between them, or one after the other where that has one reading."""
        value = self.power()
        before = self.tokens[self.place - 1]
        has_quotient = False
        while True:
            if self.next in _PRODUCTS:
                self.take()
                value *= self.power()
            elif self.next == "/":
                self.take()
                value /= self.power()
                has_quotient = True
            elif self.begins_a_factor() and not has_quotient and self.may_stand_behind(before):
                value *= self.power()
            else:
                return value
            before = self.tokens[self.place - 1]

    def begins_a_factor(self) -> bool:
        return self.next in _BEGINNINGS or self.next[:1].isalnum()

    def may_stand_behind(self, before: str) -> bool:
        """Raises _Unreadable where a factor behind `before`, the last token of another, could mean something else."""
        is_number = self.next[0].isdigit()
        is_mixed_number = before[0].isdigit() and self.next in _FRACTIONS
        is_name = before.isalpha() and (self.next.isalpha() or self.next == "(")
        if is_number or is_mixed_number or is_name:
            raise _Unreadable
        return True

    def power(self) -> complex:
        base = self.factor()
        if self.next != "^":
            return base
        self.take()
        exponent = self.group() if self.next == "{" else self.single()
        if self.next == "^" or (base == 0 and exponent.real <= 0):
            raise _Unreadable
        return base**exponent

    def single(self) -> complex:
        """An exponent or argument without braces: one character."""
        if len(self.next) != 1 or not self.next.isalnum():
            raise _Unreadable
        return self.factor()

    def factor(self) -> complex:
        token = self.take()
        if token[:1].isdigit():
            return complex(float(token))
        if token.isalpha():
            return _value_of_letter(token)
        if token == "(":
            return self.inside(")")
        if token == "\\pi":
            return complex(math.pi)
        if token == "\\sqrt":
            return self.group() ** 0.5
        if token in _FRACTIONS:
            return self.group() / self.group()
        raise _Unreadable

    def group(self) -> complex:
        self.expect("{")
        return self.inside("}")

    def inside(self, closing: str) -> complex:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Unreadable
        value = self.sum()
        self.expect(closing)
        self.depth -= 1
        return value


def _value_of_letter(letter: str) -> complex:
    small = letter.lower()  # math-verify does not tell them apart
    if small in _NO_VARIABLES:
        raise _Unreadable
    return complex(0.61 + 0.0417 * (ord(small) - ord("a")))


def _tokens(text: str) -> Iterator[str]:
    place = 0
    end = len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            raise _Unreadable
        yield match[match.lastgroup or 0]
        place = match.end()
