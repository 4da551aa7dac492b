"""Stored steps learnt again, on the fakes of the loop: the same plans, the same weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brorl_lab.commands.replay import (
    Replay,
    ReplayStart,
    differing_metrics,
    find_start,
    off_policy,
    recorded_row,
    table_rows,
)
from brorl_lab.store_reader import read_step

from nemo_brorl.config.records import StoreConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import DataError
from nemo_brorl.training.store.files import StoreFiles
from nemo_brorl.training.store.writer import StoreWriter
from nemo_brorl.training.trainer import BroRLTrainer
from nemo_brorl.types import UpdateReport
from tests.support.fakes import FakePolicy
from tests.support.loop import fake, make_trainer, small_config, use_store
from tests.support.stored import DirectStore


def finished_run(folder: Path, max_steps: int = 4) -> BroRLTrainer:
    """A run with checkpoints after every second step, and all its steps stored."""
    trainer = make_trainer(folder, small_config(max_steps))
    use_store(trainer, DirectStore(folder))
    trainer.fit()
    return trainer


def replay_of(folder: Path, config: BroRLConfig | None = None) -> Replay:
    return Replay(folder, small_config(4), config or small_config(4))


def test_a_replay_begins_at_the_newest_checkpoint_before_the_step(tmp_path: Path) -> None:
    finished_run(tmp_path)
    assert find_start(tmp_path, 4, 4) == ReplayStart(2, tmp_path / "checkpoints" / "step_2")
    assert find_start(tmp_path, 3, 4) == ReplayStart(2, tmp_path / "checkpoints" / "step_2")
    assert find_start(tmp_path, 2, 2) == ReplayStart(0, None)


def test_a_step_that_is_needed_and_not_stored_is_named(tmp_path: Path) -> None:
    finished_run(tmp_path)
    StoreFiles(tmp_path).remove(3)
    with pytest.raises(
        DataError, match=r"steps 3 to 4 must be stored.*checkpoint before step 4 is of step 2; 3 is not"
    ):
        find_start(tmp_path, 4, 4)


def test_a_step_of_which_a_share_is_stored_is_refused_before_anything_starts(tmp_path: Path) -> None:
    finished_run(tmp_path)
    StoreWriter(tmp_path, StoreConfig(share=1e-9), tmp_path).write(read_step(tmp_path, 3))
    with pytest.raises(DataError, match=r"step 3 cannot be replayed: \d+ of its groups are not .*store\.share=1"):
        find_start(tmp_path, 4, 4)
    assert find_start(tmp_path, 2, 2) == ReplayStart(0, None)


def test_steps_learnt_again_make_the_weights_of_the_run(tmp_path: Path) -> None:
    trainer = finished_run(tmp_path)
    start = find_start(tmp_path, 4, 4)
    policy = FakePolicy()
    assert start.checkpoint is not None
    policy.load(start.checkpoint / "policy")
    for step in (3, 4):
        replay_of(tmp_path).train_on_step(policy, step)
    assert policy.weight == fake(trainer).weight


def test_the_plan_of_a_step_is_the_one_that_was_made(tmp_path: Path) -> None:
    made = fake(finished_run(tmp_path)).plans[2]
    again = replay_of(tmp_path).plan(read_step(tmp_path, 3, ["trained"]))
    assert again.mini_batches == made.mini_batches
    assert (again.version, again.learning_rate, again.loss_scale) == (made.version, made.learning_rate, made.loss_scale)
    for one, other in zip(again.groups, made.groups, strict=True):
        np.testing.assert_array_equal(one.advantages, other.advantages)
        np.testing.assert_array_equal(one.prompt_ids, other.prompt_ids)
        assert (one.staleness, one.is_measured) == (other.staleness, other.is_measured)
        for chunk, old in zip(one.chunks, other.chunks, strict=True):
            np.testing.assert_array_equal(chunk.token_ids, old.token_ids)
            np.testing.assert_array_equal(chunk.log_probs, old.log_probs)


def test_other_settings_change_the_plan(tmp_path: Path) -> None:
    made = fake(finished_run(tmp_path)).plans[2]
    config = small_config(4)
    config.algorithm.num_mini_batches = 4
    config.algorithm.loss = "gspo"
    config.policy.optim.lr *= 2
    again = replay_of(tmp_path, config).plan(read_step(tmp_path, 3, ["trained"]))
    assert (len(made.mini_batches), len(again.mini_batches)) == (2, 4)
    assert again.objective == "gspo"
    assert again.learning_rate == 2 * made.learning_rate


def test_rollouts_of_other_weights_are_stale_and_measure_no_gain(tmp_path: Path) -> None:
    made = fake(finished_run(tmp_path)).plans[2]
    old = off_policy(made, lag=2)
    assert [group.staleness for group in old.groups] == [group.staleness + 2 for group in made.groups]
    assert not any(group.is_measured for group in old.groups)


def test_the_reference_is_reset_where_the_run_reset_it(tmp_path: Path) -> None:
    finished_run(tmp_path)
    event = {"step": 3, "event": "reference_reset", "reason": "interval", "value": 3.0}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    policy = FakePolicy()
    replay_of(tmp_path).train_on_step(policy, 2)
    assert policy.reference_resets == []
    replay_of(tmp_path).train_on_step(policy, 3)
    assert policy.reference_resets == [small_config().algorithm.reference_reset.clear_optimizer]


REPORT = UpdateReport(3, {"policy/loss": 0.1 + 0.2, "policy/grad_norm": float("nan")}, {}, 2, 0)


def test_numbers_are_compared_bit_for_bit_and_null_is_nan(tmp_path: Path) -> None:
    row = {"step": 3, "policy/loss": 0.1 + 0.2, "policy/grad_norm": None}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert differing_metrics(recorded_row(tmp_path, 3), REPORT) == []
    assert differing_metrics({"policy/loss": 0.3, "policy/grad_norm": 1.0}, REPORT) == [
        "policy/loss",
        "policy/grad_norm",
    ]
    with pytest.raises(DataError, match="has no row of step 4"):
        recorded_row(tmp_path, 4)


def test_the_table_has_the_numbers_that_either_side_knows() -> None:
    row = {"policy/loss": 0.25, "policy/clip_fraction": 0.5}
    report = replace(REPORT, metrics={"policy/loss": 0.125})
    assert table_rows(row, report) == [["loss", "0.25", "0.125"], ["clip share", "0.5", "-"]]
