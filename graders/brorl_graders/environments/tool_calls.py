"""Read tool calls in a response's text, in the format of the model's chat template, and say what is wrong with them.

Formats of chat templates:

- `hermes`: each call is `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes, Qwen2.5, Qwen3, SmolLM),
- `llama`: the whole response is `{"name": …, "parameters": {…}}` (Llama 3.1 and later),
- `mistral`: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from brorl_graders.base.foreign import LARGE, read_json
from brorl_graders.environments.protocol import ToolCall

HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
HERMES_MARK = "<tool_call>"
LLAMA_MARK = "<|python_tag|>"
MISTRAL_MARK = "[TOOL_CALLS]"
ANY_FORMAT = "hermes"  # format of an unknown chat template
THINKING_END = "</think>"
MAX_SHOWN = 200  # longest quotation of a call in an error, in characters


class ToolCallError(ValueError):
    """An error in a tool call. Its message is sent to the model."""


def find_format(template: str) -> str | None:
    """Return the tool-call format of a chat template, or None for an unknown format."""
    is_xml = "<function=" in template  # the XML format of Qwen3-Coder is not supported
    if HERMES_MARK in template and not is_xml:
        return "hermes"
    if MISTRAL_MARK in template:
        return "mistral"
    if LLAMA_MARK in template or "ipython" in template:
        return "llama"
    return None


def parse_calls(
    text: str,
    written_in: str,
    tools: Sequence[Mapping[str, Any]],
) -> tuple[ToolCall, ...]:
    """Return the tool calls in a response, checked against the tools' schemas, without those in the model's thinking.

    `written_in` is the format: hermes, llama or mistral. Raises ToolCallError for a call that cannot be made.
    """
    answer = text.rpartition(THINKING_END)[2]
    calls = []
    for written in READERS[written_in](answer):
        call = _read_call(written)
        _check_call(call, tools)
        calls.append(call)
    return tuple(calls)


def text_before_calls(text: str) -> str:
    """Return the part of a response before its first tool call, thinking included."""
    thought, end, answer = text.rpartition(THINKING_END)
    for mark in (HERMES_MARK, MISTRAL_MARK):
        if mark in answer:
            return thought + end + answer.partition(mark)[0]
    return thought + end  # the whole answer is a tool call


def _parse_hermes(text: str) -> list[Any]:
    calls = []
    for written in HERMES.findall(text):
        call = _parse_json(written)
        calls.append(call)
    return calls


def _parse_llama(text: str) -> list[Any]:
    """Return the tool calls of a response in Llama's format, in which a semicolon separates calls."""
    rest = text.strip().removeprefix(LLAMA_MARK).strip()
    if not re.match(r'\{\s*"(name|type)"', rest):
        return []
    parts = re.split(r"(?<=\})\s*;\s*(?=\{)", rest)
    return [_parse_json(part) for part in parts]


def _parse_mistral(text: str) -> list[Any]:
    _, mark, rest = text.partition(MISTRAL_MARK)
    if not mark:
        return []
    calls = _parse_json(rest)
    return calls if isinstance(calls, list) else [calls]


READERS: dict[str, Callable[[str], list[Any]]] = {
    "hermes": _parse_hermes,
    "llama": _parse_llama,
    "mistral": _parse_mistral,
}


def _parse_json(written: str) -> Any:
    try:
        return read_json(written, most_bytes=LARGE)
    except ValueError as error:
        raise ToolCallError(f"the tool call {written.strip()[:MAX_SHOWN]!r} is not JSON: {error}") from error


def _read_call(written: Any) -> ToolCall:
    """Return a parsed JSON value as a tool call. Raises ToolCallError when it has no name or no arguments."""
    name = written.get("name") if isinstance(written, dict) else None
    if not isinstance(name, str):
        raise ToolCallError('a tool call is an object with "name" and "arguments"')
    arguments = written.get("parameters", {})
    arguments = written.get("arguments", arguments)
    if isinstance(arguments, str):
        arguments = _parse_json(arguments)
    if not isinstance(arguments, dict):
        raise ToolCallError('the "arguments" of a tool call are an object')
    return ToolCall(name, arguments)


def _check_call(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> None:
    """Raise ToolCallError for an unknown tool, and for arguments that do not fit the tool's schema."""
    from jsonschema import Draft202012Validator

    schemas = {}
    for tool in tools:
        function = tool["function"]
        name = function["name"]
        schemas[name] = function["parameters"]
    if call.name not in schemas:
        raise ToolCallError(f"there is no tool {call.name[:MAX_SHOWN]!r}, there is {', '.join(schemas)}")
    validator = Draft202012Validator(schemas[call.name])
    for error in validator.iter_errors(call.arguments):
        raise ToolCallError(f"the arguments of {call.name} are wrong: {error.message[:MAX_SHOWN]}")
