"""Convert and check the values of settings by the type annotations of a dataclass.

Texts become numbers where an annotation says so, and numbers texts. An annotation may be a number, text, path,
enum, list, mapping, another dataclass, a union of plain types, `Any`, or one of these or None. A mapping is merged into
the default mapping.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

ABSENT = "???"  # default of a field that a user has to set
WORDS = {"yes": True, "y": True, "on": True, "true": True, "no": False, "n": False, "off": False, "false": False}

Declared = TypeVar("Declared")


def typed(declared: type[Declared], given: Mapping[str, Any], default: Any = None) -> Declared:
    """Return an object of the dataclass `declared` with the values `given` over default values.

    The defaults are those of `default`, an object of the same dataclass, or of the dataclass itself. Raises ValueError
    or TypeError, with a message, for an unknown name, a value of another type, and a required field without a value.
    """
    fields = {field.name: field for field in dataclasses.fields(declared) if field.init}  # type: ignore[arg-type]
    hints = get_type_hints(declared)
    values = {}
    for name, field in fields.items():
        values[name] = _default(field) if default is None else getattr(default, name)
    for name, value in given.items():
        if name not in fields:
            raise ValueError(f"Key '{name}' not in '{declared.__name__}'")
        if not _is_absent(value):
            values[name] = _converted(name, value, hints[name], values[name])
    for name, value in values.items():
        if _is_absent(value):
            raise ValueError(f"Structured config of type `{declared.__name__}` has missing mandatory value: {name}")
    return declared(**values)


def _is_absent(value: Any) -> bool:
    return isinstance(value, str) and value == ABSENT


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return ABSENT


def _converted(name: str, value: Any, hint: Any, default: Any = None) -> Any:
    """Convert a value for the field `name` as its annotation `hint` says.

    Raises ValueError or TypeError for a value that does not fit the annotation.
    """
    if hint is Any:
        return value
    choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is None:
        return _none(name, choices)
    choices = tuple(choice for choice in choices if choice is not type(None))
    if len(choices) > 1:
        return _one_of(value, choices)
    [kind] = choices
    origin = get_origin(kind) or kind
    if origin in (list, tuple):
        return _list(name, value, kind)
    if origin is dict:
        return _mapping(name, value, kind, default)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise TypeError(f"Merge error: {type(value).__name__} is not a subclass of {kind.__name__}. value: {value}")
        return typed(kind, value, default)
    return _plain(value, kind)


def _none(name: str, choices: tuple[Any, ...]) -> None:
    if type(None) in choices:
        return
    if len(choices) > 1:
        raise ValueError(f"Value 'None' is incompatible with type hint '{_shown(choices)}'")
    [kind] = choices
    if isinstance(kind, type) and not dataclasses.is_dataclass(kind) and get_origin(kind) is None:
        raise ValueError(f"Incompatible value 'None' for field of type '{kind.__name__}'")
    raise ValueError(f"field '{name}' is not Optional")


def _one_of(value: Any, choices: tuple[Any, ...]) -> Any:
    """Return a value unchanged when its type is one of several plain types. Raises ValueError otherwise."""
    if type(value) not in choices:
        kind = type(value).__name__
        raise ValueError(f"Value '{value}' of type '{kind}' is incompatible with type hint '{_shown(choices)}'")
    return value


def _shown(choices: tuple[Any, ...]) -> str:
    names = [choice.__name__ for choice in choices]
    return f"Union[{', '.join(names)}]"


def _list(name: str, value: Any, kind: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"Value '{value}' of type '{type(value).__name__}' is no list")
    of_items = [item for item in get_args(kind) if item is not ...]
    if len(of_items) > 1:
        if len(of_items) != len(value):
            raise ValueError(f"Value '{value}' has {len(value)} items and not {len(of_items)}")
        return [_converted(name, item, item_type) for item, item_type in zip(value, of_items, strict=True)]
    of_item = of_items[0] if of_items else Any
    return [_converted(name, item, of_item) for item in value]


def _mapping(name: str, value: Any, kind: Any, default: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"Value '{value}' of type '{type(value).__name__}' is no mapping")
    of_key, of_item = get_args(kind) or (Any, Any)
    made = dict(default or {})
    for key, item in value.items():
        if of_key is not Any and not isinstance(key, of_key):
            raise ValueError(f"Key {key} ({type(key).__name__}) is incompatible with ({of_key.__name__})")
        made[key] = _converted(name, item, of_item)
    return made


def _plain(value: Any, kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _member(value, kind)
    if kind not in _PLAIN:
        raise TypeError(f"Unexpected type annotation: {kind}")
    return _PLAIN[kind](value)


def _bool(value: Any) -> bool:
    if isinstance(value, (bool, int)):
        return bool(value)
    if isinstance(value, str):
        if value.lower() in WORDS:
            return WORDS[value.lower()]
        with suppress(ValueError):
            return int(value) != 0
    raise ValueError(f"Value '{value}' is not a valid bool (type {type(value).__name__})")


def _int(value: Any) -> int:
    return int(_number(value, (int, str), int, "Integer"))


def _float(value: Any) -> float:
    return float(_number(value, (float, int, str), float, "Float"))


def _number(value: Any, kinds: tuple[type, ...], convert: Callable[[Any], float], what: str) -> float:
    """Convert a number, or the number in a text, with `convert`.

    True and false are no numbers. Raises ValueError for anything that is no number.
    """
    kind = type(value)
    if kind in kinds:
        with suppress(ValueError):
            return convert(value)
    raise ValueError(f"Value '{value}' of type '{kind.__name__}' could not be converted to {what}")


def _str(value: Any) -> str:
    if isinstance(value, (list, tuple, Mapping)):
        raise ValueError(f"Cannot convert '{type(value).__name__}' to string: '{value}'")
    return str(value)


def _path(value: Any) -> Path:
    if not isinstance(value, (str, Path)):
        raise ValueError(f"Value '{value}' of type '{type(value).__name__}' could not be converted to Path")
    return Path(value)


def _member(value: Any, kind: type[enum.Enum]) -> enum.Enum:
    """Return a member of an enum, given the member itself, its name or its value.

    Raises ValueError when there is none.
    """
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and value in kind.__members__:
        return kind[value]
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"Invalid value '{value}', expected one of [{', '.join(kind.__members__)}]") from None


# Converter of each plain type. It follows the functions that it names.
_PLAIN: dict[Any, Callable[[Any], Any]] = {bool: _bool, int: _int, float: _float, str: _str, Path: _path}
