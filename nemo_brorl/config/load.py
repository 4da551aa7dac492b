"""From the command line and YAML to a checked `BroRLConfig`; imports neither torch nor NeMo, so a wrong setting answers
at once.

YAML files hold only what differs from the schema and start with `defaults: [brorl_schema, _self_]`, or with the name of
another shipped file in place of `brorl_schema`. Overrides are Hydra's: `rollouts.num_per_prompt=64`,
`data.tasks=[{name: leg_counting}]`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_brorl.config import messages
from nemo_brorl.config.rules import check_rules
from nemo_brorl.config.same_run import RECORD
from nemo_brorl.config.schema import BroRLConfig, help_text, settings
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.files import MALFORMED

DEFAULT_CONFIG = "brorl_cpu"
SCHEMA_NAME = "brorl_schema"  # what a YAML's `defaults` list calls the schema


class CommandLine(NamedTuple):
    """What was asked for on the command line."""

    config_name: str = DEFAULT_CONFIG
    overrides: tuple[str, ...] = ()
    config_path: Path | None = None  # None: the shipped conf/


def parse_command_line(
    argv: Sequence[str], command: str = "train", description: str = "", default_config: str = DEFAULT_CONFIG
) -> CommandLine:
    """Read `[--config-name NAME] [--config-path FOLDER] [KEY=VALUE ...]`.

    `argv` is without the program's name. Prints and exits with 0 for `--help` and `--print-config`; a wrong option
    exits with 2.
    """
    parser = argparse.ArgumentParser(prog=f"brorl {command}", add_help=False, allow_abbrev=False)
    parser.add_argument("--config-name", "-cn", default=default_config)
    parser.add_argument("--config-path", "-cp", type=Path)
    parser.add_argument("--print-config", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args(argv)
    if options.help:
        sys.stdout.write(help_text(command, description) + "\n")
        raise SystemExit(0)
    line = CommandLine(options.config_name, tuple(options.overrides), options.config_path)
    if options.print_config:
        sys.stdout.write(to_yaml(load_config(*line)))
        raise SystemExit(0)
    return line


def load_config(
    config_name: str = DEFAULT_CONFIG, overrides: Sequence[str] = (), config_path: Path | None = None
) -> BroRLConfig:
    """Compose conf/NAME.yaml over the schema, apply the overrides, check the rules that need nothing but the settings.

    Raises ConfigError; the message names the setting, its value, and near matches or what to write instead.
    """
    folder, name, written = hydra_arguments(config_name, overrides, config_path)
    try:
        with initialize_config_dir(config_dir=str(folder), version_base=None, job_name="brorl"):
            composed = compose(name, overrides=written)
    except MissingConfigException as error:
        raise ConfigError(messages.missing_default(error, folder)) from error
    except (HydraException, OmegaConfBaseException, OSError, *MALFORMED, yaml.YAMLError) as error:
        raise ConfigError(messages.explain(error, folder / f"{name}.yaml")) from error
    config = to_config(composed)
    check_rules(config)
    return config


def load_run_config(run_folder: Path, overrides: Sequence[str] = ()) -> BroRLConfig:
    """The settings that a run was begun with, and overrides over them. Raises ConfigError."""
    name = RECORD.removesuffix(".yaml")
    if not (run_folder / RECORD).is_file():
        raise ConfigError(f"{run_folder} is no run folder, it has no {RECORD}: write one that `brorl train` made")
    return load_config(name, overrides, run_folder)


class HydraArguments(NamedTuple):
    """A command line as Hydra takes it."""

    folder: Path
    config_name: str
    overrides: list[str]


def hydra_arguments(config_name: str, overrides: Sequence[str], config_path: Path | None = None) -> HydraArguments:
    """Find the YAML and check every override's syntax and key. Raises ConfigError."""
    folder, name = find_config(config_name, config_path)
    _schema()  # Hydra looks it up by name
    written = [_checked_override(override, folder) for override in overrides]
    shipped = shipped_folder()
    if folder != shipped:  # a YAML elsewhere may build on the shipped ones
        written.append(f"hydra.searchpath=['file://{shipped}']")
    return HydraArguments(folder, name, written)


@cache
def _schema() -> DictConfig:
    """All settings at their defaults, which Hydra knows as SCHEMA_NAME from then on. Made once."""
    schema = OmegaConf.structured(BroRLConfig)
    ConfigStore.instance().store(name=SCHEMA_NAME, node=schema)
    return schema


def to_config(composed: DictConfig | ListConfig) -> BroRLConfig:
    """The typed object of composed settings, whatever their YAML built on, interpolations resolved. Raises ConfigError
    where one is unknown, of a wrong type, or required and missing."""
    try:
        config = OmegaConf.to_object(OmegaConf.merge(_schema(), composed))
    except OmegaConfBaseException as error:
        raise ConfigError(messages.explain(error, None)) from error
    assert isinstance(config, BroRLConfig), f"composed to {type(config)}"
    return config


def to_yaml(config: BroRLConfig) -> str:
    """All settings as YAML, for `config.yaml` of the run folder."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def shipped_folder() -> Path:
    """The conf/ of this installation: in the repository of an editable install, else below the environment's share/."""
    for folder in (Path(__file__).resolve().parents[2] / "conf", Path(sys.prefix, "share/nemo_brorl/conf")):
        if (folder / f"{DEFAULT_CONFIG}.yaml").is_file():
            return folder
    raise ConfigError(f"no conf/ with {DEFAULT_CONFIG}.yaml beside the package: give its folder with --config-path")


def find_config(config_name: str, config_path: Path | None) -> tuple[Path, str]:
    """(folder, name without .yaml). Raises ConfigError with the names there are."""
    folder = shipped_folder() if config_path is None else config_path.resolve()
    if not folder.is_dir():
        raise ConfigError(f"--config-path {config_path}: there is no such folder")
    name = config_name.removesuffix(".yaml")
    if not (folder / f"{name}.yaml").is_file():
        names = sorted(path.stem for path in folder.glob("*.yaml"))
        raise ConfigError(f"--config-name {config_name}: not in {folder}, which has {', '.join(names) or 'no YAML'}")
    return folder, name


def _checked_override(text: str, folder: Path) -> str:
    """The override as Hydra shall see it. Raises ConfigError for wrong syntax and keys that the schema lacks."""
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ConfigError(messages.wrong_syntax(text, error)) from error
    key = override.key_or_group
    if (folder / key).is_dir():  # a choice among the YAML files of conf/KEY/
        return text
    if messages.is_section(key) and not isinstance(override.value(), dict):
        # asked here: once NeMo is imported, Hydra knows a config group of its own called trainer
        raise ConfigError(messages.wrong_section(key))
    if override.is_delete():
        raise ConfigError(f"{text}: settings cannot be removed; write {key}=VALUE, with null where the type allows it")
    if override.is_sweep_override():
        raise ConfigError(
            f"{text}: sweeps are not run; write a list as {key}=[a,b], or quote a value that holds a comma"
        )
    is_free_form = messages.is_free_form(key)
    if not is_free_form and not messages.is_key(key):
        raise ConfigError(messages.unknown_key(key, text))
    if key in settings() and settings()[key].declared.is_auto and override.value() == "auto":
        return f"{key}=null"
    plain = text.lstrip("+")
    return f"++{plain}" if is_free_form else plain  # Hydra adds names to a mapping only when told to
