"""`brorl COMMAND` finds its commands and refuses others."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import signal
import sys
import tomllib
import types
from pathlib import Path

import pytest
import yaml

from nemo_brorl.__main__ import COMMANDS, main
from tests.unit.core.test_console import Terminal


def test_every_command_has_a_module_with_a_main_of_the_command_line() -> None:
    for module_name, _ in COMMANDS.values():
        assert list(inspect.signature(importlib.import_module(module_name).main).parameters) == ["argv"]


def test_an_unknown_command_exits_with_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["brorl", "trian"])
    assert main() == 2
    assert "there is no command 'trian'. Did you mean train?" in capsys.readouterr().err


def test_version_is_that_of_both_distributions_and_of_the_citation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["brorl", "--version"])
    assert main() == 0
    printed = capsys.readouterr().out.removeprefix("nemo_brorl ").strip()
    root = Path(__file__).parents[3]
    for name in ("pyproject.toml", "graders/pyproject.toml"):
        assert tomllib.loads((root / name).read_text(encoding="utf-8"))["project"]["version"] == printed
    assert yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))["version"] == printed
    assert f"## {printed} " in (root / "CHANGELOG.md").read_text(encoding="utf-8")


def test_help_with_a_command_is_the_help_of_that_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["brorl", "help", "train", "policy.optim"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    assert "policy.optim.lr=" in capsys.readouterr().out


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


@pytest.mark.parametrize("words", [["trian"], ["help"], *(["help", name] for name in COMMANDS)], ids=" ".join)
def test_help_and_refusals_fit_a_terminal_of_80_columns(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    screen = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, screen)
    monkeypatch.setattr(sys, "argv", ["brorl", *words])
    with contextlib.suppress(SystemExit):
        main()
    lines = screen.getvalue().splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_before_a_command_handles_it_ends_it_with_a_sentence(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = types.ModuleType("slow")
    slow.main = lambda argv: signal.raise_signal(number)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "slow", slow)
    monkeypatch.setitem(COMMANDS, "slow", ("slow", "slow"))
    monkeypatch.setattr(sys, "argv", ["brorl", "slow"])
    former = signal.getsignal(number)
    assert main() == (75 if number == signal.SIGUSR1 else 128 + number)
    told = capsys.readouterr().err
    assert told == f"\nstopped by {number.name}: nothing is lost. Run the same command to begin again.\n"
    assert signal.getsignal(number) == former
