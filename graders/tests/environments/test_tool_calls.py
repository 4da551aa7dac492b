"""Tool calls in the formats of chat templates, and the errors for wrong calls."""

from __future__ import annotations

import pytest
from brorl_graders.environments.protocol import ToolCall
from brorl_graders.environments.tool_calls import ToolCallError, find_format, parse_calls

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = ({"type": "function", "function": {"name": "add", "parameters": SCHEMA}},)
ADD = ToolCall("add", {"a": 1})


@pytest.mark.parametrize(
    ("written_in", "text", "calls"),
    [
        ("hermes", "no call", ()),
        ("hermes", 'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', (ADD,)),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>' * 2, (ADD, ADD)),
        ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}', (ADD,)),
        ("hermes", "<think><tool_call>nothing</tool_call></think>", ()),
        ("llama", '{"name": "add", "parameters": {"a": 1}}', (ADD,)),
        (
            "llama",
            '<|python_tag|>{"name": "add", "parameters": {"a": 1}}; {"name": "add", "parameters": {"a": 1}}',
            2 * (ADD,),
        ),
        ("llama", "{1, 2} is a set", ()),
        ("mistral", '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]', (ADD,)),
        ("mistral", "[1]", ()),
    ],
)
def test_calls_are_read(written_in: str, text: str, calls: tuple[ToolCall, ...]) -> None:
    assert parse_calls(text, written_in, TOOLS) == calls


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<tool_call>add 1</tool_call>", "'add 1' is not JSON"),
        ("<tool_call>[]</tool_call>", 'an object with "name"'),
        ('<tool_call>{"name": "add", "arguments": 3}</tool_call>', "are an object"),
        ('<tool_call>{"name": "sub", "arguments": {}}</tool_call>', "no tool 'sub', there is add"),
        (
            '<tool_call>{"name": "add", "arguments": {"a": "x"}}</tool_call>',
            "arguments of add are wrong: 'x' is not of",
        ),
        ("<tool_call>" + "[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_wrong_with_a_call_is_told(text: str, message: str) -> None:
    with pytest.raises(ToolCallError, match=message):
        parse_calls(text, "hermes", TOOLS)


def test_the_format_is_that_of_the_template() -> None:
    assert find_format("{{ '<tool_call>' }}") == "hermes"
    assert find_format("{{ '<tool_call>\n<function=' }}") is None
    assert find_format("[TOOL_CALLS]") == "mistral"
    assert find_format("<|python_tag|>") == "llama"
    assert find_format("{{ message['content'] }}") is None
