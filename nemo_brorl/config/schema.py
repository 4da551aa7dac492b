"""Define the configuration of a whole run from its sections, and list all settings.

OmegaConf refuses unknown keys and wrong types. The list is the source of `--help`, docs/configuration.md and the near
matches of error messages.

The defaults are those of `conf/brorl_cpu.yaml`: the whole stack on a two-core machine. This package imports neither
torch nor NeMo, so that `--help` and a wrong setting answer at once.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

import yaml

from nemo_brorl.config.algorithm import (
    AlgorithmConfig,
)
from nemo_brorl.config.data import DataConfig
from nemo_brorl.config.declare import Declaration, declaration, section
from nemo_brorl.config.evaluation import EvaluationConfig
from nemo_brorl.config.generation import GenerationConfig
from nemo_brorl.config.parity import ParityConfig
from nemo_brorl.config.policy import PolicyConfig
from nemo_brorl.config.records import ProfileConfig, StoreConfig, TimelineConfig
from nemo_brorl.config.rewards import (
    RewardsConfig,
)
from nemo_brorl.config.rollouts import (
    DynamicSamplingConfig,
    RolloutsConfig,
)
from nemo_brorl.config.sft import SftConfig
from nemo_brorl.config.trackers import ExpManagerConfig
from nemo_brorl.config.trainer import TrainerConfig


@dataclass
class BroRLConfig:
    """Configuration of a whole run."""

    trainer: TrainerConfig = section(TrainerConfig)
    exp_manager: ExpManagerConfig = section(ExpManagerConfig, may_change=True)
    policy: PolicyConfig = section(PolicyConfig)
    generation: GenerationConfig = section(GenerationConfig)
    rollouts: RolloutsConfig = section(RolloutsConfig)
    dynamic_sampling: DynamicSamplingConfig = section(DynamicSamplingConfig, may_change=True)
    algorithm: AlgorithmConfig = section(AlgorithmConfig)
    data: DataConfig = section(DataConfig)
    rewards: RewardsConfig = section(RewardsConfig)
    evaluation: EvaluationConfig = section(EvaluationConfig)
    parity: ParityConfig = section(ParityConfig, may_change=True)
    store: StoreConfig = section(StoreConfig, may_change=True)
    timeline: TimelineConfig = section(TimelineConfig, may_change=True)
    profile: ProfileConfig = section(ProfileConfig, may_change=True)
    sft: SftConfig = section(SftConfig, may_change=True)


@dataclass(frozen=True)
class Setting:
    """A setting: one leaf of the settings tree, such as policy.optim.lr."""

    path: str  # for example "policy.optim.lr"; settings of a list's elements look like "data.tasks[].name"
    annotation: str  # type as declared: "float", "str | None"
    default: str  # default in YAML; "required" where there is none
    declared: Declaration
    may_change: bool  # True: it, or its whole section, may change when a run is resumed

    @property
    def is_mapping(self) -> bool:
        """True if the setting is a mapping with free keys."""
        return self.annotation.startswith("dict[")


@dataclass(frozen=True)
class SettingSection:
    """One section of the YAML configuration."""

    path: str  # for example "policy.optim"
    class_name: str  # for example "OptimConfig"
    summary: str
    settings: tuple[Setting, ...]


@cache
def groups() -> tuple[SettingSection, ...]:
    """Return every section of a run's settings, outer before inner, in order of declaration."""
    return tuple(_walk(BroRLConfig, "", may_change=False))


@cache
def settings() -> dict[str, Setting]:
    """Return every setting of a run by its dotted path."""
    by_path = {}
    for group in groups():
        by_path.update({setting.path: setting for setting in group.settings})
    return by_path


def without_indices(key: str) -> str:
    """Return a settings key in the schema's form.

    For example, `data.tasks.0.name` and `data.tasks[0].name` become `data.tasks[].name`.
    """
    return re.sub(r"\.(\d+)(?=\.|$)|\[\d+\]", "[]", key)


def section_of(declared_in: type, path: str) -> SettingSection:
    """Return the description of the settings section that a dataclass declares, without sections nested in it.

    The names of the settings are those that they would have if the section stood at `path`.
    """
    return _walk(declared_in, f"{path}.", may_change=False)[0]


def _walk(section: type, prefix: str, may_change: bool) -> list[SettingSection]:
    hints = get_type_hints(section)
    declared_settings: list[Setting] = []
    inner: list[SettingSection] = []
    for field in dataclasses.fields(section):
        path, hint, declared = f"{prefix}{field.name}", hints[field.name], declaration(field)
        may_field_change = may_change or declared.may_change
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            inner += _walk(hint, f"{path}.", may_field_change)
            continue
        declared_settings.append(Setting(path, str(field.type), _default(field), declared, may_field_change))
        for element in get_args(hint):
            if isinstance(element, type) and dataclasses.is_dataclass(element):
                inner += _walk(element, f"{path}[].", may_field_change)
    summary = " ".join((section.__doc__ or "").split())
    group = SettingSection(prefix.removesuffix("."), section.__name__, summary, tuple(declared_settings))
    return [group, *inner]


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return "required" if value == "???" else as_yaml(value)  # OmegaConf's MISSING


def as_yaml(value: object) -> str:
    """Return a value on one line, as written in YAML or after `KEY=`."""
    if isinstance(value, float):
        return repr(value)
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
