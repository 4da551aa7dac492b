"""A model and settings with which a GPU recipe trains on two CPU nodes: random weights, questions, capital letters.

Four policy ranks have tensor and pipeline parallelism, and FP8 is emulated.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.tiny_model import make_tiny_model

SETTINGS = (
    "trainer.num_nodes=2", "trainer.gpus_per_node=0", "trainer.max_steps=3",
    "trainer.val_interval=0", "trainer.save_interval=2",
    "policy.tensor_model_parallel_size=2", "policy.sequence_parallel=true", "policy.pipeline_model_parallel_size=2",
    "policy.precision=fp32", "policy.fp8=e4m3", "policy.fp8_recipe=blockwise",
    "policy.tokens_per_micro_batch=256", "policy.log_prob_chunk_tokens=256",
    "generation.num_engines=2", "generation.tensor_parallel_size=1", "generation.precision=fp32",
    "generation.enforce_eager=true", "generation.sleep=off", "generation.max_num_seqs=16",
    "generation.max_model_len=64", "generation.weight_bucket_mib=16", "rewards.num_workers=1",
    "rewards.shaping.truncated_factor=1", "rewards.shaping.cosine.enabled=false",
    "rollouts.num_per_prompt=8", "rollouts.prompts_per_step=2", "rollouts.chunk_size=4",
    "rollouts.max_response_tokens=12",
    "rollouts.save_samples=2", "evaluation.num_prompts=2", "evaluation.samples_per_prompt=2",
    "evaluation.max_response_tokens=12",
    "algorithm.num_mini_batches=2", "policy.optim.lr=1e-3",
    "data.source=jsonl", "data.system_prompt=null", "data.max_prompt_tokens=50",
    "data.verifier=tests.cluster.verifier:wants_capitals",
    "exp_manager.create_tensorboard_logger=false",
)  # fmt: skip


def prepare(folder: Path) -> list[str]:
    """Write model and questions; the overrides of a run with them."""
    make_tiny_model(folder / "model", scale=0.05, num_kv_heads=2)
    rows = [{"prompt": f"Question {number}?", "answer": str(number)} for number in range(64)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [*SETTINGS, f"policy.model={folder / 'model'}", f"data.path={folder / 'questions.jsonl'}"]
