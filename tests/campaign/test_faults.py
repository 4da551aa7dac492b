"""What a campaign draws, damages and compares; the campaign itself is `make campaign`."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.campaign.campaign import differences
from tests.campaign.faults import KINDS, damage_file, draw
from tests.campaign.jobs import JOBS


def test_a_seed_draws_the_same_faults_and_every_kind_as_often() -> None:
    faults = draw(2 * len(KINDS), seed=3)
    assert faults == draw(2 * len(KINDS), seed=3) != draw(2 * len(KINDS), seed=4)
    kinds = [fault.kind for fault in faults]
    assert {kind: kinds.count(kind) for kind in KINDS} == dict.fromkeys(KINDS, 2)
    assert all(0 <= fault.at < 1 for fault in faults)


@pytest.mark.parametrize("seed", range(8))
def test_one_file_is_damaged_and_never_the_only_checkpoint(tmp_path: Path, seed: int) -> None:
    for step in (1, 2):
        (tmp_path / "checkpoints" / f"step_{step}").mkdir(parents=True)
        (tmp_path / "checkpoints" / f"step_{step}" / "COMPLETE").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    name = damage_file(tmp_path, random.Random(seed))
    changed = [path for path, content in before.items() if path.read_bytes() != content]
    assert changed == [tmp_path / name]
    assert "step_1" not in name


def test_runs_differ_by_what_was_learnt_and_not_by_their_times(tmp_path: Path) -> None:
    tables = {
        "whole": [{"step": 1, "reward/mean": 0.5, "time/update_s": 1.0, "generation/num_samples": 4}],
        "same": [{"step": 1, "reward/mean": 0.5, "time/update_s": 2.0, "generation/num_samples": 5}],
        "other": [{"step": 1, "reward/mean": 0.25}],
        "short": [],
    }
    read = {}
    for name, table in tables.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
        read[name] = JOBS["train"].results(tmp_path / name)
    assert differences(read["same"], read["whole"]) == []
    assert differences(read["other"], read["whole"]) == ["other values: reward/mean"]
    assert differences(read["short"], read["whole"]) == ["0 rows, not 1"]


def test_every_command_is_disturbed_and_a_kind_only_where_it_has_a_victim() -> None:
    faults = draw(20 * len(KINDS), seed=1)
    assert {fault.command for fault in faults} == JOBS.keys()
    assert {fault.command for fault in faults if fault.kind == "rank killed"} == {"train", "sft"}
    assert {fault.command for fault in faults if fault.kind == "engine killed"} == {"train", "evaluate"}
    assert {fault.command for fault in draw(len(KINDS), seed=1, command="sft")} == {"sft"}


def test_answers_of_an_evaluation_are_compared_in_any_order(tmp_path: Path) -> None:
    lines = ['{"prompt": 1, "reward": 0.5}', '{"prompt": 2, "reward": 1.0}']
    for name, order in (("whole", lines), ("same", lines[::-1]), ("other", ['{"prompt": 1, "reward": 0.0}', lines[1]])):
        folder = tmp_path / name / "evaluations" / "answers"
        folder.mkdir(parents=True)
        (folder / "held_out.jsonl").write_text("\n".join(order))
    results = JOBS["evaluate"].results
    assert differences(results(tmp_path / "same"), results(tmp_path / "whole")) == []
    assert differences(results(tmp_path / "other"), results(tmp_path / "whole")) == ["other values: reward"]
