"""Replace `~` by the user's home folder, which shells leave as it is behind `KEY=`."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

from brorl_graders.base.environment_values import FromEnvironment

from nemo_brorl.config.declare import declaration
from nemo_brorl.config.schema import settings, without_indices

QUOTE, ESCAPED = '"', '\\"'
WRITTEN = re.compile(r"(\+{0,2}[\w.\[\]]+=)(~[\w.-]*)(?=/|$)")  # an override whose value begins with a home folder


def with_home(override: str) -> str:
    """Return an override of the command line with `~` or `~USER` at the start of its value replaced."""
    return WRITTEN.sub(lambda match: match[1] + os.path.expanduser(match[2]), override, count=1)


def with_quoted_path(override: str) -> str:
    """Return an override of a setting that names one file or folder with its value in quotes, unless it has some."""
    key, equals, value = override.partition("=")
    known = settings().get(without_indices(key.lstrip("+")))
    is_plain = value in ("", "null") or value[:1] in ("'", '"', "[") or "${" in value
    if known is None or not known.declared.is_path or is_plain:
        return override
    return f"{key}{equals}{quoted(value)}"


def quoted(text: str) -> str:
    """Return a text in the quotes that Hydra takes off."""
    return f'"{text.replace(QUOTE, ESCAPED)}"'


def expand_homes(section: Any) -> None:
    """Replace `~` in all settings of a section that name files or folders, and in those of the sections in it."""
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        items = value if isinstance(value, list) else [value]
        for item in items:
            if dataclasses.is_dataclass(item):
                expand_homes(item)
        if declaration(field).is_path:
            expanded = [_expanded(item) for item in items]
            setattr(section, field.name, expanded if isinstance(value, list) else expanded[0])


def _expanded(path: str | None) -> str | None:
    # A path from an environment variable is written to files as this variable.
    if path is None or isinstance(path, FromEnvironment):
        return path
    return os.path.expanduser(path)
