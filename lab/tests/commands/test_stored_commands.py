"""Command lines of replay, rescore and export-sft, and what they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from brorl_lab.commands import export_sft, replay, rescore
from brorl_lab.commands.rescore import RescoredGroup
from brorl_lab.store_reader import chosen_steps

from lab.tests.commands.test_export_sft import WORDS
from nemo_brorl.config.load import load_config, load_run_config, to_yaml
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import ConfigError, DataError
from nemo_brorl.types import UpdateReport
from tests.support.fakes import FakeVerifier
from tests.support.stored import DirectStore, group, record


def run_folder(folder: Path) -> Path:
    """A run of three stored steps."""
    (folder / "config.yaml").write_text(to_yaml(load_config()))
    for step in (1, 2, 3):
        DirectStore(folder).write(record(step))
    return folder


def test_settings_of_a_run_are_read_with_others_over_them(tmp_path: Path) -> None:
    config = load_run_config(run_folder(tmp_path), ["algorithm.loss=cispo", "policy.optim.lr=2e-6"])
    assert (config.algorithm.loss, config.policy.optim.lr) == ("cispo", 2e-6)
    assert config.rollouts == load_config().rollouts
    with pytest.raises(ConfigError, match="algorithm.los"):
        load_run_config(tmp_path, ["algorithm.los=gspo"])
    with pytest.raises(ConfigError, match="is no run folder"):
        load_run_config(tmp_path / "nowhere")


def test_settings_are_given_with_set_or_without() -> None:
    asked = replay.parse(["RUN", "--step", "3", "--set", "algorithm.loss=gspo", "policy.optim.lr=1e-6"])
    assert asked.overrides == ("algorithm.loss=gspo", "policy.optim.lr=1e-6")
    assert (asked.first, asked.last) == (3, 3)
    assert replay.parse(["RUN", "--step", "3", "--through", "5"]).last == 5


@pytest.mark.parametrize("steps", [["--step", "0"], ["--step", "4", "--through", "3"], []])
def test_steps_that_are_none_are_refused(steps: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        replay.parse(["RUN", *steps])
    assert stopped.value.code == 2
    assert "--step" in capsys.readouterr().err


def shown(folder: Path, loss: float, *overrides: str) -> int:
    """Numbers that differ, of a replay of step 1 whose loss was 0.5."""
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "policy/loss": 0.5}) + "\n")
    asked = replay.ReplayArguments(folder, 1, 1, None, overrides)
    return replay.print_reports(asked, [UpdateReport(1, {"policy/loss": loss}, {}, 1, 0)], Console())


def test_a_replay_says_whether_it_is_the_runs_update(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(tmp_path, 0.5) == 0
    assert "bit-identical: all 1 numbers" in capsys.readouterr().out
    assert shown(tmp_path, 0.25) == 1
    assert "1 of 1 numbers differ: policy/loss" in capsys.readouterr().out
    assert shown(tmp_path, 0.25, "algorithm.loss=gspo") == 1
    assert "differ" not in capsys.readouterr().out


def test_steps_are_chosen_by_number_or_range(tmp_path: Path) -> None:
    run_folder(tmp_path)
    assert chosen_steps(tmp_path, None) == [1, 2, 3]
    assert chosen_steps(tmp_path, "2") == [2]
    assert chosen_steps(tmp_path, "2-9") == [2, 3]
    with pytest.raises(DataError, match="none of --steps 7 is stored; steps 1 to 3 are"):
        chosen_steps(tmp_path, "7")
    with pytest.raises(ConfigError, match="pass K or K-J"):
        chosen_steps(tmp_path, "2..3")


def test_what_a_model_wrote_reaches_no_terminal_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    class Hostile:
        def decode(self, token_ids: list[int]) -> str:
            return "\x1b[2J\u202e" + "x" * 1_000_000

    scored = group("train/1", [0.0, 0.0])
    (changed,) = rescore.rescore([scored], FakeVerifier(), "exact_match", {})
    rescore.print_examples([changed], Hostile(), 1, Console())  # type: ignore[arg-type]
    output = capsys.readouterr().out
    assert output.isascii() and "\x1b" not in output
    assert len(output) < 1000


def test_the_tables_of_a_rescoring_count_rollouts(capsys: pytest.CaptureFixture[str]) -> None:
    groups: list[RescoredGroup] = rescore.rescore(
        [group("train/1", [0.0, 0.0, 1.0, 1.0])], FakeVerifier(), "exact_match", {}
    )
    rescore.print_changes(groups, Console())
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["toy", "4", "50.0%", "0.500", "0.500", "1", "1", "1"] in lines
    assert ["was", "right", "1", "1"] in lines


def test_a_file_of_chat_lines_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export_sft, "tokenizer_of", lambda run: WORDS)
    assert export_sft.main([str(run_folder(tmp_path)), "--steps", "2-3"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    assert [line["uid"] for line in lines] == ["train/2"], "both steps asked the same question"
    assert "1 responses of 2 steps" in capsys.readouterr().out
