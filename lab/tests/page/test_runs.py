"""What the page says of runs: curves, state, settings, comparison."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from brorl_lab.commands.report import chosen_folders
from brorl_lab.page.comparison import compare_runs
from brorl_lab.page.runs import SILENT_S, RunView, open_runs, overview, settings_table, state_of

from nemo_brorl.core.errors import ConfigError
from tests.support.run_folders import put_heartbeat

PASS_AT_1 = "validation/pass_at_1"
ERROR = "validation/pass_at_1_standard_error"


def put_rows(folder: Path, *rows: dict[str, Any], settings: str = "trainer: {max_steps: 4}") -> RunView:
    folder.mkdir(parents=True)
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "metrics.jsonl").write_text("".join(lines))
    (folder / "config.yaml").write_text(settings)
    return RunView(folder, folder.name)


def test_a_metric_has_a_value_or_none_for_every_step(tmp_path: Path) -> None:
    run = put_rows(tmp_path / "a", {"step": 0, PASS_AT_1: 0.1}, {"step": 1, "reward/mean": 0.5, "my_loss/term": 2.0})
    page = overview([run])
    [found] = page["runs"]
    assert found["steps"] == [0, 1]
    assert found["metrics"] == {PASS_AT_1: [0.1, None], "reward/mean": [None, 0.5], "my_loss/term": [None, 2.0]}
    assert found["max_steps"] == 4
    assert page["meanings"]["reward/mean"][2] == "Raw reward"
    assert "my_loss/term" not in page["meanings"]


def test_panels_have_the_metrics_of_their_patterns_and_no_others(tmp_path: Path) -> None:
    row = {"step": 0, PASS_AT_1: 0.1, ERROR: 0.02, "validation/pass_at_8": 0.4, "validation/pass_at_1/sums": 0.1}
    panels = {panel["title"]: panel["metrics"] for panel in overview([put_rows(tmp_path / "a", row)])["panels"]}
    assert panels["Held-out pass@1 and pass@k"] == [PASS_AT_1, "validation/pass_at_8"]
    assert panels["Entropy"] == []


def test_a_half_written_row_is_left_out(tmp_path: Path) -> None:
    run = put_rows(tmp_path / "a", {"step": 0, PASS_AT_1: 0.1})
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "rew')
    assert overview([run])["runs"][0]["steps"] == [0]


@pytest.mark.parametrize(
    ("state", "age_s", "shown"),
    [
        ("running", 1.0, "running"),
        ("running", 2 * SILENT_S, "silent"),
        ("stalled", 1.0, "stalled"),
        ("ended", 2 * SILENT_S, "ended"),
    ],
)
def test_a_run_that_was_killed_is_silent(tmp_path: Path, state: str, age_s: float, shown: str) -> None:
    put_heartbeat(tmp_path, state, time.time() - age_s)
    assert state_of(tmp_path)["state"] == shown


def test_a_run_without_a_heartbeat_is_unknown(tmp_path: Path) -> None:
    assert state_of(tmp_path) == {"state": "unknown"}


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "c"]
    for folder in folders:
        put_rows(folder, {"step": 0})
    assert [run.name for run in open_runs(folders)] == [str(folders[0]), str(folders[1]), "c"]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run folder"):
        open_runs([tmp_path])


def test_settings_have_a_value_of_every_run_with_default_and_meaning(tmp_path: Path) -> None:
    first = put_rows(tmp_path / "a", settings="rollouts: {num_per_prompt: 64}")
    second = put_rows(tmp_path / "b", settings="rollouts: {num_per_prompt: 16}\nmine: {x: 1}")
    table = settings_table([first, second])
    mine, size = table["rows"]
    assert mine == {"name": "mine.x", "values": [None, "1"], "default": None, "meaning": ""}
    assert (size["values"], size["default"]) == (["64", "16"], "512")
    assert size["meaning"] == "number of rollouts per prompt, N in BroRL"


def test_runs_are_compared_at_the_last_step_that_both_have_validated(tmp_path: Path) -> None:
    """Errors of 0.03 and 0.04 are one of 0.05: 1.96 of them are 0.098."""
    first = put_rows(tmp_path / "a", {"step": 2, PASS_AT_1: 0.5, ERROR: 0.03}, {"step": 4, PASS_AT_1: 0.9, ERROR: 0.01})
    second = put_rows(
        tmp_path / "b",
        {"step": 1, "generation/num_samples": 8, "rollouts/generated_tokens": 70, "time/collect_s": 3.0},
        {"step": 2, PASS_AT_1: 0.7, ERROR: 0.04, "generation/num_samples": 8, "time/update_s": 2.0},
    )
    one, two = compare_runs([first, second])["rows"]
    assert (one["step"], one["value"], one["best"], one["best_step"]) == (2, 0.5, 0.9, 4)
    assert one["difference"] is None
    assert two["difference"] == pytest.approx(0.2)
    assert two["difference_interval"] == pytest.approx([0.2 - 0.098, 0.2 + 0.098])
    assert (two["rollouts"], two["tokens"], two["seconds"]) == (16, 70, 5.0)


def test_the_interval_of_a_share_ends_at_0_and_1(tmp_path: Path) -> None:
    rare = put_rows(tmp_path / "a", {"step": 1, PASS_AT_1: 0.01, ERROR: 0.01})
    common = put_rows(tmp_path / "b", {"step": 1, PASS_AT_1: 0.99, ERROR: 0.01})
    one, two = compare_runs([rare, common])["rows"]
    assert one["interval"] == [0.0, pytest.approx(0.01 + 0.0196)]
    assert two["interval"] == [pytest.approx(0.99 - 0.0196), 1.0]


def test_nothing_right_at_all_is_not_certain(tmp_path: Path) -> None:
    none = {PASS_AT_1: 0.0, ERROR: 0.0}
    now = put_rows(tmp_path / "a", {"step": 1, **none, f"{PASS_AT_1}_low": 0.0, f"{PASS_AT_1}_high": 0.03})
    earlier = put_rows(tmp_path / "b", {"step": 1, **none})
    one, two = compare_runs([now, earlier])["rows"]
    assert one["interval"] == [0.0, 0.03]
    assert two["interval"] is None, "a run of before has no ends, and an error of 0 says nothing"


def test_one_run_is_compared_with_nothing(tmp_path: Path) -> None:
    assert compare_runs([put_rows(tmp_path / "a", {"step": 2, PASS_AT_1: 0.5})])["rows"] == []


def test_evaluations_on_the_same_questions_are_paired(tmp_path: Path) -> None:
    """Differences of 0.5 and 0 have mean 0.25."""
    runs = []
    for name, digits in {"a": ("00", "11"), "b": ("10", "11")}.items():
        run = put_rows(tmp_path / name, {"step": 0})
        prompts = dict(zip(("q/0", "q/1"), digits, strict=True))
        benchmarks = {"held_out": {"questions": "same", "settings": {}, "prompts": prompts}}
        record = {"model": name, "confidence": 0.95, "benchmarks": benchmarks}
        (run.folder / "evaluation.json").write_text(json.dumps(record))
        runs.append(run)
    [found] = compare_runs(runs)["paired"]
    assert (found["name"], found["other"], found["num_prompts"], found["difference"]) == ("b", "a", 2, 0.25)


@pytest.mark.parametrize("benchmark", [{}, {"questions": "q", "settings": {}, "prompts": {}}, [], None])
def test_a_damaged_evaluation_is_paired_with_nothing(benchmark: object, tmp_path: Path) -> None:
    run = put_rows(tmp_path / "a", {"step": 0})
    record = {"model": "m", "confidence": 0.95, "benchmarks": {"held_out": benchmark}}
    (run.folder / "evaluation.json").write_text(json.dumps(record))
    assert compare_runs([run, run])["paired"] == []


def test_the_run_of_a_recipe_is_found_as_train_finds_it() -> None:
    given = ["exp_manager.explicit_log_dir=somewhere"]
    assert chosen_folders(given, "sums_cpu") == [Path("somewhere")]
    with pytest.raises(ConfigError, match="no run is given"):
        chosen_folders([], None)
