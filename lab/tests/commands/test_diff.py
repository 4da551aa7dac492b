"""`brorl diff`: settings that differ, numbers with intervals, folders that are broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from brorl_lab.commands.diff import compared_metric, compared_scores, last_common_step, main

from nemo_brorl.core.errors import DataError


def validation(step: int, score: float, error: float) -> dict[str, Any]:
    return {"step": step, "validation/pass_at_1": score, "validation/pass_at_1_standard_error": error}


def make_run(folder: Path, config: str, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def two_runs(folder: Path) -> tuple[str, str]:
    rows_a = [validation(0, 0.2, 0.01), {"step": 1, "reward/mean": 0.25}, validation(2, 0.5, 0.03)]
    rows_b = [validation(0, 0.2, 0.01), {"step": 1, "reward/mean": 0.5}, validation(2, 0.6, 0.04)]
    a = make_run(folder / "a", "rollouts: {num_per_prompt: 16}\ntrainer: {seed: 1}\nexp_manager: {}\n", rows_a)
    newer = "store: {text: true, enabled: true}\n"  # of which enabled is the default
    b = make_run(folder / "b", f"rollouts: {{num_per_prompt: 512}}\ntrainer: {{seed: 1}}\n{newer}", rows_b)
    return str(a), str(b)


def test_settings_that_differ_and_those_that_one_version_lacks_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*two_runs(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"name": "rollouts.num_per_prompt", "a": "16", "b": "512"} in found["settings"]
    assert {"name": "store.text", "a": "–", "b": "true"} in found["settings"]
    assert len(found["settings"]) == 2


def test_a_difference_of_scores_has_the_interval_of_independent_errors() -> None:
    (last, best) = compared_scores([validation(4, 0.5, 0.03)], [validation(4, 0.6, 0.04), validation(9, 0.7, 0.01)])
    assert (last.name, last.a, last.b) == ("pass@1 after step 4", 0.5, 0.6)
    assert last.difference == pytest.approx(0.1)
    assert last.spread == pytest.approx(1.96 * 0.05)
    assert best.b == 0.7


def test_metrics_are_means_over_the_last_steps_that_both_have() -> None:
    a = [{"step": step, "reward/mean": 1.0} for step in range(1, 31)]
    b = [{"step": step, "reward/mean": float(step)} for step in range(1, 13)]
    step = last_common_step(a, b)
    assert step == 12
    found = compared_metric("reward/mean", a, b, step)
    assert (found.a, found.b, found.spread_a) == (1.0, 7.5, 0.0)  # of 3 … 12
    assert found.spread is None  # steps are no independent draws


def test_a_metric_that_is_null_or_text_is_left_out() -> None:
    rows: list[dict[str, Any]] = [{"step": 1, "x": None}, {"step": 2, "x": "high"}, {"step": 3, "x": 4}]
    found = compared_metric("x", rows, rows, 3)
    assert (found.a, found.spread_a) == (4.0, None)


def test_tables_name_both_runs_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*two_runs(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "rollouts.num_per_prompt" in out
    assert "0.5 ± 0.059" in out
    assert "+0.1 ± 0.098" in out


@pytest.mark.parametrize(
    ("name", "content"), [("config.yaml", b"a: ["), ("config.yaml", None), ("metrics.jsonl", None)]
)
def test_a_broken_run_is_one_message(tmp_path: Path, name: str, content: bytes | None) -> None:
    a, b = two_runs(tmp_path)
    path = Path(b) / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=name):
        main([a, b])


def test_half_rows_are_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = two_runs(tmp_path)
    with (Path(b) / "metrics.jsonl").open("a") as file:
        file.write('[1]\n{"step": null}\n{"step": 3, "rew')
    assert main([a, b]) == 0
    assert "pass@1 after step 2" in capsys.readouterr().out


def test_the_best_validation_is_one_of_trained_weights() -> None:
    base, trained = validation(0, 0.164, 0.04), validation(2, 0.156, 0.04)
    _, best = compared_scores([base, trained], [base, validation(2, 0.2, 0.04)])
    assert (best.a, best.b) == (0.156, 0.2)
    assert compared_scores([base], [base])[1].a == 0.164
