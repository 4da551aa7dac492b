"""`brorl COMMAND` finds its commands and refuses others."""

from __future__ import annotations

import importlib
import inspect
import sys

import pytest

from nemo_brorl.__main__ import COMMANDS, main


def test_every_command_has_a_module_with_a_main_of_the_command_line() -> None:
    for module_name, _ in COMMANDS.values():
        assert list(inspect.signature(importlib.import_module(module_name).main).parameters) == ["argv"]


def test_an_unknown_command_exits_with_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["brorl", "trian"])
    assert main() == 2
    assert "there is no command 'trian'" in capsys.readouterr().err


def test_a_command_gets_its_own_arguments(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["brorl", "train", "--help"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    assert "usage: brorl train" in capsys.readouterr().out


def test_a_wrong_setting_exits_with_2_and_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["brorl", "train", "trainer.max_stepz=1"])
    assert main() == 2
    assert "Did you mean trainer.max_steps" in capsys.readouterr().err
