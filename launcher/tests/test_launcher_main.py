"""The commands of the launcher, its help, its exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nemo_brorl.__main__ import COMMANDS, main


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["brorl", *arguments])
    return main()


@pytest.mark.parametrize("command", ["render", "submit", "status", "attach"])
def test_every_command_has_help_with_examples(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        call(monkeypatch, command, "--help")
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert f"usage: brorl {command}" in said
    assert f"examples:\n  brorl {command} " in said


def test_the_commands_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "--help") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")] == list(COMMANDS)
    assert call(monkeypatch) == 2


def test_every_command_is_explained_in_the_same_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(monkeypatch, "--help")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    column = 2 + max(map(len, COMMANDS)) + 2
    assert [(line[:column].strip(), line[column:]) for line in lines] == [
        (name, summary) for name, (_, summary) in COMMANDS.items()
    ]


def test_an_unknown_command_exits_with_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "rendr") == 2
    assert "there is no command 'rendr'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["render", "trainer.max_stepz=1"],
        ["render", "--time", "4:00", "policy.model=a/b"],
        ["submit", "--chain", "0"],
        ["status", "nowhere"],
        ["attach", "nowhere"],
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    arguments: list[str],
    no_slurm: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *arguments) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert len(said.err.splitlines()) == 1
    assert said.out == ""


def test_help_loads_neither_torch_nor_ray() -> None:
    script = (
        "import sys, brorl_launcher.render, brorl_launcher.submit, brorl_launcher.status, "
        "brorl_launcher.attach; print({'torch', 'ray', 'vllm'} & set(sys.modules))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert said.stdout == "set()\n"
