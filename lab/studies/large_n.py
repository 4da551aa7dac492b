"""Ask where a large N should win if anywhere: half of the questions give gradient for ever, half are hardly ever right.

    python lab/studies/cipher_chains.py --num-questions 8000
    python -m lab.studies.large_n --prepare                      # teaches the base, about two minutes
    python -m lab.studies.large_n --choose-rates                 # seed 0, which is not counted
    python -m lab.studies.large_n --seeds 1 2 3 4 5 --commit     # every seed's lines are committed when it ends
    python -m lab.studies.large_n --tables

Predictions and their decision: `large_n_hypotheses.md`. A step samples 32,768 rollouts, so that N = 512 sees 64
prompts. Groups whose rewards agree are not trained on. `exact_groups.py` says why the rig is exact and cheaper than
sampling. A right answer to an easy question is accepted with probability `CEILING`, which keeps its groups informative.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from brorl_lab.paired_test import PairedTest, paired_test
from torch import Tensor
from transformers import Qwen2ForCausalLM

from lab.studies.cipher_plain import (
    BETAS,
    CLIP_GRAD,
    MODEL,
    answer_probabilities,
    log_probs,
    sample,
    sampled_mask,
)
from lab.studies.exact_groups import (
    ROWS_AT_ONCE,
    Float64,
    Int64,
    Outcomes,
    Task,
    answer_log_probs,
    chances_of,
    draw_outcomes,
    draw_rollouts,
    score_rows,
)
from nemo_brorl.core.console import format_table

ROLLOUTS = 32_768  # rollouts a step
STEPS = 20
EVERY = 5  # steps between measurements
HELD_OUT = 512  # questions to measure on
TRAINED = 2048  # questions that come again
EASY = "ABCD"  # families
CEILING = 0.5  # probability that a right answer to an easy question is accepted
RIGHT_DIGIT = {
    True: 0.857,
    False: 0.286,
}  # share of digits taught rightly, by whether a question is easy
TEACHING_STEPS = 100
RATES = (4e-4, 8e-4, 1.6e-3)
PROMPT_COSTS = {1000: 45.0, 40: 1.0}  # rollouts that a prompt of so many tokens costs
OUTPUT = Path("lab/studies/large_n_results")
CONFIDENCE = 0.95

Runs = dict[tuple[str, int], list[dict[str, float]]]  # lines by arm and seed
Weigh = Callable[[Float64, Float64], Float64]  # success rates of kept groups, and those from earlier passes


@dataclass(frozen=True)
class Arm:
    """A rollout size and how a group's centred rewards are scaled."""

    size: int
    weigh: Weigh


def by_batch(rates: Float64, earlier: Float64) -> Float64:
    return np.full(len(rates), 1 / np.sqrt(np.mean(rates * (1 - rates))))


def by_group(rates: Float64, earlier: Float64) -> Float64:
    return 1 / np.sqrt(rates * (1 - rates))


def by_success(rates: Float64, earlier: Float64) -> Float64:
    return 1 / rates


def by_counts(rates: Float64, earlier: Float64) -> Float64:
    return 1 / np.maximum(earlier, 1 / 512)


ARMS = {
    "grpo16": Arm(16, by_group),
    "grpo64": Arm(64, by_group),
    "grpo512": Arm(512, by_group),
    "maxrl16": Arm(16, by_success),
    "counts16": Arm(16, by_counts),
    "maxrl64": Arm(64, by_success),
    "maxrl512": Arm(512, by_success),
    "default16": Arm(16, by_batch),
    "default512": Arm(512, by_batch),
}
FIRST_ARMS = tuple(ARMS)[:5]


class HalfHard(Task):
    """Questions of which half are easy."""

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__(path, limit)
        self.is_easy = np.array([family in EASY for family in self.families])


def teach_base(task: HalfHard, folder: Path) -> None:
    """Teach the untrained model to answer easy questions often and hard ones rarely, and save it."""
    generator = torch.Generator().manual_seed(0)
    untaught = Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = copy.deepcopy(untaught)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    first = HELD_OUT + TRAINED
    for _ in range(TEACHING_STEPS):
        places = torch.randint(first, len(task.answers), (256,), generator=generator)
        prompts = task.questions.prompts[places]
        responses = sample(untaught, prompts, 1, task.end, generator)[:, : task.length]
        for row, place in enumerate(places.tolist()):
            right_digit = RIGHT_DIGIT[bool(task.is_easy[place])]
            answer = pupil_answer(task.questions.answers[place], responses[row], right_digit, task.end, generator)
            responses[row] = torch.tensor(answer + [task.end] * (task.length - len(answer)))
        mask = sampled_mask(responses, task.end)
        loss = -(log_probs(model, prompts, 1, responses) * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)


def pupil_answer(
    answer: Sequence[int], sampled: Tensor, right_digit: float, end: int, generator: torch.Generator
) -> list[int]:
    """Return an answer of which each digit is kept with probability `right_digit`, and else taken from a sample."""
    written = list(answer)
    for digit in range(1, len(answer) - 2):
        is_right = float(torch.rand((), generator=generator)) < right_digit
        if not is_right and int(sampled[digit]) != end:
            written[digit] = int(sampled[digit])
    return written


class LargeRun:
    """One arm and seed: the policy, its optimizer, and the counts of the questions' earlier passes."""

    def __init__(self, task: HalfHard, base: Path, arm: Arm, rate: float, seed: int, rollouts: int) -> None:
        self.task = task
        self.arm = arm
        self.num_prompts = rollouts // arm.size
        self.model = Qwen2ForCausalLM.from_pretrained(base, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, betas=BETAS, weight_decay=0.0)
        self.generator = torch.Generator().manual_seed(seed)
        self.random = np.random.default_rng(seed)
        self.order: list[int] = []
        self.right = np.zeros(len(task.answers))
        self.asked = np.zeros(len(task.answers))
        self.counts = {"sampled": 0, "prompts": 0, "kept": 0, "hard_successes": 0}

    def next_places(self) -> Int64:
        """Return the step's questions. All come once before any comes again."""
        while len(self.order) < self.num_prompts:
            self.order += (self.random.permutation(TRAINED) + HELD_OUT).tolist()
        places, self.order = self.order[: self.num_prompts], self.order[self.num_prompts :]
        return np.array(places)

    def step(self) -> None:
        """Sample a fixed number of rollouts, and take one update on the groups whose rewards differ."""
        task, size = self.task, self.arm.size
        places = self.next_places()
        asked = torch.tensor(places)
        scored = answer_log_probs(self.model, task, asked)
        chances = chances_of(scored)
        ceilings = np.where(task.is_easy[places], CEILING, 1.0)
        drawn = draw_outcomes(chances, ceilings, size, self.random)
        is_kept = (drawn.accepted > 0) & (drawn.accepted < size)
        earlier = (self.right[places] + 0.5) / (self.asked[places] + 1.0)
        # A long order may name a question twice in one step.
        np.add.at(self.right, places, drawn.accepted)
        np.add.at(self.asked, places, size)
        self.counts["sampled"] += size * len(places)
        self.counts["prompts"] += len(places)
        self.counts["kept"] += int(is_kept.sum())
        self.counts["hard_successes"] += int(drawn.accepted[~task.is_easy[places]].sum())
        if is_kept.any():
            kept = np.nonzero(is_kept)[0]
            outcomes = Outcomes(drawn.accepted[kept], drawn.rejected[kept])
            self.update(asked[kept], scored[kept], outcomes, earlier[kept])

    def update(self, places: Tensor, right: Tensor, drawn: Outcomes, earlier: Float64) -> None:
        """Take an optimizer step on kept groups, with a loss that is a mean over the tokens of all sampled groups."""
        size, num = self.arm.size, len(places)
        accepted, rejected = torch.tensor(drawn.accepted), torch.tensor(drawn.rejected)
        rates = drawn.accepted / size
        scale = self.arm.weigh(rates, earlier)
        good, bad = torch.tensor((1 - rates) * scale), torch.tensor(-rates * scale)
        rows = draw_rollouts(self.model, self.task, places, right, size, drawn, self.generator)
        weights = bad[rows.groups] * rows.numbers
        weights[-num:] = good * accepted + bad * rejected
        mask = sampled_mask(rows.tokens, self.task.end)
        lengths = mask.sum(dim=1)
        num_tokens = float((lengths * rows.numbers).sum()) * self.num_prompts / num
        self.optimizer.zero_grad()
        for chosen in lengths.argsort(stable=True).split(ROWS_AT_ONCE):
            length = int(lengths[chosen].max())
            prompts, responses = self.task.questions.prompts[places], rows.tokens[chosen, :length]
            scored = score_rows(self.model, prompts, rows.groups[chosen], responses)
            loss = -(scored * mask[chosen, :length]).sum(dim=1) @ weights[chosen].float() / num_tokens
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_GRAD)
        self.optimizer.step()

    def measured(self) -> dict[str, float]:
        """Return exact success rates on held-out questions: of the easy half, the hard half, and the mean of both."""
        chances = answer_probabilities(self.model, self.task.questions, range(HELD_OUT)).double().numpy()
        is_easy = self.task.is_easy[:HELD_OUT]
        easy, hard = float(chances[is_easy].mean()), float(chances[~is_easy].mean())
        return {"easy": easy, "hard": hard, "mean": (easy + hard) / 2}


def train(task: HalfHard, options: argparse.Namespace, name: str, rate: float, seed: int, output: Path) -> float:
    """Train one arm and seed, append its measurements to the output file, and return the last mean success."""
    run = LargeRun(task, options.base, ARMS[name], rate, seed, options.rollouts)
    started = time.process_time()
    found: dict[str, float] = {}
    for step in range(options.steps + 1):
        if step % EVERY == 0 or step == options.steps:
            found = run.measured()
            line = {"arm": name, "seed": seed, "rate": rate, "step": step, **run.counts, **found,
                    "processor_s": time.process_time() - started}  # fmt: skip
            with output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if step < options.steps:
            run.step()
    return found["mean"]


def choose_rates(task: HalfHard, options: argparse.Namespace) -> None:
    """Train every arm that has no rate yet with three rates on seed 0, and write the best.

    Says when the best rate is at the edge. What has been trained to the last step before is not trained again.
    """
    path, lines = options.output / "rates.json", options.output / "seed_0.jsonl"
    rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()] if lines.exists() else []
    ended = {(row["arm"], row["rate"]): row["mean"] for row in rows if row["step"] == options.steps}
    chosen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in [name for name in options.arms if name not in chosen]:
        ends = {rate: ended.get((name, rate)) or train(task, options, name, rate, 0, lines) for rate in RATES}
        chosen[name] = max(ends, key=lambda rate: ends[rate])
        edge = " (at the edge: try one beyond it)" if chosen[name] in (RATES[0], RATES[-1]) else ""
        print(f"{name}: {chosen[name]:g}{edge}", flush=True)
        path.write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")


def run_seed(task: HalfHard, options: argparse.Namespace, seed: int) -> None:
    """Train all arms of a seed, put its lines in place when all have ended, and commit them if that is asked for."""
    rates = json.loads((options.output / "rates.json").read_text(encoding="utf-8"))
    output = options.output / f"seed_{seed}.jsonl"
    under_way = output.with_suffix(".partial")
    under_way.unlink(missing_ok=True)
    for name in options.arms:
        train(task, options, name, rates[name], seed, under_way)
    with output.open("a", encoding="utf-8") as file:
        file.write(under_way.read_text(encoding="utf-8"))
    under_way.unlink()
    if options.commit:
        subprocess.run(["git", "add", str(output)], check=True)
        message = f"Large N, seed {seed}: {', '.join(options.arms)}"
        subprocess.run(["git", "commit", "-m", message, "--", str(output)], check=True)


def success_at(lines: Sequence[dict[str, float]], part: str, cost: float, limit: float) -> float:
    """Return a run's success on a part when its rollouts and prompts have cost `limit` rollouts, interpolated."""
    spent = [line["sampled"] + cost * line["prompts"] for line in lines]
    return float(np.interp(limit, spent, [line[part] for line in lines]))


def read_runs(folder: Path) -> Runs:
    """Return the lines of each arm and seed up to the last step, of seed 0 those with the rate that was chosen."""
    rates = json.loads((folder / "rates.json").read_text(encoding="utf-8"))
    runs: Runs = {}
    for path in sorted(folder.glob("seed_*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            if line["rate"] == rates[line["arm"]] and line["step"] <= STEPS:
                runs.setdefault((line["arm"], line["seed"]), []).append(line)
    return runs


def tested_difference(runs: Runs, arms: tuple[str, str], part: str, cost: float) -> tuple[PairedTest, int]:
    """Return the test of first arm minus second by seed, 0 left out, and the number of seeds that have both."""
    differences = []
    for seed in sorted(seed for arm, seed in runs if arm == arms[0] and seed > 0 and (arms[1], seed) in runs):
        pair = [runs[arm, seed] for arm in arms]
        limit = min(lines[-1]["sampled"] + cost * lines[-1]["prompts"] for lines in pair)
        ends = [success_at(lines, part, cost, limit) for lines in pair]
        differences.append(ends[0] - ends[1])
    return paired_test([np.array(differences)], CONFIDENCE, 100, 0), len(differences)


def in_points(test: PairedTest) -> str:
    low, high = test.difference.interval
    return f"{100 * test.difference.value:+.1f} ({100 * low:+.1f} … {100 * high:+.1f})"


def end_rows(runs: Runs) -> list[list[str]]:
    """Return each arm's mean success in percent at its last step, of the easy half, the hard half and both."""
    rows = []
    for name in ARMS:
        ends = [lines[-1] for (arm, seed), lines in runs.items() if arm == name and seed > 0]
        if ends:
            means = [f"{100 * np.mean([end[part] for end in ends]):.1f}" for part in ("easy", "hard", "mean")]
            rows.append([name, str(len(ends)), *means])
    return rows


def table_rows(runs: Runs) -> list[list[str]]:
    """Return each arm's difference to grpo16, of the hard half and of the mean of both, with its 95 % interval."""
    rows = []
    for name in ARMS:
        num_seeds = sum(arm == name and seed > 0 and ("grpo16", seed) in runs for arm, seed in runs)
        if name == "grpo16" or not num_seeds:
            continue
        row = [name, str(num_seeds)]
        for part, cost in (("hard", 0.0), ("mean", 0.0), *(("mean", cost) for cost in PROMPT_COSTS.values())):
            test, _ = tested_difference(runs, (name, "grpo16"), part, cost)
            row.append(in_points(test))
        rows.append(row)
    return rows


def decision_rows(runs: Runs) -> list[list[str]]:
    """Return P3 and P4 with Holm's p: the best arm with a larger N minus the best with N = 16, as seed 0 says.

    The best arm has the highest mean success at its last step. Two seeds are needed at least.
    """
    at_end = {arm: lines[-1]["mean"] for (arm, seed), lines in runs.items() if seed == 0}
    small = {arm: mean for arm, mean in at_end.items() if ARMS[arm].size == 16}
    large = {arm: mean for arm, mean in at_end.items() if ARMS[arm].size > 16}
    arms = max(large, key=lambda arm: large[arm]), max(small, key=lambda arm: small[arm])
    tests = [tested_difference(runs, arms, "mean", cost) for cost in (0.0, PROMPT_COSTS[1000])]
    lower, higher = sorted(test.p_value for test, _ in tests)
    holm = {lower: min(1.0, 2 * lower), higher: min(1.0, max(2 * lower, higher))}
    return [
        [claim, f"{arms[0]} - {arms[1]}", str(num_seeds), in_points(test), f"{holm[test.p_value]:.3f}"]
        for claim, (test, num_seeds) in zip(("P3", "P4"), tests, strict=True)
    ]


def main() -> None:
    """Prepare the base, choose rates, train seeds, or print the tables, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, default=Path("runs/cipher/questions.jsonl"))
    parser.add_argument("--base", type=Path, default=Path("runs/cipher/half_hard"))
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--arms", nargs="+", default=list(FIRST_ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS, help="of a step")
    parser.add_argument("--prepare", action="store_true", help="teach the base, no run")
    parser.add_argument("--choose-rates", action="store_true", help="train seed 0 with three rates")
    parser.add_argument("--commit", action="store_true", help="commit each seed's lines when it ends")
    parser.add_argument("--tables", action="store_true", help="table of what the output holds, no run")
    options = parser.parse_args()
    if options.tables:
        clocks = [f"equal time, {tokens} tokens" for tokens in PROMPT_COSTS]
        header = ["arm minus grpo16, points", "seeds", "hard half, equal samples", "equal samples", *clocks]
        runs = read_runs(options.output)
        print("\n".join(format_table(["arm, % at the end", "seeds", "easy", "hard", "both"], end_rows(runs))))
        print("\n".join(format_table(header, table_rows(runs))))
        decided = ["claim", "arms", "seeds", "difference, points", "Holm's p"]
        print("\n".join(format_table(decided, decision_rows(runs) if any(seed for _, seed in runs) else [])))
        return
    torch.set_num_threads(1)
    task = HalfHard(options.questions, 8000 if options.prepare else HELD_OUT + TRAINED)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.prepare:
        teach_base(task, options.base)
    if options.choose_rates:
        choose_rates(task, options)
    for seed in options.seeds:
        run_seed(task, options, seed)


if __name__ == "__main__":
    main()
