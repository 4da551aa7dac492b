"""Compare answers that need a grammar of LaTeX or symbolic algebra, by SymPy.

`expression.py` parses both. SymPy gets numbers, names and operations, and never a text. What would fill the memory if
it were written out is refused before it is computed, and what has no value, such as `0/(1-1)` and `0\\infty`, equals
nothing: SymPy would make 0, nothing or any number of it.

The deadline of the process that runs this module stops what takes long.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache, reduce
from itertools import pairwise, product, starmap
from operator import add
from typing import Any, NamedTuple

from brorl_graders.verifiers.math.expression import FUNCTIONS, Tree, Unreadable, parse
from brorl_graders.verifiers.math.tokens import Tokens, text_of
from brorl_graders.verifiers.math.value import Value, compare, read_number

MAX_OPERATIONS = 60  # operations in an expression that is expanded
MAX_POWER = 8  # largest exponent in an expression that is expanded
MAX_FACTORIAL = 5000  # largest number whose factorial is computed
MAX_TERMS = 3000  # terms of a sum or product that is computed
MAX_DIGITS = 10**5  # digits of a number that is computed
MIN_VALUE = 1e-60  # a smaller value may be zero, computed to a hundred digits
MAX_VALUE = 1e60  # a larger value may be that of a pole
NEAR_ZERO = 1e-10  # larger than any result that 15 digits give for 0
# Points at which expressions are evaluated: the first symbol's value, and the step to the next symbol's. `x - x` is 0
# at all of them, `|x| - x` or the whole part of x only at some.
POINTS = ((0.61, 0.17), (-7.3, -1.9), (97.3, 11.9))
VALUELESS = (ArithmeticError, AttributeError, TypeError, ValueError, RuntimeError)  # errors without a number
CONSTANTS = {"\\pi": "pi", "\\infty": "oo", "e": "E", "i": "I"}  # the names that SymPy has
CALLS = {**FUNCTIONS, "floor": "floor", "ceil": "ceiling"}
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


class Relation(NamedTuple):
    """Sides with signs of relations between them."""

    signs: tuple[str, ...]
    sides: tuple[Any, ...]


def equal_by_library(reference: Tokens, given: Tokens) -> bool:
    """Return whether two answers are equal as expressions.

    Relations and matrices are compared too. Answers that cannot be read equal nothing.
    """
    try:
        is_equal = any(starmap(_are_equal, product(_parsed(reference), _parsed(given))))
        return is_equal or _is_rounded(reference, given) or _is_rounded(given, reference)
    except (RecursionError, *VALUELESS):
        return False


def number_by_library(tokens: Tokens) -> Value | None:
    """Return the value of an expression without symbols, or None where it has none, or several."""
    try:
        numbers = _numbers(tokens)
        return Value(_exact(numbers[0])) if len(numbers) == 1 else None
    except (RecursionError, *VALUELESS):
        return None


def _is_rounded(decimal: Tokens, tokens: Tokens) -> bool:
    """Return whether a decimal is the rounded value of an expression without symbols."""
    number = read_number(text_of(decimal))
    if number is None or not number.last_place:
        return False
    return any(compare(number, Value(_exact(item))) for item in _numbers(tokens))


def _numbers(tokens: Tokens) -> list[Any]:
    """Return the numbers of SymPy that an expression without symbols may mean."""
    return [item for item in _parsed(tokens) if getattr(item, "is_number", False) and not _has_matrix([item])]


def _exact(number: Any) -> Fraction | complex:
    return Fraction(number.p, number.q) if number.is_Rational else complex(_value_of(number))


@lru_cache(maxsize=16384)
def _parsed(tokens: Tokens) -> list[Any]:
    """Return what an answer may mean: SymPy expressions and matrices, and relations of these."""
    found = []
    for is_wide in (False, True) if "/" in tokens else (False,):
        try:
            meaning = _Builder({}).build(parse(tokens, is_wide))
        except (RecursionError, *VALUELESS):
            continue
        if meaning not in found:
            found.append(meaning)
    return found


class _Builder:
    """Builds SymPy expressions from a tree. Its methods raise Unreadable for what is too large or has no value."""

    def __init__(self, names: dict[str, Any]) -> None:
        import sympy

        self.sympy = sympy
        self.names = names  # values of the names that a sum or an integral binds

    def build(self, tree: Tree) -> Any:
        """Return the expression, matrix or relation that a tree means."""
        if not isinstance(tree, tuple) or tree[0] != "relation":
            return self.expression(tree)
        return Relation(tuple(map(str, tree[2::2])), tuple(map(self.expression, tree[1::2])))

    def expression(self, tree: Tree) -> Any:
        """Return the SymPy expression that a tree means, and check that it has a value."""
        found = self._leaf(tree) if not isinstance(tree, tuple) else self._operation(tree)
        if found is self.sympy.nan or found is self.sympy.zoo:
            raise Unreadable
        return found

    def _leaf(self, tree: Fraction | str) -> Any:
        if isinstance(tree, Fraction):
            return self.sympy.Rational(tree.numerator, tree.denominator)
        if tree in self.names:
            return self.names[tree]
        return getattr(self.sympy, CONSTANTS[tree]) if tree in CONSTANTS else self.sympy.Symbol(tree, real=True)

    def _operation(self, tree: tuple[Any, ...]) -> Any:
        kind, *parts = tree
        method = getattr(self, f"_{kind}", None) if kind.isalpha() else None
        if kind in CALLS:
            return self._function(kind, parts)
        if method is not None:
            return method(*parts)
        operands = [self.expression(part) for part in parts]
        if kind != "-":
            _check_finite(operands)
        if kind == "+":
            return reduce(add, operands) if _has_matrix(operands) else self.sympy.Add(*operands)
        if kind == "-":
            return -operands[0]
        if kind == "*":
            return operands[0] * operands[1] if _has_matrix(operands) else self.sympy.Mul(*operands)
        if kind == "/":
            _check_divisor(operands[1])
            return (
                operands[0] / operands[1]
                if _has_matrix(operands)
                else self.sympy.Mul(operands[0], self.sympy.Pow(operands[1], -1))
            )
        assert kind == "^"
        return _power(*operands)

    def _function(self, kind: str, parts: list[Tree]) -> Any:
        name = CALLS[kind]
        (operand,) = map(self.expression, parts)
        _check_finite([operand])
        if name == "log":
            _check_divisor(operand)
        return getattr(self.sympy, name)(operand)

    def _abs(self, part: Tree) -> Any:
        operand = self.expression(part)
        _check_finite([operand])
        return operand.det() if _has_matrix([operand]) else self.sympy.Abs(operand)

    def _root(self, degree: Tree, part: Tree) -> Any:
        operand = self.expression(part)
        exponent = self.expression(degree)
        _check_finite([operand, exponent])
        _check_divisor(exponent)
        inverse = 1 / operand if operand.is_Mul or operand.is_Pow else None
        if inverse is not None and inverse.is_Symbol:
            # So `sqrt(1/x)` is `1/sqrt(x)`, which has values where that of `x` has.
            return inverse ** (-1 / exponent)
        return _power(operand, 1 / exponent)

    def _factorial(self, part: Tree) -> Any:
        operand = self.expression(part)
        if operand.is_number and operand > MAX_FACTORIAL:
            raise Unreadable
        return self.sympy.factorial(operand)

    def _binomial(self, top: Tree, bottom: Tree) -> Any:
        operands = [self.expression(part) for part in (top, bottom)]
        if any(operand.is_number and operand > MAX_FACTORIAL for operand in operands):
            raise Unreadable
        return self.sympy.binomial(*operands)

    def _sum(self, name: str, low: Tree, high: Tree, body: Tree) -> Any:
        return self._repeated(self.sympy.Add, self.sympy.Sum, name, low, high, body)

    def _prod(self, name: str, low: Tree, high: Tree, body: Tree) -> Any:
        return self._repeated(self.sympy.Mul, self.sympy.Product, name, low, high, body)

    def _repeated(self, join: Any, endless: Any, name: str, low: Tree, high: Tree, body: Tree) -> Any:
        first, last = self.expression(low), self.expression(high)
        if first.is_Integer and last.is_Integer:
            if last - first >= MAX_TERMS:
                raise Unreadable
            numbers = range(int(first), int(last) + 1)
            return join(
                *(_Builder({**self.names, name: self.sympy.Integer(number)}).expression(body) for number in numbers)
            )
        symbol, inside = self._bound(name, body)
        return endless(inside, (symbol, first, last))

    def _bound(self, name: str, body: Tree) -> tuple[Any, Any]:
        symbol = self.sympy.Symbol(f"bound {name}", real=True)
        return symbol, _Builder({**self.names, name: symbol}).expression(body)

    def _integral(self, name: str, low: Tree, high: Tree, body: Tree) -> Any:
        symbol, inside = self._bound(name, body)
        return self.sympy.Integral(inside, (symbol, self.expression(low), self.expression(high)))

    def _limit(self, name: str, place: Tree, body: Tree) -> Any:
        symbol, inside = self._bound(name, body)
        return self.sympy.Limit(inside, symbol, self.expression(place), "+-").doit()

    def _derivative(self, name: str, body: Tree) -> Any:
        return self.sympy.diff(self.expression(body), self.sympy.Symbol(name, real=True))

    def _row(self, *parts: Tree) -> list[Any]:
        return list(map(self.expression, parts))

    def _matrix(self, *rows: Tree) -> Any:
        return self.sympy.ImmutableMatrix([self._operation(row) for row in rows if isinstance(row, tuple)])

    def _determinant(self, *rows: Tree) -> Any:
        matrix = self._matrix(*rows)
        if not matrix.is_square:
            raise Unreadable
        return matrix.det()

    def _relation(self, *parts: Tree) -> Any:
        raise Unreadable

    def _call(self, name: str, part: Tree) -> Any:
        return self.sympy.Function(name, real=True)(self.expression(part))


def _has_matrix(operands: list[Any]) -> bool:
    return any(getattr(operand, "is_Matrix", False) for operand in operands)


def _power(base: Any, exponent: Any) -> Any:
    """Return a power. Raises Unreadable where it has too many digits or no value."""
    if _has_matrix([base]):
        if str(exponent) == "T":
            return base.T
        if not exponent.is_Integer or abs(exponent) > MAX_POWER:
            raise Unreadable
        return base**exponent
    if exponent.is_number and not exponent.is_nonnegative:
        _check_divisor(base)
    if base.is_Rational and exponent.is_Rational and base not in (0, 1, -1):
        digits = math.log10(max(abs(base.p), base.q))
        size = max(abs(exponent.p) / exponent.q, 1) if exponent.p.bit_length() < 64 else math.inf
        if digits * size > MAX_DIGITS:
            raise Unreadable
    return base**exponent


def _check_finite(operands: list[Any]) -> None:
    """Raise Unreadable if infinity is computed with. It may be an answer itself, or an end of an interval."""
    from sympy import oo

    if any(operand is oo or operand is -oo for operand in operands):
        raise Unreadable


def _check_divisor(divisor: Any) -> None:
    """Raise Unreadable if an expression is 0 whatever the values of its symbols."""
    if _has_matrix([divisor]) or divisor.is_zero:
        raise Unreadable
    if not divisor.is_number and divisor.is_Symbol:
        return
    if divisor.is_nonzero is not True and all(_is_zero_at(divisor, point) for point in POINTS):
        raise Unreadable


def _is_zero_at(expression: Any, point: tuple[float, float]) -> bool:
    """Return whether an expression is 0 at a point. A zero is small, and shrinks as more digits are computed."""
    from sympy import sympify

    values = _values_at(point, expression.free_symbols)
    try:
        rough = abs(sympify(expression.evalf(15, subs=values)))
        if not rough.is_number or rough > NEAR_ZERO:
            return False
        return bool(abs(sympify(expression.evalf(60, subs=values, maxn=300))) <= NEAR_ZERO * rough)
    except VALUELESS:
        return False


def _values_at(point: tuple[float, float], symbols: set[Any]) -> dict[Any, float]:
    """Assign a value to each symbol, in an order that is the same in all processes."""
    first, step = point
    values = {}
    for index, symbol in enumerate(sorted(symbols, key=str)):
        values[symbol] = first + step * index
    return values


def _are_equal(reference: Any, given: Any) -> bool:
    """Return whether the meanings of two answers are equal."""
    if isinstance(reference, Relation) and isinstance(given, Relation):
        return _are_equal_relations(reference, given)
    one, other = _last_step(reference), _last_step(given)
    if isinstance(one, Relation) or isinstance(other, Relation):
        return False
    if _has_matrix([one, other]):
        return _has_matrix([one]) and _has_matrix([other]) and _are_equal_matrices(one, other)
    return _are_equal_expressions(one, other)


def _last_step(chain: Any) -> Any:
    """Return the value of a chain of equations. It has a name at most on its left, and equal steps after it."""
    if not isinstance(chain, Relation) or {*chain.signs} != {"="}:
        return chain
    first, *steps = chain.sides
    is_inverse = getattr(first, "is_Pow", False) and _has_matrix(steps) and first.base.is_Symbol
    if not is_inverse and not _is_name(first):
        if not getattr(first, "is_number", False):
            return chain
        steps = [first, *steps]
    return steps[-1] if all(starmap(_are_equal, pairwise(steps))) else chain


def _is_name(side: Any) -> bool:
    return getattr(side, "is_Symbol", False) or getattr(side, "is_Function", False)


def _are_equal_matrices(reference: Any, given: Any) -> bool:
    return reference.shape == given.shape and all(starmap(_are_equal_expressions, zip(reference, given, strict=True)))


def _are_equal_relations(reference: Relation, given: Relation) -> bool:
    """Return whether two relations are the same up to a factor, or up to the order of their sides."""
    signs, sides = given.signs, given.sides
    turned = tuple(_TURNED.get(sign, "") for sign in signs[::-1])
    for found in (Relation(signs, sides), Relation(turned, sides[::-1])):
        if found.signs == reference.signs and all(starmap(_are_equal, zip(reference.sides, found.sides, strict=True))):
            return True
    if len(signs) != 1 or len(reference.signs) != 1 or _has_matrix([*sides, *reference.sides]):
        return False
    if reference.signs != signs and reference.signs != turned:
        return False
    one = reference.sides[0] - reference.sides[1]
    other = sides[0] - sides[1] if reference.signs == signs else sides[1] - sides[0]
    factor = _factor(one, other)
    if factor is None or (signs[0] not in ("=", "!=") and factor < 0):
        return False
    return _are_equal_expressions(one, other * factor)


def _factor(one: Any, other: Any) -> Any:
    """Return the real number by which one expression is probably a multiple of another, or None."""
    from sympy import Rational, nsimplify

    values = _values_at(POINTS[0], one.free_symbols | other.free_symbols)
    try:
        quotient = complex(_at(one, values)) / complex(_at(other, values))
    except VALUELESS:
        return None
    if abs(quotient.imag) > NEAR_ZERO or not math.isfinite(quotient.real) or abs(quotient.real) < NEAR_ZERO:
        return None
    simple = Fraction(quotient.real).limit_denominator(MAX_TERMS)
    if abs(simple - quotient.real) < NEAR_ZERO * abs(quotient.real):
        return Rational(simple.numerator, simple.denominator)
    return nsimplify(quotient.real, tolerance=NEAR_ZERO)


def _are_equal_expressions(one: Any, other: Any) -> bool:
    from sympy import Expr, simplify

    if not isinstance(one, Expr) or not isinstance(other, Expr):
        return bool(one == other)
    if one == other:
        return True
    try:
        if not one.free_symbols and not other.free_symbols:
            verdict = _compare_numbers(one, other)
            if verdict is not None:
                return verdict
        elif one.free_symbols != other.free_symbols and (one.is_Symbol or other.is_Symbol):
            return False
        if any(_differ_at(one, other, point) for point in POINTS):
            return False
        if _is_small(one) and _is_small(other) and (one - other).expand() == 0:
            return True
        difference = simplify(one - other)
        if not difference.free_symbols and difference != 0:
            difference = simplify(difference.expand(complex=True))
        return bool(difference == 0)
    except VALUELESS:
        return False


def _compare_numbers(one: Any, other: Any) -> bool | None:
    """Compare expressions without symbols by their values. None: the values do not decide it."""
    if one.is_Rational and other.is_Rational:
        return bool(one == other)
    first, second = map(_value_of, (one, other))
    scale = max(abs(first), abs(second))
    return False if scale >= MIN_VALUE and abs(first - second) > 1e-6 * scale else None


def _is_small(expression: Any) -> bool:
    """Return whether an expression can be expanded fast, which is several times faster than simplification."""
    from sympy import Pow

    powers = expression.atoms(Pow)
    return expression.count_ops() <= MAX_OPERATIONS and all(
        not power.exp.is_Integer or abs(power.exp) <= MAX_POWER for power in powers
    )


def _differ_at(one: Any, other: Any, point: tuple[float, float]) -> bool:
    """Return whether two expressions have different values at a point. If so, no simplification makes them equal."""
    values = _values_at(point, one.free_symbols | other.free_symbols)
    try:
        first, second = _at(one, values), _at(other, values)
        scale = max(abs(first), abs(second))
        # False for NaN and infinity
        return bool(MIN_VALUE <= scale <= MAX_VALUE and abs(first - second) > 1e-6 * scale)
    except VALUELESS:
        return False


@lru_cache(maxsize=1024)
def _value_of(number: Any) -> Any:
    """Return the value of an expression without symbols, which may be an integral that takes seconds."""
    return _at(number, {})


def _at(expression: Any, values: dict[Any, float]) -> Any:
    """Return the value of an expression where its symbols have these values, as a number of any size."""
    from mpmath import mpmathify

    return mpmathify(expression.evalf(15, subs=values))
