"""Strings that hold the value of an environment variable, and are written to files as `${oc.env:KEY}`.

key = FromEnvironment("k-123", "${oc.env:KEY}")
key == "k-123"                            # whoever uses it sees the value
repr({"key": key})                        # {'key': '${oc.env:KEY}'}
as_written({"key": key})                  # what goes into a file
restored({"key": "${oc.env:KEY}"})        # what a file of our own meant
plain({"key": key}), literal({...})       # for a library that knows str alone; for OmegaConf
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

LEAST = 4  # characters of a value that a message is searched for: what is shorter is no secret
_INTERPOLATION = re.compile(r"(\\*)\$\{")

# Values of this process's own settings by how they are written. A file can bring back what is in here, and no more.
_own: dict[str, FromEnvironment] = {}


class FromEnvironment(str):
    """A text that holds what an environment variable held, and shows how it was `written` instead."""

    written: str  # unresolved, as in YAML or on the command line: ${oc.env:RUNS}/first

    def __new__(cls, value: str, written: str) -> FromEnvironment:
        """Make it of the value and its unresolved text."""
        made = super().__new__(cls, value)
        made.written = written
        return made

    def __repr__(self) -> str:
        """Show the unresolved text, so that messages and logs with whole mappings give nothing away."""
        return repr(self.written)

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        """Give copies and pickles both texts."""
        return str(self), self.written


def as_written(value: Any) -> Any:
    """Copy dataclasses, mappings and sequences with every text from the environment as it was written."""

    def written(text: str) -> str:
        if isinstance(text, FromEnvironment):
            return text.written
        return text

    return _changed(value, written)


def plain(value: Any) -> Any:
    """Copy dataclasses, mappings and sequences with every text from the environment as an ordinary one."""
    return _changed(value, str)


def literal(value: Any) -> Any:
    """Copy dataclasses, mappings and sequences so that OmegaConf reads their texts as they are, `${` and all."""

    def escaped(text: str) -> str:
        ordinary = str(text)
        return _INTERPOLATION.sub(r"\1\1\\${", ordinary)

    return _changed(value, escaped)


def restored(value: Any) -> Any:
    """Copy what was read from a file, with the values that this process's settings took from the environment.

    Only a text that equals an unresolved text of these settings is replaced: a stranger's file cannot name a variable.
    """
    return _changed(value, lambda text: _own.get(text, text))


def hidden(
    message: str,
    value: Any,
) -> str:
    """Replace values of environment variables in a message by their unresolved text; `value` holds the marked texts."""
    for text in texts_of(value):
        if len(text) >= LEAST:
            message = message.replace(str(text), text.written)
    return message


def remember(values: Iterable[FromEnvironment]) -> None:
    """Let `restored` know values of this process's settings."""
    for value in values:
        _own[value.written] = value


def texts_of(value: Any) -> list[FromEnvironment]:
    """All texts from the environment in dataclasses, mappings and sequences."""
    found: list[FromEnvironment] = []

    def note(text: str) -> str:
        if isinstance(text, FromEnvironment):
            found.append(text)
        return text

    _changed(value, note)
    return found


def _changed(
    value: Any,
    change: Callable[[str], str],
) -> Any:
    """A copy with other texts; mapping keys stay, and so does what is of another kind."""
    if isinstance(value, str):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts: dict[str, Any] = {}
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            parts[field.name] = _changed(part, change)
        return dataclasses.replace(value, **parts)
    if isinstance(value, Mapping):
        return {key: _changed(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [_changed(part, change) for part in value]
    if isinstance(value, tuple):
        return tuple(_changed(list(value), change))
    return value
