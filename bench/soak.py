"""Train a tiny model for hundreds of steps, and find out what grows with them.

Memory, files and threads of every process are watched, and shared memory and disk.

    python -m bench.soak [--steps 500] [--output runs/soak] [--skip 100] [KEY=VALUE ...]

`make train`'s model and task with 32 rollouts a step, a checkpoint every 50 steps, a validation every 100; store and
timeline keep the newest five steps, so that a disk in balance does not grow but by its rows of metrics; beliefs are of
the last 500 prompts, which 125 steps fill. After every step each process of the run is looked at from outside. Prints a
table: for each kind of process and quantity the value at the end and its growth in 100 steps, without the first
`--skip` steps, and whether that differs from none (the interval holds for all rows together at 95 %); of memory,
whether it is more than a page of 4 KiB, as allocators reach a new highest page now and then for ever. Writes
OUTPUT/soak.json. Ends with 1 when memory of a process, open files, threads or shared memory grow.

What it cannot show: growth too slow for as many steps, or that only long responses or GPUs bring.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from scipy.special import stdtrit

from bench.run_watch import MIB, status_kib
from nemo_brorl.core.console import Console

POLL_S = 0.5
NUM_BLOCKS = 10  # of steps next to each other, whose means are as good as independent
CONFIDENCE = 0.95
UNITS = {"memory": "MiB", "files": "", "threads": "", "processes": "", "shared memory": "MiB", "disk": "MiB"}
LEAST = {"MiB": 4 / 1024}  # in 100 steps, by unit: growth up to there is not called so
MAY_GROW = ("disk",)  # a row of metrics is written for each step
SHARED = Path("/dev/shm")
TINY = (
    "rollouts.num_per_prompt=8", "rollouts.prompts_per_step=4", "rollouts.chunk_size=8",
    "rollouts.max_response_tokens=32", "policy.data_parallel_size=1", "generation.num_engines=1",
    "dynamic_sampling.enabled=false", "trainer.rehearsal=false", "parity.enabled=false",
    "trainer.val_interval=100", "trainer.save_interval=50", "evaluation.num_prompts=8",
    "evaluation.samples_per_prompt=2", "store.keep_steps=5", "timeline.keep_steps=5",
)  # fmt: skip


Series = dict[tuple[str, str], list[tuple[int, float]]]  # by kind of process and quantity: (step, value)


@dataclass(frozen=True)
class Growth:
    """What a quantity grows by in 100 steps, and half the width of its interval."""

    per_100: float
    margin: float

    def exceeds(self, least: float) -> bool:
        """Return whether the growth in 100 steps is more than `least`, at the interval's confidence."""
        return self.per_100 - self.margin > least


def growth(steps: Sequence[float], values: Sequence[float], confidence: float) -> Growth:
    """Fit a line through the means of blocks of samples, and return its slope with an interval.

    Neighbouring samples are alike, and blocks are not. Raises ValueError for fewer samples than two a block.
    """
    if len(steps) < 2 * NUM_BLOCKS:
        raise ValueError(f"{len(steps)} samples: a slope with its error takes {2 * NUM_BLOCKS}")
    x = np.array([block.mean() for block in np.array_split(np.asarray(steps, float), NUM_BLOCKS)])
    y = np.array([block.mean() for block in np.array_split(np.asarray(values, float), NUM_BLOCKS)])
    spread = x - x.mean()
    slope = float(spread @ y / (spread @ spread))
    residuals = y - y.mean() - slope * spread
    freedom = NUM_BLOCKS - 2
    error = float(np.sqrt(residuals @ residuals / freedom / (spread @ spread)))
    quantile = float(stdtrit(freedom, (1 + confidence) / 2))
    return Growth(100 * slope, 100 * quantile * error)


def kind_of(process: psutil.Process) -> str:
    """Return the name of what a process does: the actor's class, or the program."""
    title = (process.cmdline() or [process.name()])[0]
    if title.startswith("ray::"):
        return title.removeprefix("ray::").split(".")[0]
    if "nemo_brorl" in process.cmdline():
        return "driver"
    return process.name()


def look(driver: psutil.Process) -> dict[tuple[str, str], float]:
    """Return the sum of each quantity over the run's processes of a kind, by (kind of process, quantity)."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for process in [driver, *driver.children(recursive=True)]:
        try:
            kind = kind_of(process)
            memory = status_kib(process.pid)["RssAnon"] / 1024
            files, threads = process.num_fds(), process.num_threads()
        except (psutil.Error, OSError, KeyError):
            continue  # it has ended
        found[kind, "memory"] += memory
        found[kind, "files"] += files
        found[kind, "threads"] += threads
        found["all", "processes"] += 1
    return dict(found)


def folder_mib(folder: Path) -> float:
    """Return the size of all files in a folder in MiB, without files that vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:
            continue
    return total / MIB


def last_step(metrics: Path) -> int:
    """Return the newest step in metrics.jsonl, or 0 before the first."""
    try:
        rows = metrics.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return 0
    return int(json.loads(rows[-1])["step"]) if rows else 0


def soak(command: Sequence[str], folder: Path) -> Series:
    """Run it to its end. Returns what every quantity was. Raises CalledProcessError."""
    series: Series = defaultdict(list)
    started = subprocess.Popen(list(command))
    driver = psutil.Process(started.pid)
    seen = 0
    while started.poll() is None:
        time.sleep(POLL_S)
        step = last_step(folder / "metrics.jsonl")
        if step == seen or started.poll() is not None:
            continue
        seen = step
        found = look(driver)
        found["all", "shared memory"] = folder_mib(SHARED)
        found["all", "disk"] = folder_mib(folder)
        for key, value in found.items():
            series[key].append((step, value))
    if started.returncode:
        raise subprocess.CalledProcessError(started.returncode, list(command))
    return series


def table_of(series: Series, skip: int) -> tuple[list[list[str]], list[str]]:
    """Return the rows of the table, and the names of the quantities that grow and must not."""
    enough = {}
    for key, samples in series.items():
        kept = [sample for sample in samples if sample[0] > skip]
        if len(kept) >= 2 * NUM_BLOCKS:
            enough[key] = kept
    confidence = 1 - (1 - CONFIDENCE) / max(len(enough), 1)
    rows, growing = [], []
    for (kind, quantity), samples in sorted(enough.items()):
        steps, values = zip(*samples, strict=True)
        found = growth(steps, values, confidence)
        unit = UNITS[quantity]
        grows = found.exceeds(LEAST.get(unit, 0.0))
        verdict = "grows" if grows else ""
        if grows and quantity not in MAY_GROW:
            growing.append(f"{quantity} of {kind}")
        size = f"{values[-1]:,.1f} {unit}".strip()
        rows.append([kind, quantity, size, f"{found.per_100:+.3f} ± {found.margin:.3f} {unit}".strip(), verdict])
    return rows, growing


def main() -> int:
    """Run the soak, write soak.json, print its table, and return 1 when something grows, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--skip", type=int, default=100, help="first steps, in which caches fill")
    parser.add_argument("--output", type=Path, default=Path("runs/soak"))
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    settings = [*TINY, f"trainer.max_steps={options.steps}", f"exp_manager.explicit_log_dir={options.output}"]
    command = [sys.executable, "-m", "nemo_brorl", "train", "--config-name", "sums_cpu", *settings, *options.overrides]
    series = soak(command, options.output)
    kept = [{"kind": kind, "quantity": name, "samples": samples} for (kind, name), samples in series.items()]
    (options.output / "soak.json").write_text(json.dumps(kept))
    rows, growing = table_of(series, options.skip)
    Console().table(["process", "quantity", "at the end", "growth in 100 steps", ""], rows)
    return int(bool(growing))


if __name__ == "__main__":
    sys.exit(main())
