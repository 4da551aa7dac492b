"""What Hydra and OmegaConf found wrong, in words that name the setting, its value and what to write instead."""

from __future__ import annotations

import dataclasses
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
    "tuple": "a list",
    "dict": "a mapping",
}


def is_key(key: str) -> bool:
    """Whether the schema has this setting, section or list element (`data.tasks.0.name`)."""
    path = _without_indices(key)
    return path in settings() or any(path in (group.path, group.path.removesuffix("[]")) for group in groups())


def free_form_parent(key: str) -> str | None:
    """The mapping with free keys that `key` lies in, if any: `exp_manager.wandb_logger_kwargs` of `….project`."""
    path = _without_indices(key)
    parents = (name for name, setting in settings().items() if setting.is_mapping)
    return next((parent for parent in parents if path.startswith(f"{parent}.")), None)


def unknown_key(key: str, written: str) -> str:
    """The message for a key that no setting has, with near matches."""
    near = near_matches(key)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"{written}: there is no setting '{key}'.{hint} `brorl train --help` lists all settings"


def near_matches(key: str) -> list[str]:
    """Up to three settings that look like `key`: by their last word first, then as a whole."""
    path = _without_indices(key)
    known = [*settings(), *(group.path for group in groups() if group.path and "." not in group.path)]
    by_word: dict[str, list[str]] = {}
    for name in known:
        by_word.setdefault(name.rpartition(".")[2], []).append(name)
    last = path.rpartition(".")[2]
    near = by_word.get(last, []) + difflib.get_close_matches(path, known, n=3, cutoff=0.75)
    for word in difflib.get_close_matches(last, by_word, n=2, cutoff=0.75):
        near += by_word[word]
    return list(dict.fromkeys(near))[:3]


def wrong_syntax(text: str, error: Exception) -> str:
    """The message for an override that does not parse."""
    if "=" not in text:
        near = near_matches(text)
        example = next((name for name in near if name in settings()), "trainer.max_steps")
        return f"{text}: a setting is written KEY=VALUE, for example {example}={settings()[example].default}"
    detail = str(error).splitlines()[1] if "\n" in str(error) else str(error)
    return (
        f"{text}: not in Hydra's override syntax ({detail}); quote values with special characters, as in 'KEY=\"a, b\"'"
    )


def missing_default(error: Exception, folder: Path) -> str:
    """The message for a YAML whose `defaults` list names a file that is not there."""
    names = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
    return f"{folder}: {str(error).splitlines()[0]} Its `defaults` may name brorl_schema or one of {names}"


def explain(error: Exception, file: Path | None) -> str:
    """The message for an exception of Hydra, OmegaConf or the YAML parser; `file` is named where the wrong value may
    stand in it."""
    origin = _innermost(error)
    if not isinstance(origin, OmegaConfBaseException):
        return f"{file}: {origin}" if file else str(origin)
    key = str(origin.full_key or origin.key or _section_named_in(origin) or "")
    where = f" (in {file}, or in what it builds on)" if str(error).startswith("In '") else ""
    if any(_without_indices(key) == group.path for group in groups() if group.path):
        return wrong_section(key) + where
    if isinstance(origin, MissingMandatoryValue):
        return f"{key} is required and missing: write {key}=VALUE{where}"
    if isinstance(origin, InterpolationResolutionError):
        return f"{key}: {_first_line(origin)}{where}"
    if isinstance(origin, ValidationError):
        return _wrong_type(key, origin) + where
    section = origin.object_type if isinstance(origin.object_type, type) else None
    if section is not None and dataclasses.is_dataclass(section) and key:
        return _unknown_field(key, section) + where
    return f"{key}: {_first_line(origin)}{where}" if key else f"{_first_line(origin)}{where}"


def _section_named_in(error: OmegaConfBaseException) -> str | None:
    """The section whose class a message names, where OmegaConf gives no key ("int is not a subclass of
    TrainerConfig")."""
    return next((group.path for group in groups() if f"subclass of {group.class_name}." in str(error)), None)


def is_section(key: str) -> bool:
    """Whether `key` names a group of settings."""
    return any(group.path == key for group in groups() if group.path)


def wrong_section(key: str) -> str:
    """The message for a single value where a section stands."""
    group = next(group for group in groups() if group.path == _without_indices(key))
    names = ", ".join(setting.path.rpartition(".")[2] for setting in group.settings[:3])
    return f"{key} is a section with settings of its own ({names}, ...): it cannot be given a single value"


def _unknown_field(key: str, section: type) -> str:
    """A key that its section lacks; inside lists OmegaConf knows the key's last word only."""
    last = key.rpartition(".")[2]
    near = difflib.get_close_matches(last, [field.name for field in dataclasses.fields(section)], n=2)
    if "." in key or section.__name__ == "BroRLConfig":
        return unknown_key(key, key)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"there is no setting '{key}' in {section.__name__}.{hint}"


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
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return next((cause for cause in chain if isinstance(cause, OmegaConfBaseException)), error)


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0]


def _without_indices(key: str) -> str:
    """`data.tasks.0.name` and `data.tasks[0].name` as the schema writes it: `data.tasks[].name`."""
    return re.sub(r"\.(\d+)(?=\.|$)|\[\d+\]", "[]", key)
