"""Which groups of a step are recorded, and what is said of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from nemo_brorl.config.rollouts import DynamicSamplingConfig
from nemo_brorl.training.store.record import step_record
from nemo_brorl.training.trainer import BroRLTrainer
from nemo_brorl.types import FilledBatch, ScoredGroup, StepRecord, TrainBatch, UpdatePlan, WithdrawnGroup
from tests.support.fakes import make_group
from tests.support.loop import make_trainer, small_config, store_of

PLAN = UpdatePlan(4, "ppo_clip", 1e-6, (), ())


def said(kept: StepRecord) -> dict[str, tuple[str, str]]:
    """Origin and fate by uid."""
    return {stored.scored.prompt.uid: (stored.origin, stored.fate) for stored in kept.groups}


def recorded(batch: list[ScoredGroup], sampled: list[ScoredGroup], **settings: bool) -> dict[str, tuple[str, str]]:
    withdrawn = (WithdrawnGroup(make_group([0.0], "w"), "timed_out"),)
    filled = FilledBatch(tuple(batch), tuple(sampled), withdrawn, 1.0, {}, 0.0, 0.0)
    numbers = tuple(np.zeros(2, np.float32) for _ in batch)
    rollouts = tuple(np.arange(2) for _ in batch)
    taught = TrainBatch(tuple(batch), numbers, rollouts, shaped=numbers)
    kept = step_record(4, PLAN, filled, taught, DynamicSamplingConfig(**settings))
    assert [stored.scored.prompt.uid for stored in kept.groups[: len(batch)]] == [group.prompt.uid for group in batch]
    return said(kept)


def test_every_group_says_where_it_is_from_and_what_became_of_it() -> None:
    here, old = make_group([0.0, 1.0], "here"), make_group([0.0, 1.0], "old")
    tail = replace(make_group([0.0, 1.0], "tail"), train_indices=np.array([1]))
    later, wrong, right = make_group([0.0, 1.0], "later"), make_group([0.0] * 2, "a"), make_group([1.0] * 2, "b")
    assert recorded([old, here, tail], [wrong, here, right, later]) == {
        "old": ("carried", "trained"),
        "here": ("sampled", "trained"),
        "tail": ("completed", "trained"),
        "later": ("sampled", "carried"),
        "a": ("sampled", "all_wrong"),
        "b": ("sampled", "all_correct"),
        "w": ("sampled", "timed_out"),
    }


def test_an_informative_group_too_many_is_surplus_where_nothing_is_carried() -> None:
    here, more = make_group([0.0, 1.0], "here"), make_group([0.0, 1.0], "more")
    assert recorded([here], [here, more], max_staleness=0)["more"] == ("sampled", "surplus")


def records(trainer: BroRLTrainer) -> list[StepRecord]:
    return store_of(trainer).records


def test_the_loop_records_every_step_and_what_it_learnt_with(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config(max_steps=3))
    trainer.fit()
    assert [kept.step for kept in records(trainer)] == [1, 2, 3]
    assert [kept.version for kept in records(trainer)] == [1, 2, 3]
    for kept, plan in zip(records(trainer), trainer.parts.policy.plans, strict=True):  # type: ignore[attr-defined]
        trained = [stored for stored in kept.groups if stored.fate == "trained"]
        assert [stored.advantages is planned.advantages for stored, planned in zip(trained, plan.groups, strict=True)]
        assert kept.learning_rate == plan.learning_rate
    dropped = {stored.fate for kept in records(trainer) for stored in kept.groups} - {"trained", "carried"}
    assert dropped == {"all_correct"}


def test_what_was_begun_is_written_before_a_checkpoint_and_a_resumed_run_drops_later_steps(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config(max_steps=4))
    assert not trainer.resume()
    trainer.fit()
    assert store_of(trainer).num_flushes == 2, "after steps 2 and 4"
    assert store_of(trainer).dropped_after == [None]
    again = make_trainer(tmp_path, small_config(max_steps=6))
    assert again.resume()
    assert store_of(again).dropped_after == [4]
