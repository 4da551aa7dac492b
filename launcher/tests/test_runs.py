"""`brorl runs`: states by the files of a folder, and folders that are broken."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from brorl_launcher.runs import main, run_folders, summarize_run, table_cells

from nemo_brorl.core.errors import DataError

NOW = time.time()
STEP = {"time/collect_s": 1800.0, "generation/samples_per_s": 500.0}


def make_run(folder: Path, rows: int = 3, max_steps: int = 20, gpus: int = 0) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        f"trainer: {{max_steps: {max_steps}, num_nodes: 2, gpus_per_node: {gpus}}}\n", encoding="utf-8"
    )
    lines = [{"step": 0, "validation/pass_at_1": 0.25, "validation/pass_at_1_standard_error": 0.01}]
    for step in range(1, rows + 1):
        lines.append({"step": step, **STEP})
    lines[-1] |= {"validation/pass_at_1": 0.5, "validation/pass_at_1_standard_error": 0.02}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def beat(folder: Path, state: str, ago: float = 5.0) -> None:
    row = {"state": state, "stage": "generate", "detail": "", "stage_s": 1.0, "silent_s": 1.0, "late": []}
    text = json.dumps({**row, "written_at": NOW - ago})
    (folder / "heartbeat.json").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("state", "ago", "said"),
    [
        ("running", 5.0, "running"),
        ("stalled", 5.0, "stalled"),
        ("running", 300.0, "crashed"),
        ("running", -600.0, "running"),
        ("running", -172_800.0, "crashed"),
        ("ended", 5.0, "stopped"),
        ("failed", 5.0, "failed"),
    ],
)
def test_the_state_is_what_the_heartbeat_last_said_and_when(tmp_path: Path, state: str, ago: float, said: str) -> None:
    run = make_run(tmp_path / "run")
    beat(run, state, ago)
    assert summarize_run(run, NOW).state == said


def test_a_run_whose_last_step_has_its_checkpoint_is_finished(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=3, max_steps=3)
    marker = run / "checkpoints" / "step_3" / "COMPLETE"
    marker.parent.mkdir(parents=True)
    marker.touch()
    beat(run, "ended", 9999.0)
    assert summarize_run(run, NOW).state == "finished"


def test_a_run_without_a_heartbeat_has_not_begun_or_has_crashed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert summarize_run(run, NOW).state == "crashed"
    (run / "metrics.jsonl").unlink()
    assert summarize_run(run, NOW).state == "not begun"


def test_numbers_of_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=4, gpus=8)
    beat(run, "running")
    found = summarize_run(run, NOW)
    assert (found.step, found.max_steps, found.pass_at_1, found.first_pass_at_1) == (4, 20, 0.5, 0.25)
    assert (found.hours, found.gpus, found.samples_per_s) == (2.0, 16, 500.0)
    assert table_cells(found)[:7] == [str(run), "running", "4/20", "50.0% ± 2.0%", "25.0%", "500", "32.0 GPU h"]


def test_without_gpus_the_cost_is_in_hours_of_nodes(tmp_path: Path) -> None:
    assert table_cells(summarize_run(make_run(tmp_path / "run", rows=4), NOW))[6] == "4.00 node h"


BROKEN: dict[str, Any] = {
    "config.yaml": ["", "trainer: [", "- a list", "trainer: 3", "\x00\x01"],
    "metrics.jsonl": [
        "",
        '{"step": 1',
        "[]\n3\n",
        '{"step": null}\n',
        '{"step": "four"}\n',
        '{"step": 1, "time/x_s": []}',
    ],
    "heartbeat.json": ["", "{", "[]", '{"state": 3}', '{"state": "running", "written_at": "now"}'],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BROKEN.items() for text in texts])
def test_a_broken_file_costs_one_line_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    for folder in ("broken", "whole"):
        beat(make_run(tmp_path / folder), "running", ago=NOW - time.time())
    (tmp_path / "broken" / name).write_text(text, encoding="utf-8")
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(str(tmp_path) in line for line in lines) == 2
    assert "running" in next(line for line in lines if "whole" in line)


def test_a_metrics_file_that_is_no_text_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").write_bytes(b"\xff\xfe\x00" * 100)
    assert main([str(tmp_path)]) == 0
    assert str(run) in capsys.readouterr().out


def test_folders_inside_a_run_are_no_runs_and_those_without_signs_neither(tmp_path: Path) -> None:
    run = make_run(tmp_path / "group" / "run")
    make_run(run / "launch")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "config.yaml").touch()
    assert list(run_folders(tmp_path)) == [run]
    assert list(run_folders(run)) == [run]


def test_json_has_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run", rows=4)
    assert main([str(tmp_path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["state"], found["step"], found["pass_at_1"]) == ("crashed", 4, 0.5)


def test_a_folder_that_is_not_there_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no folder"):
        main([str(tmp_path / "absent")])


def test_nothing_found_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert "no run below" in capsys.readouterr().out


def test_two_levels_are_searched_and_the_rest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    near = make_run(tmp_path / "group" / "run")
    far = make_run(tmp_path / "a" / "b" / "c" / "run")
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert str(near) in printed
    assert str(far) not in printed
    assert f"not searched: 1 folders, such as {far.parent}." in printed


def test_folders_whose_turn_comes_too_late_are_skipped(tmp_path: Path) -> None:
    make_run(tmp_path / "group" / "run")
    skipped: list[Path] = []
    assert list(run_folders(tmp_path, skipped, until=-1.0)) == []
    assert skipped == [tmp_path / "group"]
