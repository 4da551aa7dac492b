"""Define row layouts, with presets for well-known files; docs/configuration.md has a table of the presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from brorl_graders.base.components import is_import_path

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.config.named_verifiers import with_parts
from nemo_brorl.prompts.columns import column_of, is_optional


@dataclass(frozen=True)
class RowFormat:
    """Layout of a data file's rows: the paths of prompt, answer, payload, task and verifier."""

    prompt: str
    answer: str | None  # None: the verifier reads none
    verifier: str  # verifier of rows that name none
    payload: Mapping[str, str] = field(default_factory=dict)  # paths by name in the payload; `PATH?` may be missing
    task_path: str | None = None
    verifier_path: str | None = None
    when: tuple[str, str] | None = None  # (path, value): the format is for rows with this value at this path
    start_path: str | None = None  # path of code that a response must begin with, which is added to the prompt

    @property
    def columns(self) -> set[str]:
        """All columns of a data file that the row format reads."""
        single_paths = [self.prompt, self.answer, self.task_path, self.verifier_path, self.start_path]
        if self.when:
            single_paths.append(self.when[0])
        paths = [*single_paths, *self.payload.values()]
        return {column_of(path) for path in paths if path}

    @property
    def required_columns(self) -> set[str]:
        """Columns that every row of a data file must have to be read in this row format."""
        paths = [self.prompt, self.answer, *self.payload.values()]
        if self.when:
            paths.append(self.when[0])
        return {column_of(path) for path in paths if path and not is_optional(path)}


# Public data set whose files a preset reads, by name of the preset.
DATA_SETS = {
    "plain": "your own files",
    "deepscaler": "agentica-org/DeepScaleR-Preview-Dataset",
    "eurus_2": "PRIME-RL/Eurus-2-RL-Data",
    "scp_116k": "EricLu/SCP-116K",
    "ifeval": "google/IFEval (`input_data.jsonl`)",
}

# Formats by name of the preset. The first format that fits a row reads it. A comment lists all columns of the data set.
PRESETS: dict[str, tuple[RowFormat, ...]] = {
    "plain": (
        RowFormat(
            "prompt",
            "answer",
            "exact_match",
            {"metadata": "metadata?"},
            task_path="task",
        ),
    ),
    # problem, answer, solution
    "deepscaler": (RowFormat("problem", "answer", "math"),),
    # data_source, prompt (messages), ability, reward_model {style, ground_truth}, extra_info
    "eurus_2": (
        RowFormat(
            "prompt",
            "reward_model.ground_truth",
            "math",
            {"data_source": "data_source?"},
            when=("ability", "math"),
        ),
        RowFormat(
            "prompt",
            None,
            "code",
            {"tests": "json:reward_model.ground_truth", "data_source": "data_source?"},
            when=("ability", "code"),
        ),
    ),
    # domain, problem, solution and solutions of other models
    "scp_116k": (RowFormat("problem", "final:solution", "math", {"domain": "domain?"}),),
    # key, prompt, instruction_id_list, kwargs
    "ifeval": (
        RowFormat(
            "prompt",
            None,
            "instruction_following",
            {"instruction_id_list": "instruction_id_list", "kwargs": "kwargs", "key": "key?"},
        ),
    ),
}


def row_formats(config: SourceConfig, recognised: Sequence[RowFormat] = ()) -> tuple[RowFormat, ...]:
    """Return the row formats of a data source's preset, changed by the source's settings `columns` and `verifier`.

    `recognised` formats replace those of the preset. An empty answer column means that the verifier reads no reference
    answer. A function of the user's own need not read one.
    """
    columns = config.columns
    formats = []
    for preset in recognised or PRESETS[config.preset]:
        answer = preset.answer
        if config.verifier and ":" in config.verifier and answer and not is_optional(answer):
            answer = f"{answer}?"
        layout = replace(
            preset,
            prompt=columns.prompt or preset.prompt,
            answer=answer if columns.answer is None else columns.answer,
            task_path=columns.task or preset.task_path,
            verifier_path=columns.verifier or preset.verifier_path,
            payload={**preset.payload, **columns.payload},
            verifier=config.verifier or preset.verifier,
        )
        formats.append(layout)
    return tuple(formats)


def columns_of(formats: Sequence[RowFormat], options: Mapping[str, Any]) -> list[str] | None:
    """Return all columns of a data file that the given row formats read, sorted, or None for every column.

    A reward function of the user's own gets them all, also as a part of a composition in a verifier's `options`.
    """
    columns: set[str] = set()
    for layout in formats:
        named = [verifier.name for verifier in with_parts("", layout.verifier, options)]
        if layout.verifier_path or any(map(is_import_path, named)):
            return None
    for layout in formats:
        columns.update(layout.columns)
    return sorted(columns)
