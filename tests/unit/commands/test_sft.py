"""What `brorl sft` says of settings that read no conversations."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_brorl.commands import sft
from nemo_brorl.config.load import CommandLine, load_config
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import ConfigError


@pytest.fixture
def chat(tmp_path: Path) -> str:
    (tmp_path / "chat.jsonl").write_text('{"prompt": "hi", "response": "ho"}\n')
    return f"data.path={tmp_path / 'chat.jsonl'}"


def test_generated_questions_are_for_the_other_command() -> None:
    with pytest.raises(ConfigError, match="`brorl base` makes demonstrations of generated questions"):
        sft.sft(load_config("smollm2_sft"), CommandLine())


def test_a_new_model_is_for_the_other_command(chat: str) -> None:
    with pytest.raises(ConfigError, match="set sft.base=policy"):
        sft.sft(load_config("sft", [chat, "sft.base=new"]), CommandLine())


def test_a_mixture_is_not_read(chat: str) -> None:
    domain = f"{{name: chat, source: jsonl, path: {chat.removeprefix('data.path=')}}}"
    config = load_config("sft", ["data.source=mixture", f"data.domains=[{domain}]"])
    with pytest.raises(ConfigError, match="reads one source, set data.source=jsonl"):
        sft.sized_for_fine_tuning(config, Console())
