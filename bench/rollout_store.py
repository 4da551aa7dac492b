"""What the rollout store, or the timeline, costs a step: runs with it and without it side by side, and what it writes.

    python -m bench.rollout_store --output runs/store [--of store|timeline] [--pairs 3] [--config-name sums_cpu]
        [KEY=VALUE ...]

Both arms train from the same base with the same seed, in turns. A step's time is that from one row of metrics.jsonl to
the next, with all that the loop does between them; the first step of every run is left out. Shown are medians over all
steps, the ratio of each pair's medians, and bytes on disk: for each stored token, or for each step.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from brorl_lab.store_reader import read_step, stored_steps

from nemo_brorl.config.records import StoreConfig
from nemo_brorl.core.console import format_table
from nemo_brorl.training.store.writer import StoreWriter

TIMES = 7  # that a step is written by itself
LOOK_S = 0.005  # how late a row may be seen
ARMS = {"without": "false", "with": "true"}


def step_seconds(folder: Path, switch: str, arguments: list[str]) -> list[float]:
    """Train one arm. Seconds of every step but the first."""
    if folder.exists():
        raise SystemExit(f"{folder} is there already: pass another --output")
    settings = [f"exp_manager.explicit_log_dir={folder}", switch]
    command = [sys.executable, "-m", "nemo_brorl", "train", *arguments, *settings]
    seen: list[float] = []  # when each row was there: of the first validation, then of every step
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            while len(seen) < num_rows(folder / "metrics.jsonl"):
                seen.append(time.monotonic())
            time.sleep(LOOK_S)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {process.returncode}")
    return [after - before for before, after in itertools.pairwise(seen[1:])]


def num_rows(path: Path) -> int:
    """Whole rows of a file that is being written."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def bytes_written(folder: Path, of: str) -> str:
    """Describe in words how many bytes a run's store or its timeline has on disk."""
    if of == "store":
        size = bytes_per_token(folder / "store")
        return f"{size:.2f} bytes on disk for each stored token; {written_again(folder)}"
    sizes = [path.stat().st_size for path in (folder / "timeline").iterdir()]
    return f"{statistics.median(sizes) / 1024:.0f} KiB on disk for a step"


def written_again(folder: Path) -> str:
    """Describe in words the CPU seconds that the store's actor takes to write a run's last step.

    The step is written again by itself, because runs side by side differ by more for other reasons.
    """
    record = read_step(folder, stored_steps(folder)[-1])
    num_rollouts = sum(stored.scored.group.num_rollouts for stored in record.groups)
    with tempfile.TemporaryDirectory() as name:
        writer = StoreWriter(Path(name), StoreConfig(), folder / "hf")
        writer.write(record)
        taken = [writer.write(record).cpu_seconds for _ in range(TIMES)]
    return f"{statistics.median(taken):.3f} CPU s to write a step of {num_rollouts:,} rollouts"


def bytes_per_token(folder: Path) -> float:
    """Return the bytes on disk of a run's store for each stored token."""
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    lengths = pq.read_table(folder / "rollouts", columns=["num_tokens"])["num_tokens"]
    return num_bytes / pc.sum(lengths).as_py()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/store"))
    parser.add_argument("--of", choices=("store", "timeline"), default="store")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--config-name", default="brorl_cpu")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    ratios = []
    for pair in range(options.pairs):
        medians = {}
        order = list(ARMS) if pair % 2 == 0 else list(reversed(ARMS))
        for arm in order:
            switch = f"{options.of}.enabled={ARMS[arm]}"
            arguments = ["--config-name", options.config_name, *options.overrides]
            of_run = step_seconds(options.output / f"{arm}_{pair}", switch, arguments)
            seconds[arm] += of_run
            medians[arm] = statistics.median(of_run)
        ratios.append(medians["with"] / medians["without"])
    rows = [[arm, f"{statistics.median(values):.3f}", f"{len(values)}"] for arm, values in seconds.items()]
    print("\n".join(format_table([options.of, "median step, s", "steps"], rows)))
    print(f"\nwith over without: median {statistics.median(ratios):.3f} of {', '.join(f'{one:.3f}' for one in ratios)}")
    print(bytes_written(options.output / "with_0", options.of))


if __name__ == "__main__":
    main()
