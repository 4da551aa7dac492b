"""Measure what a second turn is worth: held-out success of conf/agent_cpu.yaml with it and without, before and after.

    python -m lab.studies.second_turn --seeds 1 2 3 --output runs/second_turn [KEY=VALUE ...]

Every seed trains from the same base. Base and best weights then answer 512 questions that the run has not seen, 16
times each, once with two turns (a call of the calculator, and an answer) and once with one. Prints a row per seed and
writes OUTPUT/second_turn.json.

Predicted before the first reported run: with two turns, training raises success from below 5 % to above 60 %. With one
turn it stays below 1 % before and after, since no product can be guessed. So the second turn is worth more than 15
points, all of them gained by training.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.product import run
from nemo_brorl.core.console import format_table

CONFIG = ("--config-name", "agent_cpu")
REPORTED = ("evaluation.first_prompt=256", "evaluation.num_prompts=512", "evaluation.samples_per_prompt=16")


def measure_success(folder: Path, name: str, turns: int, *overrides: str) -> float:
    """Evaluate a model whose trajectories may have up to `turns` turns, and return its pass@1."""
    output = folder / name
    turned = f"data.environment_settings.max_turns={turns}"
    run("evaluate", *CONFIG, *REPORTED, *overrides, turned, f"evaluation.output={output}")
    found = json.loads((output / "evaluation.json").read_text())
    return float(found["overall"]["pass_at_1"])


def one_seed(seed: int, output: Path, overrides: list[str]) -> dict[str, float]:
    """Train a run with one seed, and return pass@1 before and after training, with one turn and with two."""
    folder = output / f"seed_{seed}"
    shared = [*overrides, f"trainer.seed={seed}", f"exp_manager.explicit_log_dir={folder}"]
    result = {"seed": float(seed)}
    result["train_s"] = run("train", *CONFIG, *shared)
    for turns in (2, 1):
        result[f"before_{turns}"] = measure_success(folder, f"before_{turns}", turns, *shared)
        trained = f"policy.model={folder}/hf"
        result[f"after_{turns}"] = measure_success(folder, f"after_{turns}", turns, *shared, trained)
    return result


def main() -> None:
    """Train a run with each seed, print one row for each seed, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--output", type=Path, default=Path("runs/second_turn"))
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    results = [one_seed(seed, options.output, options.overrides) for seed in options.seeds]
    (options.output / "second_turn.json").write_text(json.dumps(results, indent=1))
    rows = []
    for result in results:
        shares = [result[name] for name in ("before_1", "before_2", "after_1", "after_2")]
        gain = 100 * (result["after_2"] - result["after_1"])
        words = [f"{share:.1%}" for share in shares]
        rows.append([f"{result['seed']:.0f}", *words, f"{gain:+.1f}", f"{result['train_s'] / 60:.1f}"])
    header = ["seed", "before, 1 turn", "before, 2", "after, 1 turn", "after, 2", "points", "min of training"]
    for line in format_table(header, rows):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
