"""Values across the wall: what a program's functions return, as JSON that keeps Python's types apart.

`encode` runs beside the program, which may do what it likes to it; `decode` runs outside and makes nothing but None,
bool, int, float, complex, str, bytes, list, tuple, set, frozenset and dict of exactly these types. So an object with an
`__eq__` of its own never meets the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

# Integers from here on travel as hexadecimal: Python reads and writes long decimal ones in quadratic time.
SMALL = 2**63
# Types of collections, apart from the plain ones, whose values become lists.
LISTS = ("deque", "dict_keys", "dict_values", "range", "map", "filter", "zip", "generator")


class NotPlainError(ValueError):
    """A value holds something that is not plain data, or what came is not an encoded value."""


def encode(value: Any) -> str:
    """One line of JSON. Subclasses of the plain types count as those, and NumPy's arrays and numbers as lists and
    numbers.

    Raises NotPlainError for anything else, and RecursionError for a value that holds itself.
    """
    return json.dumps(_to_json(value), allow_nan=True)


def decode(data: Any) -> Any:
    """The value of parsed JSON. Raises NotPlainError."""
    try:
        return _from_json(data)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise NotPlainError(f"not an encoded value: {type(error).__name__}") from error


def _to_json(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return value
    if isinstance(value, int):
        number = int.__add__(value, 0)
        return number if -SMALL < number < SMALL else {"int": hex(number)}
    if isinstance(value, float):
        return float.__add__(value, 0.0)
    if isinstance(value, str):
        return str.__getitem__(value, slice(None)) if kind is not str else value
    if isinstance(value, list):
        return _list_to_json(list.__iter__(value))
    if isinstance(value, tuple):
        return {"tuple": _list_to_json(tuple.__iter__(value))}
    if isinstance(value, dict):
        pairs: list[list[Any]] = []
        for key, item in dict.items(value):
            pairs.append([_to_json(key), _to_json(item)])
        return {"dict": pairs}
    return _rarer_to_json(value)


def _list_to_json(items: Iterable[Any]) -> list[Any]:
    return [_to_json(item) for item in items]


def _rarer_to_json(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return {"set": _list_to_json(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if type(value).__module__ == "numpy":
        return _to_json(value.tolist())
    name = type(value).__name__
    if name in LISTS:
        return {name: _list_to_json(value)}
    raise NotPlainError(f"a value of type {name} is not plain data")


def _from_json(data: Any) -> Any:
    if isinstance(data, list):
        return [_from_json(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "int":
        return int(content, 16)
    if kind == "complex":
        return complex(*content)
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "dict":
        mapping: dict[Any, Any] = {}
        for key, item in content:
            mapping[_from_json(key)] = _from_json(item)
        return mapping
    items = [_from_json(item) for item in content]
    if kind == "set":
        return set(items)
    return tuple(items) if kind == "tuple" else items
