"""Measure what N is worth: N = 16, 64, 256, 512 with equal rollouts a step, from one plateaued base, three seeds.

    python -m lab.studies.n_sweep [KEY=VALUE ...] --output runs/n_sweep [--base FOLDER] [--sizes 16 64 256 512] [--seeds
    1 2 3]

Two arms. `plateaued` starts from a base whose supervised warm-up has run to the end of its learning rate. `saturated`
starts from that base after `--saturate-steps` steps of ProRL (N = 16); the plateau detector's verdict on that run is
printed. A step samples `--rollouts-per-step` rollouts whatever N is, with the same learning rate, so that arms differ
in prompts against rollouts of a prompt and nothing else. Each N gets its own number of steps (`--steps`), more where
steps are faster: results are read off at equal samples (the most that all runs reached) and at equal training time (the
shortest run's; validation and start-up do not count).

Complete runs are not run again, so an interrupted sweep can be resumed. `--draw-only` makes tables and figures of the
existing runs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from brorl_lab.commands.plateau import plateau_rows

from bench.product import run
from lab.studies.figures.sweep import SizeRun, draw_sweep, sweep_tables
from nemo_brorl.config.rollouts import PlateauConfig
from nemo_brorl.core.console import format_table
from nemo_brorl.training.records import read_metrics

SIZES = (16, 64, 256, 512)
STEPS = (7, 10, 13, 13)  # about the same training time for each, on two cores
CHUNK = 64
WARM_UP = [
    "sft.new.target_pass_at_1=0.5",
    "sft.new.max_pass_at_1=0.6",
    "sft.max_steps=1500",
    "sft.new.time_limit_s=400",
]


def train(folder: Path, base: Path, size: int, seed: int, steps: int, options: argparse.Namespace) -> None:
    """Train one run of a sweep over the rollout size N, unless the run is complete."""
    metrics = folder / "metrics.jsonl"
    if metrics.exists() and read_metrics(metrics)[-1]["step"] >= steps:
        return
    run(
        "train", "--config-name", "brorl_cpu", f"exp_manager.explicit_log_dir={folder}", f"policy.model={base}",
        f"trainer.seed={seed}",
        f"trainer.max_steps={steps}", f"trainer.val_interval={options.val_interval}", "trainer.save_interval=0",
        f"rollouts.num_per_prompt={size}", f"rollouts.prompts_per_step={options.rollouts_per_step // size}",
        f"rollouts.chunk_size={min(size, CHUNK)}", "evaluation.samples_per_prompt=16",
        "dynamic_sampling.max_sampled=40", *options.overrides,  # a saturated base keeps one group in ten at N = 16
    )  # fmt: skip


def saturate(base: Path, options: argparse.Namespace) -> Path:
    """Train the base model with ProRL, print whether validation stopped rising, and return the trained model."""
    folder, saturated = options.output / "saturate", options.output / "base_saturated"
    train(folder, base, 16, options.seeds[0], options.saturate_steps, options)
    table = plateau_rows(read_metrics(folder / "metrics.jsonl"), PlateauConfig(window=6))
    print("\n".join(format_table(["step", "pass@1", "slope per validation", "verdict"], table)), flush=True)
    if not saturated.exists():
        settings = [f"exp_manager.explicit_log_dir={folder}", f"policy.model={base}"]
        run("convert", "--config-name", "brorl_cpu", "--output", str(saturated), *settings)
    return saturated


def sweep(arm: str, base: Path, options: argparse.Namespace) -> list[SizeRun]:
    """Train runs from a base model with every rollout size N and every seed, and return them.

    Seeds are outermost, so that a slow spell of the machine affects all N alike.
    """
    runs = []
    for seed in options.seeds:
        for size, steps in zip(options.sizes, options.steps, strict=True):
            folder = options.output / arm / f"n{size}_seed{seed}"
            if not options.draw_only:
                train(folder, base, size, seed, steps, options)
            if (folder / "metrics.jsonl").exists():
                runs.append(
                    SizeRun.from_rows(size, seed, read_metrics(folder / "metrics.jsonl"), options.rates.get(str(size)))
                )
    return runs


def main() -> None:
    """Run the sweep over rollout sizes N, and write its tables and figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/n_sweep"))
    parser.add_argument("--base", type=Path, help="a Hugging Face folder; without it the warm-up makes OUTPUT/base")
    parser.add_argument("--arms", nargs="+", choices=["plateaued", "saturated"], default=["plateaued", "saturated"])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--steps", type=int, nargs="+", default=list(STEPS), help="one for each size")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rollouts-per-step", type=int, default=4096)
    parser.add_argument("--saturate-steps", type=int, default=40)
    parser.add_argument("--val-interval", type=int, default=2)
    parser.add_argument("--draw-only", action="store_true")
    parser.add_argument(
        "--rates",
        type=json.loads,
        default={},
        metavar="JSON",
        help='times measured elsewhere, for runs on a machine that was shared: {"16": [rollouts per second, other '
        "seconds of a step], …}",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    if len(options.steps) != len(options.sizes):
        parser.error(f"--steps has {len(options.steps)} numbers for {len(options.sizes)} sizes; pass one for each")
    base = options.base or options.output / "base"
    if not base.exists():
        run("base", "--config-name", "brorl_cpu", f"sft.new.output={base}", f"policy.model={base}", *WARM_UP)
    results = {}
    for arm in options.arms:
        start = base if arm == "plateaued" or options.draw_only else saturate(base, options)
        runs = sweep(arm, start, options)
        tables = sweep_tables(runs)
        for title, (header, rows) in tables.items():
            print(f"\n{arm}, {title}\n" + "\n".join(format_table(header, rows)), flush=True)
        draw_sweep(runs, options.output / f"{arm}.png")
        results[arm] = {
            title: [dict(zip(header, row, strict=True)) for row in rows] for title, (header, rows) in tables.items()
        }
    (options.output / "sweep.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
