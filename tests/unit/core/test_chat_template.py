"""A chat template is a stranger's program: it may refuse a prompt, and do nothing else that is felt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_brorl.core.chat_template import HELLO, compile_template, render, try_template
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.tokenizer import load_tokenizer
from tests.support.source_tree import ROOT

SUMS = ROOT / "models" / "sums"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 5 s or 1024 MiB"),
        ("{{ ('a\\n' * 1000)|indent(100000000) }}", "MemoryError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "RecursionError"),
        ("{{ '\\ud800' }}", "UnicodeEncodeError"),
        ("{% include '/etc/passwd' %}", "TypeError"),
    ],
)
def test_a_template_that_fails_at_a_short_message_is_refused_when_it_is_loaded(source: str, reason: str) -> None:
    with pytest.raises(ModelError, match=f"(?s){reason}.*Set policy.model to another model"):
        try_template(source, {})


def test_a_template_may_need_another_conversation_than_a_short_message() -> None:
    source = "{% if messages|length < 2 %}{{ raise_exception('a system message is missing') }}{% endif %}"
    try_template(source, {})
    with pytest.raises(ModelError, match="refuses the prompt: a system message is missing"):
        render(compile_template(source), HELLO, {})


def test_whatever_a_template_raises_at_a_later_prompt_is_a_model_error() -> None:
    source = "{{ messages[0].content.split('/')[1] ** 2 }}"
    with pytest.raises(ModelError, match="fails at the prompt: TypeError"):
        render(compile_template(source), [{"role": "user", "content": "1/2"}], {})


@pytest.mark.parametrize("option", ["cls=cycler", "default=strftime_now", "indent=17", "indent='    '"])
def test_tojson_takes_no_argument_that_is_called_or_grows(option: str) -> None:
    with pytest.raises(ModelError, match="tojson"):
        render(compile_template("{{ [1]|tojson(" + option + ") }}"), HELLO, {})


def test_tojson_writes_as_hugging_face_does() -> None:
    source = "{{ {'b': 'é', 'a': 1}|tojson(indent=1, separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}"
    expected = json.dumps({"b": "é", "a": 1}, indent=1, separators=(",", ":"), sort_keys=True)
    assert render(compile_template(source), HELLO, {}) == expected


def test_a_template_of_more_than_a_mebibyte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="1,400,000 characters, 1,048,576 are allowed"):
        compile_template("{{ 1 }}" * 200_000)


DAMAGED = {
    "config.json": ("[]", "[" * 100_000, '{"vocab_size": 5}'),
    "tokenizer_config.json": (
        "null",
        '{"eos_token": 5}',
        '{"eos_token": {"content": [1]}}',
        '{"chat_template": 5}',
        "\udcff",
    ),
    "special_tokens_map.json": ("[]",),
    "tokenizer.json": ("[]", "{", '{"model": {"type": "Evil"}}'),
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in DAMAGED.items() for text in texts])
def test_a_damaged_tokenizer_is_a_model_error(tmp_path: Path, name: str, text: str) -> None:
    for file in DAMAGED:
        if (SUMS / file).exists():
            (tmp_path / file).write_bytes((SUMS / file).read_bytes())
    (tmp_path / name).write_text(text, errors="surrogateescape")
    with pytest.raises(ModelError):
        load_tokenizer(tmp_path)


GROWS = {"type": "Replace", "pattern": {"String": "l"}, "content": "l" * 100}
TEMPLATE = {"type": "TemplateProcessing", "pair": [], "single": [{"SpecialToken": {"id": "x", "type_id": 0}}] * 100}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("normalizer", {"type": "Sequence", "normalizers": [GROWS] * 2}),
        ("normalizer", {"type": "Prepend", "prepend": "l" * 10_000}),
        ("decoder", {"type": "Sequence", "decoders": [GROWS] * 2}),
        ("post_processor", {**TEMPLATE, "special_tokens": {"x": {"id": "x", "ids": [0] * 100, "tokens": ["x"] * 100}}}),
    ],
)
def test_a_tokenizer_that_grows_a_text_without_measure_is_refused(
    name: str, part: dict[str, object], tmp_path: Path
) -> None:
    settings = json.loads((SUMS / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings | {name: part}))
    with pytest.raises(ModelError, match=f"its {name} writes up to 10,000 for one, 1000 are allowed"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_fills_up_no_text(tmp_path: Path) -> None:
    settings = json.loads((SUMS / "tokenizer.json").read_text())
    # So many pad tokens fit into no memory, and the library would end the process.
    filling = {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None}
    settings["padding"] = {**filling, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    assert len(load_tokenizer(tmp_path).encode("1 + 1")) < 9


def test_a_template_that_is_a_link_to_another_folder_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((SUMS / "tokenizer.json").read_bytes())
    (tmp_path / "private").write_text("secret")
    (folder / "chat_template.jinja").symlink_to("../private")
    with pytest.raises(ModelError, match="is a link to .*private, outside of its folder"):
        load_tokenizer(folder)
