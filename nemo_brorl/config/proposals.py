"""Write a setting of the command line that Hydra cannot read as a shell and Hydra take it."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from nemo_brorl.config.home_folder import quoted
from nemo_brorl.config.schema import settings, without_indices

TYPE_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list": "a list",
    "dict": "a mapping",
}
WORD = r"[A-Za-z0-9_./-]+"  # a text that Hydra takes without quotes


def as_structure(key: str, value: str) -> str | None:
    """Return a mapping or list that is written as JSON or YAML as a shell and Hydra take it. None: it is neither."""
    setting = settings().get(without_indices(key))
    if not value.startswith(("[", "{")) or (setting and not setting.annotation.startswith(("list", "dict"))):
        return None
    try:
        structure = yaml.safe_load(value)
        override = f"{key}={_in_hydra(structure)}"
        is_read = OverridesParser.create().parse_override(override).value() == structure
    except (yaml.YAMLError, HydraException):
        return None
    return shlex.quote(override) if is_read else None


def _in_hydra(value: Any) -> str:
    if isinstance(value, dict):
        items = [f"{_escaped(str(key))}: {_in_hydra(item)}" for key, item in value.items()]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_in_hydra, value))}]"
    if isinstance(value, str):
        # A text that reads as a number, a truth value or null keeps its quotes.
        return value if re.fullmatch(WORD, value) and yaml.safe_load(value) == value else quoted(value)
    return json.dumps(value)


def _escaped(key: str) -> str:
    return re.sub(r"([\\()\[\]{}:=,])", r"\\\1", key)


def as_list_or_text(key: str, value: str) -> str:
    """Return a setting as a shell and Hydra take it, where its value has characters of Hydra's own."""
    setting = settings().get(without_indices(key))
    kind = re.split(r"[\[ ]", setting.annotation)[0] if setting else "list"
    if kind == "list":
        items = [item.strip() for item in value.strip("[]").split(",") if item.strip()] if setting else ["a", "b"]
        value = f"[{','.join(item if re.fullmatch(WORD, item) else quoted(item) for item in items)}]"
    elif kind == "str":
        value = quoted(value)
    else:
        return f"one value of {key}, {TYPE_WORDS.get(kind, kind)}"
    return shlex.quote(f"{key}={value}")
