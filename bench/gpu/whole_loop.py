"""g: the whole loop colocated on one card: the CPU task with its own small model, then a model of the 0.5B shape.

    python -m bench.gpu.whole_loop [--tiny] [--results FOLDER] [--base runs/base_cpu] [--steps 3]

As `brorl train` runs it: parity gate, sampling, verifiers, update, CUDA IPC, engines asleep while the policy learns.
The base of the CPU task is `--base`, or is made by a warm-up on the GPU. The 0.5B shape (its layers, 128 characters as
vocabulary) has random weights and learns nothing; dynamic sampling is off for it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.gpu.record import Row
from bench.gpu.setting import Setting, open_setting
from bench.gpu.shapes import QWEN_0_5B, TINY
from bench.gpu.training_run import RANDOM_MODEL, TINY_RUN, character_model, overrides_for, summary
from bench.product import run

MISMATCH = 0.05  # alarm of training (parity.max_step_mismatch), nats
LARGER = (*RANDOM_MODEL, "rollouts.num_per_prompt=128", "rollouts.prompts_per_step=16",
          "rollouts.max_response_tokens=256",
          "data.max_prompt_tokens=700", "generation.max_model_len=1024",
          "policy.tokens_per_micro_batch=16384")  # fmt: skip


def train(setting: Setting, name: str, model: Path, overrides: Sequence[str], steps: int) -> None:
    """Train for `steps` steps and record the run's rows. Raises CalledProcessError where the run fails."""
    folder = setting.work / name.replace(" ", "_")
    where = (f"policy.model={model}", f"trainer.max_steps={steps}", f"exp_manager.explicit_log_dir={folder}")
    run("train", *overrides_for(setting), *where, *overrides)
    found = summary(folder)
    results = setting.results
    results.detail(name, found)
    results.add(Row(f"{name}: steps", found["steps"], "", at_least=steps))
    samples = found["generation/num_samples"] / found["time/generate_s"]
    results.add(Row(f"{name}: generation", samples, "samples/s"))
    results.add(Row(f"{name}: scoring and update", found["time/log_prob_s"] + found["time/update_s"], "s"))
    results.add(Row(f"{name}: sleep, offload and back", found.get("time/offload_s"), "s"))
    results.add(Row(f"{name}: publication", found.get("sync/seconds"), "s"))
    residual = None if setting.is_tiny else found.get("sleep/residual_gib_max")
    results.add(Row(f"{name}: engine asleep holds", residual, "GiB"))
    results.add(Row(f"{name}: |Megatron − vLLM|", found["policy/log_prob_mismatch"], "nats", at_most=MISMATCH))
    if "before" in found:
        results.add(Row(f"{name}: pass@1", found["after"], "", note=f"before {found['before']:.3f}"))


def warm_base(setting: Setting, base: Path) -> Path:
    """Return the folder of the CPU task's base model, after making it on the GPU where it is missing."""
    if not (base / "config.json").exists():
        run("base", *overrides_for(setting), f"sft.new.output={base}")
    return base


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the whole loop part to its parser."""
    parser.add_argument("--base", type=Path, default=Path("runs/base_cpu"))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only-shape", action="store_true", help="the 0.5B shape alone")


def main() -> None:
    """Run the CPU task first, because it is small, then the 0.5B shape."""
    setting = open_setting("whole_loop", __doc__, add_arguments)
    steps = setting.extra.steps
    if setting.is_tiny:
        train(setting, "tiny", character_model(setting, "tiny_characters", TINY), TINY_RUN, 1)
    else:
        if not setting.extra.only_shape:
            with setting.results.attempt("CPU task"):
                train(setting, "CPU task", warm_base(setting, setting.extra.base), (), steps)
        with setting.results.attempt("0.5B shape"):
            train(setting, "0.5B shape", character_model(setting, "0.5B_characters", QWEN_0_5B), LARGER, steps)
    setting.results.finish()


if __name__ == "__main__":
    main()
