"""h: FP8 against bf16 while learning: the CPU task with its model scaled up, from one base.

    python -m bench.gpu.fp8_learning [--tiny] [--results FOLDER] [--steps 12] [--arms bf16 tensorwise tensorwise_edges]

The base is a warm-up of 25 M parameters on the GPU, kept for all arms. *mismatch* is what switching FP8 off under the
same weights takes away, per token and averaged over the steps, and has the alarm of training as its target. Learning
curves are pass@1 on held-out questions every three steps; they are in the JSON, and their last point in the table.
Prompts and seeds are the same in all arms. *tensorwise_edges* keeps the first and the last layer in bf16.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench.gpu.record import Row
from bench.gpu.setting import Setting, open_setting
from bench.gpu.shapes import TINY
from bench.gpu.training_run import TINY_RUN, character_model, overrides_for, summary
from bench.product import run
from lab.studies.fp8_emulation import ARMS as STUDY_ARMS
from nemo_brorl.config.parity import ParityConfig
from nemo_brorl.training.records import read_metrics

# The CPU task's model scaled up: 8 layers of 512, heads of 64.
SCALED = ("sft.new.hidden_size=512", "sft.new.num_layers=8", "sft.new.num_attention_heads=8",
          "sft.new.num_key_value_heads=2", "sft.new.intermediate_size=1536",
          "sft.lr=1e-3", "sft.new.time_limit_s=90")  # fmt: skip
ARMS = {
    **STUDY_ARMS,
    "tensorwise_edges": (
        *STUDY_ARMS["tensorwise"], "policy.fp8_bf16_first_layers=1", "policy.fp8_bf16_last_layers=1",
    ),
}  # fmt: skip
CURVE = ("trainer.val_interval=3", "evaluation.num_prompts=128", "evaluation.samples_per_prompt=8")


def learn(setting: Setting, arm: str, model: Path) -> tuple[dict[str, float], list[Any]]:
    """One arm: its summary and its curve as (step, pass@1)."""
    folder = setting.work / arm
    where = (
        f"policy.model={model}",
        f"trainer.max_steps={setting.extra.steps}",
        f"exp_manager.explicit_log_dir={folder}",
    )
    sizes = TINY_RUN if setting.is_tiny else CURVE
    run("train", *overrides_for(setting), *ARMS[arm], *where, *sizes)
    rows = read_metrics(folder / "metrics.jsonl")
    curve = [(row.get("step"), row["validation/pass_at_1"]) for row in rows if "validation/pass_at_1" in row]
    return summary(folder), curve


def base_model(setting: Setting) -> Path:
    """Made once."""
    if setting.is_tiny:
        return character_model(setting, "tiny_characters", TINY)
    folder = setting.models / "base_scaled_up"
    if not (folder / "config.json").exists():
        run("base", *overrides_for(setting), *SCALED, f"sft.new.output={folder}")
    return folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the FP8 learning part to its parser."""
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=[arm for arm in ARMS if arm != "fp32"],
        default=["bf16", "tensorwise", "tensorwise_edges", "blockwise"],
    )


def main() -> None:
    """Arm by arm, every one's rows as soon as it is through."""
    setting = open_setting("fp8_learning", __doc__, add_arguments)
    if setting.is_tiny:
        setting.extra.steps, setting.extra.arms = 1, ["tensorwise"]
    model = base_model(setting)
    alarm = ParityConfig().max_fp8_mismatch
    for arm in setting.extra.arms:
        found, curve = learn(setting, arm, model)
        setting.results.detail(arm, {"summary": found, "curve": curve})
        if arm != "bf16":
            setting.results.add(Row(f"{arm}: FP8 mismatch", found["policy/fp8_mismatch"], "nats", at_most=alarm))
        setting.results.add(Row(f"{arm}: |Megatron − vLLM|", found["policy/log_prob_mismatch"], "nats"))
        setting.results.add(Row(f"{arm}: scoring and update", found["time/log_prob_s"] + found["time/update_s"], "s"))
        note = f"before {found['before']:.3f}, {found['steps']:.0f} steps"
        setting.results.add(Row(f"{arm}: pass@1", found["after"], "", note=note))
    setting.results.finish()


if __name__ == "__main__":
    main()
