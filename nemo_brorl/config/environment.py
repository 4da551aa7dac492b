"""Mark the settings whose value comes from an environment variable.

They contain `${oc.env:KEY}`, or refer to a setting that does. OmegaConf calls a resolver function for the value of a
variable. The resolver here counts its calls, and a setting is marked if resolving it increased the count. If no setting
did, the settings are not searched.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from brorl_graders.base.environment_values import FromEnvironment, remember, texts_of
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.resolvers import oc

from nemo_brorl.core.errors import ConfigError

Section = TypeVar("Section")

_num_reads = 0
_values: dict[str, FromEnvironment] = {}


def _ask(*arguments: str) -> str | None:
    """Resolve `${oc.env:KEY}` and `${oc.env:KEY,DEFAULT}` from the environment variables, and count the call."""
    global _num_reads
    _num_reads += 1
    found = oc.env(*arguments)
    # A default is written in the settings, so it is no secret. Hiding it would garble messages with the same word.
    if found is not None and str(arguments[0]) in os.environ:
        asked = ",".join(map(str, arguments))
        written = f"${{oc.env:{asked}}}"
        _values[written] = FromEnvironment(found, written)
    return found


OmegaConf.register_new_resolver("oc.env", _ask, replace=True)


def num_reads() -> int:
    """Return how often settings have read environment variables so far in this process."""
    return _num_reads


def values_read() -> list[FromEnvironment]:
    """Return the values that settings have read from environment variables so far in this process."""
    return list(_values.values())


def marked(config: Section, node: Any) -> Section:
    """Return a copy of typed settings in which every text from an environment variable is a `FromEnvironment`.

    This string class also holds the unresolved text, such as `${oc.env:KEY}`. `node` is the OmegaConf node that
    `config` was made from. The unresolved texts are remembered, so that `restored` can mark texts again that are read
    from a file. Raises ConfigError where one unresolved text has two values.
    """
    changed: Section = _marked(config, node, "")
    texts = texts_of(changed)
    _check_one_value(texts)
    remember(texts)
    return changed


def _marked(
    value: Any,
    node: Any,
    written: str,
) -> Any:
    """Return a copy of a setting or section, with texts from environment variables as `FromEnvironment`.

    `written` is the unresolved text of `value`, or "" if `value` is not from the environment.
    """
    if isinstance(value, str):
        return FromEnvironment(value, written) if written else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(value):
            fields[field.name] = getattr(value, field.name)
        changed = _marked_parts(fields, node, written)
        return dataclasses.replace(value, **changed)
    if isinstance(value, dict):
        return _marked_parts(value, node, written)
    if isinstance(value, list):
        places = dict(enumerate(value))
        in_order = _marked_parts(places, node, written)
        return list(in_order.values())
    return value


def _marked_parts(
    parts: Mapping[Any, Any],
    node: DictConfig | ListConfig,
    written: str,
) -> dict[Any, Any]:
    """Return the elements of a section, mapping or list, by key or index, each marked if it is from the environment."""
    unresolved: Any = OmegaConf.to_container(node, resolve=False)
    found: dict[Any, Any] = {}
    for key, value in parts.items():
        num_asked = num_reads()
        part = node[key]  # this access resolves interpolations
        # An element of a value that came from the environment as a whole has no text of its own.
        own = f"{written}.{key}" if written else ""
        if num_reads() > num_asked:
            own = str(unresolved[key])
        found[key] = _marked(value, part, own)
    return found


def _check_one_value(texts: Iterable[FromEnvironment]) -> None:
    """Raise ConfigError if one interpolation has different values, as `${.name}` in two sections may."""
    known: dict[str, FromEnvironment] = {}
    for text in texts:
        first = known.setdefault(text.written, text)
        if text != first:
            raise ConfigError(
                f"{text.written} stands for different values in two places, one of the environment: set the "
                "setting's whole name, ${section.name}"
            )
