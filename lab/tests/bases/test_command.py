"""Which of its two uses `brorl base` is asked for, and what it says of settings that fit neither."""

from __future__ import annotations

from pathlib import Path

import pytest
from brorl_lab.bases import command

from nemo_brorl.config.load import CommandLine, load_config
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError


def used(config: BroRLConfig, monkeypatch: pytest.MonkeyPatch) -> str:
    found: list[str] = []
    monkeypatch.setattr(command, "fine_tune", lambda config, line, read: found.append("fine_tune") or 0)
    monkeypatch.setattr(command, "make_base", lambda config: found.append("make_base") or 0)
    assert command.make_or_fine_tune(config, CommandLine()) == 0
    return found[0]


def test_demonstrations_are_learned_by_a_new_model_or_by_the_policys(monkeypatch: pytest.MonkeyPatch) -> None:
    assert used(load_config("brorl_cpu"), monkeypatch) == "make_base"
    assert used(load_config("brorl_cpu", ["sft.base=policy"]), monkeypatch) == "fine_tune"
    assert used(load_config("smollm2_sft"), monkeypatch) == "fine_tune"


def test_conversations_in_files_are_for_the_other_command(tmp_path: Path) -> None:
    chat = tmp_path / "chat.jsonl"
    chat.write_text('{"prompt": "hi", "response": "ho"}\n')
    with pytest.raises(ConfigError, match="or run `brorl sft` for conversations in files"):
        command.make_or_fine_tune(load_config("sft", [f"data.path={chat}"]), CommandLine())


def test_the_new_model_must_hold_a_prompt_and_a_response() -> None:
    config = load_config("brorl_cpu", ["sft.new.max_position_embeddings=100"])
    with pytest.raises(ConfigError, match="set sft.new.max_position_embeddings=192 or more"):
        command.check_base_is_long_enough(config)
