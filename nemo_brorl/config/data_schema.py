"""Settings of prompts: sources, columns, mixtures (`schema.py` puts the sections together)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class TaskStageConfig:
    """A change of a task's settings as training goes on."""

    from_question: int = MISSING  # from this question of the source on, counted over all of its tasks
    config: dict[str, Any] = field(default_factory=dict)  # laid over the task's own


@dataclass
class TaskConfig:
    """One Reasoning Gym task in the mixture."""

    name: str = MISSING  # "*": every task that is not named beside it, sharing the weight
    weight: float = 1.0
    config: dict[str, Any] = field(default_factory=dict)  # the task's own settings
    stages: list[TaskStageConfig] = field(
        default_factory=list
    )  # a curriculum; held-out questions are of all stages alike


@dataclass
class ColumnsConfig:
    """Where the fields of a row are, as paths (`reward_model.ground_truth`; docs/data.md); null: as data.preset
    says."""

    prompt: str | None = None  # text, or a list of messages with role and content
    answer: str | None = None  # text, a number, or a list of those; "": the verifier reads none
    task: str | None = None  # metrics are grouped by it; rows without one take the domain's name
    verifier: str | None = None  # which verifier scores the row; rows without one take data.verifier
    payload: dict[str, str] = field(
        default_factory=dict
    )  # what else the verifier reads: its name to a path; `path?` may be missing


@dataclass
class SourceConfig:
    """One source of questions."""

    source: str = "reasoning_gym"  # reasoning_gym, jsonl, parquet, dataset (a folder), mixture (of data.domains)
    tasks: list[TaskConfig] = field(default_factory=list)  # reasoning_gym
    path: str | None = None  # a file, or a pattern of files (`DATA/*.parquet`); for dataset the folder
    # questions for validation of their own, in the same format; null: a share of `path`
    held_out_path: str | None = None
    dataset_split: str | None = None  # of a dataset folder with several; null: train, where there is one
    preset: str = "plain"  # how rows are laid out: plain, deepscaler, eurus_2, scp_116k, ifeval
    only: dict[str, str] = field(default_factory=dict)  # rows with these values at these paths; others are passed over
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)  # on top of the preset
    verifier: str | None = None  # scores the answers; null: as the preset says
    verifier_options: dict[str, Any] = field(default_factory=dict)  # handed to the verifier with every question
    max_bad_rows: int = 0  # rows that cannot be used, repeated questions among them, are left out up to this many


@dataclass
class DomainConfig(SourceConfig):
    """A source in a mixture."""

    name: str = MISSING
    weight: float = 1.0  # its share of the prompts, over the sum of all weights
    system_prompt: str | None = None  # null: data.system_prompt; "" for none
    max_prompt_tokens: int | None = None  # null: data.max_prompt_tokens


@dataclass
class DataConfig(SourceConfig):
    """Where prompts come from."""

    domains: list[DomainConfig] = field(default_factory=list)  # mixture
    system_prompt: str | None = None  # null: that of the row, if it has one; "" for none
    max_prompt_tokens: int = 160  # longer ones are left out and counted
    held_out_fraction: float = 0.1  # of all questions, chosen by a hash of the question; never trained on
