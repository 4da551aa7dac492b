"""Arguments and results that cross the sandbox, as JSON that tells Python's types apart.

`encode` runs in the process of the program, which may manipulate it. `decode` makes objects of exactly the types
listed here. So no object with its own `__eq__` takes part in a comparison. Use it in a process with a deadline, since
hostile values can be slow to hash. `as_json` hashes no values.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections import Counter, OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

# Integers from here on are sent in hexadecimal, since Python needs quadratic time for long decimal ones.
SMALL = 2**63
# Types of iterables that become lists when the receiver needs plain data.
LISTS = ("dict_keys", "dict_values", "map", "filter", "zip", "generator")
SIMPLE = frozenset(
    {
        type(None),
        bool,
        float,
        str,
    }
)
# Types of the standard library, each with the constructor arguments that are sent in place of a value.
MAKERS: dict[type, Callable[[Any], list[Any]]] = {
    Fraction: lambda value: [value.numerator, value.denominator],
    Decimal: lambda value: [str(value)],
    datetime.date: lambda value: [
        value.year,
        value.month,
        value.day,
    ],
    datetime.timedelta: lambda value: [
        value.days,
        value.seconds,
        value.microseconds,
    ],
    datetime.time: lambda value: [value.isoformat()],
    datetime.datetime: lambda value: [value.isoformat()],
    range: lambda value: [
        value.start,
        value.stop,
        value.step,
    ],
    Counter: lambda value: [dict(value)],
    OrderedDict: lambda value: [list(value.items())],
    deque: lambda value: [list(value), value.maxlen],
    bytearray: lambda value: [bytes(value)],
}
# Types that become JSON lists, with the index of their items in the data; None: the data itself.
LISTED_AT = {
    "tuple": None,
    "deque": 0,
    "array": -1,
    "namedtuple": -1,
}
Keep = Callable[[Any], dict[str, Any]]  # returns data for a value that is not plain
Find = Callable[[str, Any], Any]  # returns the value of such data, by kind and content


LONGEST_RANGE = 10**6

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


def decode(data: Any, find: Find | None = None) -> Any:
    """Convert parsed JSON from `encode` into a value. Raises NotPlainError when the JSON is no encoded value.

    `find` returns the object for a reference, by kind and content, where the object itself has no encoding.
    """
    try:
        return _from_data(data, find or _find_nothing)
    except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise NotPlainError(f"not an encoded value: {type(error).__name__}") from error


def as_json(data: Any) -> Any:
    """Convert parsed JSON from `encode` into the types that JSON has: tuples become lists, and keys become texts.

    A set has no JSON form and becomes a `NoJson`. Raises NotPlainError when the JSON is no encoded value.
    """
    try:
        return _as_json(data)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise NotPlainError(f"not an encoded value: {type(error).__name__}") from error


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
    return _rarer_to_data(
        value,
        kind,
        keep,
    )


def _list_to_data(items: Iterable[Any], keep: Keep) -> list[Any]:
    return [to_data(item, keep) for item in items]


def _rarer_to_data(
    value: Any,
    kind: type,
    keep: Keep,
) -> Any:
    if isinstance(value, set | frozenset):
        name = "frozenset" if isinstance(value, frozenset) else "set"
        return {name: _list_to_data(value, keep)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": bytes(value).hex()}
    if kind in MAKERS:
        arguments = MAKERS[kind](value)
        return {kind.__name__: _list_to_data(arguments, keep)}
    if isinstance(value, tuple):
        fields = list(kind._fields)  # type: ignore[attr-defined]
        return {
            "namedtuple": [
                kind.__name__,
                fields,
                _list_to_data(value, keep),
            ]
        }
    if kind.__module__ == "numpy":
        return _array_to_data(value, keep)
    return keep(value)


def _array_to_data(value: Any, keep: Keep) -> Any:
    items = value.tolist()
    if isinstance(items, list):
        return {"array": [str(value.dtype), to_data(items, keep)]}
    return to_data(items, keep)


def _as_list(value: Any) -> dict[str, Any]:
    name = type(value).__name__
    if name in LISTS:
        return {"tuple": _list_to_data(value, _as_list)}
    raise NotPlainError(f"a value of type {name} is not plain data")


def _find_nothing(kind: str, content: Any) -> Any:
    raise KeyError(kind)


def _from_data(data: Any, find: Find) -> Any:
    if isinstance(data, list):
        return [_from_data(item, find) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind in FROM_TEXT:
        return FROM_TEXT[kind](content)
    if kind == "dict":
        mapping: dict[Any, Any] = {}
        for key, item in content:
            mapping[_from_data(key, find)] = _from_data(item, find)
        return mapping
    if kind in FROM_ITEMS:
        items = [_from_data(item, find) for item in content]
        return FROM_ITEMS[kind](items)
    return find(kind, content)


def _array(items: list[Any]) -> Any:
    """Return a NumPy array from its data type and values when NumPy is loaded in this process, otherwise a list."""
    kind, values = items
    numpy = sys.modules.get("numpy")
    return values if numpy is None else numpy.array(values, dtype=kind)


def _named_tuple(items: list[Any]) -> Any:
    name, fields, values = items
    kind = namedtuple(name, fields)  # type: ignore[misc]
    return kind(*values)


def _maker(kind: type) -> Callable[[list[Any]], Any]:
    return lambda items: kind(*items)


FROM_ITEMS: dict[str, Callable[[list[Any]], Any]] = {kind.__name__: _maker(kind) for kind in MAKERS}
FROM_ITEMS |= {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "complex": lambda items: complex(*items),
    "time": lambda items: datetime.time.fromisoformat(*items),
    "datetime": lambda items: datetime.datetime.fromisoformat(*items),
    "array": _array,
    "namedtuple": _named_tuple,
}


def _as_json(data: Any) -> Any:
    if isinstance(data, list):
        return [_as_json(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "int":
        return int(content, 16)
    if kind in ("dict", "Counter", "OrderedDict"):
        return _json_object(kind, content)
    if kind == "range":
        items = range(*content)
        return list(items) if len(items) <= LONGEST_RANGE else NoJson()
    if kind in LISTED_AT:
        index = LISTED_AT[kind]
        return _as_json(content if index is None else content[index])
    return NoJson()


def _json_object(kind: str, content: Any) -> dict[str, Any]:
    pairs = content
    if kind == "Counter":
        pairs = content[0]["dict"]
    if kind == "OrderedDict":
        pairs = [item["tuple"] for item in content[0]]
    members: dict[str, Any] = {}
    for key, item in pairs:
        name = str(_as_json(key))
        members[name] = _as_json(item)
    return members
