"""Replaying the plateau detector on a metrics file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from brorl_lab.commands.plateau import main, plateau_rows

from nemo_brorl.config.rollouts import PlateauConfig
from nemo_brorl.core.errors import ConfigError, DataError


def write(path: Path, scores: list[float]) -> Path:
    rows = [{"step": 5 * index, "validation/pass_at_1": score} for index, score in enumerate(scores)] + [
        {"step": 99, "policy/loss": 1.0}
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_flat_run_is_called_a_plateau_once_its_patience_is_over() -> None:
    rows = [{"step": step, "validation/pass_at_1": 0.5} for step in range(9)]
    verdicts = [line[3] for line in plateau_rows(rows, PlateauConfig(window=4, patience=2))]
    assert verdicts == ["", "", "", "stalled 1", "PLATEAU", "", "", "", "stalled 1"]


def test_the_command_prints_a_row_for_each_validation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "metrics.jsonl", [0.1, 0.2, 0.3, 0.4, 0.5])
    assert main([str(tmp_path), "--window", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split() == ["20", "0.5000", "+0.1000", "(+0.1000", "…", "+0.1000)", "rising"]
    assert len(lines) == 2 + 5


def test_a_file_without_validations_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="no row has 'validation/pass_at_1'"):
        plateau_rows([{"step": 1}], PlateauConfig())
    with pytest.raises(ConfigError, match="there is no such run folder"):
        main([str(tmp_path / "missing.jsonl")])
    assert main([str(write(tmp_path / "m.jsonl", [0.1])), "--window", "2"]) == 2
    assert "pass --window of at least 3" in capsys.readouterr().err
