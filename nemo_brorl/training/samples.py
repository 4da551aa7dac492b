"""Samples of each step: a few rollouts as text, to read what the model writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_brorl.cluster.object_store import fetch
from nemo_brorl.core.console import Console
from nemo_brorl.core.files import naming, write_atomically
from nemo_brorl.evaluation.shown_responses import Decode, shown_responses
from nemo_brorl.training.observers import Observer, StepMade
from nemo_brorl.types import ScoredGroup, TrainBatch


class Samples(Observer):
    """Observer that writes a few responses of every step as text, and prints some when no batch can be filled."""

    def __init__(self, run_folder: Path, num_samples: int, decode: Decode, console: Console) -> None:
        self.run_folder = run_folder
        self.num_samples = num_samples
        self.decode = decode
        self.console = console

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        if self.num_samples:
            self._write(made.step, made.batch)
        return {}

    def starved(self, sampled: Sequence[ScoredGroup]) -> None:
        if not sampled:
            return
        for line in shown_responses(list(sampled), self.decode):
            self.console.line(line)

    def _write(self, step: int, batch: TrainBatch) -> None:
        """Write the first rollout of the first groups of a batch to `rollouts/step_K.jsonl`. Raises ResourceError."""
        path = self.run_folder / "rollouts" / f"step_{step}.jsonl"
        num = self.num_samples
        text = ""
        for group, advantages in zip(batch.groups[:num], batch.advantages[:num], strict=True):
            arrays = fetch(group.group.chunks[0].data)
            response_ids = arrays.token_ids[: arrays.offsets[1]]
            row = {
                "prompt": self.decode(group.prompt.token_ids),
                "response": self.decode(response_ids.tolist()),
                "reward": float(group.rewards[0]),
                "advantage": float(advantages[0]),
                "group_mean": float(group.rewards.mean()),
            }
            text += json.dumps(row) + "\n"
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
