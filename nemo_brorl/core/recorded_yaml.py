"""Read the YAML of run folders, which may be untrusted: plain data within bounds, or one error message.

    read_record(RUN / "config.yaml")["trainer"]["max_steps"]

Bounds are checked on the parser's events, before anything is built: a file has at most MAX_BYTES, MAX_NODES and
MAX_DEPTH. Aliases, anchors and tags are refused, because this package never writes any. An interpolation,
`${oc.env:KEY}`, stays plain text.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml
from brorl_graders.base.foreign import SMALL, RecordError, record_text

from nemo_brorl.core.files import MALFORMED

MAX_BYTES = SMALL
MAX_NODES = 100_000
MAX_DEPTH = 32
MAX_NUMBER = 64  # characters

# Numbers as OmegaConf writes and reads them: 1e-6 is a number, and times and dates are texts.
_INT = re.compile(r"[-+]?(?:0b[01_]+|0[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$")
_FLOAT = re.compile(
    r"(?:[-+]?[0-9]+(?:_[0-9]+)*(?:\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)"
    r"|\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_REPLACED = ("int", "float", "timestamp")


def _strict(base: Any) -> Any:
    """Return a subclass of a PyYAML loader that reads numbers as OmegaConf does and refuses duplicate keys."""

    class StrictLoader(base):
        """A YAML loader for the records of run folders."""

        yaml_implicit_resolvers = _other_resolvers(base)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            """Return the mapping of a YAML node, as PyYAML does, but raise ConstructorError for a repeated key."""
            names: set[str] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if key.value in names:
                    raise yaml.constructor.ConstructorError(None, None, "a name stands twice", key.start_mark)
                names.add(key.value)
            found: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
            return found

    StrictLoader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
    StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    return StrictLoader


def _other_resolvers(base: Any) -> dict[str, list[Any]]:
    tags = [f"tag:yaml.org,2002:{kind}" for kind in _REPLACED]
    kept: dict[str, list[Any]] = {}
    for letter, resolvers in base.yaml_implicit_resolvers.items():
        kept[letter] = [pair for pair in resolvers if pair[0] not in tags]
    return kept


PythonLoader = _strict(yaml.SafeLoader)
Loader = _strict(yaml.CSafeLoader) if yaml.__with_libyaml__ else PythonLoader


def read_record(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file of a run folder, {} for an empty file. Raises RecordError."""
    try:
        text = record_text(path, MAX_BYTES)
        reason = _excess(text)
        record = None if reason else yaml.load(text, Loader)
    except (OSError, yaml.YAMLError, *MALFORMED) as error:
        raise RecordError(path, " ".join(str(error).split()) or type(error).__name__) from error
    if reason:
        raise RecordError(path, reason)
    if not isinstance(record, dict | None):
        raise RecordError(path, f"it holds a {type(record).__name__} where a mapping is expected")
    return record or {}


def _excess(content: str) -> str:
    """Return why a run folder's YAML text is refused, or "" if it is acceptable."""
    num_nodes = 0
    depth = 0
    for event in yaml.parse(content, Loader):
        anchor = getattr(event, "anchor", None)
        tag = getattr(event, "tag", None)
        if isinstance(event, yaml.AliasEvent) or anchor is not None:
            return "it has an alias or an anchor: write out what they stand for"
        if tag is not None:
            return f"it has the tag {tag}: plain values have none"
        num_nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return f"it is more than {MAX_DEPTH} levels deep"
        if num_nodes > MAX_NODES:
            return f"it has more than {MAX_NODES:,} values"
        # Python reads hexadecimal numbers of any length, and writes none of more than 4,300 digits.
        text = getattr(event, "value", "")
        if len(text) > MAX_NUMBER and (_INT.match(text) or _FLOAT.match(text)):
            return f"it has a number of more than {MAX_NUMBER} characters"
    return ""


def setting_of(record: Mapping[str, Any], name: str) -> Any:
    """Return the value of a dotted setting name in a run folder's YAML record, or None if it is missing."""
    value: Any = record
    for key in name.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value
