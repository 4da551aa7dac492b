"""Samples of each step and validation: a few responses as text, to read what the model writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_brorl.core.console import Console
from nemo_brorl.core.files import naming, write_atomically
from nemo_brorl.evaluation.shown_responses import Decode, question_text, response_ids, shown_responses
from nemo_brorl.training.observers import Observer, StepMade
from nemo_brorl.types import ScoredGroup, is_right

Row = dict[str, Any]


class Samples(Observer):
    """Observer that writes first responses of steps and validations, and prints some when no batch can be filled."""

    def __init__(self, run_folder: Path, num_samples: int, decode: Decode, console: Console) -> None:
        self.run_folder = run_folder
        self.num_samples = num_samples
        self.decode = decode
        self.console = console

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        rows: list[Row] = []
        for group, advantages in zip(made.batch.groups, made.batch.advantages, strict=True):
            if len(rows) < self.num_samples:
                row = {"prompt": self.decode(group.prompt.token_ids), **self._response(group)}
                rows.append({**row, "advantage": float(advantages[0]), "group_mean": float(group.rewards.mean())})
        self._write(f"rollouts/step_{made.step}.jsonl", rows)
        return {}

    def validated(self, step: int, groups: Sequence[ScoredGroup]) -> None:
        rows: list[Row] = []
        for group in groups[: self.num_samples]:
            row = {"step": step, "uid": group.prompt.uid, "question": question_text(group.prompt, self.decode)}
            rows.append({**row, **self._response(group), "is_right": bool(is_right(group)[0])})
        self._write(f"validations/step_{step}.jsonl", rows)

    def _response(self, group: ScoredGroup) -> Row:
        return {"response": self.decode(response_ids(group, 0)), "reward": float(group.rewards[0])}

    def starved(self, sampled: Sequence[ScoredGroup]) -> None:
        if not sampled:
            return
        for line in shown_responses(list(sampled), self.decode):
            self.console.line(line)

    def _write(self, name: str, rows: Sequence[Row]) -> None:
        """Write rows to a JSONL file of the run folder. Raises ResourceError."""
        path = self.run_folder / name
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if text:
            with naming(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, text)
