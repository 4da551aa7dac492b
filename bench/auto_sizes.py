"""Sizes that nobody gave against a search by hand, on an idle machine of two cores.

    python -m bench.auto_sizes MODEL [MODEL ...] --output runs/auto_sizes [--steps 3] [--set KEY=VALUE]

Each model trains a few steps with every size left to be chosen, then with each layout of `GRID`. The result is the
tokens that are sampled in a second of a step, chosen over the best of the grid (wanted: 0.95 or more), and the peak of
policy ranks and engines beside what the memory estimate says of them (wanted: no more). Ends with 1 when a model
misses. A layout that is refused, as too large or otherwise, counts as 0.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from itertools import product
from pathlib import Path
from statistics import median

from bench.run_watch import read_rows, watch
from nemo_brorl.config.derived import fullest_micro_batch
from nemo_brorl.config.load import load_config, read_config
from nemo_brorl.config.memory import cpu_memory
from nemo_brorl.config.model_shape import read_model_shape
from nemo_brorl.config.same_run import RECORD
from nemo_brorl.core.console import Console

RATIO = 0.95
GRID = {
    "policy.data_parallel_size": (1, 2),
    "generation.num_engines": (1, 2),
    "policy.tokens_per_micro_batch": (1024, 2048, 4096, 8192),
    "generation.kv_cache_gib": (0.25, 1.0),
}
SHORT = (
    "rollouts.num_per_prompt=32", "rollouts.prompts_per_step=4", "dynamic_sampling.enabled=false",
    "trainer.rehearsal=false", "parity.enabled=false", "trainer.val_interval=0", "evaluation.num_prompts=1",
    "evaluation.samples_per_prompt=1",
)  # fmt: skip


def layouts() -> list[list[str]]:
    """Overrides of every layout of the grid."""
    found = []
    for values in product(*GRID.values()):
        found.append([f"{name}={value}" for name, value in zip(GRID, values, strict=True)])
    return found


def run(settings: list[str], folder: Path) -> tuple[float, float]:
    """(sampled tokens a second of a step, peak of ranks and engines in GiB); (0, 0) where the run is refused."""
    command = [sys.executable, "-m", "nemo_brorl", "train", "--config-name", "your_model", *settings]
    try:
        actors = watch([*command, f"exp_manager.explicit_log_dir={folder}"], folder / "metrics.jsonl")
    except subprocess.CalledProcessError:
        return 0.0, 0.0
    rates = []
    for row in read_rows(folder / "metrics.jsonl"):
        if "time/generate_s" in row:
            seconds = row["time/collect_s"] + row["time/log_prob_s"] + row["time/update_s"] + row["time/sync_s"]
            rates.append(row["generation/tokens_per_s"] * row["time/generate_s"] / seconds)
    return median(rates), sum(actor.peak_gib for actor in actors)


def bound_gib(folder: Path) -> float:
    """What the estimate says of ranks and engines of a run, by the sizes that it recorded."""
    config = read_config(folder / RECORD)
    memory = cpu_memory(config, read_model_shape(Path(config.policy.model)), fullest_micro_batch(config))
    return memory.num_ranks * sum(memory.rank.values()) + memory.num_engines * sum(memory.engine.values())


def main() -> int:
    """A row for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, default=Path("runs/auto_sizes"))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    load_config("your_model", [*SHORT, *options.set])  # a mistake is found before the first run
    rows, has_missed = [], False
    for model in options.models:
        shared = [*SHORT, f"policy.model={model}", f"trainer.max_steps={options.steps}", *options.set]
        folder = options.output / model.name
        rate, peak = run(shared, folder / "auto")
        bound = bound_gib(folder / "auto")
        best = max(run([*shared, *layout], folder / f"grid_{number}")[0] for number, layout in enumerate(layouts()))
        has_missed = has_missed or rate < RATIO * best or peak > bound
        numbers = [f"{rate:.1f}", f"{best:.1f}", f"{rate / best:.2f}", f"{peak:.1f}", f"{bound:.1f}"]
        rows.append([str(model), *numbers])
    Console().table(["model", "tokens/s", "best of grid", "ratio", "peak GiB", "bound"], rows)
    return int(has_missed)


if __name__ == "__main__":
    sys.exit(main())
