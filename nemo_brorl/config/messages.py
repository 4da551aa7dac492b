"""What Hydra and OmegaConf found wrong, in words that name the setting, its value and what to write instead."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from omegaconf.errors import (
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

from nemo_brorl.config.schema import groups, settings

TYPE_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list": "a list",
    "dict": "a mapping",
}
SECTIONS = {group.path: group for group in groups() if group.path}


def is_section(key: str) -> bool:
    """Whether `key` names a group of settings."""
    return _without_indices(key) in SECTIONS


def is_key(key: str) -> bool:
    """Whether the schema has this setting, section or list element (`data.tasks.0.name`)."""
    return is_section(key) or _without_indices(key) in settings()


def is_free_form(key: str) -> bool:
    """Whether `key` is a mapping with free keys, or lies in one: `exp_manager.wandb_logger_kwargs.project`."""
    path = f"{_without_indices(key)}."
    return any(setting.is_mapping and path.startswith(f"{name}.") for name, setting in settings().items())


def unknown_key(key: str, written: str) -> str:
    """The message for a key that no setting has, with near matches."""
    near = near_matches(key)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"{written}: there is no setting '{key}'.{hint} `brorl train --help` lists all settings"


def near_matches(key: str) -> list[str]:
    """Up to three settings and sections that look like `key` in their last word or as a whole, those of its section
    first."""
    path = _without_indices(key)
    last_words = {name: name.rpartition(".")[2] for name in [*settings(), *SECTIONS]}
    near = []
    last_word, known = path.rpartition(".")[2], set(last_words.values())
    for word in difflib.get_close_matches(last_word, known, cutoff=0.75):
        near += [name for name, last in last_words.items() if last == word]
    near += difflib.get_close_matches(path, last_words, cutoff=0.75)
    section = path.partition(".")[0]
    found = dict.fromkeys(near)
    return sorted(found, key=lambda name: name.partition(".")[0] != section)[:3]


def wrong_syntax(text: str, error: Exception) -> str:
    """The message for an override that does not parse."""
    if "=" not in text:
        near = near_matches(text)
        example = next((name for name in near if name in settings()), "trainer.max_steps")
        return f"{text}: a setting is written KEY=VALUE, for example {example}={settings()[example].default}"
    detail = str(error).splitlines()[:2][-1]  # the first repeats the override
    return (
        f"{text}: not in Hydra's override syntax ({detail}); quote values with special characters, as in 'KEY=\"a, b\"'"
    )


def missing_default(error: Exception, folder: Path) -> str:
    """The message for a YAML whose `defaults` list names a file that is not there."""
    names = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
    return f"{folder}: {_first_line(error)} Its `defaults` may name brorl_schema or one of {names}"


def explain(error: Exception, file: Path | None) -> str:
    """The message for an exception of Hydra, OmegaConf or the YAML parser; `file` is named where the wrong value may
    stand in it."""
    origin = _innermost(error)
    if not isinstance(origin, OmegaConfBaseException):
        return f"{file}: {origin}" if file else str(origin)
    where = f" (in {file}, or in what it builds on)" if str(error).startswith("In '") else ""
    return _said(_key(origin), origin) + where


def wrong_section(key: str) -> str:
    """The message for a single value where a section stands."""
    first = SECTIONS[_without_indices(key)].settings[:3]
    names = ", ".join(setting.path.rpartition(".")[2] for setting in first)
    return f"{key} is a section with settings of its own ({names}, ...): it cannot be given a single value"


def _key(error: OmegaConfBaseException) -> str:
    """Where an exception says that something is wrong. OmegaConf gives no key where a section is expected ("int is not
    a subclass of TrainerConfig"), and inside a list the key's last word alone."""
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
        return f"{key} is required and missing: write {key}=VALUE"
    if isinstance(error, ValidationError) and not isinstance(error, InterpolationResolutionError):
        return _wrong_type(key, error)
    is_unknown = key and not is_key(key)
    return unknown_key(key, key) if is_unknown else f"{key}: {_first_line(error)}".removeprefix(": ")


def _wrong_type(key: str, error: OmegaConfBaseException) -> str:
    setting = settings().get(_without_indices(key))
    given = f"{key}={error.value}" if error.value is not None else f"{key}=null"
    if setting is None:
        return f"{given}: {_first_line(error)}"
    kind = re.split(r"[\[ ]", setting.annotation)[0]
    nullable = " or null" if "None" in setting.annotation else ""
    return f"{given} must be {TYPE_WORDS.get(kind, kind)}{nullable}, for example {setting.default}"


def _innermost(error: BaseException) -> BaseException:
    """OmegaConf's exception behind Hydra's, where there is one: it knows the setting and its value."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    return cause or error


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]


def _without_indices(key: str) -> str:
    """`data.tasks.0.name` and `data.tasks[0].name` as the schema writes it: `data.tasks[].name`."""
    return re.sub(r"\.(\d+)(?=\.|$)|\[\d+\]", "[]", key)
