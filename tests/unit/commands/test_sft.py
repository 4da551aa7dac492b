"""Which of its two uses `brorl sft` is asked for, and what it says of settings that fit neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_brorl.commands import sft
from nemo_brorl.config.load import CommandLine, load_config
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import ConfigError


@pytest.fixture
def chat(tmp_path: Path) -> str:
    (tmp_path / "chat.jsonl").write_text('{"prompt": "hi", "response": "ho"}\n')
    return f"data.path={tmp_path / 'chat.jsonl'}"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [(["data.path=chat.jsonl"], "sft"), ([], "brorl_cpu"), (["sft.max_steps=3"], "brorl_cpu")],
)
def test_a_file_of_conversations_brings_settings_of_its_own(
    argv: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run_command(command: str, description: Any, argv: Any, body: Any, default_config: str) -> int:
        asked.append(default_config)
        return 0

    monkeypatch.setattr(sft, "run_command", run_command)
    assert sft.main(argv) == 0
    assert asked == [expected]


def used(config: BroRLConfig, monkeypatch: pytest.MonkeyPatch) -> str:
    found: list[str] = []
    monkeypatch.setattr(sft, "fine_tune", lambda config, line: found.append("fine_tune") or 0)
    monkeypatch.setattr(sft, "make_base", lambda config: found.append("make_base") or 0)
    assert sft.sft(config, CommandLine()) == 0
    return found[0]


def test_files_are_learnt_by_the_policys_model_and_generated_questions_by_a_new_one(
    chat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert used(load_config("sft", [chat]), monkeypatch) == "fine_tune"
    assert used(load_config("brorl_cpu"), monkeypatch) == "make_base"
    assert used(load_config("brorl_cpu", ["sft.base=policy"]), monkeypatch) == "fine_tune"
    assert used(load_config("smollm2_sft"), monkeypatch) == "fine_tune"
    with pytest.raises(ConfigError, match="write sft.base=policy, or data.source=reasoning_gym"):
        sft.sft(load_config("sft", [chat, "sft.base=new"]), CommandLine())


def test_a_mixture_is_not_read(chat: str) -> None:
    domain = f"{{name: chat, source: jsonl, path: {chat.removeprefix('data.path=')}}}"
    config = load_config("sft", ["data.source=mixture", f"data.domains=[{domain}]"])
    with pytest.raises(ConfigError, match="reads one source, write data.source=jsonl"):
        sft.sized_for_fine_tuning(config, Console())


def test_the_warm_up_model_must_hold_a_prompt_and_a_response() -> None:
    config = load_config("brorl_cpu", ["sft.max_position_embeddings=100"])
    with pytest.raises(ConfigError, match="write sft.max_position_embeddings=192 or more"):
        sft.check_base_is_long_enough(config)
