"""Train with N = 16 and full batches until validation stops rising, then with other N and other rules from there.

    python lab/studies/cipher_chains.py
    python -m lab.studies.cipher_plateau --prepare
    python -m lab.studies.cipher_plateau --seeds 1 2 3 --report && python -m lab.studies.cipher_plateau --tables

This is the paper's situation on a small scale. 2,048 questions are repeated. Half of the families are within reach:
`--prepare` teaches the base of cipher chains to be right about their digits with 0.8. About the others it stays right
with 2 in 10,000. ProRL's N = 16 with GRPO, each step filled with 256 informative groups, learns the first half. Then
such groups get scarce. Where validation (on questions that are not reported on) rises by less than half a point in two
updates (`rollouts/schedule.py`), each arm continues from the same weights and the same optimizer state for equally many
rollouts. Seconds are processor time of one thread, without measurements, so other load hardly changes them.

Predicted before any run: N = 16 with full batches stays on the second half (below 1 %), because it has too few updates.
N = 512 with full batches has three times as many updates or more, and rises further at each seed. With fixed samples
N = 16 gets further than that, and with solved questions retired further still. With fixed samples N = 512 is behind
N = 16. Then seed 0 was run on the questions to choose by. It set the bound of half a point and the length of an arm.

Of arms with 1,024 rollouts a step (`SMALL_STEPS`) seed 0 chose N = 64 as the best fixed N at equal rollouts (96.8 %
where N = 16 had 81.8 and N = 4 72.5), and to sample a tenth of the retired questions again (0.25 was behind). Predicted
before seeds 1 to 3: N = 16 with retirement reaches 90 % at each seed, with at most 0.8 of the rollouts that N = 16
without it takes to its last score, and forgets nothing (within reach above 95 %). It ends within three points of N = 64
and leads at equal seconds. N = 64 with retirement, which seed 0 did not run, ends ahead of N = 64 without and reaches
80 % after at most 0.8 of its rollouts. Sampled again was then a tenth of the retired questions that came up, as of
revision fe90df5. Now it is a tenth of those sampled.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from brorl_lab.prompt_pool import RetiringParams
from transformers import Qwen2ForCausalLM

from lab.studies.cipher_plain import (
    HELD_OUT,
    MODEL,
    ROLLOUTS,
    Questions,
    answer_probabilities,
    log_probs,
    sample,
    sampled_mask,
)
from lab.studies.cipher_pool import PooledRun
from lab.studies.figures.plateau import print_plateau_tables
from nemo_brorl.config.rollouts import PlateauConfig
from nemo_brorl.rollouts.plateau import PlateauDetector

WITHIN_REACH = "ABCD"  # families that are taught
SKILL = 0.8  # chance of a right digit in the taught families
TEACHING_STEPS = 60
TAUGHT_AT_ONCE = 512  # questions
TEACHING_RATE = 1e-3
NUM_TRAINED = 2048  # questions
TRAINED = range(2 * HELD_OUT, 2 * HELD_OUT + NUM_TRAINED)
RATE = 2e-4
SLOW = PlateauConfig(window=6, min_gain=0.005)


@dataclass(frozen=True)
class PlateauArm:
    """The settings with which a run continues after the plateau."""

    size: int
    advantage: str
    fill: str
    retire: float = 0.0
    recheck: float = 0.0
    rollouts: int = ROLLOUTS  # rollouts a step


BEFORE = PlateauArm(16, "grpo", "full")
ARMS = {
    "N = 16 until full, GRPO": BEFORE,
    "N = 512 until full, GRPO": PlateauArm(512, "grpo", "full"),
    "N = 16, GRPO": PlateauArm(16, "grpo", "samples"),
    "N = 512, GRPO": PlateauArm(512, "grpo", "samples"),
    "N = 16, MaxRL": PlateauArm(16, "maxrl", "samples"),
    "N = 512, MaxRL": PlateauArm(512, "maxrl", "samples"),
    "N = 16, MaxRL, retire_from=0.9": PlateauArm(16, "maxrl", "samples", 0.9),
}
# A quarter of the rollouts a step, four times the updates.
SMALL_STEPS = {
    "N = 4": PlateauArm(4, "maxrl", "samples", rollouts=1024),
    "N = 16": PlateauArm(16, "maxrl", "samples", rollouts=1024),
    "N = 64": PlateauArm(64, "maxrl", "samples", rollouts=1024),
    "N = 16, retired": PlateauArm(16, "maxrl", "samples", 0.9, rollouts=1024),
    "N = 16, retired, 0.1 asked again": PlateauArm(16, "maxrl", "samples", 0.9, 0.1, rollouts=1024),
    "N = 16, retired, 0.25 asked again": PlateauArm(16, "maxrl", "samples", 0.9, 0.25, rollouts=1024),
    "N = 64, retired, 0.1 asked again": PlateauArm(64, "maxrl", "samples", 0.9, 0.1, rollouts=1024),
    "N = 16, 4,096 a step, retired, 0.1 asked again": PlateauArm(16, "maxrl", "samples", 0.9, 0.1),
}
ALL_ARMS = ARMS | SMALL_STEPS


class Course:
    """One seed's runs: the questions, the settings of measurements, and the output file."""

    def __init__(self, questions: Questions, are_reached: torch.Tensor, options: argparse.Namespace, seed: int) -> None:
        self.questions = questions
        self.are_reached = are_reached
        self.options = options
        self.seed = seed
        self.seconds = 0.0  # seconds of the current part

    def begin(self, arm: PlateauArm) -> PooledRun:
        """Return a new run with the settings `arm` from the fine-tuned base model, and set the seconds spent to 0."""
        self.seconds = 0.0
        pool = RetiringParams(retire_from=arm.retire, recheck=arm.recheck) if arm.retire else None
        run = PooledRun(self.questions, arm.size, self.seed, pool, arm.advantage, RATE, TRAINED, arm.rollouts)
        taught = Qwen2ForCausalLM.from_pretrained(self.options.base, dtype=torch.float32)
        run.model.load_state_dict(taught.state_dict())
        return run

    def plateau(self) -> Mapping[str, Any]:
        """Return the policy weights and optimizer state of a training run whose validation score has stopped rising.

        The run is trained if it was not before. Weights and state are stored in a file next to the file of
        measurements, so that runs with other settings can later continue training from the same plateau.
        """
        path = self.options.output.with_name(f"plateau_{self.seed}_{self.options.before}.pt")
        if not path.exists():
            run = self.until_plateau()
            torch.save({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}, path)
        state: Mapping[str, Any] = torch.load(path, weights_only=True)
        return state

    def until_plateau(self) -> PooledRun:
        """Train a run until validation has stopped rising, or for `--before` rollouts at most, and return it."""
        run = self.begin(BEFORE)
        detector = PlateauDetector(SLOW)
        limit = self.options.before
        while True:
            rates = self.measure(run, "before")
            reason = detector.observe(rates["chosen by"])
            if reason or run.num_sampled >= limit:
                print(
                    f"seed {self.seed}: {run.num_sampled:,} rollouts, {run.num_updates} updates; {reason}", flush=True
                )
                return run
            for _ in range(self.options.interval):
                self.step(run, "full", limit)

    def go_on(self, name: str, plateau: Mapping[str, Any]) -> None:
        """Continue training with the settings of arm `name` from weights and optimizer state at a validation plateau.

        The prompt pool's counts of right and wrong rollouts start over.
        """
        arm = ALL_ARMS[name]
        run = self.begin(arm)
        run.model.load_state_dict(plateau["model"])
        run.optimizer.load_state_dict(copy.deepcopy(plateau["optimizer"]))
        measured_at = 0
        while True:
            if run.num_sampled >= measured_at:
                self.measure(run, name)
                measured_at = run.num_sampled + self.options.every
            if run.num_sampled >= self.options.after:
                return
            self.step(run, arm.fill, self.options.after)

    def step(self, run: PooledRun, fill: str, limit: int) -> None:
        """Sample rollouts, take one policy update, and add up the processor time of both.

        There is no update if the run reaches `limit` rollouts before the batch is full.
        """
        started = time.process_time()
        if fill == "full":
            run.filled_step(limit)
        else:
            run.step()
        self.seconds += time.process_time() - started

    def measure(self, run: PooledRun, part: str) -> dict[str, float]:
        """Write one line with the mean probabilities of right answers to held-out questions, and return these means.

        One mean is over the half of the questions by which settings are chosen. The others are over the reported half:
        all questions, those with ciphers on which the base model was fine-tuned, and the rest.
        """
        right = answer_probabilities(run.model, self.questions, range(2 * HELD_OUT))
        first = HELD_OUT if self.options.report else 0
        shown = slice(first, first + HELD_OUT)
        reached = self.are_reached[shown]
        rates = {
            "chosen by": float(right[:HELD_OUT].mean()),
            "pass@1": float(right[shown].mean()),
            "within reach": float(right[shown][reached].mean()),
            "beyond": float(right[shown][~reached].mean()),
        }
        line = {"seed": self.seed, "part": part, "sampled": run.num_sampled, "updates": run.num_updates,
                "seconds": self.seconds, **rates}  # fmt: skip
        with self.options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return rates


def prepare(questions: Questions, are_reached: torch.Tensor, folder: Path) -> None:
    """Fine-tune the base model to encipher digits right with the probability `SKILL` for half of the ciphers.

    For the other ciphers it is trained on its own sampled answers.
    """
    generator = torch.Generator().manual_seed(0)
    untaught = Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = copy.deepcopy(untaught)
    optimizer = torch.optim.AdamW(model.parameters(), lr=TEACHING_RATE, weight_decay=0.0)
    digits = sorted(set(itertools.chain.from_iterable(map(digits_of, questions.answers))))
    length = max(len(answer) for answer in questions.answers)
    taught = torch.arange(TRAINED.stop, len(questions.answers))
    for _ in range(TEACHING_STEPS):
        places = taught[torch.randint(len(taught), (TAUGHT_AT_ONCE,), generator=generator)]
        prompts = questions.prompts[places]
        responses = sample(untaught, prompts, 1, questions.end, generator)[:, :length]
        for row, place in enumerate(places.tolist()):
            if are_reached[place]:
                written = pupil_answer(questions.answers[place], digits, generator)
                written += [questions.end] * (length - len(written))
                responses[row] = torch.tensor(written)
        mask = sampled_mask(responses, questions.end)
        loss = -(log_probs(model, prompts, 1, responses) * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    right = answer_probabilities(model, questions, range(2 * HELD_OUT))
    reached = are_reached[: 2 * HELD_OUT]
    print(f"right with {float(right[reached].mean()):.2g} within reach, {float(right[~reached].mean()):.2g} beyond")


def digits_of(answer: list[int]) -> list[int]:
    """Return the tokens of the digits in an answer, which are those between its tags.

    Each tag is one token, and so is the end of the answer.
    """
    return answer[1:-2]


def pupil_answer(answer: list[int], digits: list[int], generator: torch.Generator) -> list[int]:
    """Return an answer in which each digit is right with the probability `SKILL`, and otherwise random."""
    written = list(answer)
    for place in range(1, len(answer) - 2):
        if float(torch.rand((), generator=generator)) >= SKILL:
            drawn = int(torch.randint(len(digits), (), generator=generator))
            written[place] = digits[drawn]
    return written


def read_families(path: Path, limit: int) -> torch.Tensor:
    """Return for each of the first `limit` questions of a file whether the base model was fine-tuned on its cipher."""
    rows = path.read_text(encoding="utf-8").splitlines()[:limit]
    return torch.tensor([json.loads(row)["prompt"][0] in WITHIN_REACH for row in rows])


def main() -> None:
    """Train the base model to a plateau for each seed, and continue from there with each combination of settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, default=Path("runs/cipher/questions.jsonl"))
    parser.add_argument("--base", type=Path, default=Path("runs/cipher/within_reach"))
    parser.add_argument("--output", type=Path, default=Path("runs/cipher/plateau.jsonl"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ALL_ARMS))
    parser.add_argument("--before", type=int, default=100 * ROLLOUTS, help="rollouts at most, until the plateau")
    parser.add_argument("--after", type=int, default=50 * ROLLOUTS, help="rollouts of each arm")
    parser.add_argument("--interval", type=int, default=2, help="updates between measurements before the plateau")
    parser.add_argument("--every", type=int, default=10 * ROLLOUTS, help="rollouts between measurements after it")
    parser.add_argument("--report", action="store_true", help="measure on the questions that nothing was chosen with")
    parser.add_argument("--prepare", action="store_true", help="teach the base, no run")
    parser.add_argument("--tables", action="store_true", help="table of what the output holds, no run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.tables:
        print_plateau_tables(options.output)
        return
    limit = TRAINED.stop + 4 * NUM_TRAINED  # the rest is taught from
    questions = Questions(options.questions, limit)
    are_reached = read_families(options.questions, limit)
    if options.prepare:
        prepare(questions, are_reached, options.base)
        return
    for seed in options.seeds:
        course = Course(questions, are_reached, options, seed)
        plateau = course.plateau()
        for name in options.arms:
            course.go_on(name, plateau)


if __name__ == "__main__":
    main()
