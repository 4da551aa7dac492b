r"""Layouts of rows, those of well-known files by name (docs/data.md says where each comes from), and the question in a
row.

Columns are named by paths into a row: `extra_info.index`, `messages.0.content`. A path into a text reads the text as
JSON first (`reward_model.ground_truth.inputs`). `json:PATH` reads the text at its end as JSON. `final:PATH` takes the
final answer out of a worked solution: its last box (`\boxed{4}`), or else what follows its last `####` or "answer is".
`PATH?` may be missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from brorl_graders.verifiers.answer import boxed_answers
from brorl_graders.verifiers.registry import check_payload

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.core.errors import BroRLError, DataError, NotAllowedError
from nemo_brorl.prompts.questions import BadRow, Question

ABSENT = object()
MAX_FINAL = 200  # characters of a final answer; what is longer is prose
_MARK = re.compile(r"(?:####|\banswer\s*(?:is|:|=))[ :]*", re.IGNORECASE)


def column_of(path: str) -> str:
    """The column that a path begins in."""
    column, _, _ = _bare(path).partition(".")
    return column


def is_optional(path: str) -> bool:
    """Whether nothing may lie at a path."""
    return path.endswith("?")


def value_at(row: Mapping[str, Any], path: str) -> Any:
    """What lies at a path, or ABSENT."""
    value: Any = row
    for word in _bare(path).split("."):
        if isinstance(value, str):
            value = _as_json(value)
        if isinstance(value, Mapping) and word in value:
            value = value[word]
        elif isinstance(value, list) and word.isdigit() and int(word) < len(value):
            value = value[int(word)]
        else:
            return ABSENT
    if not isinstance(value, str):
        return value
    if path.startswith("json:"):
        return _as_json(value)
    if path.startswith("final:"):
        return final_answer(value)
    return value


def final_answer(solution: str) -> Any:
    """The final answer of a worked solution; a short text is one itself. ABSENT where none is marked."""
    boxes = boxed_answers(solution)
    if boxes:
        return ", ".join(box.content for box in boxes)
    found = solution.strip()
    marks = list(_MARK.finditer(solution))
    if marks:
        behind = solution[marks[-1].end() :].strip()
        lines = behind.splitlines()
        found = lines[0].strip().rstrip(".") if lines else ""
    if 0 < len(found) <= MAX_FINAL:
        return found
    return ABSENT


def _bare(path: str) -> str:
    unmarked = path.removesuffix("?")
    return unmarked.removeprefix("json:").removeprefix("final:")


def _as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return ABSENT


ROLES = ("system", "user", "assistant")


Fields = Mapping[str, Any]  # a row that could be read


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


def is_wanted(row: Fields, only: Mapping[str, str]) -> bool:
    """Whether a row has these values at these paths."""
    there = {path: str(value_at(row, path)) for path in only}
    return there == only


def question_of(
    row: Fields,
    formats: Sequence[RowFormat],
    task: str,
    options: Mapping[str, Any],
) -> Question | BadRow:
    """Read the question in a row; `task` for rows that name none, `options` go into every payload.

    A row whose verifier no setting names is refused: the run does not start, whatever `max_bad_rows` allows.
    """
    layout = _layout_of(row, formats)
    if isinstance(layout, BadRow):
        return layout
    try:
        prompt = value_at(row, layout.prompt)
        messages = _messages(prompt, layout.prompt)
        contents = [message["content"] for message in messages if message["role"] != "system"]
        text = "\n\n".join(contents)
        payload = {**options, "question": text, **_payload(row, layout)}
        verifier = _name(row, layout.verifier_path) or layout.verifier
        json.dumps(payload)
        check_payload(verifier, payload)
        return Question(
            task=_name(row, layout.task_path) or task,
            verifier=verifier,
            text=text,
            payload=payload,
            messages=() if len(messages) == 1 else messages,
        )
    except NotAllowedError as error:
        return BadRow(str(error), is_refused=True)
    except (BroRLError, TypeError) as error:  # TypeError: a value that JSON has no form for
        return BadRow(str(error))


def _layout_of(row: Fields, formats: Sequence[RowFormat]) -> RowFormat | BadRow:
    """The first format that fits the row."""
    paths = []
    values = []
    for layout in formats:
        if layout.when is None:
            return layout
        path, value = layout.when
        if value_at(row, path) == value:
            return layout
        paths.append(path)
        values.append(value)
    there = _shown(value_at(row, paths[0]))
    return BadRow(f"'{paths[0]}' is {there}; rows with {' or '.join(values)} can be used")


def _payload(row: Fields, layout: RowFormat) -> dict[str, Any]:
    paths = dict(layout.payload)
    if layout.answer:
        paths = {"answer": layout.answer, **paths}
    found: dict[str, Any] = {}
    for name, path in paths.items():
        value = value_at(row, path)
        if value is not ABSENT and value is not None:
            found[name] = _without_nulls(value)
        elif not is_optional(path):
            raise DataError(f"'{path}' is {_shown(value)}; the verifier reads it")
    return found


def _messages(value: Any, path: str) -> tuple[dict[str, str], ...]:
    """A conversation that ends with the user."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    is_list = isinstance(value, list) and len(value) > 0
    if not is_list or not all(isinstance(message, Mapping) for message in value):
        raise DataError(f"'{path}' is {_shown(value)}; write a text, or a list of messages with role and content")
    messages = []
    for given in value:
        role = given.get("role")
        content = given.get("content")
        message = {"role": role, "content": content}
        if role not in ROLES or not _is_text(content):
            raise DataError(
                f"'{path}' has the message {_shown(message)}; "
                f"a message has a role ({', '.join(ROLES)}) and a text as content"
            )
        messages.append(message)
    last = messages[-1]
    if last["role"] != "user" or not last["content"].strip():
        raise DataError(f"'{path}' is {_shown(value)}; it must be or end with a non-empty text of the user")
    return tuple(messages)


def _is_text(value: Any) -> bool:
    """A text without half of a surrogate pair, which no tokenizer takes."""
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    return re.search("[\ud800-\udfff]", value) is None


def _name(row: Fields, path: str | None) -> str | None:
    value = value_at(row, path) if path else None
    if value is ABSENT or value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"'{path}' is {_shown(value)}; write a non-empty text")
    return value


def _without_nulls(value: Any) -> Any:
    """A value without the nulls that Parquet and Arrow write into a mapping for every key that another row has."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _shown(value: Any) -> str:
    if value is ABSENT:
        return "missing"
    return f"{value!r:.80}"
