"""Responses that a run writes as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fakes import make_group
from tests.support.loop import make_trainer, small_config


def test_the_first_held_out_questions_and_their_responses_are_written_after_each_validation(tmp_path: Path) -> None:
    config = small_config()
    config.rollouts.save_samples = 2
    trainer = make_trainer(tmp_path, config)
    for step in (0, 3):
        trainer.validations.evaluate(step)
    lines = (tmp_path / "validations" / "step_3.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["step"], row["uid"]) for row in rows] == [(3, "held_out/0"), (3, "held_out/1")]
    assert all(row["question"] and row["response"] for row in rows)
    assert [row["is_right"] for row in rows] == [row["reward"] == 1 for row in rows]
    assert (tmp_path / "validations" / "step_0.jsonl").exists()


@pytest.mark.parametrize(("num", "groups"), [(0, 1), (2, 0)])
def test_nothing_is_written_where_nothing_is_asked_for_or_there(num: int, groups: int, tmp_path: Path) -> None:
    config = small_config()
    config.rollouts.save_samples = num
    for observer in make_trainer(tmp_path, config).parts.observers:
        observer.validated(0, [make_group([1.0, 0.0])] * groups)
    assert not (tmp_path / "validations").exists()
