"""Declare settings of prompts: sources, columns, mixtures. The code in `prompts/` checks the contents of files."""

from __future__ import annotations

import datetime
import glob
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brorl_graders.base.environment_values import plain
from omegaconf import MISSING

from nemo_brorl.config.declare import auto, path_setting, section, setting
from nemo_brorl.core.template_files import TemplateSettings

PRESETS = ("plain", "deepscaler", "eurus_2", "scp_116k", "ifeval")
FILE_WORDS = {
    "jsonl": "a file with one JSON object per line",
    "parquet": "a Parquet file",
    "dataset": "the folder of a Hugging Face dataset on disk",
}
ON_A_HUB = re.compile(r"\w+://.*|[\w-]+/[\w-]+")  # an address, or a name such as openai/gsm8k
MARKS = (-1e9, 1e9)  # full marks, which 32 bits hold
TEMPLATE_NAMES = ("messages", "tools", "add_generation_prompt")  # what every chat template gets
SOURCES = ("reasoning_gym", *FILE_WORDS, "environment")


@dataclass
class TaskStageConfig:
    """Settings of a Reasoning Gym task from some question on, as one stage of its curriculum."""

    from_question: int = setting(
        MISSING, "index of the first question with these settings, counted over all tasks of the source", at_least=1
    )
    config: dict[str, Any] = setting({}, "settings that override the task's own")


@dataclass
class TaskConfig:
    """Settings of one Reasoning Gym task in a mixture of tasks."""

    name: str = setting(MISSING, 'Reasoning Gym task; "*": every task that is not listed by name, sharing the weight')
    weight: float = setting(1.0, "share of the questions, relative to the sum of all weights", above=0)
    config: dict[str, Any] = setting({}, "settings of the task")
    stages: list[TaskStageConfig] = setting([], "curriculum by position; held-out questions come from all stages alike")
    levels: list[dict[str, Any]] = setting(
        [],
        "curriculum by success: settings that override the task's own, easiest level first; held-out "
        "questions come from all levels alike",
    )
    promote_from: float = setting(
        0.9, "share of correct rollouts from which the next level follows", above=0, at_most=1
    )
    demote_below: float = setting(
        0.1, "share of correct rollouts below which the previous level follows; 0: never", within=(0, 1)
    )

    def violations_at(self, where: str) -> Iterator[str]:
        """Yield a message for every error in the settings of a Reasoning Gym task.

        `where` is the settings key that holds the task.
        """
        starts = [stage.from_question for stage in self.stages]
        if starts != sorted(set(starts)):
            yield f"{where}: its stages begin at {starts}; set from_question in ascending order"
        if self.levels and self.name == "*":
            yield f'{where}.levels of "*": other tasks have other settings; set levels for tasks by their names'
        if self.levels and self.stages:
            yield f"{where} has stages and levels: set stages, by position, or levels, by success"
        if self.levels and self.demote_below >= self.promote_from:
            yield (
                f"{where}.demote_below={self.demote_below} is not below promote_from={self.promote_from}: set for "
                "example demote_below=0.1 promote_from=0.9"
            )


@dataclass
class ColumnsConfig:
    """Paths of a row's fields (`reward_model.ground_truth`, see docs/howto/data.md); null: the path of data.preset."""

    prompt: str | None = setting(None, "path of the prompt: text, or a list of messages with role and content")
    answer: str | None = setting(
        None, 'path of the reference answer: text, a number, or a list of them; "": the verifier reads none'
    )
    task: str | None = setting(
        None, "path of the name that metrics are grouped by; rows without one use the domain's name"
    )
    verifier: str | None = setting(
        None, "path of the name of the row's verifier, which settings must list; rows without one use the preset's"
    )
    payload: dict[str, str] = setting({}, "further data for the verifier: its name to a path; `path?` may be missing")


@dataclass
class SourceConfig:
    """Settings of one source of questions: files, Reasoning Gym tasks, or an environment."""

    source: str = setting("reasoning_gym", "kind of source; dataset: folder of a Hugging Face dataset", choices=SOURCES)
    tasks: list[TaskConfig] = setting([], "Reasoning Gym tasks, for source=reasoning_gym")
    path: str | None = path_setting(None, "data file, or a pattern of files (`DATA/*.parquet`); for dataset the folder")
    held_out_path: str | None = path_setting(
        None, "file or pattern of questions for validation, in the format of `path`; null: a share of `path`"
    )
    dataset_split: str | None = setting(
        None, "split of a dataset folder with several splits; null: train, if there is one"
    )
    preset: str = setting("plain", "layout of the rows", choices=PRESETS)
    only: dict[str, str] = setting({}, "values by path that a row must have; other rows are skipped")
    columns: ColumnsConfig = section(ColumnsConfig)
    verifier: str | None = setting(None, "verifier that scores the responses; null: the preset's")
    verifier_options: dict[str, Any] = setting({}, "options passed to the verifier with every question")
    success_reward: float | None = setting(
        None,
        "reward from which a response is right, in the scale of your own reward function; "
        "null: 1, the full mark of every built-in verifier",
        within=MARKS,
    )
    environment: str | None = setting(
        None, "environment that replies to the model over several turns: a name or package.module:Class; null: one turn"
    )
    environment_settings: dict[str, Any] = setting({}, "settings of the environment (docs/howto/environments.md)")
    max_bad_rows: int = setting(0, "most rows that may be unusable; they are left out", at_least=0)
    repeated_rows: str = setting(
        "refuse",
        "rows that repeat a question and its answer, but for blanks or case; drop: use each question once",
        choices=("refuse", "drop"),
    )

    def unnamed(self, where: str) -> Iterator[str]:
        """Yield a message for every setting that a source of questions lacks, whose settings key is `where`."""
        if self.source == "reasoning_gym":
            if not self.tasks:
                yield (
                    f"{where}.tasks is empty and {where}.source is reasoning_gym: set for example "
                    f"{where}.tasks=[{{name: chain_sum}}]"
                )
        elif self.source == "environment":
            if self.environment is None:
                yield (
                    f"{where}.source=environment needs {where}.environment: set the one that draws the tasks, for "
                    f"example {where}.environment=mastermind"
                )
        elif self.path is None:
            yield f"{where}.source={self.source} needs {where}.path: set the path of {FILE_WORDS[self.source]}"

    def violations_at(self, where: str) -> Iterator[str]:
        """Yield a message for every error in a source of questions, whose settings key is `where`."""
        if self.verifier is not None and self.columns.verifier is not None:
            yield (
                f"{where}.verifier={self.verifier} and {where}.columns.verifier={self.columns.verifier} both say who "
                "scores a row: set one of them, and null for the other"
            )
        if self.held_out_path is not None and self.held_out_path == self.path:
            yield (
                f"{where}.held_out_path={self.path} is {where}.path, too, and would leave nothing to train on: set "
                f"{where}.held_out_path=null to hold out a share"
            )

    def missing(self, where: str) -> Iterator[str]:
        """Yield a message for every missing setting or file of a source of questions, whose settings key is `where`."""
        yield from self.unnamed(where)
        words, kind = FILE_WORDS.get(self.source), "folder" if self.source == "dataset" else "file"
        for name in ("path", "held_out_path"):
            path = getattr(self, name)
            if words is not None and path is not None and not is_there(path, kind):
                download = ". Download it first: hf download --repo-type dataset NAME --local-dir FOLDER"
                is_name = ON_A_HUB.fullmatch(path) is not None
                yield f"{where}.{name}={path}: there is no such {kind}; set the path of {words}{download * is_name}"


@dataclass
class DomainConfig(SourceConfig):
    """Settings of one source of questions in a mixture."""

    name: str = setting(MISSING, "name of the domain in metrics and prompts")
    weight: float = setting(1.0, "share of the prompts, relative to the sum of all weights", at_least=0)
    success_reward: float | None = setting(
        None, "reward from which a response is right; null: data.success_reward", within=MARKS
    )
    system_prompt: str | None = setting(None, 'system prompt; null: data.system_prompt; "": none')
    max_prompt_tokens: int | None = setting(None, "longest prompt in tokens; null: data.max_prompt_tokens", at_least=1)


@dataclass
class DataConfig(SourceConfig):
    """Sources of the prompts, and the form in which the model gets them."""

    source: str = setting(
        "reasoning_gym",
        "kind of source; dataset: folder of a Hugging Face dataset; mixture: the sources in data.domains",
        choices=(*SOURCES, "mixture"),
    )
    domains: list[DomainConfig] = setting([], "sources of a mixture")
    system_prompt: str | None = setting(None, 'system prompt; null: the row\'s, if it has one; "": none')
    answer_format: str = setting(
        "auto",
        "place of the answer in a response: in <answer> tags, in \\boxed{}, or after the last `answer is`; "
        "auto: the verifier's default",
        choices=("auto", "tags", "boxed", "last"),
    )
    answer_instruction: str | None = setting(
        None,
        "sentence added to questions if neither they nor the system prompt say where the answer goes; "
        'null: the built-in sentence; "": none',
    )
    changed_rows: str = setting(
        "refuse",
        "what a run that goes on does if its rows of data, its tokenizer or the code of its rewards have changed",
        choices=("refuse", "accept"),
        may_change=True,
    )
    chat_template: str | None = setting(
        None,
        "name of the chat template, for a model with several; none: prompts are sent as they are; null: the model's "
        "default",
    )
    template_arguments: dict[str, Any] = setting(
        {}, "arguments of the chat template by name, such as {enable_thinking: false}"
    )
    template_date: str | None = auto(
        "day that a chat template prints, YYYY-MM-DD; null: the first day of the run, if its template prints one"
    )
    prompt_check: str = setting(
        "refuse",
        "what a start does if prompts are not what the model was taught (docs/howto/data.md)",
        choices=("refuse", "warn"),
        may_change=True,
    )
    max_prompt_tokens: int = setting(160, "longest prompt in tokens; longer ones are left out and counted", at_least=1)
    held_out_fraction: float = setting(
        0.1, "share of all questions that is never trained on, chosen by a hash of the question", within=(0, 1)
    )

    def sources(self) -> list[tuple[str, SourceConfig]]:
        """Return every source of questions with a positive weight, each with the settings key that holds it."""
        if self.source != "mixture":
            return [("data", self)]
        sections: list[tuple[str, SourceConfig]] = []
        for index, domain in enumerate(self.domains):
            if domain.weight > 0:
                sections.append((f"data.domains.{index}", domain))
        return sections

    @property
    def template(self) -> TemplateSettings:
        """Which chat template writes the prompts, and with which arguments."""
        return TemplateSettings(self.chat_template, plain(self.template_arguments), self.template_date)

    def violations(self) -> Iterator[str]:
        yield from self._template_violations()
        if self.held_out_fraction == 1:
            yield "data.held_out_fraction=1.0 leaves nothing to train on: set a share below 1, for example 0.1"
        if self.source == "mixture":
            yield from self._mixture_violations()
        elif self.domains:
            yield f"data.domains is set and data.source={self.source}: set data.source=mixture, or data.domains=[]"
        for where, source in self.sources():
            yield from source.violations_at(where)
            for name, times in repeated(task.name for task in source.tasks):
                yield f"{where}.tasks names {name} {times} times: set it once with a larger weight"
            for task in source.tasks:
                yield from task.violations_at(f"{where}.tasks.{task.name}")
            if source.environment is None and source.environment_settings:
                yield (
                    f"{where}.environment_settings is set and {where}.environment is not: set its name, or leave "
                    "them out"
                )
            seconds = source.verifier_options.get("timeout_s", 1.0)
            if type(seconds) not in (int, float) or not 0 < seconds < math.inf:
                yield (
                    f"{where}.verifier_options.timeout_s={seconds} must be a number above 0: set the seconds for one "
                    "response"
                )

    def _template_violations(self) -> Iterator[str]:
        for name in TEMPLATE_NAMES:
            if name in self.template_arguments:
                yield (
                    f"data.template_arguments.{name} is what every chat template gets from the questions: leave it out"
                )
        try:
            datetime.date.fromisoformat(self.template_date or "2026-01-01")
        except ValueError:
            yield f"data.template_date={self.template_date} is no day: set for example data.template_date=2026-11-28"

    def _mixture_violations(self) -> Iterator[str]:
        if not self.domains:
            yield (
                "data.source=mixture needs data.domains: set for example data.domains=[{name: math, source: jsonl, "
                "path: FILE}]"
            )
        elif sum(domain.weight for domain in self.domains) <= 0:
            yield "the weights of data.domains sum to 0: set one above 0"
        for name, times in repeated(domain.name for domain in self.domains):
            yield f"data.domains names {name} {times} times: give each domain a name of its own"
        for index, domain in enumerate(self.domains):
            where, limit = f"data.domains.{index}", domain.max_prompt_tokens
            if not domain.name or "/" in domain.name:
                yield f"{where}.name={domain.name!r}: set a name without a slash; metrics and prompts carry it"
            if limit is not None and limit > self.max_prompt_tokens:
                yield (
                    f"{where}.max_prompt_tokens={limit} is above data.max_prompt_tokens={self.max_prompt_tokens}, "
                    f"which the engines make room for: set data.max_prompt_tokens={limit}"
                )


def is_there(path: str, kind: str) -> bool:
    """Return whether a folder, or at least one file that matches a pattern, exists."""
    if kind == "folder":
        return Path(path).is_dir()
    files = [path, *glob.iglob(path, recursive=True)]
    return any(Path(name).is_file() for name in files)


def repeated(names: Iterable[str]) -> list[tuple[str, int]]:
    """Return every entry of a list of names that occurs more than once, with its count, in alphabetical order."""
    counted = sorted(Counter(names).items())
    return [(name, times) for name, times in counted if times > 1]
