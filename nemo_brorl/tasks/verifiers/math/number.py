"""Plain numbers as they are written, exactly: decimals, thousands, fractions, mixed numbers, repeating decimals and
scientific notation.

Two of them are compared as written. A decimal may be a rounded number: it equals what it is the rounding of, to half a
unit of its last place, where both differ by a millionth at most (0.333333 is 1/3, 0.333 is not); or what it is cut off
from, where they differ by 1e-9 at most. Whole numbers and fractions equal nothing but themselves, and zero equals
nothing but zero.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

MAX_NUMBER = 400  # characters of a number
MAX_EXPONENT_DIGITS = 3  # of a power of ten
ROUNDED = Fraction(1, 10**6)  # relative difference of a number and its rounding, at most
CUT_OFF = Fraction(1, 10**9)  # relative difference of a number and what it is cut off from

_DIGITS = r"(?:[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,2}(?: \d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_EXPONENT = rf"\{{? ?\(?(?P<exponent>[-+]?\d{{1,{MAX_EXPONENT_DIGITS}}})\)? ?\}}?"
_TIMES_TEN = r" ?(?:\\times|\\cdot|\*|x|X) ?10 ?(?:\^|\*\*) ?"
_SCIENTIFIC = re.compile(
    rf"(?P<mantissa>{_DECIMAL})(?:{_TIMES_TEN}{_EXPONENT}|[eE](?P<short>[-+]?\d{{1,{MAX_EXPONENT_DIGITS}}}))?"
)
_TEN = re.compile(rf"10 ?(?:\^|\*\*) ?{_EXPONENT}")
_REPEATING = re.compile(
    r"(?P<whole>\d+)\.(?P<fixed>\d*)(?:\\(?:overline|dot) ?\{ ?(?P<period>\d+) ?\}|\((?P<bracketed>\d+)\))"
)
_ENDLESS = re.compile(r"(?P<whole>\d+)\.(?P<fixed>\d*?)(?P<period>\d{1,6}?)(?P=period){2,}\.\.\.")
_RATIO = (
    r"(?:\\frac ?\{ ?(?P<top>[-+]?[\d.]+) ?\} ?\{ ?(?P<bottom>[-+]?[\d.]+) ?\}|(?P<over>[\d.]+) ?/ ?(?P<under>[\d.]+))"
)
_FRACTION = re.compile(rf"(?:(?P<whole>\d+)(?: ?(?=\\)| \+? ?(?=\d)))?{_RATIO}")
_SIGN = re.compile(r"[-+] ?")
_SIGNED_BRACKETS = re.compile(r"\(([-+][^()]*)\)")


class Number(NamedTuple):
    """A number as it was written."""

    value: Fraction
    last_place: Fraction = Fraction(0)  # worth of the last digit of a decimal; 0 of a number that is exact


def read_number(text: str) -> Number | None:
    """The number that a text in one notation (`notation.py`) is; None for anything else."""
    if not text or len(text) > MAX_NUMBER:
        return None
    plain = text
    in_brackets = _SIGNED_BRACKETS.fullmatch(plain)
    if in_brackets:
        plain = in_brackets[1].strip()
    sign = _SIGN.match(plain)
    if sign is None:
        return _unsigned(plain)
    number = _unsigned(plain[sign.end() :])
    if number is None or sign[0][0] == "+":
        return number
    return Number(-number.value, number.last_place)


def are_equal(one: Number, other: Number, tolerance: float = 0.0) -> bool:
    """Whether two numbers are the same as written, or differ by `tolerance` of the larger at most."""
    difference = abs(one.value - other.value)
    if difference == 0:
        return True
    size = max(abs(one.value), abs(other.value))
    if difference <= Fraction(tolerance) * size:
        return True
    place = max(one.last_place, other.last_place)
    is_rounded = 2 * difference <= place and difference <= ROUNDED * size
    is_cut_off = difference < place and difference <= CUT_OFF * size
    return is_rounded or is_cut_off


def _unsigned(text: str) -> Number | None:
    if text.isdecimal():
        return Number(Fraction(int(text)))
    found = _SCIENTIFIC.fullmatch(text)
    if found:
        return _scientific(found)
    found = _TEN.fullmatch(text)
    if found:
        return Number(Fraction(10) ** int(found["exponent"]))
    found = _FRACTION.fullmatch(text)
    if found:
        return _fraction(found)
    found = _REPEATING.fullmatch(text) or _ENDLESS.fullmatch(text)
    if found:
        return _repeating(found)
    return None


def _scientific(found: re.Match[str]) -> Number:
    written = found["mantissa"].replace(",", "").replace(" ", "")
    exponent = int(found["exponent"] or found["short"] or 0)
    whole, point, places = written.partition(".")
    power = Fraction(10) ** (exponent - len(places))
    digits = int(whole + places)
    is_exact = not point and found["exponent"] is None and found["short"] is None
    return Number(digits * power, Fraction(0) if is_exact else power)


def _fraction(found: re.Match[str]) -> Number | None:
    """Of `3/4`, `\\frac{3}{4}` and the mixed `2 3/4`; decimals may stand in the place of whole numbers."""
    top = _decimal(found["top"] or found["over"])
    bottom = _decimal(found["bottom"] or found["under"])
    if top is None or not bottom:
        return None
    ratio = top / bottom
    if found["whole"] is None:
        return Number(ratio)
    if not 0 <= ratio < 1:
        return None
    return Number(int(found["whole"]) + ratio)


def _decimal(text: str) -> Fraction | None:
    try:
        return Fraction(text)
    except ValueError:
        return None


def _repeating(found: re.Match[str]) -> Number:
    """Of `0.1\\overline{6}`, `0.1(6)` and `0.1666...`."""
    groups = found.groupdict()
    period = groups["period"] or groups["bracketed"]
    fixed = found["fixed"]
    whole = Fraction(int(found["whole"] + fixed), 10 ** len(fixed))
    repeated = Fraction(int(period), 10 ** len(period) - 1)
    return Number(whole + repeated / 10 ** len(fixed))
