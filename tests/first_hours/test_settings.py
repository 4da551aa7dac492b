"""Settings as people type them are taken, or refused with what works when typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from nemo_brorl.commands.check_inputs import check_inputs
from nemo_brorl.config.former_settings import ELSEWHERE
from nemo_brorl.config.load import CommandLine, load_config
from nemo_brorl.config.schema import settings
from nemo_brorl.core.errors import ConfigError
from tests.unit.prompts.files import plain_rows, write_jsonl

FIRST_LINE = "defaults: [your_model, _self_]\n"


def refused(*overrides: str, **others: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        load_config("your_model", overrides, **others)
    return str(raised.value)


@pytest.mark.parametrize(
    "typed",
    [
        "--rollouts.num_per_prompt=8",
        "rollouts.num_per_prompt = 8",
        "rollouts.stop_tokens=<|im_end|>",
        "rollouts.stop_strings=a,b",
        "data.system_prompt=You are kind, and brief.",
        "data.answer_instruction=Write it in \\boxed{}.",
    ],
)
def test_what_is_proposed_for_a_wrong_spelling_is_taken(typed: str) -> None:
    (proposed,) = shlex.split(refused(typed).rpartition(" set ")[2])
    load_config("your_model", [proposed])


def test_several_values_of_a_number_are_answered_with_its_kind() -> None:
    assert refused("rollouts.num_per_prompt=8,16").endswith("set one value of rollouts.num_per_prompt, a whole number")


@pytest.mark.parametrize("name", ["ü.jsonl", "a (1).jsonl", "a=b.jsonl", "a,b.jsonl", "a[1].jsonl", 'say "hi".jsonl'])
def test_a_path_needs_no_quotes_of_hydra(tmp_path: Path, name: str) -> None:
    path = write_jsonl(tmp_path / name, plain_rows(3))
    assert load_config("your_model", [f"data.path={path}"]).data.path == str(path)


def test_a_value_of_another_kind_is_answered_with_the_meaning_of_the_setting() -> None:
    assert "(data file, or a pattern of files" in refused("data.path=[a.jsonl,b.jsonl]")
    assert refused("data.success_reward=high").startswith("data.success_reward=high must be a number or null (reward")
    assert "for example null" not in refused("data.success_reward=high")
    assert (
        refused("exp_manager.explicit_log_dir=")
        == "exp_manager.explicit_log_dir is an empty text: set a path, or leave it out"
    )


@pytest.mark.parametrize("trainer", ELSEWHERE)
def test_names_of_other_trainers_are_answered_with_ours(trainer: str) -> None:
    words = ELSEWHERE[trainer].split()
    for other, ours in zip(words[::2], words[1::2], strict=True):
        assert ours in settings() and other not in settings()
        assert refused(f"{other}=8").endswith(f"which is a name of {trainer}: set {ours}")


def test_names_of_other_trainers_below_our_section_are_known_too() -> None:
    assert refused("trainer.learning_rate=1e-6").endswith("a name of TRL: set policy.optim.lr")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds nothing, and no settings by their names: write as its first line"),
        ("- a\n", "holds a list"),
        ("hello\n", "holds a str"),
        (f"{FIRST_LINE}rollouts.num_per_prompt: 8\n", "write rollouts: {num_per_prompt: 8}"),
        (f"{FIRST_LINE}rollouts:\n", "rollouts is empty: write settings below it"),
        ("defaults: [_self_, your_model]\nrollouts: {num_per_prompt: 8}\n", "replaces the settings of this file"),
    ],
)
def test_a_first_yaml_that_would_have_no_effect_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_config("own", config_path=tmp_path)


def test_a_yaml_without_self_keeps_its_settings(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("defaults: [your_model]\nrollouts: {num_per_prompt: 8}\n")
    assert load_config("own", config_path=tmp_path).rollouts.num_per_prompt == 8


def test_a_yaml_may_be_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.yaml").write_text(f"{FIRST_LINE}trainer: {{seed: 7}}\n")
    monkeypatch.chdir(tmp_path)
    for path in ("./own.yaml", str(tmp_path / "own.yaml"), str(tmp_path / "own")):
        assert load_config(path).trainer.seed == 7


def test_a_setting_that_is_given_twice_is_named() -> None:
    line = CommandLine("your_model", ("policy.model=models/sums", "trainer.seed=1", "trainer.seed=2"))
    assert "trainer.seed=1 is not read: trainer.seed=2 comes after it" in check_inputs(load_config(*line), line)
