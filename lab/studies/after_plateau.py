"""Ask whether N = 512 goes on where N = 16 has come to a plateau, with the control that BroRL's design lacks.

    python lab/studies/cipher_chains.py --output runs/cipher_26 --families 26 --num-questions 12000
    python -m lab.studies.after_plateau --prepare                          # teaches the base, five minutes
    python -m lab.studies.after_plateau --variant A --choose-rates         # seed 0, which is not counted
    python -m lab.studies.after_plateau --variant A --seeds 1 --commit     # its lines are committed when it ends
    python -m lab.studies.after_plateau --variant A --tables

With `--minutes M` a run stops after so long, and goes on from its checkpoint when it is called again. Predictions and
their decision: `after_plateau_hypotheses.md`. `exact_groups.py` says why the rig is exact. In variant A a right answer
is accepted with a probability of its question, so that N = 16 and 512 keep 0.39 and 0.63 of their groups where all is
learnt: the paper's are 0.41 and 0.62. In variant B every right answer is accepted. Success is reported without it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.studies.after_plateau_learner import RATE, TRAINED, Arm, CeilingTask, Learner, teach_base
from lab.studies.after_plateau_tables import BEFORE, EQUAL_SAMPLES, EQUAL_TIME, GROW, Line, decision, tables
from lab.studies.cipher_plain import HELD_OUT
from lab.studies.exact_groups import (
    Float64,
    answer_log_probs,
    chances_of,
)
from nemo_brorl.config.rollouts import PlateauConfig
from nemo_brorl.rollouts.plateau import PlateauDetector

EVERY = 50_000  # rollouts between measurements
DETECTOR = PlateauConfig(window=12, patience=3, min_gain=0.0025)
OUTPUT = Path("lab/studies/after_plateau_results")

BIG = GROW * RATE
CONTROLS = {"A": 1652, "B": 1604}  # prompts of N = 16 for as many rollouts a step as 512 x 32 samples


def arms_of(variant: str) -> dict[str, Arm]:
    """Return a variant's arms: first the three that decide, then those that explore."""
    fixed = CONTROLS[variant]
    return {
        "16 x 128": Arm(16, 128),
        "512 x 32": Arm(512, 32, rate=BIG, rollouts=EQUAL_TIME),
        "16 x many": Arm(16, fixed, False, BIG),
        "16 x 1024": Arm(16, 1024, rate=BIG),
        "512 x 4": Arm(512, 4, rollouts=EQUAL_TIME),
        "16 x 128 fixed": Arm(16, 128, False),
        "64 x 256 fixed": Arm(64, 256, False, BIG),
        "16 x many, maxrl": Arm(16, fixed, False, BIG, is_maxrl=True),
        "512 x 32, maxrl": Arm(512, 32, rate=BIG, rollouts=EQUAL_TIME, is_maxrl=True),
    }


DECIDING = 3  # arms


@dataclass
class Progress:
    """How far one seed of a variant is: its lines, the parts that have ended, the plateau, the part under way."""

    lines: list[Line] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    plateau: dict[str, Any] = field(default_factory=dict)
    part: dict[str, Any] = field(default_factory=dict)


class Course:
    """One seed of a variant: the run until the plateau, then its arms from there."""

    def __init__(self, task: CeilingTask, options: argparse.Namespace, seed: int) -> None:
        self.task = task
        self.options = options
        self.seed = seed
        self.checkpoint = options.base.parent / f"after_plateau_{options.variant}_{seed}_{options.before}.pt"
        self.progress = Progress()
        if self.checkpoint.exists():
            self.progress = Progress(**torch.load(self.checkpoint, weights_only=False))

    def save(self) -> None:
        """Write the progress, so that the run can resume from here."""
        aside = self.checkpoint.with_suffix(".new")
        torch.save(vars(self.progress), aside)
        aside.replace(self.checkpoint)

    def has_run(self, before: Arm, arms: Sequence[tuple[str, Arm]]) -> bool:
        """Run to the plateau, and each arm from there. False: the time is over before all have ended."""
        return self.has_ended("before", before) and all(self.has_ended(name, arm) for name, arm in arms)

    def has_ended(self, name: str, arm: Arm) -> bool:
        """Run a part from its checkpoint, if there is one, to its end. False: the time is over before."""
        key = f"{name} at {arm.rate:g}, {arm.rollouts}"
        if key in self.progress.ended:
            return True
        is_before = name == "before"
        learner = Learner(self.task, self.options.base, self.seed if is_before else self.seed + 1000)
        detector = PlateauDetector(DETECTOR)
        next_at = 0
        if self.progress.part:
            learner.load(self.progress.part)
            detector.load_state_dict(self.progress.part["detector"])
            next_at = self.progress.part["next_at"]
        elif not is_before:
            learner.load_policy(self.progress.plateau)
        for group in learner.optimizer.param_groups:
            group["lr"] = arm.rate
        while True:
            if learner.counts.sampled >= min(next_at, arm.rollouts):
                line = self.measured(learner, name, arm)
                self.progress.lines.append(line)
                next_at = learner.counts.sampled + self.options.every
                reason = detector.observe(line["decided_by"]) if is_before else None
                if reason or learner.counts.sampled >= arm.rollouts:
                    break
                self.save_part(learner, detector, next_at)
            started = time.process_time()
            learner.step(arm, arm.rollouts)
            learner.counts.processor_s += time.process_time() - started
            if time.monotonic() > self.options.ends_at:
                self.save_part(learner, detector, next_at)
                return False
        if is_before:
            print(f"seed {self.seed}: {learner.counts.sampled:,} rollouts; {reason or 'no plateau'}", flush=True)
            self.progress.plateau = learner.state() | {"chances": self.shown(learner)}
        self.progress.ended.append(key)
        self.progress.part = {}
        self.save()
        return True

    def save_part(self, learner: Learner, detector: PlateauDetector, next_at: int) -> None:
        self.progress.part = learner.state() | {"detector": detector.state_dict(), "next_at": next_at}
        self.save()

    def shown(self, learner: Learner) -> Float64:
        """Return the policy's exact chances of the questions to decide by, and behind them of those to report."""
        return chances_of(answer_log_probs(learner.model, self.task, torch.arange(self.task.held_out)))

    def measured(self, learner: Learner, name: str, arm: Arm) -> Line:
        """Return a line of a run's counts and success rates, but for `decided_by` of the reported questions."""
        chances = self.shown(learner)
        shown = chances[self.task.shown]
        accepted = shown * self.task.ceilings[self.task.shown]
        line: Line = {
            "variant": self.options.variant,
            "seed": self.seed,
            "arm": name,
            "rate": arm.rate,
            **asdict(learner.counts),
            "decided_by": float(chances[: self.task.shown.start].mean()),
            "pass_at_1": float(shown.mean()),
            "pass_at_16": float((1 - (1 - shown) ** 16).mean()),
            "keep_16": float((1 - (1 - accepted) ** 16 - accepted**16).mean()),
            "keep_512": float((1 - (1 - accepted) ** 512 - accepted**512).mean()),
        }
        if self.progress.plateau:
            then = self.progress.plateau["chances"][self.task.shown]
            logs = np.log10(np.maximum(shown, 1e-9))
            if (then < 0.5).any():
                line["log_of_unsolved"] = float(logs[then < 0.5].mean())
            line["largest_loss"] = float((np.log10(np.maximum(then, 1e-9)) - logs).max())
        return line


def choose_rates(task: CeilingTask, options: argparse.Namespace) -> None:
    """Train the arms of seed 0 with three rates, and write each one's best by the questions to decide by."""
    arms = chosen_arms(options)
    rates = (RATE / GROW, RATE, BIG)
    course = Course(task, options, 0)
    tried = [(name, replace(arm, rate=rate, rollouts=options.after)) for name, arm in arms for rate in rates]
    if not course.has_run(Arm(16, 128, rollouts=options.before), tried):
        return
    write_lines(options.output / f"{options.variant}_seed_0.jsonl", course.progress.lines)
    path = options.output / f"{options.variant}_rates.json"
    chosen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name, _ in arms:
        ends = {line["rate"]: line["decided_by"] for line in course.progress.lines if line["arm"] == name}
        chosen[name] = max(rates, key=lambda rate: ends[rate])
        edge = "" if chosen[name] == RATE else " (at the edge)"
        print(f"{name}: {chosen[name]:g}{edge}", flush=True)
    path.write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")


def chosen_arms(options: argparse.Namespace) -> list[tuple[str, Arm]]:
    arms = arms_of(options.variant)
    return [(name, arms[name]) for name in options.arms or list(arms)[:DECIDING]]


def write_lines(path: Path, lines: Sequence[Line]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def run_seed(task: CeilingTask, options: argparse.Namespace, seed: int) -> bool:
    """Run all arms of a seed, write its lines when all have ended, and commit them under `--commit`."""
    rates = json.loads((options.output / f"{options.variant}_rates.json").read_text(encoding="utf-8"))
    course = Course(task, options, seed)
    arms = [(name, replace(arm, rate=rates[name])) for name, arm in chosen_arms(options)]
    if not course.has_run(Arm(16, 128, rollouts=options.before), arms):
        print(f"seed {seed}: the time is over; call again to go on", flush=True)
        return False
    output = options.output / f"{options.variant}_seed_{seed}.jsonl"
    write_lines(output, course.progress.lines)
    if options.commit:
        subprocess.run(["git", "add", str(output)], check=True)
        message = f"After the plateau, variant {options.variant}, seed {seed}"
        subprocess.run(["git", "commit", "-m", message, "--", str(output)], check=True)
    return True


def main() -> None:
    """Prepare the base, choose rates, train seeds, or print the tables, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, default=Path("runs/cipher_26/questions.jsonl"))
    parser.add_argument("--base", type=Path, default=Path("runs/cipher_26/base"))
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--variant", default="A", choices=tuple(CONTROLS), help="A: ceilings; B: none")
    parser.add_argument("--arms", nargs="+", help="default: the three that decide")
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--before", type=int, default=BEFORE, help="rollouts until the plateau at most")
    parser.add_argument("--after", type=int, default=EQUAL_SAMPLES, help="rollouts of an arm while rates are chosen")
    parser.add_argument("--every", type=int, default=EVERY, help="rollouts between measurements")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then stop, with a checkpoint")
    parser.add_argument("--prepare", action="store_true", help="teach the base, no run")
    parser.add_argument("--choose-rates", action="store_true", help="train seed 0 with three rates")
    parser.add_argument("--commit", action="store_true", help="commit each seed's lines when it ends")
    parser.add_argument("--tables", action="store_true", help="tables and decision of what the output holds, no run")
    options = parser.parse_args()
    if options.tables:
        print("\n".join([*tables(options.output, options.variant), "", *decision(options.output, options.variant)]))
        return
    torch.set_num_threads(1)
    options.ends_at = time.monotonic() + 60 * options.minutes
    limit = 12_000 if options.prepare else 2 * HELD_OUT + TRAINED
    task = CeilingTask(options.questions, limit, options.variant)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.prepare:
        teach_base(task, options.base)
    if options.choose_rates:
        choose_rates(task, options)
    for seed in options.seeds:
        if not run_seed(task, options, seed):
            return


if __name__ == "__main__":
    main()
