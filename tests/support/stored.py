"""Records of steps, for tests of the rollout store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from nemo_brorl.config.records import StoreConfig
from nemo_brorl.training.store.writer import StoreWriter
from nemo_brorl.types import ScoredGroup, StepRecord, StoredGroup
from tests.support.fakes import make_group

MESSAGES = ({"role": "user", "content": "What is 1?"},)


def group(uid: str, rewards: list[float], version: int = 0) -> ScoredGroup:
    """Rollout i has i + 1 tokens; the prompt has its conversation."""
    scored = make_group(rewards, uid, lengths=list(range(1, len(rewards) + 1)), version=version)
    prompt = replace(scored.prompt, messages=MESSAGES)
    chunks = []
    for chunk in scored.group.chunks:
        request = replace(chunk.request, prompt=prompt)
        chunks.append(replace(chunk, request=request))
    return replace(scored, group=replace(scored.group, prompt=prompt, chunks=tuple(chunks)))


def record(step: int = 3) -> StepRecord:
    """A trained group of three of which the first two were learnt from, and one that was all wrong."""
    trained = StoredGroup(
        scored=group(f"train/{step}", [0.0, 1.0, 0.5], version=step - 1),
        origin="sampled",
        fate="trained",
        shaped=np.array([0.0, 0.5, 0.25], np.float32),
        advantages=np.array([-1.0, 1.0, 0.0], np.float32),
        trained=np.array([0, 1]),
    )
    dropped = StoredGroup(group(f"train/{step}b", [0.0, 0.0]), "sampled", "all_wrong")
    return StepRecord(step, version=step, learning_rate=1e-3 / 3, loss_scale=0.1, groups=(trained, dropped))


class DirectStore:
    """The rollout store without an actor."""

    def __init__(self, folder: Path) -> None:
        self.writer = StoreWriter(folder, StoreConfig(), folder)

    def write(self, kept: StepRecord) -> None:
        self.writer.write(kept)

    def flush(self) -> None:
        pass

    def drop_after(self, step: int | None) -> None:
        self.writer.files.drop_after(step)
