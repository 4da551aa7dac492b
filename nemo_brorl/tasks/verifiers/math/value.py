"""The value of a plain mathematical expression, a hundred times faster than by a parser of all of LaTeX (10 µs in place
of 4 ms).

Most wrong answers are plain: a number, a fraction, a polynomial, a root. Where such an answer and its reference have
different values, they are not equal, and neither a grammar nor sympy need be asked; where they have no variables and
the same value, they are. What could be read in two ways has no value here: mixed numbers (`2\\frac12`), names of
several letters, `f(x)`, `1/2x`, `x^23`, commas, units.
"""

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from nemo_brorl.tasks.verifiers.math.number import CUT_OFF, Number, are_equal

Numeric = Fraction | complex  # exact where it can be

MAX_LENGTH = 200  # characters
MAX_DEPTH = 30  # of brackets
MAX_BITS = 4096  # of the exact result of a power
MAX_POWER = 1000
DIFFERENT = 1e-6  # relative difference of values, at least
SAME = 1e-12  # relative difference of values computed in floating point, at most
SMALLEST = 1e-290  # a floating-point value below it may be another number
NOISE = 1e-12  # error of a floating-point value, relative to the largest number on the way to it
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?|\.\d+)|(?P<command>\\[a-zA-Z]+)|(?P<sign>[-+*/^(){}])|(?P<letter>[a-zA-Z]))"
)
_FRACTIONS = ("\\frac", "\\dfrac", "\\tfrac")
_BEGINNINGS = ("(", "\\sqrt", "\\pi", *_FRACTIONS)
_PRODUCTS = ("\\cdot", "\\times", "*")
_CONSTANTS: dict[str, complex] = {"e": complex(math.e), "i": 1j}
_NO_VARIABLES = frozenset("do")  # a differential, and what looks like zero


class Value(NamedTuple):
    """What a plain expression is worth."""

    value: Numeric
    has_variables: bool = False  # then the value is that at one point
    largest: float = 0.0  # absolute value of the largest sum on the way to it
    last_place: Fraction = Fraction(0)  # of a decimal that may be rounded; see number.py


def compare(one: Value, other: Value, tolerance: float = 0.0) -> bool | None:
    """Whether two expressions are equal, up to a relative difference of `tolerance`; None where their values do not
    tell."""
    has_variables = one.has_variables or other.has_variables
    if isinstance(one.value, Fraction) and isinstance(other.value, Fraction) and not has_variables:
        return are_equal(
            Number(one.value, one.last_place),
            Number(other.value, other.last_place),
            tolerance,
        )
    try:
        first = complex(one.value)
        second = complex(other.value)
        scale = max(abs(first), abs(second))
        difference = abs(first - second)
    except OverflowError:
        return None
    if not math.isfinite(scale):
        return first == second
    if scale < SMALLEST:
        return None
    if not has_variables and tolerance > 0 and difference <= tolerance * scale:
        return True
    noise = NOISE * max(one.largest, other.largest, scale)
    if difference > max(DIFFERENT * scale, 1e3 * noise):
        return False
    if has_variables or noise > 10 * NOISE * scale:
        return None
    return _are_near_equal(one, other, difference, scale)


def _are_near_equal(
    one: Value,
    other: Value,
    difference: float,
    scale: float,
) -> bool | None:
    """Of two values without variables of which one at least is irrational, or was computed as if it were."""
    place = float(max(one.last_place, other.last_place))
    if place > 0:
        is_rounded = difference <= 0.5 * place
        is_cut_off = difference <= place and difference <= float(CUT_OFF) * scale
        return is_rounded or is_cut_off
    is_exact = isinstance(one.value, Fraction) or isinstance(other.value, Fraction)
    if difference <= SAME * scale and not is_exact:
        return True
    return None


def read_value(text: str) -> Value | None:
    """The value of a text in one notation (`notation.py`), with fixed positive numbers for variables; None where the
    text is no plain expression, is one letter, or has no finite value."""
    if len(text) > MAX_LENGTH:
        return None
    try:
        reader = _Reader(text)
        is_single = len(reader.tokens) == 2  # with the end
        if is_single and reader.tokens[0].isalpha():
            return None
        value = reader.sum()
        reader.expect("")
        if not cmath.isfinite(complex(value)):
            return None
    except (_Unreadable, ArithmeticError):
        return None
    return Value(value, reader.has_variables, reader.largest)


class _Unreadable(ValueError):
    """Not a plain expression."""


class _Reader:
    """Recursive descent over the tokens of an expression. Methods return values, and raise _Unreadable or
    ArithmeticError."""

    def __init__(self, text: str) -> None:
        self.tokens = [*_tokens(text), ""]  # "" stands at the end
        self.place = 0
        self.depth = 0
        self.has_variables = False
        self.largest = 0.0  # absolute value of the terms added so far

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

    def sum(self) -> Numeric:
        sign = self.sign() if self.next in ("+", "-") else 1
        total = sign * self.product()
        while self.next in ("+", "-"):
            sign = self.sign()
            term = self.product()
            self.largest = max(self.largest, abs(complex(total)), abs(complex(term)))
            total += sign * term
        return total

    def sign(self) -> int:
        return -1 if self.take() == "-" else 1

    def product(self) -> Numeric:
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

    def power(self) -> Numeric:
        base = self.factor()
        if self.next != "^":
            return base
        self.take()
        exponent = self.group() if self.next == "{" else self.single()
        if self.next == "^" or (base == 0 and exponent.real <= 0):
            raise _Unreadable
        return _power(base, exponent)

    def single(self) -> Numeric:
        """An exponent or argument without braces: one character."""
        if len(self.next) != 1 or not self.next.isalnum():
            raise _Unreadable
        return self.factor()

    def factor(self) -> Numeric:
        token = self.take()
        if token[:1].isdigit() or token[:1] == ".":
            return Fraction(token)
        if token.isalpha():
            return self.letter(token)
        if token == "(":
            return self.inside(")")
        if token == "\\pi":
            return complex(math.pi)
        if token == "\\sqrt":
            return _root(self.group())
        if token in _FRACTIONS:
            return self.group() / self.group()
        raise _Unreadable

    def letter(self, letter: str) -> Numeric:
        """A constant, or the fixed value of a variable; math-verify does not tell capitals apart."""
        small = letter.lower()
        if letter in _CONSTANTS:
            return _CONSTANTS[letter]
        if small in _NO_VARIABLES or small in _CONSTANTS:
            raise _Unreadable
        self.has_variables = True
        return complex(0.61 + 0.0417 * (ord(small) - ord("a")))

    def group(self) -> Numeric:
        self.expect("{")
        return self.inside("}")

    def inside(self, closing: str) -> Numeric:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Unreadable
        value = self.sum()
        self.expect(closing)
        self.depth -= 1
        return value


def _power(base: Numeric, exponent: Numeric) -> Numeric:
    """Exact where base and exponent allow it; huge powers are not computed."""
    is_whole = isinstance(exponent, Fraction) and exponent.denominator == 1
    if not is_whole or not isinstance(base, Fraction):
        return complex(base) ** complex(exponent)
    times = int(exponent.real)
    bits = base.numerator.bit_length() + base.denominator.bit_length()
    if abs(times) > MAX_POWER or abs(times) * bits > MAX_BITS:
        raise _Unreadable
    return base**times


def _root(value: Numeric) -> Numeric:
    """The square root, exact where it is rational."""
    if isinstance(value, Fraction) and value >= 0:
        top = math.isqrt(value.numerator)
        bottom = math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    return complex(value) ** 0.5


def _tokens(text: str) -> Iterator[str]:
    place = 0
    end = len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            raise _Unreadable
        yield match[match.lastgroup or 0]
        place = match.end()
