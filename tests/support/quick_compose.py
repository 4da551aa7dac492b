"""Hydra's composition for tests: a shipped recipe is composed once, and overrides are applied to copies of it.

Hydra reads its own settings and the recipe's files anew for each composition, which takes longer than all else that
`load_config` does.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache

from hydra import compose
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from nemo_brorl.config.load import RUN_NAME


def quick_compose(config_name: str, overrides: list[str]) -> DictConfig:
    """Return what `hydra.compose` returns.

    Hydra itself composes where an override may choose among files, which one within a section cannot, and where the
    files are not those of conf/. Raises what Hydra raises.
    """
    parsed = OverridesParser.create().parse_overrides(overrides)
    are_within_sections = all("." in override.key_or_group for override in parsed)
    is_shipped = config_name != RUN_NAME and not any(override.is_hydra_override() for override in parsed)
    if not (is_shipped and are_within_sections):
        return compose(config_name, overrides=overrides)
    composed = deepcopy(_composed(config_name))
    ConfigLoaderImpl._apply_overrides_to_config(parsed, composed)
    return composed


@cache
def _composed(config_name: str) -> DictConfig:
    return compose(config_name)
