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
import copy
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen2ForCausalLM

from lab.studies.after_plateau_tables import BEFORE, EQUAL_SAMPLES, EQUAL_TIME, GROW, Line, decision, tables
from lab.studies.cipher_plain import BETAS, CLIP_GRAD, HELD_OUT, MAX_TOKENS, MODEL, sampled_mask
from lab.studies.exact_groups import (
    ROWS_AT_ONCE,
    Float64,
    Int64,
    Outcomes,
    Rows,
    Task,
    answer_log_probs,
    chances_of,
    draw_outcomes,
    draw_wrong,
    join_rows,
    score_rows,
)
from nemo_brorl.config.rollouts import PlateauConfig
from nemo_brorl.rollouts.plateau import PlateauDetector

TRAINED = 2048  # questions that come again, behind two times HELD_OUT: to decide by, and to report
CEILINGS = (0.56, 0.13)  # Beta distribution of the probability that a right answer is accepted
SKILLS = (0.15, 0.9)  # share of digits that the base has right, of the first and the last family
TEACHING_STEPS = 300
TAUGHT_AT_ONCE = 512  # questions
TEACHING_RATE = 1e-3
MINI_BATCHES = 8
CLIP = (0.2, 0.27)  # of the ratio, as the public recipe of ProRLv2
RATE = 1e-4  # of the run before the plateau
EVERY = 50_000  # rollouts between measurements
DETECTOR = PlateauConfig(window=12, patience=3, min_gain=0.0025)
OUTPUT = Path("lab/studies/after_plateau_results")


@dataclass(frozen=True)
class Arm:
    """How a run samples and learns: filled until `prompts` groups can teach, or `prompts` groups sampled."""

    size: int
    prompts: int
    is_filled: bool = True
    rate: float = RATE
    rollouts: int = EQUAL_SAMPLES
    is_maxrl: bool = False


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


class CeilingTask(Task):
    """Questions of 26 families, and the probability that a right answer to each is accepted.

    The first half of `held_out` decides, the second is reported. `num_trained` questions behind them come again, and
    the base is taught with the rest.
    """

    def __init__(
        self, path: Path, limit: int, variant: str, held_out: int = 2 * HELD_OUT, num_trained: int = TRAINED
    ) -> None:
        super().__init__(path, limit)
        self.ceilings = draw_ceilings(limit) if variant == "A" else np.ones(limit)
        self.held_out = held_out
        self.num_trained = num_trained
        self.shown = slice(held_out // 2, held_out)


def draw_ceilings(num: int) -> Float64:
    """Return the probability of each question that a right answer to it is accepted, the same for all seeds."""
    return np.random.default_rng(26).beta(*CEILINGS, size=num)


def teach_base(task: Task, folder: Path, steps: int = TEACHING_STEPS) -> None:
    """Teach the untrained model each family's digits with the family's skill, other digits equally, and save it."""
    generator = torch.Generator().manual_seed(0)
    model = Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=TEACHING_RATE, weight_decay=0.0)
    names = sorted(set(task.families))
    skill_of = dict(zip(names, np.linspace(*SKILLS, len(names)), strict=True))
    skills = torch.tensor([skill_of[name] for name in task.families])
    digits = torch.tensor(sorted({token for answer in task.questions.answers for token in answer[1:-2]}))
    first = task.held_out + task.num_trained
    for step in range(steps):
        places = torch.randint(first, len(task.answers), (TAUGHT_AT_ONCE,), generator=generator)
        answers, mask = task.answers[places], task.mask[places]
        is_digit = torch.isin(answers, digits) & mask
        skill = skills[places][:, None]
        targets = torch.nn.functional.one_hot(answers, model.config.vocab_size).double()
        others = torch.zeros(model.config.vocab_size, dtype=torch.double)
        others[digits] = 1.0
        wrong = (others - targets) * ((1 - skill) / (len(digits) - 1))[..., None]
        targets = torch.where(is_digit[..., None], targets * skill[..., None] + wrong, targets)
        written = torch.multinomial(targets.flatten(0, 1), 1, generator=generator).view(answers.shape)
        logits = model(input_ids=torch.cat([task.questions.prompts[places], written[:, :-1]], dim=1)).logits
        scored = logits[:, -answers.shape[1] :].log_softmax(dim=-1)
        loss = -((targets * scored).sum(dim=-1) * mask).sum() / mask.sum()
        for group in optimizer.param_groups:
            group["lr"] = TEACHING_RATE * min(1.0, 2 * (1 - step / steps))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)


@dataclass(frozen=True)
class Batch:
    """A step's groups that can teach, as different responses with how many were accepted and how many not."""

    places: Tensor  # [G] questions
    rows: Rows
    accepted: Tensor  # [R] accepted rollouts
    good: Tensor  # [R] advantage of an accepted rollout
    bad: Tensor  # [R] advantage of one that was not
    share: float  # factor of the loss: kept groups over `Arm.prompts`


def advantages_of(
    rates: Tensor, groups: Tensor, accepted: Tensor, refused: Tensor, lengths: Tensor, is_maxrl: bool
) -> tuple[Tensor, Tensor]:
    """Return the advantages of accepted and of other rollouts of each row.

    They are rewards minus their group's mean `rates`, over that mean under MaxRL, or else whitened over tokens.
    """
    good, bad = (1 - rates)[groups], -rates[groups]
    if is_maxrl:
        return good / rates[groups], bad / rates[groups]
    of_good, of_bad = accepted * lengths, refused * lengths
    num = of_good.sum() + of_bad.sum()
    mean = (good @ of_good + bad @ of_bad) / num
    good, bad = good - mean, bad - mean
    deviation = ((good.square() @ of_good + bad.square() @ of_bad) / num).sqrt()
    return good / deviation, bad / deviation


def surrogate(ratio: Tensor, advantages: Tensor) -> Tensor:
    """Return PPO's clipped surrogate of tokens [R, tokens], for rows with advantages [R]."""
    a = advantages[:, None]
    return torch.minimum(ratio * a, ratio.clamp(1 - CLIP[0], 1 + CLIP[1]) * a)


def batch_loss(scored: Tensor, mask: Tensor, batch: Batch, chosen: Tensor) -> Tensor:
    """Return the sum of the loss over all tokens of the rollouts of chosen rows, whose log-probs are `scored`."""
    length = scored.shape[1]
    ratio = (scored - batch.rows.log_probs[chosen, :length]).clamp(-20, 20).exp()
    accepted = batch.accepted[chosen].float()[:, None]
    refused = batch.rows.numbers[chosen].float()[:, None] - accepted
    objective = surrogate(ratio, batch.good[chosen]) * accepted + surrogate(ratio, batch.bad[chosen]) * refused
    return -(objective * mask[:, :length]).sum()


@dataclass
class Counts:
    """What a run has spent and seen so far."""

    sampled: int = 0  # rollouts
    trained: int = 0  # rollouts
    groups: int = 0
    kept: int = 0  # groups
    steps: int = 0
    updates: int = 0
    rare_successes: int = 0  # accepted rollouts of questions with a chance below 0.1
    processor_s: float = 0.0


class Learner:
    """A policy, its optimizer, the order of its questions and its random numbers, at one point of a run."""

    def __init__(self, task: CeilingTask, base: Path, seed: int) -> None:
        self.task = task
        self.model: PreTrainedModel = Qwen2ForCausalLM.from_pretrained(base, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, betas=BETAS, weight_decay=0.0)
        self.generator = torch.Generator().manual_seed(seed)
        self.random = np.random.default_rng(seed)
        self.order: list[int] = []
        self.counts = Counts()

    def next_places(self, num: int) -> Int64:
        """Return the next questions. All come once before any comes again."""
        while len(self.order) < num:
            self.order += (self.random.permutation(self.task.num_trained) + self.task.held_out).tolist()
        places, self.order = self.order[:num], self.order[num:]
        return np.array(places)

    def draw_groups(self, size: int, num: int) -> tuple[Tensor, Tensor, Outcomes]:
        """Sample the groups of the next questions.

        Returns the questions of those whose rewards differ, their right answers' log-probs, and their outcomes.
        """
        places = self.next_places(num)
        right = answer_log_probs(self.model, self.task, torch.tensor(places))
        chances = chances_of(right)
        drawn = draw_outcomes(chances, self.task.ceilings[places], size, self.random)
        kept = np.nonzero((drawn.accepted > 0) & (drawn.accepted < size))[0]
        self.counts.sampled += size * num
        self.counts.groups += num
        self.counts.kept += len(kept)
        self.counts.rare_successes += int(drawn.accepted[chances < 0.1].sum())
        return torch.tensor(places[kept]), right[kept], Outcomes(drawn.accepted[kept], drawn.rejected[kept])

    def step(self, arm: Arm, limit: int) -> None:
        """Sample a batch, and take an update for each of its mini-batches.

        No update is taken where the run has sampled `limit` rollouts before the batch is full.
        """
        parts = []
        num_kept = 0
        while True:
            asked = max(8, arm.prompts // 4) if arm.is_filled else arm.prompts
            parts.append(self.draw_groups(arm.size, asked))
            num_kept += len(parts[-1][0])
            if not arm.is_filled or num_kept >= arm.prompts:
                break
            if self.counts.sampled >= limit:
                return
        places = torch.cat([part[0] for part in parts])[: arm.prompts]
        right = torch.cat([part[1] for part in parts])[: arm.prompts]
        accepted = np.concatenate([part[2].accepted for part in parts])[: arm.prompts]
        rejected = np.concatenate([part[2].rejected for part in parts])[: arm.prompts]
        self.counts.steps += 1
        if len(places):
            self.learn(self.make_batch(arm, places, right, Outcomes(accepted, rejected)))

    def make_batch(self, arm: Arm, places: Tensor, right: Tensor, drawn: Outcomes) -> Batch:
        """Draw the wrong responses of groups that can teach, and compute all advantages."""
        num = len(places)
        accepted, rejected = torch.tensor(drawn.accepted), torch.tensor(drawn.rejected)
        wrong = draw_wrong(self.model, self.task, places, right, arm.size - accepted - rejected, self.generator)
        answers = torch.full((num, MAX_TOKENS), self.task.end)
        answers[:, : self.task.length] = self.task.answers[places]
        old = torch.zeros(num, MAX_TOKENS)
        old[:, : self.task.length] = right
        rows = join_rows([wrong, Rows(torch.arange(num), answers, old, accepted + rejected)])
        of_row = torch.cat([torch.zeros(len(wrong.groups), dtype=torch.long), accepted])
        lengths = sampled_mask(rows.tokens, self.task.end).sum(dim=1).double()
        rates = accepted.double() / arm.size
        refused = (rows.numbers - of_row).double()
        good, bad = advantages_of(rates, rows.groups, of_row.double(), refused, lengths, arm.is_maxrl)
        share = 1.0 if arm.is_filled else num / arm.prompts
        self.counts.trained += num * arm.size
        return Batch(places, rows, of_row, good.float(), bad.float(), share)

    def learn(self, batch: Batch) -> None:
        """Take an update for each mini-batch, which has whole groups."""
        order = torch.randperm(len(batch.places), generator=self.generator)
        for groups in order.tensor_split(MINI_BATCHES):
            if len(groups):
                self.update(batch, torch.isin(batch.rows.groups, groups).nonzero()[:, 0])

    def update(self, batch: Batch, chosen: Tensor) -> None:
        """Take an optimizer step on the rows of a mini-batch, with the mean over the tokens of its rollouts."""
        mask = sampled_mask(batch.rows.tokens[chosen], self.task.end)
        lengths = mask.sum(dim=1)
        num_tokens = float((lengths * batch.rows.numbers[chosen]).sum())
        self.optimizer.zero_grad()
        for part in lengths.argsort(stable=True).split(ROWS_AT_ONCE):
            rows, length = chosen[part], int(lengths[part].max())
            groups, tokens = batch.rows.groups[rows], batch.rows.tokens[rows, :length]
            scored = score_rows(self.model, self.task.questions.prompts[batch.places], groups, tokens)
            loss = batch_loss(scored, mask[part], batch, rows) * batch.share / num_tokens
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_GRAD)
        self.optimizer.step()
        self.counts.updates += 1

    def state(self) -> dict[str, Any]:
        """Return everything that a run needs to resume."""
        return {
            "model": copy.deepcopy(self.model.state_dict()),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "order": list(self.order),
            "counts": asdict(self.counts),
            "generator": self.generator.get_state(),
            "random": self.random.bit_generator.state,
        }

    def load_policy(self, state: dict[str, Any]) -> None:
        """Take weights and the optimizer's moments from a state."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))

    def load(self, state: dict[str, Any]) -> None:
        """Resume from a state."""
        self.load_policy(state)
        self.order = list(state["order"])
        self.counts = Counts(**state["counts"])
        self.generator.set_state(state["generator"])
        self.random.bit_generator.state = state["random"]


@dataclass
class Progress:
    """What one seed of a variant has come to: its lines, the parts that have ended, the plateau, the part under way."""

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
