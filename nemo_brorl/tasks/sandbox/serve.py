"""The program's end of a test: its functions, called by a judge in another process (`peer.py`)."""

from __future__ import annotations

import builtins
import importlib
import inspect
import io
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from nemo_brorl.tasks.sandbox.peer import Peer

MAX_LINE = 2**26  # bytes of one call, which the judge makes
# What the judge may ask of an object beside calling it.
OPERATORS = """
eq ne lt le gt ge add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift iadd isub imul
neg pos abs invert getitem setitem delitem
"""
BUILTINS = "bool len iter next reversed str repr hash int float complex round format isinstance issubclass getattr dir"


class ProgramEnd(Peer):
    """Serves the names of a program's module."""

    def __init__(
        self,
        module: types.ModuleType,
        read_from: int,
        write_to: int,
    ) -> None:
        operations: dict[str, Callable[..., Any]] = {
            "names": self._names,
            "setattr": setattr,
            "index": operator.index,
            "await": _result_of,
        }
        for name in OPERATORS.split():
            operations[name] = getattr(operator, name)
        for name in BUILTINS.split():
            operations[name] = getattr(builtins, name)
        super().__init__(
            read_from,
            write_to,
            operations,
            MAX_LINE,
        )
        self._module = module
        self._printed = io.StringIO()
        sys.stdout = self._printed

    def keep(self, value: Any) -> dict[str, Any]:
        if isinstance(value, _JudgesFunction):
            return {"yours": value.place}
        if isinstance(value, type):
            if value.__module__ == builtins.__name__:
                return {"name": f"builtins.{value.__qualname__}"}
            if issubclass(value, BaseException):
                return self.error_class(value)
        if inspect.iscoroutine(value):
            return {"coroutine": self.place_of(value)}
        return {"mine": [self.place_of(value), type(value).__name__]}

    def find(self, kind: str, content: Any) -> Any:
        match kind:
            case "yours":
                return self.kept(content)
            case "mine":
                return _JudgesFunction(self, content)
            case "name":
                return _named(content)
            case "iterator":
                return iter(self.value(content))
            case "object":
                return self._object(*content)
        raise KeyError(kind)

    def result_data(self, call: Callable[..., Any], result: Any, arguments: list[Any]) -> Any:
        """As elsewhere; but what a class with methods makes stays here, though it were a list."""
        if isinstance(call, type) and type(result) is call and _has_methods(call):
            return {"mine": [self.place_of(result), call.__name__]}
        return super().result_data(call, result, arguments)

    def take_printed(self) -> str:
        text = self._printed.getvalue()
        if text:
            self._printed.seek(0)
            self._printed.truncate()
        return text

    def _names(self, *names: str) -> list[list[Any]]:
        """[name, value] of those that the program has."""
        values = vars(self._module)
        return [[name, values[name]] for name in names if name in values]

    def _object(self, name: str, attributes: dict[str, Any]) -> Any:
        """An object of the judge: one of the program's class of that name, or one of a class that has nothing but the
        name."""
        kind = vars(self._module).get(name)
        if not isinstance(kind, type):
            kind = type(
                name,
                (),
                {},
            )
        value: Any = object.__new__(kind)
        vars(value).update(self.value(attributes))
        return value


class _JudgesFunction:
    """A function of the judge, among a call's arguments."""

    def __init__(self, end: ProgramEnd, place: int) -> None:
        self.place = place
        self._end = end

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._end.call(
            self.place,
            arguments,
            options,
        )


def _has_methods(kind: type) -> bool:
    """Whether a class of the program has functions of its own that are not private."""
    if kind.__module__ in sys.stdlib_module_names:
        return False
    return any(inspect.isfunction(value) for name, value in vars(kind).items() if not name.startswith("_"))


def _named(path: str) -> Any:
    """`module.name` of the standard library."""
    module, _, name = path.partition(":")
    if not name:
        module, _, name = path.rpartition(".")
    value = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _result_of(coroutine: Any) -> Any:
    import asyncio  # which takes long to import, and few programs need it

    return asyncio.run(_awaited(coroutine))


async def _awaited(coroutine: Any) -> Any:
    return await coroutine
