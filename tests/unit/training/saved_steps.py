"""Checkpoints of a few steps."""

from __future__ import annotations

from pathlib import Path

from nemo_brorl.rollouts.carried_groups import CarriedGroups
from nemo_brorl.training.checkpoint import Checkpoints, RunState
from nemo_brorl.training.saver import Saver
from tests.support.fakes import FakePolicy, make_group


def run_state(step: int) -> RunState:
    return RunState(step, {"version": step}, CarriedGroups(kept=(make_group([0.0, 1.0], uid=f"train/{step}"),)))


def save_steps(folder: Path, steps: list[int], keep: int = 3) -> tuple[Checkpoints, FakePolicy]:
    policy, checkpoints = FakePolicy(), Checkpoints(folder, keep)
    for step in steps:
        policy.weight = float(step)
        Saver(checkpoints, policy, in_background=False).save(run_state(step), wait=True)
    return checkpoints, policy
