"""Tell whether a callable is the one of an earlier process, by a hash of what it does.

The hash covers the code, its constants, defaults and closure, and all of the user's own functions, classes, modules and
plain values that the code names. Comments, line numbers and file names do not count. What libraries define counts by
its name. Another version of Python compiles to other code, which has another hash.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from brorl_graders.base.components import LIBRARIES

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
PARTS: dict[type, str] = {
    CodeType: "co_code co_exceptiontable co_names co_varnames co_argcount co_posonlyargcount co_kwonlyargcount "
    "co_flags co_consts",
    FunctionType: "__code__ __defaults__ __kwdefaults__ __closure__",
    CellType: "cell_contents",
    MethodType: "__func__ __self__",
    partial: "func args keywords",
    staticmethod: "__func__",
    classmethod: "__func__",
    property: "fget fset",
    type: "__qualname__ __bases__",
}


def code_digest(function: Callable[..., Any]) -> str:
    """Return a hash of what a callable does, equal in every process of one version of Python."""
    return _hashed(function, {})


def _hashed(value: Any, seen: dict[int, Any]) -> str:
    return hashlib.sha256("\0".join(_parts(value, seen)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    """Yield all that decides what a value does. `seen`: values that were met before, by id, in order."""
    yield type(value).__qualname__
    if isinstance(value, PLAIN):
        yield repr(value)
    elif isinstance(value, set | frozenset):
        yield from sorted(_hashed(item, dict(seen)) for item in value)
    elif id(value) in seen:
        yield str([*seen].index(id(value)))
    else:
        # Whether two equal tuples are one object differs between processes.
        if not isinstance(value, tuple | CodeType):
            seen[id(value)] = value
        for inner in _within(value):
            yield from _parts(inner, seen)


def _within(value: Any) -> Iterable[Any]:
    """Return what a value consists of. What libraries define is its name."""
    if isinstance(value, list | tuple | dict):
        return (len(value), *(value.items() if isinstance(value, dict) else value))
    if not _is_own(value):
        return [getattr(value, name, None) for name in ("__module__", "__qualname__", "__name__")]
    found = []
    if isinstance(value, ModuleType):
        with suppress(OSError, TypeError):
            found.append(inspect.getsource(value))
        return found
    for name in next((names for kind, names in PARTS.items() if isinstance(value, kind)), "__class__").split():
        # A cell of a closure may be empty still.
        with suppress(ValueError):
            found.append(getattr(value, name))
    return [*found, *_held(value)]


def _held(value: Any) -> list[tuple[str, Any]]:
    """Return by name what a function looks up outside of it, or the attributes of an object or class."""
    if isinstance(value, FunctionType):
        names, known = _names(value.__code__), value.__globals__
    else:
        known = getattr(value, "__dict__", {})
        # Python adds `__dict__`, `__doc__` and others to a class.
        names = {name for name, item in known.items() if isinstance(item, FunctionType) or not name.startswith("__")}
    return [(name, known[name]) for name in sorted(names) if name in known]


def _names(code: CodeType) -> set[str]:
    """Return the names that code and the code within it look up."""
    return set(code.co_names).union(*(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _is_own(value: Any) -> bool:
    """Return whether a user's own code defines a value or its class, such as that of a notebook, which has no file."""
    if isinstance(value, tuple(PARTS)) and not isinstance(value, FunctionType | type):
        return True
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if not isinstance(name, str) or name.partition(".")[0] in sys.stdlib_module_names:
        return False
    return name == "__main__" or not str(getattr(sys.modules.get(name), "__file__", None) or "").startswith(LIBRARIES)
