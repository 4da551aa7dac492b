"""Measure what one policy gets of two teachers, each of them trained on a task of its own.

    python -m lab.studies.two_teachers --prepare
    python -m lab.studies.two_teachers --seeds 1 2 3 [KEY=VALUE ...]

`--prepare` fine-tunes `models/sums` on sums and products that a careless pupil works out, so that one base knows both
tasks a little. Then two specialists are trained from this base with rewards, one on sums and one on products. A student
starts from the base, too, and samples both tasks in one mixture. Its only signal is the KL to the specialist of a
prompt's task. Base, specialists and students answer 256 questions of each task 8 times each that no run has seen. Adds
a line of JSON for each student to OUTPUT/two_teachers.jsonl.

Predicted before the first student: each gets 80 % of each specialist's gain or more. With the settings that three
students of one teacher kept (90 steps) seed 1 got 84 % on sums and 72 % on products. Predicted for 180 steps before
seeds 4, 5 and 6: each gets 80 %. Seed 5 refuted it: its KL rose again after 155 steps. Predicted for 180 steps and
`trainer.val_interval=15` before seeds 7, 8 and 9: each gets 80 %, because `hf/` has the weights before a jump.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

from brorl_lab.bases.demonstrations import Habits, work_out

from bench.product import run
from lab.studies.teachers import CONFIG, STUDENT, kl_by_step, num_rollouts, pass_at_1
from nemo_brorl.config.data import TaskConfig
from nemo_brorl.prompts.reasoning_gym import ReasoningGymSource

TASKS: dict[str, dict[str, int]] = {
    "chain_sum": {"min_terms": 6, "max_terms": 9, "min_digits": 1, "max_digits": 1},
    "products": {"min_terms": 3, "max_terms": 4, "min_digits": 1, "max_digits": 1},
}
HABITS = Habits(dropped_carry_rate=0.8, slip_rate=0.12)  # those of models/sums
WRONG_PRODUCTS = 0.3  # share of a product's steps that are off by one
DEMONSTRATIONS = 128_000
HELD_OUT = 0.1  # share of the questions, the default of data.held_out_fraction
SEED = 7  # the seed of the demonstrations


def worked_sum(expression: str, random: Random) -> str:
    """Return a pupil's answer to a sum such as `4 + 7 - 3`."""
    worked = work_out(expression, HABITS, random)
    return f"{worked.steps}<answer>{worked.result}</answer>"


def worked_product(expression: str, random: Random) -> str:
    """Return a pupil's answer to a product such as `4 * 7 * 3`. A wrong step is carried on."""
    first, *rest = expression.split(" * ")
    result = int(first)
    steps = first
    for digit in rest:
        result *= int(digit)
        if random.random() < WRONG_PRODUCTS:
            result += random.choice((-1, 1))
        steps += f"*{digit}={result}"
    return f"{steps}<answer>{result}</answer>"


def write_demonstrations(path: Path) -> None:
    """Write questions of both tasks in turn with a pupil's answers, without held-out questions."""
    random = Random(SEED)
    pupils = {"chain_sum": worked_sum, "products": worked_product}
    sources = {
        name: ReasoningGymSource([TaskConfig(name, config=settings)], HELD_OUT, "train", SEED, verifier="exact_match")
        for name, settings in TASKS.items()
    }
    with path.open("w", encoding="utf-8") as file:
        for place in range(DEMONSTRATIONS):
            name = list(TASKS)[place % len(TASKS)]
            question = sources[name].question(place // len(TASKS))
            answer = pupils[name](question.payload["metadata"]["expression"], random)
            turns = [{"role": "user", "content": question.text}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": turns}) + "\n")


def asking(*names: str) -> str:
    """Return the setting that asks questions of these tasks."""
    tasks = [{"name": name, "config": TASKS[name]} for name in names]
    # Hydra reads keys without quotes.
    return "data.tasks=" + json.dumps(tasks).replace('"', "")


def prepare(output: Path) -> None:
    """Make the base that knows both tasks a little, and train a specialist of each task."""
    demonstrations = output / "demonstrations.jsonl"
    write_demonstrations(demonstrations)
    settings = ("sft.lr=1e-3", "sft.batch_size=64", "sft.epochs=1", "sft.max_tokens=128", "policy.data_parallel_size=2")
    to_base = f"exp_manager.explicit_log_dir={output}/base"
    run("sft", f"data.path={demonstrations}", "policy.model=models/sums", *settings, to_base)
    for name in TASKS:
        folder = f"exp_manager.explicit_log_dir={output}/{name}"
        run("train", *CONFIG, f"policy.model={output}/base/hf", asking(name), folder)


def one_seed(seed: int, output: Path, overrides: list[str]) -> dict[str, Any]:
    """Train a student of both specialists, and return what it got of each one's gain, and its KL by step."""
    folder = output / f"seed_{seed}"
    shared = (f"policy.model={output}/base/hf", f"exp_manager.explicit_log_dir={folder}", f"trainer.seed={seed}")
    teachers = ",".join(f"{name}: {output}/{name}/hf" for name in TASKS)
    mixed = (asking(*TASKS), f"algorithm.kl.teachers={{{teachers}}}")
    seconds = run("train", *CONFIG, *STUDENT, *overrides, *shared, *mixed)
    results: dict[str, dict[str, float]] = {}
    for name in TASKS:
        found = {}
        for who, model in {"base": output / "base", "teacher": output / name, "student": folder}.items():
            found[who] = pass_at_1(model / f"on_{name}", f"policy.model={model}/hf", asking(name))
        found["share_of_gain"] = (found["student"] - found["base"]) / (found["teacher"] - found["base"])
        found["share_of_rollouts"] = num_rollouts(folder) / len(TASKS) / num_rollouts(output / name)
        results[name] = found
    return {"seed": seed, "overrides": overrides, "tasks": results, "train_s": seconds, "kl": kl_by_step(folder)}


def main() -> None:
    """Make base and specialists, or train a student with each seed and print what it got of each specialist."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", action="store_true", help="make the base and the specialists, no student")
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--output", type=Path, default=Path("runs/two_teachers"))
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.prepare:
        prepare(options.output)
    for seed in options.seeds:
        result = one_seed(seed, options.output, options.overrides)
        with (options.output / "two_teachers.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")
        sys.stdout.write(f"{ {name: value for name, value in result.items() if name != 'kl'} }\n")


if __name__ == "__main__":
    main()
