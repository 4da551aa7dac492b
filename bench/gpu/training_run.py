"""A whole training run as a user starts one, in a process of its own, on one GPU or, for `--tiny`, on the CPU."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.gpu.setting import Setting
from bench.gpu.shapes import make_model
from nemo_brorl.training.records import read_metrics

ON_GPU = (
    "trainer.gpus_per_node=1", "policy.data_parallel_size=null", "policy.precision=bf16", "policy.offload=all",
    "generation.precision=bf16",
    "generation.gpu_memory_utilization=0.35", "generation.sleep=discard",
    "generation.lean_scheduler=on",
    "generation.enforce_eager=false", "parity.max_mean_abs_diff=0.05", "rewards.num_workers=8",
)  # fmt: skip
ON_CPU = ("policy.data_parallel_size=1", "policy.precision=bf16", "generation.num_engines=1",
          "generation.precision=bf16",
          "generation.kv_cache_gib=0.0625", "parity.max_mean_abs_diff=0.05")  # fmt: skip
QUIET = ("exp_manager.create_tensorboard_logger=false", "exp_manager.resume_if_exists=false", "trainer.save_interval=0")

# For models whose answers are noise: every group is kept, and every question is short.
RANDOM_MODEL = (
    "dynamic_sampling.enabled=false",
    "evaluation.num_prompts=8",
    "evaluation.samples_per_prompt=2",
    "trainer.val_interval=0",
)
TINY_RUN = (*RANDOM_MODEL, "rollouts.num_per_prompt=8", "rollouts.prompts_per_step=4", "rollouts.max_response_tokens=8",
            "data.max_prompt_tokens=400", "generation.max_model_len=448")  # fmt: skip


def overrides_for(setting: Setting) -> tuple[str, ...]:
    """Return the overrides of a run on the setting's device."""
    return (*(ON_CPU if setting.is_tiny else ON_GPU), *QUIET)


def character_model(setting: Setting, name: str, config: Mapping[str, Any]) -> Path:
    """Make a random model whose tokenizer is the tests' one, of 128 characters, and return its folder."""
    from tests.support.tiny_model import EOS_ID, VOCAB_SIZE, make_tokenizer

    folder = make_model(setting.models / name, {**config, "vocab_size": VOCAB_SIZE, "eos_token_id": EOS_ID})
    if not (folder / "tokenizer.json").exists():
        make_tokenizer(folder)
    return folder


def write_rows(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    """Write questions as JSON lines, and return their file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def summary(folder: Path) -> dict[str, float]:
    """Return the medians of a run's metrics over its steps, and pass@1 before and after."""
    rows = read_metrics(folder / "metrics.jsonl")
    steps = [row for row in rows if "policy/loss" in row]
    found = {"steps": float(len(steps))}
    for name in ("time/generate_s", "time/log_prob_s", "time/update_s", "time/sync_s", "time/offload_s", "sync/seconds",
                 "policy/log_prob_mismatch", "policy/fp8_mismatch", "sleep/residual_gib_max",
                 "generation/num_samples"):  # fmt: skip
        values = [row[name] for row in steps if name in row]
        if values:
            found[name] = statistics.median(values)
    validations = [row["validation/pass_at_1"] for row in rows if "validation/pass_at_1" in row]
    if validations:
        found |= {"before": validations[0], "after": validations[-1]}
    return found
