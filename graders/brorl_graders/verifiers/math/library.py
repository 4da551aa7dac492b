"""Compare answers that need a grammar of LaTeX or symbolic algebra, by math-verify and SymPy.

Answers that the libraries handle badly never reach them: huge powers, deep brackets, and answers of which they read
only a part.

math-verify's own time limits are switched off. They are alarm signals, which only reach a main thread and cannot stop C
code. The deadline of the process that runs this module stops everything.

Two kinds of answers are found before anything is computed. Some would fill the memory if they were written out. Others
have no value: SymPy turns `0/(1-1)` into 0 or nothing, depending on an order of factors that differs between processes,
and `|(1-1)\\infty|` into any number. Such an answer is right only if it is the reference letter for letter.
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
MAX_DEPTH = 10  # levels of brackets; the grammar's time is exponential in them
MAX_OPERATIONS = 60  # operations in an expression that is expanded
MAX_POWER = 8  # largest exponent in an expression that is expanded
MAX_FACTORIAL = 5000  # largest number whose factorial is computed
MAX_TERMS = 3000  # terms of a sum or product that is computed
MIN_VALUE = 1e-60  # a smaller value may be zero, computed to a hundred digits
NEAR_ZERO = 1e-10  # larger than any result that 15 digits give for 0
# Points at which expressions are evaluated: the first symbol's value, and the step to the next symbol's. `x - x` is 0
# at all of them, `|x| - x` or the whole part of x only at some.
POINTS = ((0.61, 0.17), (-7.3, -1.9), (97.3, 11.9))
VALUELESS = (ArithmeticError, AttributeError, TypeError, ValueError, RuntimeError)  # errors without a number
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]+")
_SEPARATED_NUMBER = re.compile(r"-?[1-9]\d{0,2}(?:[ ,]\d{3})+(?:\.\d+)?|-?\d+,\d+")  # 1 000.5, and the ambiguous 0,5
_TEXT = re.compile(r"\\text ?\{[^{}]*\}")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# Signs that no single number has. If an answer has one and a number is read, the library dropped the rest.
_NO_NUMBER = re.compile(
    r"[<>_?&]|\\(?:ge|le|ne|lt|gt|cup|cap|setminus|pm|mp|overline|sim|in|notin|to|mid|subset|parallel|perp|neg|lor|land|vee"
    r"|wedge|mathbin|quad)(?![A-Za-z])"
)
_OPERATION = re.compile(r"[/!:]|\\[dt]?(?:frac|binom)(?![A-Za-z])")
# x^a^b^c, x^{a^{b^{c}}}, and such towers of indices: the grammar tries all ways to read them.
_TOWER = re.compile(r"(?P<sign>[\^_]) ?(?:[^{}\s] ?(?P=sign) ?[^{}\s] ?|\{[^{}]*(?P=sign) ?\{[^{}]*)(?P=sign)")
_COMPUTED = re.compile(r"!|\\(?:sum|prod|sqrt)")
_SET = re.compile(r"\\\{")
MAX_EXPONENT_DIGITS = 5  # results of more than 10**5 digits are refused
MAX_FACTORIAL_DIGITS = 5
_POWER = re.compile(r"(?:\^|\*\*)\s*\{?\s*(\d+)(?:\s*(?:\^|\*\*)\s*\{?\s*(\d+))?(\s*(?:\^|\*\*))?")
_FACTORIAL = re.compile(r"(\d+)\s*\)?\s*!")
TOO_LARGE = math.inf


def equal_by_library(reference: str, given: str) -> bool:
    """Return whether math-verify finds two answers equal.

    Both are in plain LaTeX, as `in_one_notation` writes it. Answers that cannot be read safely equal nothing.
    """
    if not is_readable(reference) or not is_readable(given):
        return False
    if bool(_SET.match(given)) != bool(_SET.match(reference)) and "(" in (reference[:1], given[:1]):
        return False
    try:
        return any(starmap(_are_equal, product(_parsed(reference), _parsed(given))))
    except RecursionError:
        return False


def is_readable(text: str) -> bool:
    """Return whether math-verify and SymPy can read and compute an answer within about a second."""
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
    """Return whether a SymPy expression has no value that can be computed.

    It divides by zero, computes with infinity, or is too large to be written out. One such part of a matrix, set, tuple
    or relation is enough.
    """
    from sympy import Basic, MatrixBase, nan, zoo

    # Only an immutable matrix shows its parts.
    if isinstance(item, MatrixBase):
        item = item.as_immutable()
    if not isinstance(item, Basic):
        return False
    if item.has(nan, zoo) or is_huge_expression(item):
        return True
    return _computes_with_infinity(item) or _has_pole(item)


def _computes_with_infinity(item: Any) -> bool:
    """Return whether a SymPy expression has infinity in a sum, product, power or function.

    Infinity may be an answer itself, an end of an interval, or a bound of an integral.
    """
    from sympy import Add, Function, Mul, Pow, oo

    parts = item.atoms(Add, Mul, Pow, Function)
    return any(oo in part.args or -oo in part.args for part in parts)


def _has_pole(item: Any) -> bool:
    """Return whether a part of a SymPy expression that is not computed yet has no finite value, as log(0) or 1/(1-1).

    A part counts only if it has no finite value whatever the values of its symbols.
    """
    from sympy import Function, Pow, Product, Sum

    parts = item.atoms(Pow, Function, Sum, Product)
    return any(map(_is_always_pole, parts))


def _is_always_pole(part: Any) -> bool:
    return all(_is_pole(part, point) for point in POINTS)


def _is_pole(part: Any, point: tuple[float, float]) -> bool:
    """Return whether a part of a SymPy expression has no finite value at a point, such as a division by zero."""
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
    """Return whether a SymPy expression is 0 where its symbols have these values.

    A zero is small, and shrinks as more digits are computed. Any other number, such as exp(-300), stays what it is.
    """
    from sympy import sympify

    rough = abs(sympify(expression.evalf(15, subs=values)))
    if rough > NEAR_ZERO:
        return False
    fine = abs(sympify(expression.evalf(60, subs=values, maxn=300)))
    return bool(fine <= NEAR_ZERO * rough)


def _values_at(point: tuple[float, float], symbols: set[Any]) -> dict[Any, float]:
    """Assign a value to each symbol of a SymPy expression, in an order that is the same in all processes.

    The order is well defined even if two symbols have one name.
    """
    from sympy import srepr

    first, step = point
    values = {}
    for index, symbol in enumerate(sorted(symbols, key=srepr)):
        values[symbol] = first + step * index
    return values


def _is_same_polynomial(one: Any, other: Any) -> bool:
    """Return whether two SymPy expressions are the same once they are expanded.

    This is several times faster than simplification.
    """
    from sympy import Expr, Pow, expand

    for item in (one, other):
        if not isinstance(item, Expr) or item.count_ops() > MAX_OPERATIONS:
            return False
        for power in item.atoms(Pow):
            if not power.exp.is_Integer or abs(power.exp) > MAX_POWER:
                return False
    return expand(one - other) == 0


def _differ_at_a_point(one: Any, other: Any) -> bool:
    """Return whether two SymPy expressions have different values at a point where their symbols are positive.

    If they do, no simplification makes them equal, and simplification takes most of the time. Single symbols, which may
    be words, and percentages are left to math-verify.
    """
    from sympy import Expr, Symbol
    from sympy.core.expr import UnevaluatedExpr

    for item in (one, other):
        if not isinstance(item, Expr) or isinstance(item, Symbol) or item.has(UnevaluatedExpr):
            return False
    values = _values_at(POINTS[0], one.free_symbols | other.free_symbols)
    try:
        first, second = (_value_of(item) if not item.free_symbols else _at(item, values) for item in (one, other))
        scale = max(abs(first), abs(second))
        # False for NaN and infinity
        return bool(scale >= MIN_VALUE and abs(first - second) > 1e-6 * scale)
    except VALUELESS:
        return False


@lru_cache(maxsize=1024)
def _value_of(number: Any) -> Any:
    """Return the value of a SymPy expression without symbols, which may be an integral that takes seconds."""
    return _at(number, {})


def _at(expression: Any, values: dict[Any, float]) -> Any:
    """Return the value of a SymPy expression where its symbols have these values, as a number of any size."""
    from mpmath import mpmathify

    return mpmathify(expression.evalf(15, subs=values))


@lru_cache(maxsize=16384)
def _parsed(answer: str) -> list[Any]:
    """Return the expressions that math-verify reads in an answer.

    Those without a value are left out, because they equal nothing.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
    from math_verify.parser import NormalizationConfig

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are switched off
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
    found = [item for item in found if not _is_part(item, answer)]
    if _COMPUTED.search(answer):
        found = list(map(_computed, found))
    return [item for item in found if item is not None and not _has_no_value(item)]


def _computed(item: Any) -> Any:
    """Return a SymPy expression with its finite sums and products computed, and `sqrt(1/n)` written as `1/sqrt(n)`.

    None: one of them has too many terms.
    """
    from sympy import Add, Basic, Integer, Mul, Product, Sum

    if not isinstance(item, Basic):
        return item
    for part in item.atoms(Sum, Product):
        (symbol, low, high), *others = part.limits
        if others or part.free_symbols or not (low.is_Integer and high.is_Integer):
            continue
        if high - low >= MAX_TERMS:
            return None
        terms = [part.function.subs(symbol, Integer(number)) for number in range(int(low), int(high) + 1)]
        item = item.xreplace({part: Add(*terms) if isinstance(part, Sum) else Mul(*terms)})
    item = item.replace(_is_small_factorial, lambda part: Integer(math.factorial(int(part.args[0]))))
    return item.replace(_is_root_of_inverse, _inverse_of_root)


def _inverse_of_root(part: Any) -> Any:
    from sympy import Mul, Pow

    inverse = Mul(*part.base.args) if part.base.is_Mul else part.base
    return Pow(inverse.base, -part.exp)


def _is_small_factorial(part: Any) -> bool:
    from sympy import factorial

    return isinstance(part, factorial) and part.args[0].is_Integer and 0 <= part.args[0] <= MAX_FACTORIAL


def _is_root_of_inverse(part: Any) -> bool:
    """Return whether a part of a SymPy expression is a root of `1/x`, which has values where that of `x` has."""
    from sympy import Mul

    if not (part.is_Pow and part.exp.is_Rational and not part.exp.is_Integer):
        return False
    inverse = Mul(*part.base.args) if part.base.is_Mul else part.base
    return bool(inverse.is_Pow and inverse.exp == -1)


def _is_part(item: Any, answer: str) -> bool:
    """Return whether math-verify read only a number from an answer that says more than this number."""
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
    """Return whether an answer has a power or factorial of about 100,000 digits or more, such as 9^{9^9}.

    SymPy would write it out.
    """
    for factorial in _FACTORIAL.finditer(answer):
        if len(factorial[1]) > MAX_FACTORIAL_DIGITS:
            return True
    return any(_is_huge_power(power) for power in _POWER.finditer(answer))


def _is_huge_power(power: re.Match[str]) -> bool:
    """Return whether a matched power has too many digits: x^exponent, x^(exponent^tower), or a higher tower."""
    exponent, tower, third = power.groups()
    if third is not None:
        return True
    if tower is not None and len(tower) > MAX_EXPONENT_DIGITS:
        return True
    num_digits = _log10(exponent)
    if tower is not None:
        num_digits *= int(tower)
    return num_digits > MAX_EXPONENT_DIGITS


def _log10(number: str) -> float:
    """Return the logarithm of a whole number to base 10, or its number of digits if it is long."""
    plain = number.lstrip("0")
    if len(plain) > MAX_EXPONENT_DIGITS + 1:
        return float(len(plain))
    return math.log10(max(int(plain or "0"), 1))


def is_huge_expression(expression: Any) -> bool:
    """Return whether a SymPy expression that is not computed yet would have about 100,000 digits or more.

    It looks for powers, factorials and binomials.
    """
    return _magnitude(expression) > 10**MAX_EXPONENT_DIGITS


def _magnitude(expression: Any) -> float:
    """Return an upper bound on the logarithm (base 10) of all numbers on the way to an expression's value, at least 0.

    Symbols count as small.
    """
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
    """Return an upper bound on the digits of a power, from the logarithms (base 10) of its base and its exponent."""
    if exponent > MAX_EXPONENT_DIGITS + 1:
        return TOO_LARGE
    return max(base, 0.3) * 10**exponent


def _magnitude_of_number(number: Any) -> float:
    if not number.is_Rational:
        return 0.0
    return math.log10(max(abs(number.p), number.q))
