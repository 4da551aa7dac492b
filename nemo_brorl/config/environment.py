"""Marks the settings whose value comes from an environment variable, by `${oc.env:KEY}` in them or in a setting that
they refer to.

OmegaConf calls a function for the value of a variable. The function here counts its calls: a setting is marked where
resolving it called the function. Where no setting did, the settings are not looked through.
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

_num_asks = 0
_answers: dict[str, FromEnvironment] = {}


def _ask(*arguments: str) -> str | None:
    """Answer `${oc.env:KEY}` and `${oc.env:KEY,DEFAULT}`, and note that it was asked."""
    global _num_asks
    _num_asks += 1
    found = oc.env(*arguments)
    # A default is written in the settings and no secret: to hide it would garble messages that hold the same word.
    if found is not None and str(arguments[0]) in os.environ:
        asked = ",".join(map(str, arguments))
        written = f"${{oc.env:{asked}}}"
        _answers[written] = FromEnvironment(found, written)
    return found


OmegaConf.register_new_resolver("oc.env", _ask, replace=True)


def asks() -> int:
    """Count how often the environment has been asked so far."""
    return _num_asks


def answers() -> list[FromEnvironment]:
    """List what the environment has answered so far."""
    return list(_answers.values())


def marked(config: Section, node: Any) -> Section:
    """Copy typed settings, with every text that came from an environment variable as a `FromEnvironment`.

    `node` is the OmegaConf node that `config` was made from. The texts are remembered for `restored`. Raises
    ConfigError where one unresolved text has two values.
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
    """Mark a setting or a section. `written` is its unresolved text; "" where it is not from the environment."""
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
    """Mark the parts of a section, mapping or list, by key or place."""
    unresolved: Any = OmegaConf.to_container(node, resolve=False)
    found: dict[Any, Any] = {}
    for key, value in parts.items():
        num_asked = asks()
        part = node[key]  # resolved here
        # A part of what came from the environment as a whole has no text of its own.
        own = f"{written}.{key}" if written else ""
        if asks() > num_asked:
            own = str(unresolved[key])
        found[key] = _marked(value, part, own)
    return found


def _check_one_value(texts: Iterable[FromEnvironment]) -> None:
    """Raise ConfigError where texts are written alike and differ, as `${.name}` of two sections may."""
    known: dict[str, FromEnvironment] = {}
    for text in texts:
        first = known.setdefault(text.written, text)
        if text != first:
            raise ConfigError(
                f"{text.written} stands for different values in two places, one of the environment: write the "
                "setting's whole name, ${section.name}"
            )
