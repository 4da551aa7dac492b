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
NUMPY = ("np", "numpy")
NUMPY_CLOSE = {"rtol": 1e-5, "atol": 1e-8}
# Nodes whose body may be passed over.
CONDITIONAL = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.Try,
    ast.Match,
    ast.Lambda,
)
COMPARE: dict[type[ast.cmpop], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
UNARY: dict[type[ast.unaryop], Any] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
BINARY: dict[type[ast.operator], Any] = {
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
    splitter = _Splitter(first_number)
    try:
        tree = splitter.visit(ast.parse(source))
        ast.fix_missing_locations(tree)
        return Script(ast.unparse(tree), splitter.checks)
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
    """Puts a report of values in the place of each assertion."""

    def __init__(self, first_number: int) -> None:
        self.checks: dict[int, Check] = {}
        self.next_number = first_number
        self.depth = 0  # of conditions around the statement

    def visit(self, node: ast.AST) -> Any:
        is_conditional = isinstance(node, CONDITIONAL)
        self.depth += is_conditional
        visited = super().visit(node)
        self.depth -= is_conditional
        return visited

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        hole_maker = _HoleMaker()
        expression = hole_maker.visit(node.test)
        number = self.next_number
        self.next_number += 1
        self.checks[number] = Check(expression, is_required=self.depth == 0)
        arguments = [ast.Constant(number), *hole_maker.parts]
        report = ast.Call(ast.Name(CHECK), arguments, [])
        return ast.Expr(report)


class _HoleMaker(ast.NodeTransformer):
    """Puts a hole in the place of each part of an expression that must be evaluated inside."""

    def __init__(self) -> None:
        self.parts: list[ast.expr] = []  # in the order of their holes

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.expr):  # an operator, or an option of a call
            return self.generic_visit(node)
        if _is_literal(node):
            return node
        if not _is_taken_apart(node):
            return self.make_hole(node)
        if not isinstance(node, ast.Call):
            return self.generic_visit(node)
        node.args = [self.visit(argument) for argument in node.args]
        node.keywords = [self.visit(option) for option in node.keywords]
        return node

    def make_hole(self, part: ast.expr) -> ast.Name:
        """Name of the value that the part has inside."""
        name = f"{HOLE}{len(self.parts)}"
        self.parts.append(part)
        return ast.Name(name)


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_taken_apart(node: ast.expr) -> bool:
    """Whether an expression is evaluated outside, from the values of its parts."""
    match node:
        case ast.UnaryOp(op):
            return type(op) in UNARY
        case ast.BinOp(_, op):
            return type(op) in BINARY
        case ast.Call():
            return _is_kept_function(node)
    return isinstance(node, ast.Compare | ast.BoolOp)


def _is_kept_function(call: ast.Call) -> bool:
    """Whether a call is one of `abs`, `isclose`, `allclose` with as many arguments as they take."""
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            return False
    for option in call.keywords:
        if option.arg is None:  # **options
            return False
    function = call.func
    name = ""
    if isinstance(function, ast.Name):
        name = function.id
    elif isinstance(function, ast.Attribute):
        name = function.attr
    if name == "abs":
        return len(call.args) == 1
    return name in CLOSE and len(call.args) == 2


def _evaluate(node: ast.expr, values: Sequence[Any]) -> Any:
    """Value of an expression kept outside, with the values from inside in its holes."""
    if _is_literal(node):
        return ast.literal_eval(node)
    match node:
        case ast.Name(name):
            index = int(name.removeprefix(HOLE))
            return values[index]
        case ast.Compare():
            return _evaluate_comparison(node, values)
        case ast.BoolOp(op, parts):
            truths = (_evaluate(part, values) for part in parts)
            return all(truths) if isinstance(op, ast.And) else any(truths)
        case ast.UnaryOp(op, operand):
            apply = UNARY[type(op)]
            return apply(_evaluate(operand, values))
        case ast.BinOp(left, op, right):
            combine = BINARY[type(op)]
            left_value = _evaluate(left, values)
            right_value = _evaluate(right, values)
            return combine(left_value, right_value)
        case ast.Call():
            return _evaluate_call(node, values)
    raise TypeError(f"{type(node).__name__} is not kept outside")


def _evaluate_comparison(node: ast.Compare, values: Sequence[Any]) -> bool:
    left = _evaluate(node.left, values)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(comparator, values)
        is_true = COMPARE[type(op)]
        if not is_true(left, right):
            return False
        left = right
    return True


def _evaluate_call(node: ast.Call, values: Sequence[Any]) -> Any:
    function = node.func
    arguments: list[Any] = []
    for argument in node.args:
        arguments.append(_evaluate(argument, values))
    options: dict[str, Any] = {}
    for option in node.keywords:
        name = str(option.arg)
        options[name] = _evaluate(option.value, values)
    if isinstance(function, ast.Name) and function.id == "abs":
        return abs(arguments[0])
    module = function.value if isinstance(function, ast.Attribute) else None
    if isinstance(module, ast.Name) and module.id in NUMPY:
        return _numpy_close(*arguments, **NUMPY_CLOSE | options)
    return math.isclose(*arguments, **options)


def _numpy_close(
    got: Any,
    expected: Any,
    rtol: float,
    atol: float,
) -> bool:
    """`numpy.allclose` for numbers and nested lists of the same shape."""
    if not isinstance(got, list | tuple) or not isinstance(expected, list | tuple):
        if got == expected:
            return True
        difference = abs(got - expected)
        return bool(difference <= atol + rtol * abs(expected))
    if len(got) != len(expected):
        return False
    pairs = zip(got, expected, strict=True)
    return all(_numpy_close(item, expected_item, rtol, atol) for item, expected_item in pairs)
