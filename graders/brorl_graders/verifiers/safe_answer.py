"""Decide which answers a library may evaluate: literals, and arithmetic with bounded numbers. All else is refused.

A grammar lists what is allowed, node by node of the syntax tree. `EvaluationGuard` is for code that is not known to
evaluate answers. While that code runs, an audit hook of the interpreter (PEP 578) refuses to compile anything but
literals and the texts that the guard's caller trusts.
"""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Callable, Collection
from fractions import Fraction
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")

MAX_LENGTH = 50_000  # characters
MAX_BITS = 200_000  # bits of any number on the way to the value: 9**9**9 has 1.2 billion
MAX_EXPONENT_BITS = 64  # a larger exponent exceeds MAX_BITS in any case
_ARITHMETIC = re.compile(r"[A-Za-z0-9_ \t\n+\-*/().,]*")
_REFUSED_NUMBER = re.compile(r"[0-9.][A-Za-z_]|[0-9]{101}")  # 1e9, 0x1, 1j, 1_0, and numbers of more than 100 digits

# Errors of ast.parse: no Python, a null byte, too many digits or levels.
PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)

SIGNED_NODES = (ast.Expression, ast.Load, ast.Constant, ast.UnaryOp, ast.UAdd, ast.USub)
LITERAL_NODES = (*SIGNED_NODES, ast.List, ast.Tuple)
OPERATORS = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow)
ARITHMETIC_NODES = (*SIGNED_NODES, *OPERATORS, ast.Name, ast.Call)

RUNNING_EVENTS = frozenset(  # audit events (PEP 578) that come before code runs
    (
        "code.__new__",
        "compile",
        "os.exec",
        "os.fork",
        "os.posix_spawn",
        "os.system",
        "pickle.find_class",
        "subprocess.Popen",
    )
)


class EvaluationError(RuntimeError):
    """Code under an `EvaluationGuard` tried to run a text as a program."""


def is_literal(text: str) -> bool:
    """Return whether a text is a Python number, string or constant, or lists and tuples of them."""
    tree = _parsed(text)
    if tree is None:
        return False
    return all(isinstance(node, LITERAL_NODES) and _has_plain_value(node) for node in ast.walk(tree))


def is_arithmetic(text: str, names: Collection[str] = (), functions: Collection[str] = ()) -> bool:
    """Return whether a text is bounded arithmetic with decimal numbers, and only with these `names` and `functions`.

    Bounded means that no number on the way to the value has more than `MAX_BITS` bits.
    """
    if not _ARITHMETIC.fullmatch(text) or _REFUSED_NUMBER.search(text):
        return False
    tree = _parsed(text)
    if tree is None:
        return False
    nodes = list(ast.walk(tree))
    called = {node.func for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if not isinstance(node, ARITHMETIC_NODES):
            return False
        if isinstance(node, ast.Constant) and type(node.value) not in (int, float):
            return False
        if isinstance(node, ast.Name) and node.id not in (functions if node in called else names):
            return False
        if isinstance(node, ast.Call) and (node.keywords or not isinstance(node.func, ast.Name)):
            return False
    return _is_bounded(nodes)


def _parsed(text: str) -> ast.Expression | None:
    if len(text) > MAX_LENGTH:
        return None
    try:
        return ast.parse(text.strip(), mode="eval")
    except PARSE_ERRORS:
        return None


def _has_plain_value(node: ast.AST) -> bool:
    return not isinstance(node, ast.Constant) or node.value is None or isinstance(node.value, bool | int | float | str)


def _is_bounded(nodes: list[ast.AST]) -> bool:
    """Return whether every rational number that an expression can produce stays below `MAX_BITS` bits.

    Coefficients count too. The bits of a fraction are those of numerator and denominator together. `nodes` are in
    breadth-first order, so that in reverse a child comes before its parent.
    """
    bits: dict[ast.AST, int] = {}
    for node in reversed(nodes):
        bits[node] = _bits(node, bits)
        if bits[node] > MAX_BITS:
            return False
    return True


def _bits(node: ast.AST, bits: dict[ast.AST, int]) -> int:
    """Return an upper bound on the bits of a syntax tree node's value, from the bounds of its children."""
    match node:
        case ast.Constant(value=int() | float() as number):
            fraction = Fraction(repr(number))
            return fraction.numerator.bit_length() + (fraction.denominator - 1).bit_length()
        case ast.BinOp(left=ast.Name(id="E"), op=ast.Pow()):  # SymPy keeps it as exp(...)
            return bits[node.right] + 1
        case ast.BinOp(op=ast.Pow()):
            return max(1, bits[node.left]) << min(bits[node.right], MAX_EXPONENT_BITS)
        case ast.BinOp():
            return bits[node.left] + bits[node.right] + 1
        case ast.UnaryOp():
            return bits[node.operand]
        case ast.Call():
            return sum(bits[argument] for argument in node.args) + 1
    return 0


class EvaluationGuard(threading.local):
    """Runs functions that may compile nothing but literals and trusted texts, unpickle nothing and start no process.

    What the interpreter compiles and runs to import a module is allowed. The hook stays in the process for good.
    Outside `call` it returns at once. Each thread has its own state.
    """

    def __init__(self) -> None:
        self.trusted: Collection[str] | None = None  # None: no guarded call in this thread
        self.refused = False

    def install(self) -> None:
        """Add the audit hook that stops the evaluation of untrusted texts to this process.

        Call it once: hooks cannot be removed.
        """
        sys.addaudithook(self._audit)

    def call(self, function: Callable[[], Result], trusted: Collection[str]) -> Result:
        """Run a function that may compile only literals and the `trusted` texts, and return its result.

        Raises EvaluationError if anything was refused, even if the function caught the error itself.
        """
        self.trusted, self.refused = trusted, False
        try:
            return function()
        finally:
            self.trusted = None
            if self.refused:
                raise EvaluationError("a text that is no literal was about to be run")

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in RUNNING_EVENTS or self.trusted is None:
            return
        trusted = self.trusted
        self.trusted = None  # the check itself compiles a text
        is_allowed = _is_importing() or (event == "compile" and _may_compile(arguments[0], trusted))
        self.trusted = trusted
        if not is_allowed:
            self.refused = True
            raise EvaluationError(f"{event} is not allowed here")


def _may_compile(source: object, trusted: Collection[str]) -> bool:
    text = source.decode(errors="replace") if isinstance(source, bytes) else source
    return isinstance(text, str) and (text in trusted or is_literal(text))


def _is_importing() -> bool:
    """Return whether the function that `EvaluationGuard.call` runs is importing a module at this moment."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not EvaluationGuard.call.__code__:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
