"""Compare automatically chosen sizes with a search by hand, on an idle machine of two cores.

    python -m lab.studies.auto_sizes MODEL [MODEL ...] --output runs/auto_sizes [--steps 3] [--repeats 2] [--set
    KEY=VALUE]

Each model trains a few steps with every size chosen automatically, `--repeats` times. From there one size after the
other takes each value of `VALUES` and keeps the fastest one, as when tuning by hand. Then the chosen layout and the
fastest other one run again by turns, `--repeats` times each. The results come from these runs alone: the ratio of
sampled tokens a second of a step, chosen over other (goal: 0.95 or more), and the peak memory of policy ranks and
engines, compared with the memory estimate (goal: no more). The exit code is 1 when a model misses a goal. A layout that
is refused, as too large or otherwise, counts as 0.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from operator import itemgetter
from pathlib import Path
from statistics import median

from bench.run_watch import read_rows, watch
from nemo_brorl.config.load import load_config, load_run_config
from nemo_brorl.config.memory import cpu_memory, fullest_micro_batch
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.core.model_shape import read_model_shape

RATIO = 0.95
VALUES = {
    "policy.data_parallel_size": (1, 2),
    "generation.num_engines": (1, 2),
    "policy.tokens_per_micro_batch": (512, 1024, 2048, 4096, 8192),
    "generation.kv_cache_gib": (0.25, 1.0, 2.0),
}
SHORT = (
    "rollouts.num_per_prompt=32", "rollouts.prompts_per_step=4", "dynamic_sampling.enabled=false",
    "trainer.rehearsal=false", "parity.enabled=false", "trainer.val_interval=0", "evaluation.num_prompts=1",
    "evaluation.samples_per_prompt=1",
)  # fmt: skip


class Search:
    """The runs of one model, each in a folder of its own."""

    def __init__(self, shared: list[str], folder: Path) -> None:
        self.shared = shared
        self.folder = folder
        self.num_runs = 0

    def run(self, layout: dict[str, float]) -> tuple[float, float, Path]:
        """Train with the sizes in `layout`, and return sampled tokens/s, peak memory in GiB and the run's folder.

        `layout` holds sizes, such as the number of engines, by setting. All other sizes are chosen automatically.
        """
        folder = self.folder / f"run_{self.num_runs}"
        self.num_runs += 1
        settings = [f"{name}={value}" for name, value in layout.items()]
        rate, peak = run([*self.shared, *settings], folder)
        for name in ("checkpoints", "hf"):
            shutil.rmtree(folder / name, ignore_errors=True)  # gigabytes for each run
        print(
            f"{self.folder.name}: {rate:.1f} tokens/s, {peak:.1f} GiB with {', '.join(settings) or 'chosen sizes'}",
            flush=True,
        )
        return rate, peak, folder

    def fastest_other(self, chosen: dict[str, float], rate: float) -> dict[str, float]:
        """Change the sizes in the layout `chosen` one by one, and return the fastest layout found other than `chosen`.

        A change is kept when it is faster than all layouts before. `rate` is the speed of `chosen` in tokens/s.
        """
        tried = []
        found = dict(chosen)
        for name, values in VALUES.items():
            for value in values:
                if value == chosen[name]:
                    continue
                layout = {**found, name: value}
                new_rate, _, _ = self.run(layout)
                tried.append((new_rate, layout))
                if new_rate > rate:
                    rate = new_rate
                    found = layout
        _, fastest = max(tried, key=itemgetter(0))
        return fastest


def chosen_sizes(config: BroRLConfig) -> dict[str, float]:
    """Return the sizes (ranks, engines, micro-batch tokens, cache GiB) that a run has chosen automatically."""
    policy = config.policy
    generation = config.generation
    assert policy.data_parallel_size and policy.tokens_per_micro_batch, "no layout of the policy was recorded"
    assert generation.num_engines and generation.kv_cache_gib, "no layout of the engines was recorded"
    return {
        "policy.data_parallel_size": policy.data_parallel_size,
        "generation.num_engines": generation.num_engines,
        "policy.tokens_per_micro_batch": policy.tokens_per_micro_batch,
        "generation.kv_cache_gib": generation.kv_cache_gib,
    }


def run(settings: list[str], folder: Path) -> tuple[float, float]:
    """Train a few steps, and return sampled tokens per second of a step and the peak GiB of ranks and engines.

    Both are 0 when the run fails, such as for settings that are refused.
    """
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
    """Return the estimated memory in GiB of a run's policy ranks and engines, by the sizes in its recorded settings."""
    config = load_run_config(folder)
    memory = cpu_memory(config, read_model_shape(Path(config.policy.model)), fullest_micro_batch(config))
    return memory.num_ranks * sum(memory.rank.values()) + memory.num_engines * sum(memory.engine.values())


def compare(search: Search, repeats: int) -> tuple[list[str], bool]:
    """Compare the speed of a model's automatically chosen sizes with that of tuned ones, and return a table row.

    Also returns whether the automatic sizes miss the goals: a ratio of the speeds of at least RATIO, and at most the
    estimated memory.
    """
    first_rates: list[float] = []
    peak = 0.0
    for _ in range(repeats):
        rate, new_peak, folder = search.run({})
        first_rates.append(rate)
        peak = max(peak, new_peak)
    if not all(first_rates):
        sys.exit(f"{search.folder.name} does not train with the sizes that are chosen")
    bound = bound_gib(folder)
    chosen = chosen_sizes(load_run_config(folder))
    other = search.fastest_other(chosen, median(first_rates))
    rates: list[float] = []
    other_rates: list[float] = []
    for _ in range(repeats):
        rate, new_peak, _ = search.run({})
        rates.append(rate)
        peak = max(peak, new_peak)
        other_rates.append(search.run(other)[0])
    if not all(rates) or not all(other_rates):
        sys.exit(f"{search.folder.name}: a run after the search did not end; what it said stands above")
    ratio = median(rates) / median(other_rates)
    differing = [f"{name}={value}" for name, value in other.items() if value != chosen[name]]
    row = [f"{median(rates):.1f}", f"{median(other_rates):.1f}", f"{ratio:.2f}", f"{peak:.1f}", f"{bound:.1f}"]
    return [search.folder.name, *row, " ".join(differing)], ratio < RATIO or peak > bound


def main() -> int:
    """Compare the speed of automatically chosen sizes with that of tuned ones for each model.

    The sizes are numbers of ranks and engines, tokens of a micro-batch, and GiB of cache. Prints a row for each model
    and returns the exit code.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, default=Path("runs/auto_sizes"))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    load_config("your_model", [*SHORT, *options.set])  # find mistakes before the first run
    if options.output.exists():
        parser.error(f"--output {options.output} is there already: runs would go on from what is in it; name another")
    rows = []
    has_missed = False
    for model in options.models:
        shared = [*SHORT, f"policy.model={model}", f"trainer.max_steps={options.steps}", *options.set]
        row, misses = compare(Search(shared, options.output / model.name), options.repeats)
        rows.append(row)
        has_missed = has_missed or misses
    Console().table(["model", "tokens/s", "of the other", "ratio", "peak GiB", "bound", "the fastest other"], rows)
    return int(has_missed)


if __name__ == "__main__":
    sys.exit(main())
