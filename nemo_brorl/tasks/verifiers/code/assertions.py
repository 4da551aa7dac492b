"""Assertions judged outside: a test script without what it expects, and the comparisons that were taken out of it.

`assert f(2) == [4]` becomes `__check__(7, f(2))` inside the sandbox, and `value == [4]` outside. What the program
computes goes out as plain data, and what it should be stays here, where no program can read it, patch `==`, or skip the
check unnoticed. An expression is taken apart as far as comparisons, `and`, `or`, `not`, sums, differences, `abs`,
`isclose` and `allclose` go; the rest of it is evaluated inside, and its value is compared or tested for truth here.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nemo_brorl.tasks.sandbox.harness import CHECK

HOLE = "value_"  # name of a value from inside, in an expression kept outside
CLOSE = ("isclose", "allclose")
NUMPY_CLOSE = {"rtol": 1e-5, "atol": 1e-8}
_CONDITIONAL = (ast.If, ast.For, ast.While, ast.Try, ast.IfExp, ast.Lambda, ast.Match, ast.AsyncFor)
_COMPARE: dict[type[ast.cmpop], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda left, right: left is right,
    ast.IsNot: lambda left, right: left is not right,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_SIGNS: dict[type[ast.AST], Any] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
}


class Check(NamedTuple):
    """What one assertion compares."""

    expression: ast.expr  # with holes
    is_required: bool  # it stands where a script that runs to its end passes


class Script(NamedTuple):
    """A test script for the inside, and its checks by their numbers."""

    source: str
    checks: Mapping[int, Check]


def take_apart(source: str, first_number: int = 0) -> Script:
    """A test script and its checks, numbered from `first_number`. Raises SyntaxError, and ValueError for one too deep
    to compile."""
    try:
        tree = ast.parse(source)
        splitter = _Splitter(first_number)
        rewritten = ast.fix_missing_locations(splitter.visit(tree))
        return Script(ast.unparse(rewritten), splitter.checks)
    except RecursionError as error:
        raise ValueError("a test script nests too deeply") from error


def holds(check: Check, values: Sequence[Any]) -> bool:
    """Whether an assertion is true of what the program computed (plain data). One that cannot be evaluated does not
    hold."""
    try:
        return bool(_evaluate(check.expression, values))
    except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError, MemoryError):
        return False


class _Splitter(ast.NodeTransformer):
    def __init__(self, first_number: int) -> None:
        self.checks: dict[int, Check] = {}
        self.next_number = first_number
        self.depth = 0  # of conditions around the statement

    def visit(self, node: ast.AST) -> Any:
        is_conditional = isinstance(node, _CONDITIONAL)
        self.depth += is_conditional
        visited = super().visit(node)
        self.depth -= is_conditional
        return visited

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        holes: list[ast.expr] = []
        expression = _kept_outside(node.test, holes)
        number, self.next_number = self.next_number, self.next_number + 1
        self.checks[number] = Check(expression, is_required=self.depth == 0)
        return ast.Expr(ast.Call(ast.Name(CHECK, ast.Load()), [ast.Constant(number), *holes], []))


def _kept_outside(node: ast.expr, holes: list[ast.expr]) -> ast.expr:
    """The expression with each part that must be evaluated inside replaced by a hole; those parts are appended to
    `holes`."""
    if _is_literal(node):
        return node
    match node:
        case ast.Compare(left, ops, comparators):
            return ast.Compare(_kept_outside(left, holes), ops, [_kept_outside(item, holes) for item in comparators])
        case ast.BoolOp(op, values):
            return ast.BoolOp(op, [_kept_outside(item, holes) for item in values])
        case ast.UnaryOp(ast.Not() | ast.USub() | ast.UAdd() as sign, operand):
            return ast.UnaryOp(sign, _kept_outside(operand, holes))
        case ast.BinOp(left, ast.Add() | ast.Sub() as sign, right):
            return ast.BinOp(_kept_outside(left, holes), sign, _kept_outside(right, holes))
        case ast.Call(function, arguments, keywords) if _is_kept_function(function, arguments, keywords):
            kept = [_kept_outside(item, holes) for item in arguments]
            return ast.Call(
                function, kept, [ast.keyword(item.arg, _kept_outside(item.value, holes)) for item in keywords]
            )
    holes.append(node)
    return ast.Name(f"{HOLE}{len(holes) - 1}", ast.Load())


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_kept_function(function: ast.expr, arguments: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> bool:
    name = (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )
    has_unpacking = any(isinstance(item, ast.Starred) for item in arguments) or any(
        item.arg is None for item in keywords
    )
    return not has_unpacking and name in ("abs", *CLOSE) and len(arguments) == (1 if name == "abs" else 2)


def _evaluate(node: ast.expr, values: Sequence[Any]) -> Any:
    if _is_literal(node):
        return ast.literal_eval(node)
    match node:
        case ast.Name(name):
            return values[int(name.removeprefix(HOLE))]
        case ast.Compare(left, ops, comparators):
            return _evaluate_comparison(_evaluate(left, values), ops, [_evaluate(item, values) for item in comparators])
        case ast.BoolOp(op, parts):
            return (all if isinstance(op, ast.And) else any)(_evaluate(part, values) for part in parts)
        case ast.UnaryOp(sign, operand):
            return _SIGNS[type(sign)](_evaluate(operand, values))
        case ast.BinOp(left, sign, right):
            return _SIGNS[type(sign)](_evaluate(left, values), _evaluate(right, values))
        case ast.Call(function, arguments, keywords):
            given = [_evaluate(item, values) for item in arguments]
            return _call(function, given, {str(item.arg): _evaluate(item.value, values) for item in keywords})
    raise TypeError(f"{type(node).__name__} is not kept outside")


def _evaluate_comparison(left: Any, ops: Sequence[ast.cmpop], comparators: Sequence[Any]) -> bool:
    for op, right in zip(ops, comparators, strict=True):
        if not _COMPARE[type(op)](left, right):
            return False
        left = right
    return True


def _call(function: ast.expr, arguments: list[Any], options: dict[str, Any]) -> Any:
    if isinstance(function, ast.Name) and function.id == "abs":
        return abs(arguments[0])
    if (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in ("np", "numpy")
    ):
        return _numpy_close(*arguments, **NUMPY_CLOSE | options)
    return math.isclose(*arguments, **options)


def _numpy_close(got: Any, expected: Any, rtol: float, atol: float) -> bool:
    """`numpy.allclose` for numbers and nested lists of the same shape."""
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(
            _numpy_close(*pair, rtol, atol) for pair in zip(got, expected, strict=True)
        )
    return bool(got == expected or abs(got - expected) <= atol + rtol * abs(expected))
