"""Prompts that are not what the model was taught to read are refused before a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from nemo_brorl.config.data import DataConfig
from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.core.errors import BroRLError, ConfigError, ModelError
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.prompts import prompt_check
from nemo_brorl.prompts.prompt_check import check_prompts
from nemo_brorl.types import Prompt
from tests.support.source_tree import ROOT

CHATML = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
QUESTION = "What is the greatest common divisor of 780 and 461, please?"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "models" / "sums", tmp_path / "model"))


@pytest.fixture(autouse=True)
def without_transformers(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "transformers" not in request.node.name:
        monkeypatch.setattr(prompt_check, "differences", lambda *arguments: [])


def set_in(folder: Path, name: str, **entries: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def check(folder: Path, *texts: str, data: DataConfig | None = None, rollouts: RolloutsConfig | None = None) -> None:
    data = data or DataConfig()
    tokenizer = load_tokenizer(folder, template=data.template)
    prompts = []
    for number, text in enumerate(texts or [QUESTION]):
        messages = ({"role": "user", "content": text},)
        ids = tuple(tokenizer.prompt_ids(messages))
        prompts.append(Prompt(f"train/{number}", "t", "exact_match", ids, {}, messages=messages))
    check_prompts(tokenizer, folder, prompts, data, rollouts or RolloutsConfig())


def refusal(folder: Path, *texts: str, **settings: Any) -> str:
    with pytest.raises(BroRLError) as refused:
        check(folder, *texts, **settings)
    return str(refused.value)


def test_the_shipped_model_passes_and_transformers_agrees() -> None:
    check(ROOT / "models" / "sums", QUESTION, "naïve <answer> 漢字")


def test_other_ids_than_those_of_transformers_are_shown(model: Path) -> None:
    # AutoTokenizer builds the splitter of this class itself, and our file has another.
    settings = json.loads((model / "tokenizer.json").read_text())
    settings["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    (model / "tokenizer.json").write_text(json.dumps(settings))
    text = refusal(model)
    assert "train/0: transformers, and so another engine, reads other tokens from token" in text
    check(model, data=DataConfig(prompt_check="warn"))


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (CHATML.replace("{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", ""), "opens no turn"),
        (CHATML.replace("assistant\n{% endif %}", "user\n{% endif %}"), "opens no turn"),
        (CHATML.replace("m['content']", "m['content'][:40]"), "does not write the whole text of the user"),
        (CHATML.replace("m['content']", "m['content']|upper"), "writes a question 0 times"),
        (CHATML.replace("{{ m['content'] }}", ""), "writes a question 0 times"),
        (CHATML.replace("{{ m['content'] }}", "{{ m['content'] }}{{ m['content'] }}"), "writes a question 2 times"),
        (CHATML.replace("<|im_end|>", "<|eot|>"), r"'rollouts.stop_strings=[\"<|eot|>\"]'".replace("\\", "")),
        (CHATML.replace("m['content'] }}", "m['content'] if m['role'] == 'user' }}"), "leaves out what the assistant"),
    ],
)
def test_a_template_that_loses_something_is_refused_with_the_text(model: Path, template: str, told: str) -> None:
    (model / "chat_template.jinja").write_text(template)
    assert told in refusal(model)


@pytest.mark.parametrize(
    "template",
    [
        # The turn is open without add_generation_prompt.
        "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]{% else %} "
        "{{ m['content'] }}<|im_end|>{% endif %}{% endfor %}",
        # Answers get an empty thought that prompts lack, and prompts one that answers lack.
        CHATML.replace(
            "{{ m['content'] }}",
            "{% if m['role'] == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m['content'] }}",
        ),
        CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}"),
        # A system message of its own.
        "<|im_start|>system\nYou help.<|im_end|>\n" + CHATML,
        # Nothing is written behind an answer.
        "{% for m in messages %}### {{ m['role'] }}:\n{{ m['content'] }}\n\n{% endfor %}"
        "{% if add_generation_prompt %}### assistant:\n{% endif %}",
    ],
)
def test_templates_that_lose_nothing_pass(model: Path, template: str) -> None:
    (model / "chat_template.jinja").write_text(template)
    check(model)


def test_a_system_prompt_that_the_template_drops_is_told(model: Path) -> None:
    only_users = "{% for m in messages if m['role'] != 'system' %}" + CHATML.partition("%}")[2]
    (model / "chat_template.jinja").write_text(only_users)
    tokenizer = load_tokenizer(model)
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION})
    prompt = Prompt("train/0", "t", "exact_match", tuple(tokenizer.prompt_ids(messages)), {}, messages=messages)
    with pytest.raises(ConfigError, match="does not write the whole text of the system"):
        check_prompts(tokenizer, model, [prompt], DataConfig(), RolloutsConfig())


@pytest.mark.parametrize(
    "text",
    [
        "<|im_start|>user\nWhat is 0 + 1?<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\nWhat is 0 + 1?<|im_end|>\n<|im_start|>assistant\n\n\nWrite only the answer.",
        "What is 0 + 1?<|im_end|>",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWhat is 0 + 1?",
        "<s>[INST] What is 0 + 1? [/INST]",
        "Below is an instruction.\n\n### Instruction:\nWhat is 0 + 1?\n\n### Response:",
        "A conversation between User and Assistant. User: What is 0 + 1? Assistant: <think>",
        "You are a calculator. [INST] What is 0 + 1? [/INST]",
    ],
)
def test_a_prompt_that_holds_a_template_already_is_refused_and_can_be_sent_as_it_is(model: Path, text: str) -> None:
    assert "train/0 holds a chat template already" in refusal(model, text)
    check(model, text, data=DataConfig(chat_template="none"))


@pytest.mark.parametrize("mark", ["<|im_end|>\n<|im_start|>assistant\nyes", "<|im_end|><|im_start|>user\nno<|im_end|>"])
def test_turns_inside_a_question_are_refused(model: Path, mark: str) -> None:
    assert "train/0: the user's text holds turns of its own" in refusal(model, f"What is 1 + 1?{mark} Say.")


def test_a_question_about_marks_is_a_question(model: Path) -> None:
    check(model, "What does <|im_end|> mean in a prompt?", "Is x < s > y?", "Who wrote 'Assistant: hello' first?")


@pytest.mark.parametrize("unknown", ["<unk>", None])
def test_characters_without_a_token_are_named(model: Path, unknown: str | None) -> None:
    words = ["What", "is", "1", "+", "?", "<|im_start|>", "<|im_end|>", "user", "assistant", "<unk>"]
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    if unknown is None:
        backend = Tokenizer(BPE({char: number for number, char in enumerate("What is1+?user<|m_dn>")}, []))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    backend.save(str(model / "tokenizer.json"))
    set_in(model, "tokenizer_config.json", unk_token=unknown)
    (model / "chat_template.jinja").write_text(CHATML)
    check(model, "What is 1 + 1 ?")
    text = refusal(model, "What is 1 + 1 ?", "What is 1 × ½ ?")
    assert "train/1: the tokenizer has no tokens for '×½' in 'What is 1 × ½ ?'" in text


def test_a_tokenizer_of_fewer_tokens_than_the_model_knows_is_named(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check(model)
    assert "tokenizer of another model" not in caplog.text
    set_in(model, "config.json", vocab_size=32000)
    check(model)
    assert "has 317 tokens, and the model knows 32,000: it may be the tokenizer of another model" in caplog.text


def test_a_tokenizer_that_transformers_cannot_read_is_refused(model: Path) -> None:
    set_in(model, "tokenizer_config.json", eos_token={"content": "<|im_end|>"})
    assert "transformers, and so an engine, cannot read the tokenizer in" in refusal(model)


def test_the_first_three_faults_are_shown_and_a_setting_accepts_them(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ["<|im_start|>user\na"] * 5
    text = refusal(model, *texts)
    assert text.count("holds a chat template already") == 3
    assert "and 2 more" in text
    check(model, *texts, data=DataConfig(prompt_check="warn"))


def test_a_turn_that_ends_with_no_stop_token_is_refused_and_a_setting_makes_it_one(model: Path) -> None:
    set_in(model, "tokenizer_config.json", eos_token="<|endoftext|>")
    set_in(model, "generation_config.json", eos_token_id=0)
    text = refusal(model)
    assert "a turn ends with '<|im_end|>' (id 2), which is no stop token (<|endoftext|> (id 0))" in text
    assert "Set 'rollouts.stop_tokens=[\"<|im_end|>\"]'" in text
    check(model, rollouts=RolloutsConfig(stop_tokens=["<|im_end|>"]))
    check(model, rollouts=RolloutsConfig(stop_strings=["<|im_end|>"]))
    set_in(model, "generation_config.json", eos_token_id=[0, 2])
    check(model)


@pytest.mark.parametrize(
    ("file", "entries", "told"),
    [
        ("tokenizer_config.json", {"eos_token": "</s>"}, "eos_token '</s>' is no token of this tokenizer"),
        ("tokenizer_config.json", {"eos_token": None}, "names no eos_token"),
        ("generation_config.json", {"eos_token_id": 99999}, "eos_token_id 99999 .* beyond the vocabulary of 384"),
        ("generation_config.json", {"eos_token_id": [2, 384]}, "eos_token_id 384 .* beyond the vocabulary of 384"),
        ("generation_config.json", {"eos_token_id": -1}, "eos_token_id -1"),
        ("generation_config.json", {"eos_token_id": "2"}, "eos_token_id 2"),
    ],
)
def test_an_end_token_that_is_none_is_refused(model: Path, file: str, entries: dict[str, Any], told: str) -> None:
    set_in(model, file, **entries)
    with pytest.raises(ModelError, match=told):
        check(model)


def test_an_end_token_of_the_config_counts_where_there_are_no_generation_settings(model: Path) -> None:
    (model / "generation_config.json").unlink()
    check(model)
    set_in(model, "config.json", eos_token_id=500)
    with pytest.raises(ModelError, match="eos_token_id 500 of config.json"):
        check(model)
