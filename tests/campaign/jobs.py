"""The commands that are disturbed, each on the same small base model, and what each of them has to show for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.end_to_end.test_training_run import ONE_OF_EACH, VOLATILE, line, rows
from tests.support.commands import run

Row = Mapping[str, Any]

OWN = [*ONE_OF_EACH, "trainer.save_interval=1"]
NOT_COMPARED = (*VOLATILE, "generation/")  # timings, and counts of what happened to engines
NUM_CONVERSATIONS = 48
SFT = (
    "data.source=jsonl", "data.held_out_fraction=0.2", "sft.base=policy", "sft.max_tokens=256", "sft.batch_size=8",
    "sft.max_steps=8", "trainer.val_interval=4", "trainer.save_interval=1",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A command, and what its undisturbed run is compared by."""

    arguments: Callable[[Path], list[str]]  # for a run folder
    results: Callable[[Path], list[Row]]  # of a run folder


def prepare(scratch: Path) -> None:
    """Make what the run folders of `scratch` have beside them: a base model and conversations."""
    run(*line("base", scratch / "whole", *OWN))
    with (scratch / "chat.jsonl").open("w") as file:
        for number in range(NUM_CONVERSATIONS):
            asked = {"role": "user", "content": f"after {number}?"}
            answered = {"role": "assistant", "content": str(number + 1)}
            file.write(json.dumps({"messages": [asked, answered]}) + "\n")


def train(folder: Path) -> list[str]:
    """Arguments of a training run."""
    return line("train", folder, *OWN)


def fine_tune(folder: Path) -> list[str]:
    """Arguments of fine-tuning on the conversations."""
    return line("sft", folder, *SFT, f"data.path={folder.parent / 'chat.jsonl'}")


def evaluate(folder: Path) -> list[str]:
    """Arguments of an evaluation of the base model."""
    return line("evaluate", folder, *OWN, "evaluation.num_prompts=32")


def metrics(folder: Path) -> list[Row]:
    """Rows of metrics, but for timings; none where there is no file."""
    if not (folder / "metrics.jsonl").exists():
        return []
    return list(rows(folder, NOT_COMPARED))


def answers(folder: Path) -> list[Row]:
    """What was answered to each prompt, in an order of their own: prompts end in any."""
    lines: list[str] = []
    for path in (folder / "evaluations" / "answers").glob("*.jsonl"):
        lines += path.read_text().splitlines()
    return [json.loads(text) for text in sorted(lines)]


JOBS = {"train": Job(train, metrics), "sft": Job(fine_tune, metrics), "evaluate": Job(evaluate, answers)}
