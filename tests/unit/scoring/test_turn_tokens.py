"""Tokens between turns, over templates of the shapes that families of models have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.scoring.turn_tokens import TurnTokens
from tests.support.source_tree import ROOT

OURS = load_tokenizer(ROOT / "models" / "sums")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = ({"type": "function", "function": {"name": "add", "parameters": SCHEMA}},)
ASK = [{"role": "user", "content": "1 + 1 ="}]

# As Qwen2.5's: tools in the system message, their results in a user's message of their own.
QWEN25 = """
{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content }}{% else %}{{- 'You are helpful.' }}{% endif %}
{{- '\\n# Tools\\n<tools>' }}{% for tool in tools %}{{- '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\nCall with <tool_call>{"name": <name>, "arguments": <object>}</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role != 'system' %}{{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- elif not (loop.first and message.role == 'system' and tools) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
# As Qwen3's: what was thought before the newest question of the user is left out, results of tools being no question.
QWEN3 = """
{%- if tools %}{{- '<|im_start|>system\\n' }}{% for tool in tools %}{{- tool | tojson }}{% endfor %}
{{- '<tool_call>...</tool_call><|im_end|>\\n' }}{% endif %}
{%- set ns = namespace(newest=0) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.newest = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- set said = message.content %}
{%- if message.role == 'assistant' and '</think>' in said and loop.index0 < ns.newest %}
{%- set said = said.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{%- set role = 'user' if message.role == 'tool' else message.role %}
{{- '<|im_start|>' + role + '\\n' + said + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
# As Llama 3's: headers, no line break after the end of a turn, contents trimmed.
LLAMA3 = """
{%- for message in messages %}{% set role = 'ipython' if message.role == 'tool' else message.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
{%- if loop.first and tools %}{% for tool in tools %}{{- tool | tojson }}{% endfor %}{% endif %}
{{- message.content | trim + '<|eot_id|>' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""
# As SmolLM2's: a system message of its own where there is none.
SMOL = """
{%- for message in messages %}{% if loop.first and message.role != 'system' %}
{{- '<|im_start|>system\\nYou are SmolLM.<|im_end|>\\n' }}{% endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
# As DeepSeek-R1's: the beginning of a thought is part of the prompt, and in no earlier turn.
R1 = """
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}
{{- message.content.split('</think>')[-1] + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{% endif %}
"""
TEMPLATES = {"ours": OURS.chat_template, "qwen2.5": QWEN25, "qwen3": QWEN3, "llama3": LLAMA3, "smollm2": SMOL, "r1": R1}


def turns(name: str) -> tuple[ChatTokenizer, TurnTokens]:
    tokenizer = replace(OURS, chat_template=TEMPLATES[name])
    return tokenizer, TurnTokens(tokenizer)


@pytest.mark.parametrize("name", ["ours", "qwen2.5", "llama3", "smollm2"])
def test_turns_together_are_the_conversation_as_its_template_writes_it(name: str) -> None:
    tokenizer, tokens = turns(name)
    said = tokenizer.encode("3")
    end = tokenizer.encode("<|eot_id|>" if name == "llama3" else "<|im_end|>")
    observation = [{"role": "user", "content": "No. Again."}]
    whole = tokenizer.render([*ASK, {"role": "assistant", "content": "3"}, *observation])
    expected = tokenizer.encode(whole)[len(tokenizer.prompt_ids(ASK)) :]
    assert said + tokens.after(ASK, said, False, observation) == expected
    if len(end) == 1:
        assert [*said, *end, *tokens.after(ASK, said + end, True, observation)] == expected


def test_a_second_turn_is_told_like_the_first_and_results_of_tools_share_a_message() -> None:
    tokenizer, tokens = turns("qwen2.5")
    results = [{"role": "tool", "content": "2"}, {"role": "tool", "content": "3"}]
    told = tokens.after(ASK, [1, 2, 3], False, results)
    assert tokenizer.backend.decode(told, skip_special_tokens=False) == (
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_model_without_template_is_told_in_plain_text() -> None:
    tokenizer = replace(OURS, chat_template=None)
    told = TurnTokens(tokenizer).after(ASK, [], True, [{"role": "user", "content": "No."}])
    assert tokenizer.decode(told) == "\n\nNo.\n"


@pytest.mark.parametrize(
    ("name", "tools", "role"),
    [
        ("ours", (), "user"),
        ("qwen2.5", (), "user"),
        ("qwen2.5", TOOLS, "tool"),
        ("qwen3", TOOLS, "tool"),
        ("llama3", TOOLS, "tool"),
        ("smollm2", (), "user"),
    ],
)
def test_templates_that_only_append_pass(name: str, tools: tuple[dict[str, object], ...], role: str) -> None:
    turns(name)[1].check(tools, [role])


@pytest.mark.parametrize(
    ("name", "tools", "role", "message"),
    [
        ("qwen3", (), "user", "rewrites earlier turns when a message of role 'user' follows: instead of '<think>"),
        ("r1", (), "user", "rewrites earlier turns"),
        ("ours", TOOLS, "tool", "has no place for tools"),
        ("smollm2", TOOLS, "tool", "has no place for tools"),
    ],
)
def test_what_a_template_lacks_is_said(
    name: str, tools: tuple[dict[str, object], ...], role: str, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        turns(name)[1].check(tools, [role])


def test_a_model_without_template_cannot_call_tools() -> None:
    with pytest.raises(ModelError, match="no chat template"):
        TurnTokens(replace(OURS, chat_template=None)).check(TOOLS)


def test_the_format_of_calls_is_the_templates() -> None:
    assert turns("qwen2.5")[1].tool_format == "hermes"
    assert turns("llama3")[1].tool_format == "llama"


@pytest.mark.parametrize("template", [OURS.chat_template, None])
@pytest.mark.parametrize("said", ["brorl7a1c", "a\ud800b", "<|im_end|>", "\x00"])
def test_whatever_an_observation_says_it_is_told(said: str, template: str | None) -> None:
    tokenizer = replace(OURS, chat_template=template)
    told = TurnTokens(tokenizer).after(ASK, [], False, [{"role": "user", "content": said}])
    text = tokenizer.backend.decode(told, skip_special_tokens=False)
    assert said.encode("utf-8", "replace").decode() in text
