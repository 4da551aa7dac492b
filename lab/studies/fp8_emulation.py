"""Measure what FP8 does to log-probs and to training, with the CPU job in fp32, bf16, and bf16 with emulated FP8.

    python -m lab.studies.fp8_emulation [--max-steps 20] [--arms fp32 bf16 ...] [--output runs/fp8] [--json FILE]
    [KEY=VALUE ...]

All arms start from one base, `--model`, which a warm-up makes when it is missing. Rollouts come from fp32 engines in
every arm. So the column `vLLM` is the whole distance between sampler and trainer, and `FP8` is the part that switching
FP8 off under the same weights removes. Differences are mean absolute ones of token log-probs, in nats. pass@1 is on
held-out questions, before and after training.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from bench.product import run
from nemo_brorl.core.console import format_table
from nemo_brorl.training.records import read_metrics

BF16 = ("policy.precision=bf16", "parity.max_mean_abs_diff=0.05")
ARMS = {
    "fp32": (),
    "bf16": BF16,
    "tensorwise": (*BF16, "policy.fp8=hybrid", "policy.fp8_recipe=tensorwise"),
    "blockwise": (*BF16, "policy.fp8=e4m3", "policy.fp8_recipe=blockwise"),
    "delayed": (*BF16, "policy.fp8=hybrid", "policy.fp8_recipe=delayed"),
}
BEFORE_AND_AFTER = ("trainer.val_interval=0", "trainer.save_interval=0")


def one_run(folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Train one run with the given overrides, and return a summary of its metrics over steps."""
    run("train", f"exp_manager.explicit_log_dir={folder}", *overrides)
    rows = read_metrics(folder / "metrics.jsonl")
    steps = [row for row in rows if "policy/loss" in row]
    validations = [row["validation/pass_at_1"] for row in rows if "validation/pass_at_1" in row]

    def mean(name: str) -> float | None:
        values = [row[name] for row in steps if name in row]
        return statistics.mean(values) if values else None

    parts = ("time/generate_s", "time/log_prob_s", "time/update_s", "time/sync_s")
    return {
        "steps": len(steps),
        "vllm_mismatch": mean("policy/log_prob_mismatch"),
        "vllm_mismatch_max": max(row["policy/log_prob_mismatch_max"] for row in steps),
        "fp8_mismatch": mean("policy/fp8_mismatch"),
        "fp8_mismatch_max": max((row.get("policy/fp8_mismatch_max", 0.0) for row in steps), default=0.0),
        "grad_norm": mean("policy/grad_norm"),
        "update_s": statistics.median(row["time/log_prob_s"] + row["time/update_s"] for row in steps),
        "step_s": statistics.median(sum(row[part] for part in parts) for row in steps),
        "before": validations[0],
        "after": validations[-1],
    }


def arm_table(runs: dict[str, dict[str, Any]]) -> list[str]:
    """Return a table of log-prob differences, times and scores, with one line for each trained precision."""
    header = ["arm", "steps", "|vLLM|", "max", "|FP8|", "max", "update s", "step s", "pass@1 before", "after"]
    rows = []
    for arm, found in runs.items():
        fp8 = (
            ["-", "-"]
            if found["fp8_mismatch"] is None
            else [f"{found['fp8_mismatch']:.4f}", f"{found['fp8_mismatch_max']:.2f}"]
        )
        rows.append(
            [arm, str(found["steps"]), f"{found['vllm_mismatch']:.2e}", f"{found['vllm_mismatch_max']:.2f}", *fp8,
             f"{found['update_s']:.1f}", f"{found['step_s']:.1f}", f"{found['before']:.1%}", f"{found['after']:.1%}"]
        )  # fmt: skip
    return format_table(header, rows)


def main() -> None:
    """Train one run in each precision that the command line names, and print a table that compares them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-steps", type=int, default=2)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["fp32", "bf16", "tensorwise", "blockwise"])
    parser.add_argument("--model", type=Path, default=Path("runs/base_cpu"))
    parser.add_argument("--output", type=Path, default=Path("runs/fp8"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    if not options.model.exists():
        run("base", f"sft.new.output={options.model}", *options.overrides)
    shared = [
        f"policy.model={options.model}",
        f"trainer.max_steps={options.max_steps}",
        *BEFORE_AND_AFTER,
        *options.overrides,
    ]
    runs: dict[str, dict[str, Any]] = {}
    for arm in options.arms:
        runs[arm] = one_run(options.output / f"{arm}_{options.max_steps}", [*shared, *ARMS[arm]])
        if options.json:
            options.json.write_text(json.dumps(runs, indent=1))
        print("\n".join(arm_table(runs)), flush=True)


if __name__ == "__main__":
    main()
