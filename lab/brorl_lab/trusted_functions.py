"""Check whether the user trusts the import paths in a run folder's settings, which run its author's code."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from brorl_graders.base.components import is_import_path
from hydra.core.override_parser.overrides_parser import OverridesParser

from nemo_brorl.config.declare import FUNCTION, declaration
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError


def check_trusted(
    config: BroRLConfig,
    trusted: Collection[str],
) -> None:
    """Raise ConfigError when a run's settings name import paths that are not among the trusted ones.

    `trusted` holds the paths that the command line names and the texts that its user typed (`typed_texts`). Nothing is
    imported.
    """
    foreign: list[str] = []
    options: list[str] = []
    for name, path in named_functions(config):
        if path not in trusted:
            foreign.append(f"{name}={path}")
            options.append(f"--trust {path}")
    if foreign:
        raise ConfigError(
            f"{' and '.join(foreign)} of the run's settings would be imported and called: if you trust whoever wrote "
            f"that folder, pass {' '.join(dict.fromkeys(options))}"
        )


def named_functions(
    within: Any,
    prefix: str = "",
) -> Iterator[tuple[str, str]]:
    """Yield the settings that name a user's own function, as (dotted name, import path)."""
    for field in dataclasses.fields(within):
        value = getattr(within, field.name)
        name = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from named_functions(value, f"{name}.")
            continue
        may_be_function = FUNCTION in declaration(field).choices
        if may_be_function and is_import_path(str(value)):
            yield name, str(value)


def typed_texts(overrides: Sequence[str]) -> set[str]:
    """Return every text that KEY=VALUE overrides give as a value, alone or inside lists and mappings."""
    found: set[str] = set()
    parser = OverridesParser.create()
    for override in parser.parse_overrides(list(overrides)):
        value = override.value()
        found.update(_texts(value))
    return found


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts inside a setting's value, also within lists and mappings."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value
