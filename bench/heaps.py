"""Time of a step when every process of Ray's has one heap of the C library's, over that with one for each thread.

    python -m bench.heaps [--pairs 3] [--steps 10] [--output runs/heaps] [KEY=VALUE ...]

Runs of `make train`'s recipe, one after the other: on a CPU, a Ray that a run starts has one heap (MALLOC_ARENA_MAX=1),
and as many as the library likes where the environment says MALLOC_ARENA_MAX=0. Ranks have one in both, so log-probs and
update show what two runs differ by anyway; the driver, too, has what the environment says. Prints for each part of a
step the median of its seconds over the steps of a run, without the first two, and the ratio of the two runs of each
pair.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from statistics import median

from bench.product import run
from nemo_brorl.core.console import Console
from nemo_brorl.training.records import read_metrics

PARTS = ("collect", "generate", "reward", "sync", "log_prob", "update")
HEAPS = {"one": "1", "many": "0"}
WARM_UP = 2  # steps


def seconds_of(folder: Path) -> dict[str, float]:
    """Part of a step: median of its seconds over a run's steps."""
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["step"] > WARM_UP]
    seconds = {}
    for part in PARTS:
        seconds[part] = median([row[f"time/{part}_s"] for row in rows])
    return seconds


def main() -> None:
    """Run the pairs of trainings, and print a table with a row for each part of a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("runs/heaps"))
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    settings = [f"trainer.max_steps={options.steps}", "trainer.val_interval=1000", *options.overrides]
    seconds: dict[str, list[dict[str, float]]] = {"one": [], "many": []}
    for pair in range(options.pairs):
        order = ("one", "many") if pair % 2 == 0 else ("many", "one")
        for heaps in order:
            folder = options.output / f"{heaps}_{pair}"
            shutil.rmtree(folder, ignore_errors=True)
            os.environ["MALLOC_ARENA_MAX"] = HEAPS[heaps]
            run("train", "--config-name", "sums_cpu", *settings, f"exp_manager.explicit_log_dir={folder}")
            seconds[heaps].append(seconds_of(folder))
    rows = []
    for part in PARTS:
        one = [found[part] for found in seconds["one"]]
        many = [found[part] for found in seconds["many"]]
        ratios = sorted(a / b for a, b in zip(one, many, strict=True))
        shown = " ".join(f"{ratio:.2f}" for ratio in ratios)
        rows.append([part, f"{median(one):.3f} s", f"{median(many):.3f} s", shown])
    Console().table(["part", "one heap", "many", "one / many, each pair"], rows)


if __name__ == "__main__":
    main()
