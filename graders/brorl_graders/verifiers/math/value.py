r"""Evaluate a plain mathematical expression, hundreds of times faster than a parser of all of LaTeX (10 µs, not 4 ms).

Most wrong answers are plain: a number, a fraction, a polynomial, a root. If such an answer and its reference have
different values, they are not equal, and neither a grammar nor SymPy is needed. If they have no variables and the same
value, they are equal. Anything that could be read in two ways has no value here: mixed numbers (`2\frac12`), names of
several letters, `f(x)`, `1/2x`, `x^23`, commas, units.

`read_number` reads plain numbers exactly as they are written: decimals, thousands, fractions, mixed numbers, repeating
decimals and scientific notation. Two numbers are compared as written, with two exceptions for decimals.

- A decimal may be rounded. It equals a number from which it differs by half a unit of its last place at most, if the
  relative difference is at most 1e-6 (0.333333 equals 1/3, 0.333 does not).
- A decimal may be cut off. It equals a number from which it differs by less than one unit of its last place, if the
  relative difference is at most 1e-9.

Whole numbers and fractions equal only themselves, and zero equals only zero.
"""

from __future__ import annotations

import cmath
import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from brorl_graders.verifiers.math.expression import Tree, Unreadable, parse
from brorl_graders.verifiers.math.tokens import Tokens, text_of

MAX_NUMBER = 400  # characters of a number
MAX_EXPONENT_DIGITS = 3  # digits of the exponent of a power of ten
ROUNDED = Fraction(1, 10**6)  # largest relative difference of a number and its rounding
CUT_OFF = Fraction(1, 10**9)  # largest relative difference of a number and its cut-off decimal

_DIGITS = r"(?:[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,2}(?: \d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_EXPONENT = rf"\{{?\(?(?P<exponent>[-+]?\d{{1,{MAX_EXPONENT_DIGITS}}})\)?\}}?"
_TIMES_TEN = r" ?(?:\\times|\\cdot|\*|x|X) ?10\^"
_SCIENTIFIC = re.compile(
    rf"(?P<mantissa>{_DECIMAL})(?:{_TIMES_TEN}{_EXPONENT}|[eE](?P<short>[-+]?\d{{1,{MAX_EXPONENT_DIGITS}}}))?"
)
_TEN = re.compile(rf"10\^{_EXPONENT}")
_REPEATING = re.compile(
    r"(?P<whole>\d+)\.(?P<fixed>\d*)(?:\\(?:overline|dot)\{(?P<period>\d+)\}|\((?P<bracketed>\d+)\))"
)
_ENDLESS = re.compile(r"(?P<whole>\d+)\.(?P<fixed>\d*?)(?P<period>\d{1,6}?)(?P=period){2,}\.\.\.")
_FRACTION = re.compile(
    r"(?:(?P<whole>\d+)(?: ?(?=\\)| \+? ?(?=\d)))?"
    r"(?:\\frac\{(?P<top>[-+]?\d+)\}\{(?P<bottom>[-+]?\d+)\}|(?P<over>\d+)/(?P<under>\d+))"
)
_SIGN = re.compile(r"[-+] ?")
_SIGNED_BRACKETS = re.compile(r"\(([-+][^()]*)\)")

Numeric = Fraction | complex  # a Fraction is exact

MAX_LENGTH = 200  # tokens
MAX_BITS = 65536  # bits of the exact result of a power
MAX_POWER = 10_000
MAX_FACTORIAL = 5000
DIFFERENT = 1e-6  # smallest relative difference of unequal values
SAME = 1e-12  # largest relative difference of equal floating-point values
SMALLEST = 1e-290  # a smaller floating-point value may be another number
NOISE = 1e-12  # error of a floating-point value, relative to the largest number on the way to it
_CONSTANTS: dict[str, complex] = {"e": complex(math.e), "i": 1j, "\\pi": complex(math.pi)}
_NO_VARIABLES = frozenset("do")  # the differential d, and the o that looks like zero


def read_number(text: str) -> Value | None:
    """Return the number that a text in plain LaTeX consists of, or None if the text is no plain number."""
    if not text or len(text) > MAX_NUMBER:
        return None
    plain = text
    in_brackets = _SIGNED_BRACKETS.fullmatch(plain)
    if in_brackets:
        plain = in_brackets[1].strip()
    sign = _SIGN.match(plain)
    number = _unsigned(plain[sign.end() :] if sign else plain)
    if number is None:
        return None
    return number._replace(value=-number.value if sign and sign[0][0] == "-" else number.value, text=text)


def _are_equal(one: Fraction, other: Fraction, place: Fraction, tolerance: float) -> bool:
    """Return whether two numbers are the same as written, or differ by at most `tolerance` of the larger one.

    A decimal that is rounded or cut off after `place`, if that is not 0, equals the number that it abbreviates.
    """
    difference = abs(one - other)
    if difference == 0:
        return True
    size = max(abs(one), abs(other))
    if difference <= Fraction(tolerance) * size:
        return True
    is_rounded = 2 * difference <= place and difference <= ROUNDED * size
    is_cut_off = difference < place and difference <= CUT_OFF * size
    return is_rounded or is_cut_off


def _unsigned(text: str) -> Value | None:
    if text.isdecimal():
        return Value(Fraction(int(text)))
    found = _SCIENTIFIC.fullmatch(text)
    if found:
        return _scientific(found)
    found = _TEN.fullmatch(text)
    if found:
        return Value(Fraction(10) ** int(found["exponent"]))
    found = _FRACTION.fullmatch(text)
    if found:
        return _fraction(found)
    found = _REPEATING.fullmatch(text) or _ENDLESS.fullmatch(text)
    if found:
        return _repeating(found)
    return None


def _scientific(found: re.Match[str]) -> Value:
    written = found["mantissa"].replace(",", "").replace(" ", "")
    exponent = int(found["exponent"] or found["short"] or 0)
    whole, point, places = written.partition(".")
    power = Fraction(10) ** (exponent - len(places))
    digits = int(whole + places)
    is_exact = not point and found["exponent"] is None and found["short"] is None
    error = Fraction(0) if is_exact else power
    return Value(digits * power, last_place=error)


def _fraction(found: re.Match[str]) -> Value | None:
    """Read `3/4`, `\\frac{3}{4}` or the mixed number `2 3/4`."""
    top, bottom = int(found["top"] or found["over"]), int(found["bottom"] or found["under"])
    if not bottom or (found["whole"] and not 0 <= top < bottom):
        return None
    return Value(int(found["whole"] or 0) + Fraction(top, bottom))


def _repeating(found: re.Match[str]) -> Value:
    """Read a repeating decimal: `0.1\\overline{6}`, `0.1(6)` or `0.1666...`."""
    groups = found.groupdict()
    period = groups["period"] or groups["bracketed"]
    fixed = found["fixed"]
    whole = Fraction(int(found["whole"] + fixed), 10 ** len(fixed))
    repeated = Fraction(int(period), 10 ** len(period) - 1)
    return Value(whole + repeated / 10 ** len(fixed))


class Value(NamedTuple):
    """The value of a plain expression, with what is needed to judge its rounding errors."""

    value: Numeric
    has_variables: bool = False  # True: the value is that at one point
    largest: float = 0.0  # absolute value of the largest sum on the way to the value
    last_place: Fraction = Fraction(0)  # unit of the last digit of a decimal that may be rounded; 0: exact
    text: str = ""  # as it was written; "" if it was computed


def scaled(value: Value, factor: Fraction | int) -> Value:
    """Return a value times a factor."""
    return value._replace(
        value=value.value * factor,
        largest=value.largest * float(factor),
        last_place=value.last_place * factor,
        text="",
    )


def compare(one: Value, other: Value, tolerance: float = 0.0) -> bool | None:
    """Return whether two mathematical expressions are equal, up to a relative difference of `tolerance`.

    None: the values of the expressions do not decide it.
    """
    has_variables = one.has_variables or other.has_variables
    if isinstance(one.value, Fraction) and isinstance(other.value, Fraction) and not has_variables:
        return _are_equal(one.value, other.value, max(one.last_place, other.last_place), tolerance)
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


def _are_near_equal(one: Value, other: Value, difference: float, scale: float) -> bool | None:
    """Return whether two close values of expressions without variables are equal, or None if that stays undecided.

    At least one of them was computed in floating point.
    """
    place = float(max(one.last_place, other.last_place))
    if place > 0:
        is_rounded = difference <= 0.5 * place
        is_cut_off = difference <= place and difference <= float(CUT_OFF) * scale
        return is_rounded or is_cut_off
    is_exact = isinstance(one.value, Fraction) or isinstance(other.value, Fraction)
    if difference <= SAME * scale and not is_exact:
        return True
    return None


@lru_cache(maxsize=16384)
def read_value(tokens: Tokens) -> Value | None:
    """Return the value of an expression, with fixed positive numbers for its variables.

    None: it is no plain expression, may be read in two ways, is one letter, or has no finite value.
    """
    if len(tokens) > MAX_LENGTH:
        return None
    evaluator = _Evaluator()
    try:
        tree = parse(tokens, is_strict=True)
        value = evaluator.value(tree)
        if isinstance(tree, str) and tree.isalpha():
            return None
        if not isinstance(value, Fraction) and not cmath.isfinite(value):
            return None
    except (Unreadable, ArithmeticError):
        return None
    return Value(value, evaluator.has_variables, evaluator.largest, text=text_of(tokens))


class _Evaluator:
    """Evaluates the tree of an expression. Its methods raise Unreadable or ArithmeticError."""

    def __init__(self) -> None:
        self.has_variables = False
        self.largest = 0.0  # absolute value of the terms added so far

    def value(self, tree: Tree) -> Numeric:
        if isinstance(tree, Fraction):
            return tree
        if isinstance(tree, str):
            return self.name(tree)
        kind = tree[0]
        if kind not in ("+", "-", "*", "/", "^", "root", "factorial"):
            raise Unreadable
        operands = [self.value(part) for part in tree[1:]]
        if kind == "+":
            total = operands[0]
            for term in operands[1:]:
                self.largest = max(self.largest, _size(total), _size(term))
                total += term
            return total
        if kind == "-":
            return -operands[0]
        if kind == "*":
            return operands[0] * operands[1]
        if kind == "/":
            return operands[0] / operands[1]
        if kind == "^":
            return _power(*operands)
        return _factorial(operands[0]) if kind == "factorial" else _root(*operands)

    def name(self, name: str) -> Numeric:
        """Return the value of a mathematical constant such as π, or a fixed number that stands in for a variable."""
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        small = name.lower()
        if len(name) > 1 or small in _NO_VARIABLES or small in _CONSTANTS:
            raise Unreadable
        self.has_variables = True
        return complex(0.61 + 0.0417 * (ord(small) - ord("a")))


def _size(value: Numeric) -> float:
    try:
        return abs(complex(value))
    except OverflowError:
        return math.inf


def _factorial(number: Numeric) -> Fraction:
    """Return an exact factorial. Raises Unreadable if it is huge, or the number is not whole."""
    if not isinstance(number, Fraction) or number.denominator != 1 or not 0 <= number <= MAX_FACTORIAL:
        raise Unreadable
    return Fraction(math.factorial(int(number)))


def _power(base: Numeric, exponent: Numeric) -> Numeric:
    """Return a power, exact if the base is rational and the exponent whole. Raises Unreadable for a huge one."""
    if base == 0 and exponent.real <= 0:
        raise Unreadable
    is_whole = isinstance(exponent, Fraction) and exponent.denominator == 1
    if not is_whole or not isinstance(base, Fraction):
        return complex(base) ** complex(exponent)
    times = int(exponent.real)
    bits = base.numerator.bit_length() + base.denominator.bit_length()
    if abs(times) > MAX_POWER or abs(times) * bits > MAX_BITS:
        raise Unreadable
    return base**times


def _root(degree: Numeric, value: Numeric) -> Numeric:
    """Return the square root of a value, exact if it is rational."""
    if degree != 2:
        raise Unreadable
    if isinstance(value, Fraction) and value >= 0:
        top = math.isqrt(value.numerator)
        bottom = math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    return complex(value) ** 0.5
