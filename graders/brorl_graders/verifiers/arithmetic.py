"""Evaluate arithmetic that a response wrote, without SymPy: nothing is compiled, simplified or expanded.

Input must have passed `safe_answer.is_arithmetic`. The nodes of the syntax tree are evaluated children first, in a loop
instead of a recursion, so that depth does not matter.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any

from brorl_graders.verifiers.safe_answer import PARSE_ERRORS

Function = Callable[..., Any]

OPERATORS: dict[type[ast.operator], Function] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
SYMBOLS: dict[str, type[ast.operator]] = {
    "+": ast.Add,
    "-": ast.Sub,
    "*": ast.Mult,
    "/": ast.Div,
}

# Functions that an antiderivative may call, by SymPy's names. Integral is missing: it would turn the question into an
# answer.
SHARED_FUNCTIONS = (  # functions that mpmath has under SymPy's name
    "sqrt",
    "cbrt",
    "root",
    "exp",
    "log",
    "ln",
    "sign",
    "erf",
    "erfi",
    "atan2",
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "asin",
    "acos",
    "atan",
    "acot",
    "asec",
    "acsc",
    "sinh",
    "cosh",
    "tanh",
    "coth",
    "sech",
    "csch",
    "asinh",
    "acosh",
    "atanh",
    "acoth",
    "asech",
    "acsch",
)
FUNCTIONS = frozenset((*SHARED_FUNCTIONS, "Abs", "abs", "Rational"))

# Errors of an expression without a value, or with one that cannot be computed: 1/0, log(0), too large, unknown name.
VALUELESS = (ArithmeticError, ValueError, TypeError, KeyError)

DIGITS = 30  # decimal digits of numbers in derivatives
MAX_ARGUMENT = 10**6  # largest magnitude of a function's argument
MAX_POWER_BITS = 10**6
TOLERANCE = 1e-12  # relative difference
NUM_POINTS = 5  # points at which derivative and integrand must agree
MAX_POINTS = 40  # points that are tried
SCALES = (0.3, 1.0, 4.0, 16.0)  # sizes of points, since roots and logarithms are real only on one side of some point
MAX_LENGTH = 5_000  # characters of an antiderivative


def exact_value(text: str) -> Fraction | None:
    """Return the exact value of an arithmetic expression, or None if it has no rational value."""
    tree = _parsed(text)
    if tree is None:
        return None
    try:
        value = _value(tree, Fraction, OPERATORS, {}, {})
    except VALUELESS:
        return None
    return value if isinstance(value, Fraction) else None


def numbers_in(text: str) -> Counter[Fraction]:
    """Count how often each number is written in an arithmetic expression."""
    tree = _parsed(text)
    nodes = [] if tree is None else ast.walk(tree)
    found: Counter[Fraction] = Counter()
    for node in nodes:
        if isinstance(node, ast.Constant):
            number = Fraction(repr(node.value))
            found[number] += 1
    return found


def uses_only(text: str, symbols: Collection[str]) -> bool:
    """Return whether an arithmetic expression uses no binary operations but those in `symbols`.

    `symbols` are some of `+`, `-`, `*` and `/`.
    """
    allowed = tuple(SYMBOLS[symbol] for symbol in symbols)
    tree = _parsed(text)
    nodes = [] if tree is None else ast.walk(tree)
    used = [node.op for node in nodes if isinstance(node, ast.BinOp)]
    return all(isinstance(operation, allowed) for operation in used)


def is_antiderivative(
    given: str,
    integrand: str,
    variable: str,
    constants: Sequence[str],
) -> bool:
    """Return whether the derivative of `given` with respect to `variable` equals `integrand`.

    Both are compared at random points where the integrand is real. The points depend on the integrand alone. The names
    in `constants` get random values, because each may be any constant.
    """
    one = _parsed(given)
    other = _parsed(integrand)
    if one is None or other is None or len(given) > MAX_LENGTH:
        return False
    context = _context()
    random = Random(integrand)
    names = {"pi": context.pi, "E": context.e}
    for name in constants:
        any_number = random.uniform(1.0, 2.0)
        names.setdefault(name, context.mpf(any_number))

    def value(tree: ast.Expression, at: Any) -> Any:
        numbers = {**names, variable: at}
        return _value(tree, context.mpf, _operators(), numbers, _functions())

    num_agreed = 0
    for index in range(MAX_POINTS):
        scale = SCALES[index % len(SCALES)]
        sign = random.choice((-1, 1))
        distance = scale * random.uniform(0.3, 1.0)
        point = context.mpf(sign * distance)
        try:
            wanted = value(other, point)
        except VALUELESS:
            continue
        if context.im(wanted) != 0:
            continue
        try:
            slope = context.diff(lambda at: value(one, at), point)
        except VALUELESS:
            return False
        difference = abs(slope - wanted)
        size = max(abs(wanted), abs(slope), 1e-6)
        if not difference <= TOLERANCE * size:  # also true for NaN
            return False
        num_agreed += 1
        if num_agreed == NUM_POINTS:
            return True
    return False


def _parsed(text: str) -> ast.Expression | None:
    try:
        return ast.parse(text.strip(), mode="eval")
    except PARSE_ERRORS:
        return None


def _value(
    tree: ast.Expression,
    number: Function,
    operators: Mapping[type[ast.operator], Function],
    names: Mapping[str, Any],
    functions: Mapping[str, Function],
) -> Any:
    """Return the value of a parsed arithmetic expression.

    `number`, `operators` and `functions` compute the expression's numbers, operations and calls. `names` holds the
    values of its names. Raises one of `VALUELESS` if the expression has no value.
    """
    values: dict[ast.AST, Any] = {}
    for node in reversed(list(ast.walk(tree))):  # reversed breadth-first order: children come before parents
        match node:
            case ast.Constant(value=int() | float() as written):
                values[node] = number(repr(written))
            case ast.Name(id=name) if name in names:
                values[node] = names[name]
            case ast.BinOp():
                operate = operators[type(node.op)]
                values[node] = operate(values[node.left], values[node.right])
            case ast.UnaryOp(op=ast.USub()):
                values[node] = -values[node.operand]
            case ast.UnaryOp(op=ast.UAdd()):
                values[node] = values[node.operand]
            case ast.Call(func=ast.Name(id=name)):
                arguments = [values[argument] for argument in node.args]
                values[node] = functions[name](*arguments)
    return values[tree.body]


@cache
def _context() -> Any:
    """Return an mpmath context that computes with `DIGITS` decimal digits."""
    from mpmath import MPContext

    context = MPContext()
    context.dps = DIGITS
    return context


@cache
def _operators() -> dict[type[ast.operator], Function]:
    """Return the arithmetic operators for mpmath numbers, by their kind in a Python syntax tree.

    A power of more than `MAX_POWER_BITS` bits raises OverflowError.
    """
    context = _context()

    def power(base: Any, exponent: Any) -> Any:
        bits = abs(context.mag(base)) * abs(exponent) if base else 0
        if bits > MAX_POWER_BITS:
            raise OverflowError("a power that is too large")
        return context.power(base, exponent)

    def floor_division(one: Any, other: Any) -> Any:
        return context.floor(one / other)

    return {
        **OPERATORS,
        ast.Pow: power,
        ast.FloorDiv: floor_division,
    }


@cache
def _functions() -> dict[str, Function]:
    """Return the functions that an antiderivative may call, by SymPy's names, for mpmath numbers.

    An argument above `MAX_ARGUMENT` raises OverflowError.
    """
    context = _context()

    def bounded(function: Function) -> Function:
        def call(*arguments: Any) -> Any:
            if any(abs(argument) > MAX_ARGUMENT for argument in arguments):
                raise OverflowError("an argument that is too large")
            return function(*arguments)

        return call

    found: dict[str, Function] = {}
    for name in SHARED_FUNCTIONS:
        function = getattr(context, name)
        found[name] = bounded(function)
    found["Abs"] = abs
    found["abs"] = abs
    found["Rational"] = operator.truediv
    return found
