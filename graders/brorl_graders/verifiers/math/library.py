"""Answers that need a grammar of LaTeX or symbols, by math-verify and sympy, with what they cannot be trusted with kept
from them: huge powers, deep brackets, answers of which they read a part only.

math-verify's own time limits are switched off: they are alarm signals, which reach only a main thread and cannot stop
code in C. The deadline of the process that this runs in stops everything.

Answers that would fill the memory if they were written out are known before anything is computed, and so are those
without a value: of `0/(1-1)` sympy makes 0 or nothing, by an order of factors that is another in each process, and of
`|(1-1)\\infty|` any number. Such an answer is right only when it is the reference letter for letter.
"""

from __future__ import annotations

import logging
import math
import re
from functools import lru_cache
from itertools import product, starmap
from typing import Any

from brorl_graders.verifiers.math.notation import depth

MAX_LENGTH = 500  # characters
MAX_DEPTH = 10  # of brackets; the grammar takes time exponential in it
MAX_OPERATIONS = 60  # of an expression that is multiplied out
MAX_POWER = 8  # in such an expression
MIN_VALUE = 1e-60  # a value below it may be zero, computed to a hundred digits
NEAR_ZERO = 1e-10  # above what fifteen digits make of 0
# The first symbol's value, and how far the next one's is from it. `x - x` is 0 at all of them, `|x| - x` or the whole
# part of x at some.
POINTS = ((0.61, 0.17), (-7.3, -1.9), (97.3, 11.9))
VALUELESS = (ArithmeticError, AttributeError, TypeError, ValueError, RuntimeError)  # sympy has no number for it
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]+")
_SEPARATED_NUMBER = re.compile(r"-?[1-9]\d{0,2}(?:[ ,]\d{3})+(?:\.\d+)?|-?\d+,\d+")  # 1 000.5, and 0,5: a number or two
_TEXT = re.compile(r"\\text ?\{[^{}]*\}")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# Signs that no single number has: where one is written and a number is read, the rest was dropped.
_NO_NUMBER = re.compile(
    r"[<>_?&]|\\(?:ge|le|ne|lt|gt|cup|cap|setminus|pm|mp|overline|sim|in|notin|to|mid|subset|parallel|perp|neg|lor|land|vee"
    r"|wedge|mathbin|quad)(?![A-Za-z])"
)
_OPERATION = re.compile(r"[/!:]|\\[dt]?(?:frac|binom)(?![A-Za-z])")
# x^a^b^c, x^{a^{b^{c}}}, and so with indices: the grammar tries all ways to read them.
_TOWER = re.compile(r"(?P<sign>[\^_]) ?(?:[^{}\s] ?(?P=sign) ?[^{}\s] ?|\{[^{}]*(?P=sign) ?\{[^{}]*)(?P=sign)")
_SET = re.compile(r"\\\{")
MAX_EXPONENT_DIGITS = 5  # digits of a result, as a power of ten
MAX_FACTORIAL_DIGITS = 5
_POWER = re.compile(r"(?:\^|\*\*)\s*\{?\s*(\d+)(?:\s*(?:\^|\*\*)\s*\{?\s*(\d+))?(\s*(?:\^|\*\*))?")
_FACTORIAL = re.compile(r"(\d+)\s*\)?\s*!")
TOO_LARGE = math.inf


def equal_by_library(reference: str, given: str) -> bool:
    """Whether two answers in one notation (`notation.py`) are equal to math-verify."""
    if not is_readable(reference) or not is_readable(given):
        return False
    if bool(_SET.match(given)) != bool(_SET.match(reference)) and "(" in (reference[:1], given[:1]):
        return False
    try:
        return any(starmap(_are_equal, product(_parsed(reference), _parsed(given))))
    except RecursionError:
        return False


def is_readable(text: str) -> bool:
    """Whether an answer can be parsed and computed within about a second."""
    if len(text) > MAX_LENGTH or depth(text) > MAX_DEPTH:
        return False
    return not is_huge(text) and _TOWER.search(text) is None


def _are_equal(one: Any, other: Any) -> bool:
    from math_verify import verify

    if _differ_at_a_point(one, other):
        return False
    try:
        if _is_same_polynomial(one, other):
            return True
    except VALUELESS:
        return False
    return bool(verify(one, other, timeout_seconds=None, allow_set_relation_comp=True))


def _has_no_value(item: Any) -> bool:
    """Tell whether an expression divides by zero, computes with infinity or is too large to be written out; one part of
    a matrix, set, tuple or relation is enough."""
    from sympy import Basic, MatrixBase, nan, zoo

    # A matrix that can be changed does not show its parts.
    if isinstance(item, MatrixBase):
        item = item.as_immutable()
    if not isinstance(item, Basic):
        return False
    if item.has(nan, zoo) or is_huge_expression(item):
        return True
    return _computes_with_infinity(item) or _has_pole(item)


def _computes_with_infinity(item: Any) -> bool:
    """Look for infinity in a sum, product, power or function. It may be an answer itself, an end of an interval, or a
    bound of an integral."""
    from sympy import Add, Function, Mul, Pow, oo

    parts = item.atoms(Add, Mul, Pow, Function)
    return any(oo in part.args or -oo in part.args for part in parts)


def _has_pole(item: Any) -> bool:
    """Look, in an expression that is not computed yet, for a part that divides by zero or is not finite, as log(0),
    whatever its symbols are."""
    from sympy import Function, Pow, Product, Sum

    parts = item.atoms(Pow, Function, Sum, Product)
    return any(map(_is_always_pole, parts))


def _is_always_pole(part: Any) -> bool:
    return all(_is_pole(part, point) for point in POINTS)


def _is_pole(part: Any, point: tuple[float, float]) -> bool:
    """Tell whether a part has no finite value where its symbols have the values of a point."""
    from sympy import Pow, nan, oo, sympify, zoo

    values = _values_at(point, part.free_symbols)
    try:
        if not isinstance(part, Pow):
            return sympify(part.evalf(15, subs=values)).has(oo, -oo, nan, zoo)
        exponent = complex(part.exp.evalf(15, subs=values))
        return exponent.real < 0 and _is_zero(part.base, values)
    except ZeroDivisionError:
        return True
    except VALUELESS:
        return False


def _is_zero(expression: Any, values: dict[Any, float]) -> bool:
    """Tell whether an expression is 0 where its symbols have these values: it is small, and shrinks as more digits are
    computed. Any other number, such as exp(-300), stays what it is."""
    from sympy import sympify

    rough = abs(sympify(expression.evalf(15, subs=values)))
    if rough > NEAR_ZERO:
        return False
    fine = abs(sympify(expression.evalf(60, subs=values, maxn=300)))
    return bool(fine <= NEAR_ZERO * rough)


def _values_at(point: tuple[float, float], symbols: set[Any]) -> dict[Any, float]:
    """Give each symbol a value, in an order that is the same in all processes even where two symbols have one name."""
    from sympy import srepr

    first, step = point
    values = {}
    for index, symbol in enumerate(sorted(symbols, key=srepr)):
        values[symbol] = first + step * index
    return values


def _is_same_polynomial(one: Any, other: Any) -> bool:
    """Whether two expressions are the same once multiplied out: several times faster than simplification."""
    from sympy import Expr, Pow, expand

    for item in (one, other):
        if not isinstance(item, Expr) or item.count_ops() > MAX_OPERATIONS:
            return False
        for power in item.atoms(Pow):
            if not power.exp.is_Integer or abs(power.exp) > MAX_POWER:
                return False
    return expand(one - other) == 0


def _differ_at_a_point(one: Any, other: Any) -> bool:
    """Whether two expressions have different values where their symbols have some positive ones: then no simplification
    (which takes most of the time) makes them equal. Single symbols, which may be words, and percentages are left to
    math-verify."""
    from sympy import Expr, Symbol
    from sympy.core.expr import UnevaluatedExpr

    for item in (one, other):
        if not isinstance(item, Expr) or isinstance(item, Symbol) or item.has(UnevaluatedExpr):
            return False
    values = _values_at(POINTS[0], one.free_symbols | other.free_symbols)
    try:
        first = complex(one.evalf(15, subs=values))
        second = complex(other.evalf(15, subs=values))
        scale = max(abs(first), abs(second))
        difference = abs(first - second)
    except VALUELESS:
        return False
    if scale < MIN_VALUE:
        return False
    return difference > 1e-6 * scale  # not for nan or inf


@lru_cache(maxsize=16384)
def _parsed(answer: str) -> list[Any]:
    """Have math-verify read an answer; readings that have no value are left out, as they equal nothing."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
    from math_verify.parser import NormalizationConfig

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are off
    usual = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True)
    targets = (LatexExtractionConfig(normalization_config=usual), ExprExtractionConfig())
    latex = answer.replace("%", "\\%").replace("$", "\\$")
    readings = [f"${latex}$"]
    if _WORDS.fullmatch(answer) and " " in answer:
        readings = [f"$\\text{{{answer}}}$"]
    elif _SEPARATED_NUMBER.fullmatch(answer):
        readings = [answer, f"${answer}$"]
    found = []
    for reading in readings:
        found.extend(parse(reading, targets, parsing_timeout=None))
    return [item for item in found if not _is_part(item, answer) and not _has_no_value(item)]


def _is_part(item: Any, answer: str) -> bool:
    """Whether a number was read from an answer that is more than one number."""
    from sympy import Number

    if not isinstance(item, Number):
        return False
    plain = _TEXT.sub("", answer)
    if any(map(_NUMBER.search, _TEXT.findall(answer))):
        return True
    if _NO_NUMBER.search(plain):
        return "\\log" not in plain
    return len(_NUMBER.findall(plain)) > 1 and _OPERATION.search(plain) is None


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
