"""What the rollout store costs a step: runs with it and without it side by side, and what it writes.

    python -m bench.rollout_store --output runs/store [--pairs 3] [KEY=VALUE ...]

Both arms train from the same base (`policy.model`, made by `brorl sft`) with the same seed, in turns. A step's time is
that of collecting, learning and publishing; the first step of every run is left out. Shown are medians over all steps,
the ratio of each pair's medians, and bytes on disk for each stored token.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from nemo_brorl.core.console import format_table
from nemo_brorl.core.metric_sinks import read_metrics

PARTS = ("collect", "fetch", "log_prob", "update", "sync", "save")
ARMS = {"without": "false", "with": "true"}


def step_seconds(folder: Path, is_stored: str, overrides: list[str]) -> list[float]:
    """Train one arm. Seconds of every step but the first."""
    settings = [f"exp_manager.explicit_log_dir={folder}", f"store.enabled={is_stored}", *overrides]
    subprocess.run([sys.executable, "-m", "nemo_brorl", "train", *settings], check=True, stdout=subprocess.DEVNULL)
    seconds = []
    for row in read_metrics(folder / "metrics.jsonl")[2:]:
        seconds.append(sum(row.get(f"time/{part}_s") or 0.0 for part in PARTS))
    return seconds


def bytes_per_token(folder: Path) -> float:
    """Of a run's store."""
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    lengths = pq.read_table(folder / "rollouts", columns=["num_tokens"])["num_tokens"]
    return num_bytes / pc.sum(lengths).as_py()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/store"))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    ratios = []
    for pair in range(options.pairs):
        medians = {}
        order = list(ARMS) if pair % 2 == 0 else list(reversed(ARMS))
        for arm in order:
            of_run = step_seconds(options.output / f"{arm}_{pair}", ARMS[arm], options.overrides)
            seconds[arm] += of_run
            medians[arm] = statistics.median(of_run)
        ratios.append(medians["with"] / medians["without"])
    rows = [[arm, f"{statistics.median(values):.3f}", f"{len(values)}"] for arm, values in seconds.items()]
    print("\n".join(format_table(["rollout store", "median step, s", "steps"], rows)))
    print(f"\nwith over without: median {statistics.median(ratios):.3f} of {', '.join(f'{one:.3f}' for one in ratios)}")
    print(f"{bytes_per_token(options.output / 'with_0' / 'store'):.2f} bytes on disk for each stored token")


if __name__ == "__main__":
    main()
