"""Declare a setting: its default, meaning, allowed values, and whether it may change when a run is resumed.

Everything else reads the declaration: `--help`, docs/configuration.md, the checks of single values below, and the
comparison with the settings that a run was started with.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args, get_type_hints

from brorl_graders.base.components import is_import_path, typed_params

from nemo_brorl.core.errors import ConfigError

DECLARATION = "declaration"  # key of the declaration in a field's metadata
FUNCTION = "package.module:function"
PLAIN = (int, float, str)


@dataclass(frozen=True)
class Range:
    """A range of finite numbers from `low` to `high`, both included unless `is_open`."""

    low: float
    high: float = math.inf
    is_open: bool = False  # True: `low` itself is refused

    def holds(self, value: float) -> bool:
        above = value > self.low if self.is_open else value >= self.low
        return above and value <= self.high and math.isfinite(value)

    def __str__(self) -> str:
        low, high = f"{self.low:.10g}", f"{self.high:.10g}"
        if self.high == math.inf:
            return f"above {low}" if self.is_open else f"of at least {low}"
        return f"above {low}, at most {high}" if self.is_open else f"from {low} to {high}"


@dataclass(frozen=True)
class Declaration:
    """Metadata of a setting: meaning, range or choices, and whether it may change."""

    meaning: str = ""  # "" where the name says everything
    range: Range | None = None
    choices: tuple[str | None, ...] = ()  # empty: any value of the type; with FUNCTION: also a function of the user
    may_change: bool = False  # True: may change when a run is resumed; finished steps keep the old value
    is_auto: bool = False  # True: null, also written `auto`, is a size that `config/sizes.py` chooses
    is_path: bool = False  # True: it names files or folders, where `~` is the home folder

    @property
    def allowed(self) -> str:
        """Range or choices of the setting in words, or "" where its type says everything."""
        if self.range is not None:
            return str(self.range)
        return ", ".join(choice or "null" for choice in self.choices)

    def refusal(self, name: str, value: Any) -> str | None:
        """Return the error message for a wrong value of setting `name`, or None for a valid one."""
        if self.range is not None and value is not None and not self.range.holds(value):
            return f"{name}={value} is out of range: set a number {self.allowed}"
        is_function = FUNCTION in self.choices and is_import_path(str(value))
        if self.choices and value not in self.choices and not is_function:
            return f"{name}={value} is not known: set one of {self.allowed}"
        return None


def setting(
    default: Any,
    meaning: str = "",
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float = math.inf,
    within: tuple[float, float] | None = None,
    choices: Sequence[str | None] = (),
    may_change: bool = False,
    is_auto: bool = False,
) -> Any:
    """Declare a setting as a dataclass field of its section.

    `meaning` is its help text. `at_least`, `above` with `at_most`, and `within` bound a number. `choices` lists the
    allowed values. A list or mapping given as default is copied for every section.
    """
    numbers = None
    if within is not None:
        numbers = Range(*within)
    elif above is not None:
        numbers = Range(above, at_most, is_open=True)
    elif at_least is not None:
        numbers = Range(at_least)
    return _field(default, Declaration(meaning, numbers, tuple(choices), may_change, is_auto))


def path_setting(default: Any, meaning: str, *, may_change: bool = False) -> Any:
    """Declare a setting that names files or folders, in which `~` is the user's home folder."""
    return _field(default, Declaration(meaning, may_change=may_change, is_path=True))


def _field(default: Any, declared: Declaration) -> Any:
    metadata = {DECLARATION: declared}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


# Declares a size that `config/sizes.py` chooses for model, data and machine if the user sets none.
auto = partial(setting, None, is_auto=True)


def section(kind: type, *, may_change: bool = False) -> Any:
    """Declare a dataclass field that holds a section of settings.

    `may_change` applies to all settings of the section.
    """
    return dataclasses.field(default_factory=kind, metadata={DECLARATION: Declaration(may_change=may_change)})


def declaration(field: dataclasses.Field[Any]) -> Declaration:
    """Return the declaration of a setting, which is stored in the metadata of its dataclass field."""
    declared: Declaration = field.metadata[DECLARATION]
    return declared


def restore_words(within: Any) -> None:
    """Put back the words on and off in a section of settings, where YAML 1.1 has read them as booleans."""
    for field in dataclasses.fields(within):
        value = getattr(within, field.name)
        for element in value if isinstance(value, list) else [value]:
            if dataclasses.is_dataclass(element):
                restore_words(element)
        # OmegaConf has made a text of the boolean.
        for text, word in (("True", "on"), ("False", "off")):
            if value == text and word in declaration(field).choices:
                setattr(within, field.name, word)


def wrong_values(within: Any, prefix: str = "") -> Iterator[str]:
    """Yield a message for every number out of range and every unknown name in a section of settings.

    Sections inside it are checked, too.
    """
    hints = get_type_hints(type(within))
    for field in dataclasses.fields(within):
        value, name = getattr(within, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from wrong_values(value, f"{name}.")
        for index, element in enumerate(value if isinstance(value, list) else ()):
            if dataclasses.is_dataclass(element):
                yield from wrong_values(element, f"{name}.{index}.")
        if _holds_more_than_plain(value, hints[field.name]):
            yield f"{name}={value} holds a list or a mapping: set plain values alone"
        refusal = declaration(field).refusal(name, value)
        if refusal is not None:
            yield refusal


def wrong_params(where: str, kind: type, params: object) -> Iterator[str]:
    """Yield a message for every error in a mapping of parameters, such as those of a verifier.

    `where` is the setting that holds the mapping, and `kind` is the dataclass that declares the parameters.
    """
    if not isinstance(params, Mapping):
        yield f"{where}={params}: set a mapping of {', '.join(field.name for field in dataclasses.fields(kind))}"
        return
    try:
        typed = typed_params(where, where.rpartition(".")[2], kind, params)
    except ConfigError as error:
        yield str(error)
        return
    yield from wrong_values(typed, f"{where}.")
    for name, value in params.items():
        if getattr(typed, name) != value:
            yield f"{where}.{name}={value!r} is a text: set {getattr(typed, name)}"


def _holds_more_than_plain(value: Any, hint: Any) -> bool:
    """Return whether a setting that takes a list or mapping of plain values contains a nested list or mapping.

    OmegaConf does not refuse such a value.
    """
    kinds = get_args(hint)
    if not kinds or kinds[-1] not in PLAIN:
        return False
    elements = value.values() if isinstance(value, dict) else value
    return any(isinstance(element, list | dict) for element in elements)
