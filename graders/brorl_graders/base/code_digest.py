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
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from brorl_graders.base.components import LIBRARIES

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))


def code_digest(function: Callable[..., Any]) -> str:
    """Return a hash of what a callable does, equal in every process of one version of Python."""
    return _hashed(function, {})


def _hashed(value: Any, seen: dict[int, Any]) -> str:
    digest = hashlib.sha256()
    for part in _parts(value, seen):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()[:16]


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    """Yield all that decides what a value does. `seen`: values that were met before, by id, in order."""
    yield type(value).__qualname__
    if isinstance(value, PLAIN):
        yield repr(value)
        return
    # Whether two equal tuples are one object differs between processes.
    if not isinstance(value, tuple | CodeType):
        if id(value) in seen:
            yield f"met as number {list(seen).index(id(value))}"
            return
        seen[id(value)] = value
    if isinstance(value, set | frozenset):
        yield from sorted(_hashed(item, dict(seen)) for item in value)
        return
    for inner in _within(value):
        yield from _parts(inner, seen)


def _within(value: Any) -> Iterator[Any]:
    """Yield what a value consists of. What libraries define is its name."""
    for kind, parts in PARTS.items():
        if isinstance(value, kind):
            yield from parts(value)
            return
    if not _is_own(value):
        yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, type):
        # Python adds `__dict__`, `__doc__` and others.
        own = {n: item for n, item in vars(value).items() if isinstance(item, FunctionType) or not n.startswith("__")}
        yield from (value.__qualname__, value.__bases__, *_items(own))
    else:
        yield from (type(value), *_items(getattr(value, "__dict__", {})))


def _of_code(code: CodeType) -> Iterator[Any]:
    yield from (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags, code.co_exceptiontable)
    yield from (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    yield from code.co_consts


def _of_function(function: FunctionType) -> Iterator[Any]:
    yield from (function.__code__, function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        # A cell may be empty still.
        with suppress(ValueError):
            yield cell.cell_contents
    known = function.__globals__
    yield from _items({name: known[name] for name in _names(function.__code__) if name in known})


def _of_module(module: ModuleType) -> Iterator[Any]:
    yield module.__name__
    if _is_own(module):
        with suppress(OSError, TypeError):
            yield inspect.getsource(module)


def _items(values: dict[str, Any]) -> Iterator[Any]:
    yield from sorted(values.items(), key=lambda item: item[0])


def _names(code: CodeType) -> set[str]:
    """Return the names that code and the code within it look up."""
    names = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names |= _names(inner)
    return names


def _is_own(value: Any) -> bool:
    """Return whether a user's own code defines a value or its class, such as that of a notebook, which has no file."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if not isinstance(name, str) or name.partition(".")[0] in sys.stdlib_module_names:
        return False
    return name == "__main__" or not str(getattr(sys.modules.get(name), "__file__", None) or "").startswith(LIBRARIES)


PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    list: lambda value: (len(value), *value),
    tuple: lambda value: (len(value), *value),
    dict: lambda value: (len(value), *value.items()),
    CodeType: _of_code,
    partial: lambda value: (value.func, value.args, value.keywords),
    MethodType: lambda value: (value.__func__, value.__self__),
    ModuleType: _of_module,
    staticmethod: lambda value: (value.__func__,),
    classmethod: lambda value: (value.__func__,),
    property: lambda value: (value.fget, value.fset),
}
