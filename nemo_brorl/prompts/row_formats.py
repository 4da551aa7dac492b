"""Layouts of rows, those of well-known files by name; docs/data.md says where each comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.prompts.columns import column_of, is_optional


@dataclass(frozen=True)
class RowFormat:
    """Where the fields of a row are, as paths."""

    prompt: str
    answer: str | None  # None: the verifier reads none
    verifier: str  # of rows without one of their own
    payload: Mapping[str, str] = field(default_factory=dict)  # name in the payload -> path; `PATH?` may be missing
    task_path: str | None = None
    verifier_path: str | None = None
    when: tuple[str, str] | None = None  # (path, value): only rows that have this value there

    @property
    def columns(self) -> set[str]:
        """All columns that it reads."""
        own = [self.prompt, self.answer, self.task_path, self.verifier_path]
        if self.when:
            own.append(self.when[0])
        paths = [*own, *self.payload.values()]
        return {column_of(path) for path in paths if path}

    @property
    def required_columns(self) -> set[str]:
        """Those that every row must have."""
        paths = [self.prompt, self.answer]
        if self.when:
            paths.append(self.when[0])
        found = {column_of(path) for path in paths if path}
        for path in self.payload.values():
            if not is_optional(path):
                found.add(column_of(path))
        return found


# name -> formats; the first that fits a row reads it
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
    # agentica-org/DeepScaleR-Preview-Dataset: problem, answer, solution
    "deepscaler": (RowFormat("problem", "answer", "math"),),
    # PRIME-RL/Eurus-2-RL-Data: data_source, prompt (messages), ability, reward_model {style, ground_truth}, extra_info
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
    # EricLu/SCP-116K: domain, problem, solution and solutions of other models
    "scp_116k": (RowFormat("problem", "final:solution", "math", {"domain": "domain?"}),),
    # google/IFEval: key, prompt, instruction_id_list, kwargs
    "ifeval": (
        RowFormat(
            "prompt",
            None,
            "instruction_following",
            {"instruction_id_list": "instruction_id_list", "kwargs": "kwargs", "key": "key?"},
        ),
    ),
}


def row_formats(config: SourceConfig) -> tuple[RowFormat, ...]:
    """The preset with what `columns` and `verifier` say instead; an answer \"\" is none."""
    own = config.columns
    formats = []
    for preset in PRESETS[config.preset]:
        layout = replace(
            preset,
            prompt=own.prompt or preset.prompt,
            answer=preset.answer if own.answer is None else own.answer,
            task_path=own.task or preset.task_path,
            verifier_path=own.verifier or preset.verifier_path,
            payload={**preset.payload, **own.payload},
            verifier=config.verifier or preset.verifier,
        )
        formats.append(layout)
    return tuple(formats)


def columns_of(formats: Sequence[RowFormat]) -> list[str]:
    """All columns that these formats read."""
    columns: set[str] = set()
    for layout in formats:
        columns.update(layout.columns)
    return sorted(columns)
