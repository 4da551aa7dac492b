"""What settings exist, read off `schema.py`: paths, types, defaults and the comment behind each field.

One source for `--help`, for docs/configuration.md and for the near matches in error messages.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import tokenize
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

import yaml

from nemo_brorl.config import (
    data_schema,
    evaluation_schema,
    generation_schema,
    policy_schema,
    reward_schema,
    rollout_schema,
    schema,
)


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
    fields = _fields()
    own: list[Setting] = []
    inner: list[Group] = []
    for field in dataclasses.fields(section):
        path = f"{prefix}{field.name}"
        element = _section_inside(hints[field.name])
        if dataclasses.is_dataclass(hints[field.name]):
            inner.extend(_walk(hints[field.name], f"{path}."))
            continue
        annotation, comment = next(
            fields[kind.__name__, field.name] for kind in section.__mro__ if (kind.__name__, field.name) in fields
        )
        own.append(Setting(path, annotation, _default(field), comment))
        if element is not None:
            inner.extend(_walk(element, f"{path}[]."))
    summary = (section.__doc__ or "").strip().splitlines()[0]
    return [Group(prefix.removesuffix("."), section.__name__, summary, tuple(own)), *inner]


def _section_inside(hint: Any) -> type | None:
    """The dataclass that is the element of a list type."""
    return next(
        (argument for argument in get_args(hint) if isinstance(argument, type) and dataclasses.is_dataclass(argument)),
        None,
    )


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
def _fields() -> dict[tuple[str, str], tuple[str, str]]:
    """(class, field) to its annotation and the comment behind it."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for module in (
        schema,
        data_schema,
        evaluation_schema,
        generation_schema,
        policy_schema,
        rollout_schema,
        reward_schema,
    ):
        found |= declared_fields(inspect.getsource(module))
    return found


def declared_fields(source: str) -> dict[tuple[str, str], tuple[str, str]]:
    """(class, field) to its annotation and its comment: the one behind it, else the lines of comment right above it."""
    comments = _comments_by_line(source)
    found = {}
    for section in ast.parse(source).body:
        if not isinstance(section, ast.ClassDef):
            continue
        for field in section.body:
            if isinstance(field, ast.AnnAssign):
                comment = comments.get(field.end_lineno or field.lineno) or comments.get(field.lineno, "")
                found[section.name, ast.unparse(field.target)] = (ast.unparse(field.annotation), comment)
    return found


def _comments_by_line(source: str) -> dict[int, str]:
    """Comment of each line of code: the one behind it, else the lines of comment right above it."""
    found: dict[int, str] = {}
    above: list[str] = []
    for number, line in enumerate(source.splitlines(), start=1):
        if line.lstrip().startswith("#"):
            above.append(line.strip().lstrip("# "))
            continue
        if above:
            found[number] = " ".join(above)
        above = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.line[: token.start[1]].strip():
            found[token.start[0]] = token.string.lstrip("# ")
    return found
