"""Arguments and results that cross the sandbox, as JSON that tells Python's types apart.

A value is a tree of plain data of the types listed here. Lists, tuples and dicts may also hold references to objects
that stay in their process. All other containers hold plain data alone, so nothing in them calls anybody.

`encode` runs in the process of the program, which may manipulate it. `decode` makes objects of exactly the types
listed here. So no object with its own `__eq__` takes part in a comparison. Use it in a process with a deadline, since
hostile values can be slow to hash. `as_json` hashes no values. What a program sends is counted while it is read, before
anything is built.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections import Counter, OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Any

# Integers from here on are sent in hexadecimal, since Python needs quadratic time for long decimal ones.
SMALL = 2**63
# Types of iterables that become lists when the receiver needs plain data.
LISTS = ("dict_keys", "dict_values", "map", "filter", "zip", "generator")
SIMPLE = (type(None), bool, float, str)
# Types of the standard library, each with the constructor arguments that are sent in place of a value.
MAKERS: dict[type, Callable[[Any], list[Any]]] = {
    Fraction: lambda value: [value.numerator, value.denominator],
    Decimal: lambda value: [str(value)],
    datetime.date: lambda value: [value.year, value.month, value.day],
    datetime.timedelta: lambda value: [value.days, value.seconds, value.microseconds],
    datetime.time: lambda value: [value.isoformat()],
    datetime.datetime: lambda value: [value.isoformat()],
    range: lambda value: [value.start, value.stop, value.step],
    Counter: lambda value: [dict(value)],
    OrderedDict: lambda value: [list(value.items())],
    deque: lambda value: [list(value), value.maxlen],
    bytearray: lambda value: [bytes(value)],
}
# Types that become JSON lists, with the index of their items in the data; None: the data itself.
LISTED_AT = {"tuple": None, "deque": 0, "array": -1, "namedtuple": -1}
# Data types of arrays that cross the sandbox: numbers, texts and dates.
ARRAY_TYPES = re.compile(r"[<>|=]?(b1|[iu][1248]|f(2|4|8|16)|c(8|16|32)|[US]\d{1,3}|[mM]8\[\w{1,6}\])")
# Types that become JSON objects, with the pairs in their data.
PAIRS_OF: dict[str, Callable[[Any], Any]] = {
    "dict": lambda content: content,
    "Counter": lambda content: content[0]["dict"],
    "OrderedDict": lambda content: [item["tuple"] for item in content[0]],
}
MAX_ITEMS = 100_000  # items of a value that a program sends
MAX_CHARACTERS = 2**20  # characters of all its texts
Keep = Callable[[Any], dict[str, Any]]  # returns data for a value that is not plain
Find = Callable[[str, Any], Any]  # returns the value of such data, by kind and content

FROM_TEXT: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "bytes": bytes.fromhex,
}


class NoJson:
    """A value that JSON cannot express, for example a set. It equals nothing."""


class NotPlainError(ValueError):
    """An error for a value that is not plain data, or for JSON that is no encoded value."""


def encode(value: Any) -> str:
    """Encode a value as one line of JSON.

    Values of subclasses become plain values, and NumPy's arrays and numbers become lists and numbers. Raises
    NotPlainError for any other value, and RecursionError for a value that contains itself.
    """
    return json.dumps(to_data(value, _as_list))


def decode(data: Any, find: Find | None = None, is_of_program: bool = False) -> Any:
    """Convert parsed JSON from `encode` into a value. Raises NotPlainError when the JSON is no encoded value.

    `find` returns the object for a reference, by kind and content, where the object itself has no encoding. A value
    `is_of_program` must be within the limits of `check_size`.
    """
    return _read(_value, is_of_program, data, find or _find_nothing)


def as_json(data: Any) -> Any:
    """Convert parsed JSON from `encode` into the types that JSON has: tuples become lists, and keys become texts.

    A set has no JSON form and becomes a `NoJson`. Raises NotPlainError when the JSON is no encoded value, or one
    beyond the limits of `check_size`.
    """
    return _read(_json, True, data)


def _read(read: Callable[..., Any], is_of_program: bool, data: Any, *others: Any) -> Any:
    try:
        if is_of_program:
            check_size(data)
        return read(data, *others)
    except NotPlainError:
        raise
    except Exception as error:  # whatever the data of a program raise, they are no value
        raise NotPlainError(f"not an encoded value: {type(error).__name__}") from error


def check_size(data: Any) -> None:
    """Raise NotPlainError for encoded data of more than MAX_ITEMS items or MAX_CHARACTERS characters.

    The numbers of a range are items too.
    """
    num_items = 1
    num_characters = 0
    unread = [data]
    while unread:
        item = unread.pop()
        if isinstance(item, dict):
            ((kind, item),) = item.items()
            if kind == "dict":
                item = list(chain.from_iterable(item))
            elif kind == "range":
                num_items += len(range(*item))
            if isinstance(item, dict):
                raise NotPlainError("the content of a value is no list")
        if isinstance(item, list):
            num_items += len(item)
            unread += item
        elif isinstance(item, str):
            num_characters += len(item)
        if num_items > MAX_ITEMS or num_characters > MAX_CHARACTERS:
            raise NotPlainError(f"it has more than {MAX_ITEMS} items or {MAX_CHARACTERS} characters")


def to_data(value: Any, keep: Keep) -> Any:
    """Convert a value to JSON data that keeps Python's types apart.

    `keep` returns the JSON data for a value of a type that has no encoding here.
    """
    kind = type(value)
    if kind in SIMPLE:
        return value
    if isinstance(value, int):
        number = int.__add__(value, 0)
        return number if -SMALL < number < SMALL else {"int": hex(number)}
    if isinstance(value, float):
        return float.__add__(value, 0.0)
    if isinstance(value, str):
        return str.__getitem__(value, slice(None))
    if isinstance(value, list):
        return _list_to_data(list.__iter__(value), keep)
    if isinstance(value, tuple) and not hasattr(kind, "_fields"):
        return {"tuple": _list_to_data(tuple.__iter__(value), keep)}
    if isinstance(value, dict) and kind not in MAKERS:
        pairs: list[list[Any]] = []
        for key, item in dict.items(value):
            pairs.append([to_data(key, keep), to_data(item, keep)])
        return {"dict": pairs}
    return _rarer_to_data(value, kind, keep)


def _rarer_to_data(value: Any, kind: type, keep: Keep) -> Any:
    try:
        return _plain_to_data(value, kind)
    except NotPlainError:
        return keep(value)


def _list_to_data(items: Iterable[Any], keep: Keep) -> list[Any]:
    return [to_data(item, keep) for item in items]


def _plain_to_data(value: Any, kind: type) -> Any:
    if isinstance(value, set | frozenset):
        name = "frozenset" if isinstance(value, frozenset) else "set"
        return {name: _list_to_data(value, refuse)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": bytes(value).hex()}
    if kind in MAKERS:
        arguments = MAKERS[kind](value)
        return {kind.__name__: _list_to_data(arguments, refuse)}
    if isinstance(value, tuple):
        fields = list(kind._fields)  # type: ignore[attr-defined]
        return {"namedtuple": [kind.__name__, fields, _list_to_data(value, refuse)]}
    if kind.__module__ == "numpy":
        return _array_to_data(value)
    return refuse(value)


def _array_to_data(value: Any) -> Any:
    items = to_data(value.tolist(), refuse)
    if not isinstance(items, list):
        return items
    if not ARRAY_TYPES.fullmatch(value.dtype.str):
        refuse(value)
    return {"array": [value.dtype.str, items]}


def _as_list(value: Any) -> dict[str, Any]:
    if type(value).__name__ in LISTS:
        return {"tuple": _list_to_data(value, _as_list)}
    return refuse(value)


def refuse(value: Any) -> dict[str, Any]:
    """Raise NotPlainError for a value that is not plain data."""
    raise NotPlainError(f"a value of type {type(value).__name__} is not plain data")


def _find_nothing(kind: str, content: Any) -> Any:
    raise KeyError(kind)


def _value(data: Any, find: Find) -> Any:
    if isinstance(data, list):
        return [_value(item, find) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind in FROM_TEXT:
        return FROM_TEXT[kind](content)
    if kind == "tuple":
        return tuple([_value(item, find) for item in content])
    if kind == "dict":
        return {_value(key, find): _value(item, find) for key, item in content}
    if kind in FROM_ITEMS:
        items = [_value(item, _find_nothing) for item in content]
        return FROM_ITEMS[kind](items)
    return find(kind, content)


def _json(data: Any) -> Any:
    if isinstance(data, list):
        return [_json(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "int":
        return int(content, 16)
    if kind in PAIRS_OF:
        return {str(_json(key)): _json(item) for key, item in PAIRS_OF[kind](content)}
    if kind == "range":
        return list(range(*content))
    if kind in LISTED_AT:
        index = LISTED_AT[kind]
        return _json(content if index is None else content[index])
    return NoJson()


def _array(items: list[Any]) -> Any:
    """Return a NumPy array from its data type and values when NumPy is loaded in this process, otherwise a list."""
    kind, values = items
    if not ARRAY_TYPES.fullmatch(kind):
        raise NotPlainError(f"arrays of type {kind} are not plain data")
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return values
    array = numpy.array(values, dtype=kind)
    return array if array.size else array.view(_empty_array_class(numpy))


def _empty_array_class(numpy: Any) -> Any:
    """Return the class of arrays without items, which NumPy itself would find equal to arrays that have some."""

    class EmptyArray(numpy.ndarray):
        def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
            arrays = [numpy.asarray(item) for item in inputs]
            if any(item.size and (item.ndim or function is numpy.equal) for item in arrays):
                raise ValueError("one array is empty, and the other is not")
            return getattr(function, method)(*arrays, **options)

    return EmptyArray


def _named_tuple(items: list[Any]) -> Any:
    name, fields, values = items
    kind = namedtuple(name, fields)  # type: ignore[misc]
    return kind(*values)


def _maker(kind: type) -> Callable[[list[Any]], Any]:
    return lambda items: kind(*items)


FROM_ITEMS: dict[str, Callable[[list[Any]], Any]] = {kind.__name__: _maker(kind) for kind in MAKERS}
FROM_ITEMS |= {
    "set": set,
    "frozenset": frozenset,
    "complex": lambda items: complex(*items),
    "time": lambda items: datetime.time.fromisoformat(*items),
    "datetime": lambda items: datetime.datetime.fromisoformat(*items),
    "array": _array,
    "namedtuple": _named_tuple,
}
