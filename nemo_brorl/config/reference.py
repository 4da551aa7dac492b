"""What settings exist, read off `schema.py`: paths, types, defaults and the comment behind each field.

One source for `--help`, for docs/configuration.md and for the near matches in error messages.
"""

from __future__ import annotations

import ast
import dataclasses
import io
import tokenize
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from nemo_brorl.config import schema


@dataclass(frozen=True)
class Setting:
    """One leaf of the settings tree."""

    path: str  # "policy.optim.lr"; settings of a list's elements are written "data.tasks[].name"
    annotation: str  # as in schema.py: "float", "str | None"
    default: str  # as one would write it in YAML; "required" where there is none
    comment: str  # "" where the name says it all

    @property
    def is_mapping(self) -> bool:
        """Whether any key may be put below it."""
        return self.annotation.startswith("dict[")

    @property
    def is_number(self) -> bool:
        return self.annotation.split(" | ")[0] in ("int", "float")


@dataclass(frozen=True)
class Group:
    """One dataclass of the schema: a section of the YAML."""

    path: str  # "policy.optim"
    class_name: str  # "OptimConfig"
    summary: str
    settings: tuple[Setting, ...]


@cache
def groups() -> tuple[Group, ...]:
    """Every section of a configuration, outer before inner, in the order of `schema.py`."""
    return tuple(_walk(schema.BroRLConfig, ""))


@cache
def settings() -> dict[str, Setting]:
    """Every setting by its path."""
    return {setting.path: setting for group in groups() for setting in group.settings}


def help_text(command: str, description: str) -> str:
    """The answer to `--help`: how to call the command, then every setting with type, default and meaning."""
    lines = [
        f"usage: brorl {command} [--config-name NAME] [--config-path FOLDER] [KEY=VALUE ...]",
        "",
        description,
        "",
        "  --config-name NAME    a YAML of conf/ (default: brorl_cpu)",
        "  --config-path FOLDER  look for the YAML there; it may build on the shipped ones",
        "  --print-config        print the resolved configuration and stop",
        "  KEY=VALUE             any setting below, in Hydra's override syntax: rollouts.num_per_prompt=64",
        "",
    ]
    for group in groups():
        if group.settings:
            lines.append(f"{group.path}: {group.summary}")
            lines.extend(_help_line(setting) for setting in group.settings)
            lines.append("")
    return "\n".join(lines)


def _help_line(setting: Setting) -> str:
    what = f"{setting.path}={setting.default}"
    return f"  {what:<52} {setting.annotation:<22} {setting.comment}".rstrip()


def _walk(section: type, prefix: str) -> list[Group]:
    hints = get_type_hints(section)
    annotations, comments = _annotations(), _comments()
    own: list[Setting] = []
    inner: list[Group] = []
    for field in dataclasses.fields(section):
        path = f"{prefix}{field.name}"
        element = _section_inside(hints[field.name])
        if dataclasses.is_dataclass(hints[field.name]):
            inner.extend(_walk(hints[field.name], f"{path}."))
            continue
        key = (section.__name__, field.name)
        own.append(Setting(path, annotations[key], _default(field), comments.get(key, "")))
        if element is not None:
            inner.extend(_walk(element, f"{path}[]."))
    summary = (section.__doc__ or "").strip().splitlines()[0]
    return [Group(prefix.removesuffix("."), section.__name__, summary, tuple(own)), *inner]


def _section_inside(hint: Any) -> type | None:
    """The dataclass that is the element of a list type."""
    return next((argument for argument in get_args(hint) if isinstance(argument, type) and dataclasses.is_dataclass(argument)), None)


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value == "???":  # OmegaConf's MISSING
        return "required"
    return as_yaml(value)


def as_yaml(value: object) -> str:
    """A value on one line, as one would write it in YAML or behind `KEY=`."""
    plain = list(value) if isinstance(value, tuple) else value
    if isinstance(plain, float):
        return repr(plain)
    return yaml.safe_dump(plain, default_flow_style=True, width=10_000).removesuffix("...\n").strip()


@cache
def _schema_source() -> str:
    return Path(schema.__file__).read_text(encoding="utf-8")


@cache
def _fields() -> dict[tuple[str, str], ast.AnnAssign]:
    """(class, field) to the line that declares it."""
    return {
        (section.name, field.target.id): field
        for section in ast.parse(_schema_source()).body
        if isinstance(section, ast.ClassDef)
        for field in section.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


@cache
def _annotations() -> dict[tuple[str, str], str]:
    return {key: ast.unparse(field.annotation) for key, field in _fields().items()}


@cache
def _comments() -> dict[tuple[str, str], str]:
    """(class, field) to the comment behind it."""
    tokens = tokenize.generate_tokens(io.StringIO(_schema_source()).readline)
    by_line = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    return {key: by_line[field.lineno] for key, field in _fields().items() if field.lineno in by_line}
