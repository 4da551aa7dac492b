"""Train from several seeds: warm-up, training and held-out pass@1 before and after, each seed from nothing.

python -m lab.studies.seeds --seeds 1 2 3 --output runs/seeds [KEY=VALUE ...]

Writes OUTPUT/seeds.json and prints one row per seed. A seed sets the initialisation of tokenizer and model, the
training questions and the rollouts. The held-out questions are the same for all.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.product import run
from nemo_brorl.core.console import format_table
from nemo_brorl.training.records import read_metrics


def one_seed(seed: int, output: Path, overrides: list[str]) -> dict[str, Any]:
    """Train a base model and then an RL run from it with one seed, and return the times and scores."""
    folder = output / f"seed_{seed}"
    shared = [
        f"trainer.seed={seed}",
        f"sft.new.output={folder}/base",
        f"policy.model={folder}/base",
        f"exp_manager.explicit_log_dir={folder}/run",
    ]
    sft_s = run("base", *overrides, *shared)
    train_s = run("train", *overrides, *shared)
    rows = [row for row in read_metrics(folder / "run" / "metrics.jsonl") if "validation/pass_at_1" in row]
    curve = {row["step"]: row["validation/pass_at_1"] for row in rows}
    tasks = [name for name in rows[0] if name.startswith("validation/pass_at_1/")]
    return {"seed": seed, "sft_s": sft_s, "train_s": train_s, "curve": curve,
            "before": {name: rows[0][name] for name in tasks},
            "after": {name: rows[-1][name] for name in tasks}}  # fmt: skip


def main() -> None:
    """Train a base model and an RL run with each seed, print one row for each seed, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--output", type=Path, default=Path("runs/seeds"))
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    results = [one_seed(seed, options.output, options.overrides) for seed in options.seeds]
    (options.output / "seeds.json").write_text(json.dumps(results, indent=1))
    rows = []
    for result in results:
        first, *_, last = result["curve"].values()
        rows.append(
            [
                str(result["seed"]),
                f"{first:.1%}",
                f"{last:.1%}",
                f"{100 * (last - first):+.1f}",
                f"{result['sft_s']:.0f}",
                f"{result['train_s']:.0f}",
            ]
        )
    print("\n".join(format_table(["seed", "pass@1 before", "after", "points", "warm-up s", "train s"], rows)))


if __name__ == "__main__":
    main()
