"""N = 16 against N = 512 at equal samples, from the same base: keep rate, generation samples/s, held-out pass@1.

    python bench/arms.py --output runs/arms [--repeats 1] [KEY=VALUE ...]

The base is `policy.model` (make it with `brorl sft`). Arms alternate; with several repeats, medians are
shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from nemo_brorl.core.console import format_table
from nemo_brorl.core.metric_sinks import read_metrics

ARMS = {"N = 16": "prorl_n16_cpu", "N = 512": "brorl_cpu"}


def one_run(config_name: str, folder: Path, overrides: list[str]) -> dict[str, float]:
    """Train one arm. Returns its totals."""
    command = [
        sys.executable,
        "-m",
        "nemo_brorl",
        "train",
        "--config-name",
        config_name,
        f"exp_manager.explicit_log_dir={folder}",
        *overrides,
    ]
    subprocess.run(command, check=True)
    return totals(read_metrics(folder / "metrics.jsonl"))


def totals(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Over all steps of a run."""
    steps = [row for row in rows if row.get("dynamic_sampling/num_groups")]
    validations = [row["validation/pass_at_1"] for row in rows if "validation/pass_at_1" in row]
    groups = sum(row["dynamic_sampling/num_groups"] for row in steps)
    samples = sum(row["generation/num_samples"] for row in steps)
    return {
        "steps": len(steps),
        "samples": samples,
        "keep_rate": sum(row["dynamic_sampling/keep_rate"] * row["dynamic_sampling/num_groups"] for row in steps)
        / groups,
        "samples_per_s": samples / sum(row["time/generate_s"] for row in steps),
        "prefix_cache_hit_rate": statistics.mean(row["generation/prefix_cache_hit_rate"] for row in steps),
        "update_s": sum(row["time/update_s"] + row["time/log_prob_s"] for row in steps) / len(steps),
        "before": validations[0],
        "after": validations[-1],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/arms"))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    runs: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for repeat in range(options.repeats):
        for arm, config_name in ARMS.items():
            runs[arm].append(one_run(config_name, options.output / f"{config_name}_{repeat}", options.overrides))
    (options.output / "arms.json").write_text(json.dumps(runs, indent=1))
    medians = {
        arm: {name: statistics.median(run[name] for run in repeats) for name in repeats[0]}
        for arm, repeats in runs.items()
    }
    rows = [
        [arm, f"{run['steps']:.0f}", f"{run['samples']:,.0f}", f"{run['keep_rate']:.0%}",
         f"{run['samples_per_s']:,.0f}",
         f"{run['prefix_cache_hit_rate']:.1%}", f"{run['update_s']:.1f}", f"{run['before']:.1%}", f"{run['after']:.1%}"]
        for arm, run in medians.items()
    ]  # fmt: skip
    header = [
        "arm",
        "steps",
        "samples",
        "keep rate",
        "samples/s",
        "prefix hits",
        "update s/step",
        "pass@1 before",
        "after",
    ]
    print("\n".join(format_table(header, rows)))
    ratio = medians["N = 512"]["samples_per_s"] / medians["N = 16"]["samples_per_s"]
    print(f"\ngeneration samples/s, N = 512 over N = 16: {ratio:.2f}")


if __name__ == "__main__":
    main()
