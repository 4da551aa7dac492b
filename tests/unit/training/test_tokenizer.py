"""The warm-up's own tokenizer, read back as any model's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from brorl_lab.bases.initial_model import build_tokenizer

from nemo_brorl.core.errors import ConfigError, ModelError
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer

TEXTS = [
    "Find the Greatest Common Divisor (GCD) of these numbers: 780, 461.",
    "State the final answer: 4 - 1 - 7 =",
] * 20


def saved(folder: Path, vocab_size: int = 320) -> ChatTokenizer:
    build_tokenizer(TEXTS, vocab_size).save_pretrained(folder)
    return load_tokenizer(folder)


def test_every_digit_is_a_token_and_answer_tags_survive_decoding(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path)
    ids = tokenizer.encode("<answer>1234</answer>")
    assert [tokenizer.backend.id_to_token(i) for i in ids] == ["<answer>", "1", "2", "3", "4", "</answer>"]
    assert tokenizer.decode([*ids, tokenizer.eos_token_id]) == "<answer>1234</answer>"


def test_any_text_survives_a_round_trip(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path)
    for text in ("12 + 7", "naïve – 漢字", " two  spaces\n", "780, 461."):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_prompt_is_the_chat_template_up_to_the_answer(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path)
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 1<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.render("1 + 1", "Be brief.") == expected
    ids = tokenizer.prompt_ids("1 + 1", "Be brief.")
    assert tokenizer.backend.decode(ids, skip_special_tokens=False) == expected
    assert ids.count(tokenizer.backend.token_to_id("<|im_start|>")) == 3


def test_transformers_renders_the_same_prompt(tmp_path: Path) -> None:
    built = build_tokenizer(TEXTS, 320)
    built.save_pretrained(tmp_path)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1"}]
    expected = built.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert load_tokenizer(tmp_path).prompt_ids("1 + 1", "Be brief.") == expected


def test_end_and_padding_are_the_named_tokens(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path)
    assert tokenizer.backend.id_to_token(tokenizer.eos_token_id) == "<|im_end|>"
    assert tokenizer.backend.id_to_token(tokenizer.pad_token_id) == "<|endoftext|>"
    assert tokenizer.vocab_size <= 320


def test_the_same_texts_give_the_same_tokenizer() -> None:
    first, second = (build_tokenizer(TEXTS, 320).backend_tokenizer.to_str() for _ in range(2))
    assert first == second


def test_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match="sft.new.vocab_size=200 is too small.*set 261"):
        build_tokenizer(TEXTS, 200)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 100}), encoding="utf-8")
    with pytest.raises(ModelError, match="does not fit its model.*vocab_size is 100"):
        load_tokenizer(tmp_path)


def test_a_missing_folder_or_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load_tokenizer(tmp_path / "absent")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError, match="has no tokenizer .*it holds model.safetensors"):
        load_tokenizer(tmp_path)


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    for content in ("{", "{}"):
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
        with pytest.raises(ModelError, match="tokenizer.json"):
            load_tokenizer(tmp_path)


def test_code_that_a_model_folder_brings_is_refused_and_not_asked_about(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "its_own"}')
    settings = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')\nclass Own: pass\n")
    with pytest.raises(ModelError, match="cannot be read"):
        load_tokenizer(tmp_path)
    assert not (tmp_path / "marker").exists()


def test_a_template_that_knows_no_system_role_says_what_to_set(tmp_path: Path) -> None:
    saved(tmp_path)
    refusing = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}{{ "
        "messages[0]['content'] }}"
    )
    (tmp_path / "chat_template.jinja").write_text(refusing, encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.render("hello") == "hello"
    with pytest.raises(ModelError, match="no system role; set data.system_prompt=null"):
        tokenizer.render("hello", "Be brief.")


def test_generation_tags_are_blocks_that_are_always_rendered(tmp_path: Path) -> None:
    saved(tmp_path)
    template = "{% for m in messages %}{%- generation -%} [{{ m['content'] }}] {%- endgeneration %}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    assert load_tokenizer(tmp_path).render("a") == "[a]"


def test_without_a_template_the_prompt_is_plain_text(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.prompt_ids("1 + 1", "Be brief.")) == "Be brief.\n\n1 + 1\n"


def test_transformers_reads_it_as_a_qwen2_tokenizer_to_the_same_tokens(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    built = build_tokenizer(TEXTS, 320)
    built.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    read = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("4 - 1 - 7 =\n", "It's 780, 461.", " two  spaces\n", "<answer>-6</answer>"):
        assert read.encode(text) == built.encode(text)
