"""Tokenizers as they are found: the ids are those of transformers, and no tag is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nemo_brorl.core.errors import ConfigError, ModelError
from nemo_brorl.core.template_files import DECODES, TemplateSettings
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.prompts.asking import with_open_thought
from tests.support import odd_tokenizers
from tests.support.odd_tokenizers import TEMPLATE, corpus, write_odd

TEXTS = (
    "Question: what is 12 + 30?",
    "<think> let me add </think> <answer>42</answer>",
    "a [PAD] b",
    "<|e|> x <|s|> naïve 漢字  two",
    "word " * 600,
)
THINKING = TEMPLATE.replace(
    "assistant\n' }}{% endif %}", "assistant\n' }}{% if thinking is false %}-{% endif %}{% endif %}"
)


def test_sixty_odd_tokenizers_give_the_ids_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folders = corpus(tmp_path)
    assert len(folders) == 60
    for folder in folders:
        ours, theirs = load_tokenizer(folder, is_tried=True), AutoTokenizer.from_pretrained(folder)
        for text in TEXTS:
            named = (folder.relative_to(tmp_path), text[:20])
            assert (named, ours.encode(text)) == (named, theirs.encode(text, add_special_tokens=False))
            messages = [{"role": "user", "content": text}]
            expected = theirs.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
            assert (named, ours.prompt_ids(text)) == (named, expected)


def test_a_token_whose_written_id_is_not_its_own_is_refused(tmp_path: Path) -> None:
    folder = write_odd(tmp_path / "model", odd_tokenizers.added_decoder)
    path = folder / "tokenizer_config.json"
    path.write_text(path.read_text().replace('"added_tokens_decoder": {"', '"added_tokens_decoder": {"9'))
    with pytest.raises(ModelError, match="the token '</answer>' the id .* save the tokenizer again"):
        load_tokenizer(folder)


def test_a_tokenizer_that_gives_no_tokens_is_refused(tmp_path: Path) -> None:
    folder = write_odd(tmp_path / "model", odd_tokenizers.added_decoder)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>"}')
    with pytest.raises(ModelError, match="gives no tokens for the text '1 \\+ 1': its files are damaged"):
        load_tokenizer(folder)


def test_a_folder_whose_vocabulary_is_a_pipe_or_lies_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("secret")
    for name in ("pipe", "link"):
        folder = write_odd(tmp_path / name, odd_tokenizers.added_decoder)
        (folder / "tokenizer.json").unlink()
    os.mkfifo(tmp_path / "pipe" / "tokenizer.model")
    (tmp_path / "link" / "vocab.json").symlink_to("../private")
    for name, reason in (("pipe", "no regular file"), ("link", "outside of its folder")):
        with pytest.raises(ModelError, match=reason):
            load_tokenizer(tmp_path / name)


@pytest.mark.parametrize(
    "oddity", [odd_tokenizers.special_tags, odd_tokenizers.additional, odd_tokenizers.added_decoder]
)
def test_tags_that_are_special_tokens_reach_the_verifier(tmp_path: Path, oddity: odd_tokenizers.Oddity) -> None:
    tokenizer = load_tokenizer(write_odd(tmp_path / "model", oddity))
    ids = tokenizer.encode("<think> let me add </think> <answer>42</answer><|e|><|end|>")
    assert tokenizer.decode(ids) == "<think> let me add </think> <answer>42</answer>"
    # The store, the page and `rescore` need no template, and show the same text.
    assert load_tokenizer(tmp_path / "model", template=DECODES).decode(ids) == tokenizer.decode(ids)


def test_a_template_that_writes_an_empty_thought_makes_no_mark_of_the_tags(tmp_path: Path) -> None:
    folder = write_odd(tmp_path / "model", odd_tokenizers.special_tags)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<|s|>{{ m['role'] }}\n"
        "{% if m['role'] == 'assistant' %}<think>\n\n</think>\n\n"
        "{% endif %}{{ m['content'] }}<|e|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|s|>assistant\n<think>\n{% endif %}"
    )
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode("<think>a</think> 4<|e|>")) == "<think>a</think> 4"


def test_a_turn_mark_between_angle_brackets_is_no_tag(tmp_path: Path) -> None:
    folder = write_odd(tmp_path / "model", odd_tokenizers.special_tags)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<answer>{{ m['content'] }}</answer>{% endfor %}"
    )
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode("<think>a</think> 4</answer>")) == "<think>a</think> 4"


def test_a_stop_token_of_the_generation_settings_is_dropped_from_the_text(tmp_path: Path) -> None:
    folder = write_odd(tmp_path / "model", odd_tokenizers.special_tags)
    stop = load_tokenizer(folder).backend.token_to_id("</answer>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, stop]}))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.stop_ids == {3, stop}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, -1, 2**70, True, 1.0, "x", None]}))
    assert load_tokenizer(folder).stop_ids == {3}
    assert tokenizer.decode(tokenizer.encode("<answer>4</answer>")) == "<answer>4"


def named(folder: Path, **templates: str) -> Path:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = [{"name": name, "template": text} for name, text in templates.items()]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_templates_in_a_folder_are_read_and_one_is_chosen_by_name(tmp_path: Path) -> None:
    folder = write_odd(tmp_path / "model")
    beside = folder / "additional_chat_templates"
    beside.mkdir()
    (beside / "default.jinja").write_text("d {{ messages[0].content }}")
    (beside / "rag.jinja").write_text("r {{ messages[0].content }}")
    assert load_tokenizer(folder).render("x") == "d x"
    assert load_tokenizer(folder, template=TemplateSettings("rag")).render("x") == "r x"
    with pytest.raises(ModelError, match="data.chat_template=other: .* set one of default, rag, or null"):
        load_tokenizer(folder, template=TemplateSettings("other"))


def test_a_list_of_templates_without_a_default_is_refused_with_its_names(tmp_path: Path) -> None:
    folder = named(write_odd(tmp_path / "model"), rag="r {{ messages[0].content }}", tool_use="t")
    with pytest.raises(ModelError, match="set data.chat_template to one of rag, tool_use"):
        load_tokenizer(folder)
    assert load_tokenizer(folder, template=TemplateSettings("rag")).render("x") == "r x"
    named(folder, rag="r", default="d {{ messages[0].content }}")
    assert load_tokenizer(folder).render("x") == "d x"


def test_arguments_reach_the_template_and_no_name_is_lost(tmp_path: Path) -> None:
    folder = write_odd(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(THINKING)
    plain = load_tokenizer(folder)
    told = load_tokenizer(folder, template=TemplateSettings(arguments={"thinking": False}))
    assert told.render("x") == plain.render("x") + "-"


def test_a_date_is_that_of_the_settings_and_the_time_of_day_is_none(tmp_path: Path) -> None:
    folder = write_odd(tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y %H:%M:%S') }} {{ messages[0].content }}")
    tokenizer = load_tokenizer(folder, template=TemplateSettings(date="2026-01-02"))
    assert tokenizer.render("x") == "02 Jan 2026 00:00:00 x"


def test_without_a_template_by_choice_a_text_is_sent_as_it_is(tmp_path: Path) -> None:
    folder = write_odd(tmp_path / "model", odd_tokenizers.beginning)
    tokenizer = load_tokenizer(folder, template=TemplateSettings("none"))
    text = "<|s|>user\nx<|e|>\n<|s|>assistant\n"
    begin = tokenizer.backend.token_to_id("<|end|>")
    assert tokenizer.prompt_ids(text) == [begin, *tokenizer.encode(text)]
    assert tokenizer.prompt_ids("<|end|>" + text) == [begin, *tokenizer.encode(text)]


def stops(tokenizer: ChatTokenizer, *texts: str) -> set[int]:
    return set(tokenizer.with_stops(texts)) - tokenizer.stop_ids


def test_a_further_stop_token_is_a_token(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_odd(tmp_path / "model"))
    assert stops(tokenizer, "<|s|>") == {2}
    with pytest.raises(ConfigError, match=r"'two words' is no token of this model. Set\s+rollouts.stop_strings"):
        tokenizer.with_stops(["two words"])


@pytest.mark.parametrize(("arguments", "is_open"), [({}, True), ({"thinking": False}, False)])
def test_the_verifier_of_forms_is_told_whether_the_prompt_opens_a_thought(
    tmp_path: Path, arguments: dict[str, bool], is_open: bool
) -> None:
    folder = write_odd(tmp_path / "model")
    opening = "{% if add_generation_prompt %}{% if thinking is not false %}<think>\n{% endif %}{% endif %}"
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}" + opening)
    tokenizer = load_tokenizer(folder, template=TemplateSettings(arguments=arguments))
    payload = {"structure": "think_answer"}
    assert with_open_thought("format", payload, tokenizer).get("is_think_open", False) == is_open
    parts = {"parts": [{"verifier": "format", "options": payload}]}
    assert with_open_thought("composite", parts, tokenizer).get("is_think_open", False) == is_open
    assert with_open_thought("math", payload, tokenizer) == payload
    assert with_open_thought("format", {"is_think_open": False}, tokenizer) == {"is_think_open": False}
