"""Settings that the user gives: switches in place of texts, files without a kind, files that build on nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_brorl.config.load import load_config
from nemo_brorl.core.errors import ConfigError
from tests.unit.prompts.files import plain_rows, write_jsonl

MODEL = "policy.model=somewhere"


@pytest.mark.parametrize("value", ["false", "true", "no", "off", "5", "1.5"])
@pytest.mark.parametrize("key", ["data.system_prompt", "data.answer_instruction", "data.verifier", "policy.model"])
def test_a_switch_or_number_for_a_text_is_refused_with_what_to_write(key: str, value: str) -> None:
    read = {"no": "false", "off": "false"}.get(value, value)
    with pytest.raises(ConfigError, match=f"{key}={read} must be text: .*{key}='\"{read}\"' for the text itself"):
        load_config("your_model", [MODEL, f"{key}={value}"])


def test_the_proposed_texts_are_taken() -> None:
    config = load_config("your_model", [MODEL, 'data.system_prompt=""', 'data.answer_instruction="no"'])
    assert (config.data.system_prompt, config.data.answer_instruction) == ("", "no")


def test_a_choice_named_off_stays_a_choice() -> None:
    assert load_config("your_model", [MODEL, "rewards.constant_answers=off"]).rewards.constant_answers == "off"


def test_a_switch_in_a_yaml_file_or_in_one_it_builds_on_is_refused(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("defaults: [sums_cpu, _self_]\ndata:\n  system_prompt: no\n")
    (tmp_path / "own.yaml").write_text("defaults: [base, _self_]\ntrainer:\n  max_steps: 3\n")
    for name in ("base", "own"):
        with pytest.raises(ConfigError, match="data.system_prompt=false must be text"):
            load_config(name, [], tmp_path)


def test_a_yaml_file_that_builds_on_nothing_says_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("rollouts:\n  num_per_prompt: 8\n")
    (tmp_path / "dots.yaml").write_text("rollouts.num_per_prompt: 8\n")
    for name in ("own", "dots"):
        with pytest.raises(ConfigError, match=rf"{name}.yaml builds on nothing .* defaults: \[your_model, _self_\]"):
            load_config(name, [], tmp_path)


@pytest.mark.parametrize(("name", "kind"), [("a.jsonl", "jsonl"), ("a.csv", "jsonl"), ("a.parquet", "parquet")])
def test_a_file_without_a_kind_is_read_by_its_name(tmp_path: Path, name: str, kind: str) -> None:
    path = write_jsonl(tmp_path / name, plain_rows(2))
    assert load_config("your_model", [MODEL, f"data.path={path}"]).data.source == kind


def test_a_folder_without_a_kind_is_a_dataset(tmp_path: Path) -> None:
    assert load_config("your_model", [MODEL, f"data.path={tmp_path}"]).data.source == "dataset"


def test_a_file_without_a_kind_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a.jsonl: there is no such file"):
        load_config("your_model", [MODEL, f"data.path={tmp_path}/a.jsonl"])


@pytest.mark.parametrize("other", ["data.source=reasoning_gym", "data.tasks=[{name: gcd}]"])
def test_a_file_beside_generated_tasks_is_refused_with_both_settings(tmp_path: Path, other: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", plain_rows(2))
    key = other.partition("=")[0]
    with pytest.raises(ConfigError, match=f"data.path=.*a.jsonl and {key}.* name two sources"):
        load_config("your_model", [MODEL, f"data.path={path}", other])


def test_a_file_in_a_mixture_is_read_by_its_name(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", plain_rows(2))
    domains = f"data.domains=[{{name: own, path: {path}}}]"
    config = load_config("your_model", [MODEL, "data.source=mixture", domains])
    assert config.data.domains[0].source == "jsonl"


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_home_folder_is_expanded_in_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quote: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_jsonl(tmp_path / "a.jsonl", plain_rows(2))
    names = ("policy.model", "exp_manager.explicit_log_dir", "evaluation.output", "evaluation.checkpoint", "data.path")
    config = load_config("your_model", [f"{name}={quote}~/a.jsonl{quote}" for name in names])
    found = (
        config.policy.model,
        config.exp_manager.explicit_log_dir,
        config.evaluation.output,
        config.evaluation.checkpoint,
        config.data.path,
    )
    assert found == (str(tmp_path / "a.jsonl"),) * 5


def test_a_home_folder_in_a_yaml_file_and_in_a_list_is_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.yaml").write_text(
        "defaults: [sums_cpu, _self_]\npolicy:\n  model: ~/m\nrewards:\n  code:\n    readable: [~/a, /b]\n"
    )
    config = load_config("own", [], tmp_path)
    assert (config.policy.model, config.rewards.code.readable) == (f"{tmp_path}/m", [f"{tmp_path}/a", "/b"])
