"""Read the question in a row, or the reason why the row cannot be used."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import date
from decimal import Decimal
from string import ascii_uppercase
from typing import Any

from brorl_graders import check_payload, runs_own_code
from brorl_graders.base.foreign import DIGITS, MalformedError, check_json, read_json

from nemo_brorl.core.errors import BroRLError, DataError, NotAllowedError
from nemo_brorl.core.files import MALFORMED
from nemo_brorl.prompts.columns import ABSENT, is_optional, shown, value_at
from nemo_brorl.prompts.questions import BadRow, Question
from nemo_brorl.prompts.row_formats import RowFormat

RESERVED = ("timeout_s", "parts", "mode")  # options of verifiers, which no row sets
ROLES = ("system", "user", "assistant")
OTHER_ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's names of roles

Fields = Mapping[str, Any]  # a row that could be read


def is_wanted(row: Fields, only: Mapping[str, str]) -> bool:
    """Return whether a row of a data file has, at each path in `only`, the value that `only` gives for it."""
    there = {path: str(value_at(row, path)) for path in only}
    return there == only


def question_of(
    row: Fields,
    formats: Sequence[RowFormat],
    task: str,
    options: Mapping[str, Any],
) -> Question | BadRow:
    """Return the question in a row of a data file, or a BadRow with the reason why it has none.

    `task` is the task name of rows that name none, and `options` are added to every verifier's payload. A row that
    names a verifier by an import path or address that no setting names is refused: then the run does not start,
    whatever `max_bad_rows` allows.
    """
    layout = _layout_of(row, formats)
    if isinstance(layout, BadRow):
        return layout
    try:
        prompt = value_at(row, layout.prompt)
        messages = _with_start(
            _messages(prompt, layout.prompt), value_at(row, layout.start_path) if layout.start_path else ""
        )
        found = _payload(row, layout)
        verifier = _name(row, layout.verifier_path) or layout.verifier
        if verifier == "multiple_choice":
            messages = _with_options(messages, found.get("choices", options.get("choices")))
        contents = [message["content"] for message in messages if message["role"] != "system"]
        text = "\n\n".join(contents)
        payload = {**options, "question": text, **found}
        # Verifiers are other processes. Values that JSON cannot represent must be found here, not in the first step.
        check_json(json.dumps(payload).encode(), digits=DIGITS)
        check_payload(verifier, payload)
        others = _others(row, prompt, payload) if runs_own_code(verifier, payload) else {}
        return Question(
            task=_name(row, layout.task_path) or task,
            verifier=verifier,
            text=text,
            payload={**payload, **others},
            others=tuple(others),
            messages=() if len(messages) == 1 else messages,
        )
    except NotAllowedError as error:
        return BadRow(str(error), is_refused=True)
    except (BroRLError, MalformedError) as error:
        return BadRow(str(error))
    # A value that JSON cannot represent, that is nested without end, or that a verifier's check does not expect.
    except MALFORMED as error:
        return BadRow(f"{type(error).__name__}: {error}")


def _layout_of(row: Fields, formats: Sequence[RowFormat]) -> RowFormat | BadRow:
    """Return the first row format that fits a row of a data file, or a BadRow with the reason why none does."""
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
    there = shown(value_at(row, paths[0]))
    return BadRow(f"'{paths[0]}' is {there}; rows with {' or '.join(values)} can be used")


def _payload(row: Fields, layout: RowFormat) -> dict[str, Any]:
    paths = dict(layout.payload)
    if layout.answer:
        paths = {"answer": layout.answer, **paths}
    found: dict[str, Any] = {}
    for name, path in paths.items():
        value = value_at(row, path)
        if name == "answer":
            value = _text_of_message(value)
        # A file's own column, such as `metadata`, may hold anything: a verifier that reads it says what it lacks.
        is_any = is_optional(path) and name != "answer"
        if value is not ABSENT and value is not None:
            with suppress(DataError) if is_any else nullcontext():
                found[name] = _plain(value, path)
        elif not is_optional(path):
            raise DataError(f"'{path}' is {shown(value)}; the verifier reads it")
    return found


def _text_of_message(value: Any) -> Any:
    """Return the text of an answer that is a message, alone or in a list, and any other answer as it is."""
    message = value[0] if isinstance(value, list) and len(value) == 1 else value
    text = message.get("content") if isinstance(message, Mapping) and "role" in message else None
    return text if isinstance(text, str) else value


def _others(row: Fields, prompt: Any, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row that only a reward function of the user's own reads, without values of other types.

    The prompt is among them as the row has it. A row's `question` replaces the text of the prompt.
    """
    found: dict[str, Any] = {}
    for name, value in {"prompt": prompt, **row}.items():
        if name not in payload.keys() - {"question"} and name not in RESERVED:
            with suppress(DataError):
                found[name] = _plain(value, name)
    return found


def _messages(value: Any, path: str) -> tuple[dict[str, str], ...]:
    """Return the chat messages in the prompt column of a row, which holds a text or a list of messages.

    Raises DataError unless the messages are valid and end with a non-empty one of the user.
    """
    if isinstance(value, str):
        value = _as_messages(value, path)
    is_list = isinstance(value, list) and len(value) > 0
    if not is_list or not all(isinstance(message, Mapping) for message in value):
        raise DataError(f"'{path}' is {shown(value)}; write a text, or a list of messages with role and content")
    messages = []
    for given in value:
        role = given.get("role", given.get("from"))
        role = OTHER_ROLES.get(role, role) if isinstance(role, str) else role
        content = _joined(given.get("content", given.get("value")))
        message = {"role": role, "content": content}
        if isinstance(content, str) and not _is_text(content):
            raise DataError(f"'{path}' has half of a character, {shown(content)}: write it as UTF-8")
        if role not in ROLES or not _is_text(content):
            raise DataError(
                f"'{path}' has the message {shown(message)}; "
                f"a message has a role ({', '.join(ROLES)}) and a text as content"
            )
        messages.append(message)
    last = messages[-1]
    if last["role"] != "user" or not last["content"].strip():
        raise DataError(f"'{path}' is {shown(value)}; it must be or end with a non-empty text of the user")
    return tuple(messages)


def _joined(content: Any) -> Any:
    """Return the text of a message's content that is a list of texts, and any other content as it is."""
    parts = content if isinstance(content, list) else []
    if parts and all(isinstance(part, Mapping) and part.get("type") == "text" and "text" in part for part in parts):
        return "".join(str(part["text"]) for part in parts)
    return content


def _as_messages(text: str, path: str) -> Any:
    """Return the messages that a text of JSON holds, or one message of the user.

    Raises DataError for a list of messages that Python has written as text.
    """
    if re.match(r"\s*\[\s*\{\s*['\"](?:role|content)['\"]\s*:", text) is None:
        return [{"role": "user", "content": text}]
    try:
        return read_json(text, most_bytes=len(text) * 4)
    except ValueError:
        raise DataError(
            f"'{path}' is {shown(text)}; it is Python's text of a list: store the list itself, or its JSON text"
        ) from None


def _with_start(messages: tuple[dict[str, str], ...], start: Any) -> tuple[dict[str, str], ...]:
    """Add the code that a program must begin with to the question, where a row has some."""
    if not isinstance(start, str) or not start.strip():
        return messages
    *others, last = messages
    content = f"{last['content']}\n\nBegin the program with this code:\n```python\n{start}\n```"
    return (*others, {**last, "content": content})


def _with_options(messages: tuple[dict[str, str], ...], options: Any) -> tuple[dict[str, str], ...]:
    """Add the options of a multiple-choice question to it, unless it shows them."""
    *others, last = messages
    if not isinstance(options, list) or all(str(option) in last["content"] for option in options):
        return messages
    shown = "\n".join(f"{letter}. {option}" for letter, option in zip(ascii_uppercase, options, strict=False))
    return (*others, {**last, "content": f"{last['content']}\n\n{shown}"})


def _is_text(value: Any) -> bool:
    """Return whether a value is text without lone surrogates, which no tokenizer takes."""
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    return re.search("[\ud800-\udfff]", value) is None


def _name(row: Fields, path: str | None) -> str | None:
    value = value_at(row, path) if path else None
    # pandas writes a missing text as NaN.
    if value is ABSENT or value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"'{path}' is {shown(value)}; write a non-empty text")
    return value


def _plain(value: Any, path: str) -> Any:
    """Return a value of JSON, which verifiers in other processes can be sent, with decimals and dates as text.

    Leaves out nulls, which Parquet and Arrow add to a mapping for keys of other rows. Raises DataError for any other
    value.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, path) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_plain(item, path) for item in value]
    if isinstance(value, Decimal) and value.is_finite():
        return format(value, "f")
    if isinstance(value, date):
        return value.isoformat()
    kind = "NaN or infinite" if isinstance(value, float | Decimal) else f"of the type {type(value).__name__}"
    path = path.removesuffix("?")
    raise DataError(f"'{path}' holds {shown(value)}, which is {kind}; store text or a number")
