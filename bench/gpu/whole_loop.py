"""g: the whole loop colocated on one card: the CPU task, the 0.5B shape, a mixture of experts, and a resumed run.

    python -m bench.gpu.whole_loop [--tiny] [--results FOLDER] [--base runs/base_cpu] [--steps 3]
        [--rows task shape mixture resume]

As `brorl train` runs it: parity gate, sampling, verifiers, update, CUDA IPC, engines asleep while the policy learns.
*task* is the CPU task with its own small model. Its base is `--base`, or is made by a warm-up on the GPU. *shape* and
*mixture* have random weights and learn nothing; dynamic sampling is off for them. *shape* has the layers of the 0.5B
shape and 128 characters as vocabulary. *mixture* has eight experts and trains with `policy.moe.router_replay`.

*resume* trains the CPU task for four steps, kills a second run once its checkpoint of step 2 is complete, and resumes
it. Its rows are the largest relative difference of the two runs' metrics before the kill and after it. Both are 0 on a
CPU. If runs differ before the kill too, the card does not compute the same twice, and resuming is not the cause.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.gpu.record import Row
from bench.gpu.setting import Setting, open_setting
from bench.gpu.shapes import FAMILIES, QWEN_0_5B, TINY
from bench.gpu.training_run import RANDOM_MODEL, TINY_RUN, character_model, overrides_for, summary
from bench.product import run
from nemo_brorl.core.processes import running_after
from nemo_brorl.training.records import read_metrics

MISMATCH = 0.05  # alarm of training (parity.max_step_mismatch), nats
LARGER = (*RANDOM_MODEL, "rollouts.num_per_prompt=128", "rollouts.prompts_per_step=16",
          "rollouts.max_response_tokens=256",
          "data.max_prompt_tokens=700", "generation.max_model_len=1024",
          "policy.tokens_per_micro_batch=16384")  # fmt: skip
WITH_REPLAY = "policy.moe.router_replay=true"
SAVED, LAST = 2, 4  # steps of the runs of `resume`
TIMINGS = ("time/", "sync/", "generation/", "sleep/")  # beginnings of names of metrics that differ between equal runs
ROWS = ("task", "shape", "mixture", "resume")


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


def task_model(setting: Setting) -> Path:
    """Return the folder of the CPU task's base model, after making it on the GPU where it is missing."""
    if setting.is_tiny:
        return character_model(setting, "tiny_characters", TINY)
    base: Path = setting.extra.base
    if not (base / "config.json").exists():
        run("base", *overrides_for(setting), f"sft.new.output={base}")
    return base


def resume(setting: Setting, model: Path, overrides: Sequence[str]) -> None:
    """Compare a run that was killed and resumed with one that was not."""
    whole, killed = setting.work / "whole", setting.work / "killed"
    shared = [*overrides_for(setting), *overrides, f"policy.model={model}"]
    shared += [f"trainer.max_steps={LAST}", f"trainer.save_interval={SAVED}", "exp_manager.resume_if_exists=true"]
    run("train", *shared, f"exp_manager.explicit_log_dir={whole}")
    arguments = [*shared, f"exp_manager.explicit_log_dir={killed}"]
    kill_after_checkpoint([sys.executable, "-m", "nemo_brorl", "train", *arguments], killed)
    run("train", *arguments)
    rows, others = metrics_by_step(whole), metrics_by_step(killed)
    for name, steps in (("before the kill", range(1, SAVED + 1)), ("after the resume", range(SAVED + 1, LAST + 1))):
        differences = [relative_difference(rows[step], others[step]) for step in steps]
        setting.results.add(Row(f"resume: metrics {name}, largest relative difference", max(differences)))


def kill_after_checkpoint(command: Sequence[str], folder: Path) -> None:
    """Start a run, and kill its driver once the first checkpoint is complete. Return when none of its processes lives.

    Raises CalledProcessError where the run ends before.
    """
    process = psutil.Popen(command)
    while not (folder / "checkpoints" / f"step_{SAVED}" / "COMPLETE").exists():
        if process.poll() is not None:
            raise subprocess.CalledProcessError(process.returncode, command)
        time.sleep(0.05)
    started = process.children(recursive=True)
    process.kill()
    process.wait()
    running_after(started, 60.0)


def metrics_by_step(folder: Path) -> dict[int, dict[str, Any]]:
    """Return a run's metrics by step, without timings."""
    found: dict[int, dict[str, Any]] = {}
    for row in read_metrics(folder / "metrics.jsonl"):
        found[row["step"]] = {name: value for name, value in row.items() if not name.startswith(TIMINGS)}
    return found


def relative_difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference of two rows of metrics over the larger value; infinite where names differ."""
    if one.keys() != other.keys():
        return float("inf")
    largest = 0.0
    for name, value in one.items():
        size = max(abs(value), abs(other[name]))
        if size:
            largest = max(largest, abs(value - other[name]) / size)
    return largest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the whole loop part to its parser."""
    parser.add_argument("--base", type=Path, default=Path("runs/base_cpu"))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="only these")


def main() -> None:
    """Run the rows in their order, small ones first."""
    setting = open_setting("whole_loop", __doc__, add_arguments)
    steps, wanted = setting.extra.steps, setting.extra.rows
    overrides, name = (), "CPU task"
    if setting.is_tiny:
        overrides, steps, name = TINY_RUN, 1, "tiny"
    if "task" in wanted:
        with setting.results.attempt(name):
            train(setting, name, task_model(setting), overrides, steps)
    if "shape" in wanted and not setting.is_tiny:
        with setting.results.attempt("0.5B shape"):
            train(setting, "0.5B shape", character_model(setting, "0.5B_characters", QWEN_0_5B), LARGER, steps)
    if "mixture" in wanted:
        with setting.results.attempt("mixture"):
            mixture = character_model(setting, "mixture_characters", FAMILIES["qwen3 mixture"])
            sizes = TINY_RUN if setting.is_tiny else LARGER
            train(setting, "mixture", mixture, (*sizes, WITH_REPLAY), steps)
    if "resume" in wanted:
        with setting.results.attempt("resume"):
            resume(setting, task_model(setting), overrides)
    setting.results.finish()


if __name__ == "__main__":
    main()
