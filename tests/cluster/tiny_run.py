"""A model and settings with which a whole run on two CPU nodes takes seconds: random weights, generated questions,
capital letters."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.tiny_model import make_tiny_model

SETTINGS = (
    "trainer.num_nodes=2", "trainer.max_steps=3", "trainer.val_interval=0", "trainer.save_interval=2",
    "trainer.rehearsal=false",
    "policy.data_parallel_size=2", "generation.num_engines=2", "rewards.num_workers=1",
    "rollouts.num_per_prompt=8", "rollouts.prompts_per_step=2", "rollouts.chunk_size=4",
    "rollouts.max_response_tokens=12",
    "rollouts.save_samples=2", "evaluation.num_prompts=2", "evaluation.samples_per_prompt=2",
    "evaluation.max_response_tokens=12",
    "algorithm.num_mini_batches=2", "policy.optim.lr=1e-3",
    "data.source=jsonl", "data.verifier=tests.cluster.verifier:wants_capitals",
    "exp_manager.create_tensorboard_logger=false",
)  # fmt: skip


def prepare(folder: Path) -> list[str]:
    """Write model and questions; the overrides of a run with them."""
    make_tiny_model(folder / "model", scale=0.05)
    rows = [{"prompt": f"Question {number}?", "answer": str(number)} for number in range(64)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [*SETTINGS, f"policy.model={folder / 'model'}", f"data.path={folder / 'questions.jsonl'}"]
