"""Strings that hold the value of an environment variable and are written to files as `${oc.env:KEY}`.

key = FromEnvironment("k-123", "${oc.env:KEY}")
key == "k-123"                            # code that uses the string sees the value
repr({"key": key})                        # {'key': '${oc.env:KEY}'}
as_written({"key": key})                  # {'key': '${oc.env:KEY}'}, for a file
restored({"key": "${oc.env:KEY}"})        # {'key': 'k-123'}, after reading a file of this run
plain({"key": key}), literal({...})       # for a library that knows str alone; for OmegaConf
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

LEAST = 4  # shortest value, in characters, that is hidden in messages; a shorter one is no secret
_INTERPOLATION = re.compile(r"(\\*)\$\{")

# Environment values in the settings of this process, by their unresolved text. Only these can be restored from a file.
_own: dict[str, FromEnvironment] = {}


class FromEnvironment(str):
    """A string with the value of an environment variable, which is shown and stored as the text in `written`."""

    written: str  # unresolved, as in YAML or on the command line: ${oc.env:RUNS}/first

    def __new__(cls, value: str, written: str) -> FromEnvironment:
        """Make a string from the value of an environment variable and the text `${oc.env:KEY}` that refers to it."""
        made = super().__new__(cls, value)
        made.written = written
        return made

    def __repr__(self) -> str:
        """Return the text `${oc.env:KEY}`, so that messages and logs do not show the environment variable's value."""
        return repr(self.written)

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        """Return the arguments from which pickle and copy rebuild this string: its value and its `${oc.env:KEY}`."""
        return str(self), self.written


def as_written(value: Any) -> Any:
    """Copy settings, with the text `${oc.env:KEY}` in place of each string that came from an environment variable.

    Settings are dataclasses, mappings and sequences.
    """

    def written(text: str) -> str:
        if isinstance(text, FromEnvironment):
            return text.written
        return text

    return _changed(value, written)


def plain(value: Any) -> Any:
    """Copy settings, with a plain `str` in place of each string that remembers its environment variable.

    Settings are dataclasses, mappings and sequences.
    """
    return _changed(value, str)


def literal(value: Any) -> Any:
    """Copy dataclasses, mappings and sequences, with each `${` escaped so that OmegaConf reads it as plain text."""

    def escaped(text: str) -> str:
        ordinary = str(text)
        return _INTERPOLATION.sub(r"\1\1\\${", ordinary)

    return _changed(value, escaped)


def restored(value: Any) -> Any:
    """Copy data that was read from a file, with `${oc.env:KEY}` replaced by the value of the environment variable.

    Only a text that also stands in the settings of this process is replaced. So a file from a stranger cannot read
    another environment variable.
    """
    return _changed(value, lambda text: _own.get(text, text))


def hidden(
    message: str,
    value: Any,
) -> str:
    """Replace each value of an environment variable in a message by its text `${oc.env:KEY}`.

    `value` is the data that holds the values to look for, for example the settings that the message shows.
    """
    for text in texts_of(value):
        if len(text) >= LEAST:
            message = message.replace(str(text), text.written)
    return message


def remember(values: Iterable[FromEnvironment]) -> None:
    """Allow files that are read from now on to refer to these values of environment variables as `${oc.env:KEY}`.

    The settings of this process hold the values.
    """
    for value in values:
        _own[value.written] = value


def texts_of(value: Any) -> list[FromEnvironment]:
    """Return all strings in dataclasses, mappings and sequences that came from environment variables."""
    texts: list[FromEnvironment] = []

    def collect(text: str) -> str:
        if isinstance(text, FromEnvironment):
            texts.append(text)
        return text

    _changed(value, collect)
    return texts


def _changed(
    value: Any,
    change: Callable[[str], str],
) -> Any:
    """Copy dataclasses, mappings and sequences with `change` applied to each string, but not to mapping keys."""
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
