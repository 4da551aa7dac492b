"""From a row of any layout to a question."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemo_brorl.core.errors import BroRLError, DataError
from nemo_brorl.tasks.questions.paths import ABSENT, column_of, is_optional, value_at
from nemo_brorl.tasks.questions.questions import Question
from nemo_brorl.tasks.questions.rows import BadRow
from nemo_brorl.tasks.verifiers.registry import check_payload

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class RowFormat:
    """Where the fields of a row are, as paths (`paths.py`)."""

    prompt: str
    answer: str | None  # None: the verifier reads none
    verifier: str  # of rows without one of their own
    payload: Mapping[str, str] = field(
        default_factory=dict
    )  # name in the payload -> path; a path that ends in `?` may be missing
    task_path: str | None = None
    verifier_path: str | None = None
    when: tuple[str, str] | None = None  # (path, value): only rows that have this value there

    @property
    def columns(self) -> set[str]:
        """All columns that it reads."""
        paths = [
            self.prompt,
            self.answer,
            self.task_path,
            self.verifier_path,
            *self.payload.values(),
            self.when and self.when[0],
        ]
        return {column_of(path) for path in paths if path}

    @property
    def required_columns(self) -> set[str]:
        """Those that every row must have."""
        needed = [path for path in self.payload.values() if not is_optional(path)]
        required = [self.prompt, self.answer, *needed, self.when and self.when[0]]
        return {column_of(path) for path in required if path}


def is_wanted(row: Mapping[str, Any], only: Mapping[str, str]) -> bool:
    """Whether a row has these values at these paths."""
    return all(str(value_at(row, path)) == value for path, value in only.items())


def question_of(
    row: Mapping[str, Any], formats: Sequence[RowFormat], task: str, options: Mapping[str, Any]
) -> Question | BadRow:
    """The question in a row; `task` for rows that name none, `options` go into every payload."""
    layout = next(
        (layout for layout in formats if layout.when is None or value_at(row, layout.when[0]) == layout.when[1]), None
    )
    if layout is None:
        known = [layout.when for layout in formats if layout.when]
        names = " or ".join(name for _, name in known)
        path = known[0][0]
        return BadRow(f"'{path}' is {_shown(value_at(row, path))}; rows with {names} can be used")
    try:
        messages = _messages(value_at(row, layout.prompt), layout.prompt)
        text = "\n\n".join(message["content"] for message in messages if message["role"] != "system")
        payload = {**options, "question": text, **_payload(row, layout)}
        verifier = _name(row, layout.verifier_path) or layout.verifier
        json.dumps(payload)
        check_payload(verifier, payload)
        return Question(
            _name(row, layout.task_path) or task, verifier, text, payload, () if len(messages) == 1 else messages
        )
    except (BroRLError, TypeError) as error:  # TypeError: a value that JSON has no form for
        return BadRow(str(error))


def _payload(row: Mapping[str, Any], layout: RowFormat) -> dict[str, Any]:
    paths = {**({"answer": layout.answer} if layout.answer else {}), **layout.payload}
    found: dict[str, Any] = {}
    for name, path in paths.items():
        value = value_at(row, path)
        if value is not ABSENT and value is not None:
            found[name] = _plain(value)
        elif not is_optional(path):
            raise DataError(f"'{path}' is {_shown(value)}; the verifier reads it")
    return found


def _messages(value: Any, path: str) -> tuple[dict[str, str], ...]:
    """A conversation that ends with the user."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value or not all(isinstance(message, Mapping) for message in value):
        raise DataError(f"'{path}' is {_shown(value)}; write a text, or a list of messages with role and content")
    messages = tuple({"role": message.get("role"), "content": message.get("content")} for message in value)
    for message in messages:
        if message["role"] not in ROLES or not isinstance(message["content"], str) or not _is_text(message["content"]):
            raise DataError(
                f"'{path}' has the message {_shown(message)}; a message has a role ({', '.join(ROLES)}) and a text "
                f"as content"
            )
    if messages[-1]["role"] != "user" or not messages[-1]["content"].strip():
        raise DataError(f"'{path}' is {_shown(value)}; it must be or end with a non-empty text of the user")
    return messages


def _is_text(value: str) -> bool:
    """No half of a surrogate pair, which no tokenizer takes."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def _name(row: Mapping[str, Any], path: str | None) -> str | None:
    value = value_at(row, path) if path else None
    if value is ABSENT or value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"'{path}' is {_shown(value)}; write a non-empty text")
    return value


def _plain(value: Any) -> Any:
    """Without the nulls that Parquet and Arrow write into a mapping for every key that another row has."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _shown(value: Any) -> str:
    return "missing" if value is ABSENT else f"{value!r:.80}"
