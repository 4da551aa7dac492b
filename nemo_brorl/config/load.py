"""Turn a command line and YAML files into a checked `BroRLConfig`.

Imports neither torch nor NeMo, so a wrong setting answers at once. YAML files hold only what differs from the schema.
They start with `defaults: [brorl_schema, _self_]`, or name another shipped file in place of `brorl_schema`. Overrides
have Hydra's syntax: `rollouts.num_per_prompt=64`, `data.tasks=[{name: leg_counting}]`.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from brorl_graders.base.environment_values import as_written, hidden, literal
from brorl_graders.base.foreign import RecordError
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

from nemo_brorl.config.declare import restore_words
from nemo_brorl.config.environment import marked, num_reads, values_read
from nemo_brorl.config.former_settings import instead_of, name_elsewhere
from nemo_brorl.config.given import Given, check_layout, check_texts, given_settings, infer_sources, is_whole
from nemo_brorl.config.help_pages import help_page
from nemo_brorl.config.home_folder import expand_homes, with_home, with_quoted_path
from nemo_brorl.config.proposals import TYPE_WORDS, as_list_or_text, as_structure
from nemo_brorl.config.rules import check_rules
from nemo_brorl.config.same_run import RECORD
from nemo_brorl.config.schema import BroRLConfig, groups, settings, without_indices
from nemo_brorl.config.trackers import LOGGER_KEYS, ExpManagerConfig, with_loggers_beside
from nemo_brorl.core.console import write_out, write_words
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.files import MALFORMED
from nemo_brorl.core.recorded_yaml import read_record

DEFAULT_CONFIG = "brorl_cpu"
SCHEMA_NAME = "brorl_schema"  # name of the schema in the `defaults` list of a YAML
RUN_NAME = "brorl_settings_of_a_run"  # Hydra's name for the settings of a run folder

LOGGER_PATHS = tuple(f"exp_manager.{key}." for key in LOGGER_KEYS)
SECTIONS = {group.path: group for group in groups() if group.path}


class CommandLine(NamedTuple):
    """Options of a command line that names a configuration."""

    config_name: str = DEFAULT_CONFIG
    overrides: tuple[str, ...] = ()
    config_path: Path | None = None  # None: the shipped conf/


def parse_command_line(
    argv: Sequence[str], command: str = "train", description: str = "", default_config: str = DEFAULT_CONFIG
) -> CommandLine:
    """Parse `[--config-name NAME] [--config-path FOLDER] [KEY=VALUE ...]`.

    `argv` is without the program's name. Prints and exits with 0 for `--help` and `--print-config`. A wrong option
    exits with 2.
    """
    parser = argparse.ArgumentParser(prog=f"brorl {command}", add_help=False, allow_abbrev=False)
    parser.add_argument("--config-name", "-cn", default=default_config)
    parser.add_argument("--config-path", "-cp", type=Path)
    parser.add_argument("--print-config", action="store_true")
    parser.add_argument("--help", "-h", nargs="?", const="")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args(argv)
    if options.help is not None:
        write_words(help_page(command, description, default_config, options.help) + "\n")
        raise SystemExit(0)
    line = CommandLine(options.config_name, tuple(options.overrides), options.config_path)
    if options.print_config:
        write_out(to_yaml(load_config(*line)))
        raise SystemExit(0)
    return line


def load_config(
    config_name: str = DEFAULT_CONFIG, overrides: Sequence[str] = (), config_path: Path | None = None
) -> BroRLConfig:
    """Compose conf/NAME.yaml over the schema, apply the overrides, and check the rules that do not depend on the model.

    Raises ConfigError. Its message names the setting, its value, and near matches or what to set instead.
    """
    folder, name, written = hydra_arguments(config_name, overrides, config_path)
    if folder != shipped_folder():
        check_layout(folder / f"{name}.yaml")
    try:
        with initialize_config_dir(config_dir=str(folder), version_base=None, job_name="brorl"):
            composed = compose(name, overrides=written)
    except MissingConfigException as error:
        raise ConfigError(missing_default(error, folder)) from error
    except (HydraException, OmegaConfBaseException, OSError, *MALFORMED, yaml.YAMLError) as error:
        raise ConfigError(explain(error, folder / f"{name}.yaml")) from error
    given = given_settings(folder, name, shipped_folder(), written)
    check_texts(given)
    config = to_config(composed)
    infer_sources(config, given)
    check_rules(config)
    return config


def given_by(line: CommandLine) -> tuple[Given, Given]:
    """Return the settings that a command line itself gives, and those of the user's YAML file that it names.

    The settings of a frozen job are no file of the user's: they hold defaults, too.
    """
    folder, name, written = hydra_arguments(*line)
    shipped = shipped_folder()
    if is_whole(folder / f"{name}.yaml"):
        folder = shipped
    return given_settings(shipped, name, shipped, written), given_settings(folder, name, shipped, ())


def load_run_config(run_folder: Path, overrides: Sequence[str] = ()) -> BroRLConfig:
    """Load the settings that a run was started with, and apply overrides to them. Raises ConfigError.

    The folder may be untrusted: its interpolations stay plain text, and it cannot include other files. The overrides
    are the user's, and may refer to environment variables and settings.
    """
    path = run_folder / RECORD
    if not path.is_file():
        raise ConfigError(f"{run_folder} is no run folder, it has no {RECORD}: pass one that `brorl train` made")
    folder = shipped_folder()
    written = [_checked_override(override, folder) for override in overrides]
    try:
        node = OmegaConf.merge(_schema(), literal(read_record(path)))
        ConfigStore.instance().store(name=RUN_NAME, node=node)
        with initialize_config_dir(config_dir=str(folder), version_base=None, job_name="brorl"):
            composed = compose(RUN_NAME, overrides=written)
    except RecordError as error:
        raise ConfigError(str(error)) from error
    except (HydraException, OmegaConfBaseException, OSError, *MALFORMED, yaml.YAMLError) as error:
        raise ConfigError(explain(error, path)) from error
    config = to_config(composed)
    check_rules(config)
    return config


class HydraArguments(NamedTuple):
    """A configuration's folder and name with checked overrides, in the form that Hydra takes."""

    folder: Path
    config_name: str
    overrides: list[str]


def hydra_arguments(config_name: str, overrides: Sequence[str], config_path: Path | None = None) -> HydraArguments:
    """Return the folder and name of a command line's YAML file and its overrides, in the form that Hydra accepts.

    Raises ConfigError if there is no such file, or an override has a wrong syntax or an unknown key.
    """
    folder, name = find_config(config_name, config_path)
    _schema()  # registers the schema, which Hydra looks up by name
    written = [_checked_override(override, folder) for override in overrides]
    shipped = shipped_folder()
    if folder != shipped:  # a YAML in another folder may include shipped ones
        written.append(f"hydra.searchpath=['file://{shipped}']")
    return HydraArguments(folder, name, written)


@cache
def _schema() -> DictConfig:
    """Return all settings at their defaults, registered with Hydra as SCHEMA_NAME. Created once."""
    schema = OmegaConf.structured(BroRLConfig)
    OmegaConf.set_struct(schema.exp_manager, False)  # allows NeMo's logger keys next to ours
    ConfigStore.instance().store(name=SCHEMA_NAME, node=schema)
    return schema


def to_config(composed: DictConfig | ListConfig) -> BroRLConfig:
    """Turn composed settings into a typed `BroRLConfig`, with interpolations resolved.

    Texts that came from environment variables become `FromEnvironment`. Raises ConfigError for a setting that is
    unknown, of a wrong type, or required and missing.
    """
    # OmegaConf does not say which values came from an interpolation; a counter in the resolver does
    num_asked = num_reads()
    try:
        merged = OmegaConf.merge(_schema(), composed)
        _gather_loggers(merged.exp_manager)
        config = OmegaConf.to_object(merged)
        assert isinstance(config, BroRLConfig), f"composed to {type(config)}"
        # Marking walks every setting: only where one was read from the environment
        if num_reads() > num_asked:
            config = marked(config, merged)
        expand_homes(config)
        restore_words(config)
    except OmegaConfBaseException as error:
        # `from None`: the chain of exceptions would print the secret that `hidden` takes out
        raise ConfigError(hidden(explain(error, None), values_read())) from None
    return config


def _gather_loggers(section: DictConfig) -> None:
    """Move the settings of NeMo's loggers from `exp_manager` into its section `loggers`.

    Raises ConfigError for an unknown key.
    """
    written: Any = OmegaConf.to_container(section, resolve=False)
    ours = {field.name for field in dataclasses.fields(ExpManagerConfig)}
    for key in written.keys() - ours:
        if key not in LOGGER_KEYS:
            raise ConfigError(unknown_key(f"exp_manager.{key}", f"exp_manager.{key}"))
        section.pop(key)
        section.loggers[key] = written[key]


def to_yaml(config: BroRLConfig) -> str:
    """Return all settings as YAML text for `config.yaml` of the run folder, with environment variables unresolved."""
    tree: Any = OmegaConf.to_container(OmegaConf.structured(as_written(config)), resolve=False)
    return OmegaConf.to_yaml(OmegaConf.create(with_loggers_beside(tree)))


def shipped_folder() -> Path:
    """Return the conf/ folder of this installation.

    The folder is in the repository for an editable install, otherwise below share/ of the Python environment.
    """
    for folder in (Path(__file__).resolve().parents[2] / "conf", Path(sys.prefix, "share/nemo_brorl/conf")):
        if (folder / f"{DEFAULT_CONFIG}.yaml").is_file():
            return folder
    raise ConfigError(f"no conf/ with {DEFAULT_CONFIG}.yaml beside the package: give its folder with --config-path")


def find_config(config_name: str, config_path: Path | None) -> tuple[Path, str]:
    """Return folder and name, without .yaml, of the configuration that a command line names by its name or path.

    Raises ConfigError, which lists the available names, for a name without a YAML file.
    """
    folder = shipped_folder() if config_path is None else config_path.resolve()
    if not folder.is_dir():
        raise ConfigError(f"--config-path {config_path}: there is no such folder")
    name = config_name.removesuffix(".yaml")
    file = Path(f"{name}.yaml").resolve()
    if "/" in name and config_path is None and file.is_file():
        return file.parent, file.stem
    if not (folder / f"{name}.yaml").is_file():
        names = sorted(path.stem for path in folder.glob("*.yaml"))
        raise ConfigError(f"--config-name {config_name}: not in {folder}, which has {', '.join(names) or 'no YAML'}")
    return folder, name


def _checked_override(text: str, folder: Path) -> str:
    """Return a command-line override in the form that Hydra accepts.

    Raises ConfigError for wrong syntax and unknown keys.
    """
    text = with_home(text)
    try:
        override = _parsed(text)
    except HydraException as error:
        raise ConfigError(wrong_syntax(text, error)) from error
    # A value that is a path is taken as it is.
    text = override.input_line or text
    key = override.key_or_group
    if (folder / key).is_dir():  # the value is one of the YAML files in conf/KEY/
        return text
    if is_section(key) and not isinstance(override.value(), dict):
        # Checked here, because after an import of NeMo Hydra knows another config group called trainer.
        raise ConfigError(wrong_section(key))
    if override.is_delete():
        raise ConfigError(f"{text}: settings cannot be removed; set {key}=VALUE, with null where the type allows it")
    if override.is_sweep_override():
        written = text.partition("=")[2]
        raise ConfigError(f"{text}: sweeps are not run; set {as_list_or_text(key, written)}")
    is_free = is_free_form(key)
    if not is_free and not is_key(key):
        raise ConfigError(unknown_key(key, text))
    if key in settings() and settings()[key].declared.is_auto and override.value() == "auto":
        return f"{key}=null"
    plain = text.lstrip("+")
    return f"++{plain}" if is_free else plain  # Hydra needs ++ to add a name to a mapping


def _parsed(text: str) -> Override:
    """Return an override as Hydra reads it: that of a path with quotes, where it has characters of Hydra's own."""
    parser = OverridesParser.create()
    try:
        override = parser.parse_override(text)
    except HydraException:
        if (written := with_quoted_path(text)) == text:
            raise
        return parser.parse_override(written)
    return parser.parse_override(with_quoted_path(text)) if override.is_sweep_override() else override


def is_section(key: str) -> bool:
    """Return whether `key` names a section of settings, such as policy.optim."""
    return without_indices(key) in SECTIONS


def is_key(key: str) -> bool:
    """Return whether the schema has a setting, section or list element `key` (for example `data.tasks.0.name`)."""
    return is_section(key) or without_indices(key) in settings()


def is_free_form(key: str) -> bool:
    """Return whether `key` belongs to a mapping with free keys, as `exp_manager.wandb_logger_kwargs.project` does."""
    path = f"{without_indices(key)}."
    if path.startswith(LOGGER_PATHS):
        return True
    return any(setting.is_mapping and path.startswith(f"{name}.") for name, setting in settings().items())


def unknown_key(key: str, written: str) -> str:
    """Return the error message for an unknown settings key, with its replacement or near matches."""
    instead = instead_of(without_indices(key))
    if instead is not None:
        return f"{written}: there is no setting '{key}' any more: {instead}"
    if elsewhere := name_elsewhere(key):
        return f"{written}: there is no setting '{key}', {elsewhere}"
    near = near_matches(key)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"{written}: there is no setting '{key}'.{hint} `brorl train --help` lists all settings"


def near_matches(key: str) -> list[str]:
    """Return up to three settings and sections that resemble `key`, in its last word or as a whole.

    Those in the key's own section come first.
    """
    path = without_indices(key)
    names = [*settings(), *SECTIONS, *(path.removesuffix(".") for path in LOGGER_PATHS)]
    last_words = {name: name.rpartition(".")[2] for name in names}
    near = []
    last_word, known = path.rpartition(".")[2], set(last_words.values())
    # By the last word first, because users remember a name better than its section.
    for word in difflib.get_close_matches(last_word, known, cutoff=0.75):
        near += [name for name, last in last_words.items() if last == word]
    near += difflib.get_close_matches(path, last_words, cutoff=0.75)
    section = path.partition(".")[0]
    distinct = dict.fromkeys(near)
    return sorted(distinct, key=lambda name: name.partition(".")[0] != section)[:3]


def wrong_syntax(text: str, error: Exception) -> str:
    """Return the error message for a command-line override that does not parse."""
    if "=" not in text:
        near = near_matches(text)
        example = next((name for name in near if name in settings()), "trainer.max_steps")
        return f"{text}: pass a setting as KEY=VALUE, for example {example}={settings()[example].default}"
    key, _, value = text.partition("=")
    bare = key.strip().lstrip("-")
    if bare != key and is_key(bare):
        return f"{text}: settings have no dashes and no blanks around =: set {bare}={value.strip()}"
    if as_read := as_structure(key, value):
        return f"{text}: Hydra's override syntax takes keys without quotes: set {as_read}"
    if without_indices(key) in settings():
        return f"{text}: Hydra's override syntax needs quotes here: set {as_list_or_text(key, value)}"
    detail = str(error).splitlines()[:2][-1]  # the first repeats the override
    return (
        f"{text}: not in Hydra's override syntax ({detail}); quote values with special characters, as in 'KEY=\"a, b\"'"
    )


def missing_default(error: Exception, folder: Path) -> str:
    """Return the error message for a YAML whose `defaults` list names a file that does not exist."""
    names = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
    return f"{folder}: {_first_line(error)} Its `defaults` may name brorl_schema or one of {names}"


def explain(error: Exception, file: Path | None) -> str:
    """Return the error message for an exception of Hydra, OmegaConf or the YAML parser.

    The message names the YAML `file` if the wrong value may be in it.
    """
    origin = _innermost(error)
    if isinstance(origin, UnicodeDecodeError):
        return f"{file} is not UTF-8 ({origin.reason}): write it as UTF-8, as `iconv -f LATIN1 -t UTF-8` does"
    if not isinstance(origin, OmegaConfBaseException):
        return f"{file}: {origin}" if file else str(origin)
    where = f" (in {file}, or in what it builds on)" if str(error).startswith("In '") else ""
    return _said(_key(origin), origin) + where


def wrong_section(key: str) -> str:
    """Return the error message for a settings section that was given a single value."""
    first = SECTIONS[without_indices(key)].settings[:3]
    names = ", ".join(setting.path.rpartition(".")[2] for setting in first)
    return f"{key} is a section with settings of its own ({names}, ...): it cannot be given a single value"


def _key(error: OmegaConfBaseException) -> str:
    """Return the settings key that an OmegaConf exception is about.

    OmegaConf gives no key where a section is expected ("int is not a subclass of TrainerConfig"), and inside a list
    only the key's last word.
    """
    key = str(error.full_key or error.key or "")
    if "." in key:
        return key
    for path, section in SECTIONS.items():
        if f"subclass of {section.class_name}." in str(error):
            return path
        if key and section.class_name == getattr(error.object_type, "__name__", ""):
            return f"{path}.{key}"
    return key


def _said(key: str, error: OmegaConfBaseException) -> str:
    if is_section(key):
        return wrong_section(key)
    if isinstance(error, MissingMandatoryValue):
        return f"{key} is required and missing: set {key}=VALUE"
    if isinstance(error, ValidationError) and not isinstance(error, InterpolationResolutionError):
        return _wrong_type(key, error)
    is_unknown = key and not is_key(key)
    return unknown_key(key, key) if is_unknown else f"{key}: {_first_line(error)}".removeprefix(": ")


def _wrong_type(key: str, error: OmegaConfBaseException) -> str:
    setting = settings().get(without_indices(key))
    given = f"{key}={error.value}" if error.value is not None else f"{key}=null"
    if setting is None:
        return f"{given}: {_first_line(error)}"
    kind = re.split(r"[\[ ]", setting.annotation)[0]
    nullable = " or null" if "None" in setting.annotation else ""
    # A null or an empty list is no example of what to write.
    example = f", for example {setting.default}" if setting.default not in ("null", "[]") else ""
    meaning = "" if example else f" ({setting.declared.meaning})"
    return f"{given} must be {TYPE_WORDS.get(kind, kind)}{nullable}{example}{meaning}"


def _innermost(error: BaseException) -> BaseException:
    """Return the OmegaConf exception that caused a Hydra exception, or the exception itself if there is none.

    OmegaConf's exception knows the setting and the setting's value.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    return cause or error


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]
