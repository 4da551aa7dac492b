"""Compare the product's pool of prompts with fixed N on partly solved questions, trained in plain PyTorch.

    python lab/studies/cipher_chains.py --output runs/cipher_solved --solved 0.75 --num-questions 2048
    python -m lab.studies.cipher_pool --sizes 16 64 512 --retire 0 0.9 --seeds 1 2 3 --report
    python -m lab.studies.cipher_pool --tables

2,048 questions are repeated. Three quarters of them are copies, which the base is right about with 0.99. The others are
chains, which it is right about with 2 in 10,000. Every arm samples 4,096 rollouts a step (`--rollouts`) and takes one
optimizer step for them, as in `lab/studies/cipher_plain.py`. With `--retire 0.9` the pool leaves out prompts that were
right in that share of their rollouts, by the counts of `lab/brorl_lab/prompt_pool.py`. With 0 it samples every
question. Success is the exact probability of right answers to 512 chains that are never trained on: those of the first
half of `held_out.jsonl`, or with `--report` of the second half, which no setting was chosen with.

Predicted before the runs, from the curves of `lab/studies/sweeps/cipher_chains.yaml`, of which every arm without
retirement has a quarter of the useful rollouts: after 307,200 rollouts N = 16 is right with 25 to 35 % with retirement,
and with less than 5 % without. N = 64 does as N = 16. N = 512 is behind both, with and without.

Where nine of ten are copies, in steps of 1,024 rollouts:

    python lab/studies/cipher_chains.py --output runs/mostly_solved --solved 0.9 --num-questions 2048
    python -m lab.studies.cipher_pool --folder runs/mostly_solved --output runs/mostly_solved/pool.jsonl --sizes 16 \
        --retire 0 0.9 --recheck 0.25 --rollouts 1024 --steps 300 --seeds 1 2 3 --report

Seed 0, on the first half of `held_out.jsonl`, chose N = 16 as the best fixed N (after 307,200 rollouts 15.9 %, N = 64
10.6 %, N = 512 0.1 %), and with retirement a quarter of retired questions among those sampled (86.1 %; a tenth 33.7 %,
half 49.9 %). Predicted before seeds 1 to 3, here and on the whole stack (`lab/studies/sweeps/mostly_solved.yaml`):
retirement ends ahead of N = 16 without it at each seed, by 20 points or more on average, and reaches that run's last
score with at most 0.6 of its rollouts and of its seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from brorl_lab.prompt_pool import RetiringParams, RetiringPool
from torch import Tensor

from lab.studies.cipher_plain import (
    HELD_OUT,
    ROLLOUTS,
    PlainRun,
    Questions,
    answer_probabilities,
    sample,
    score_responses,
)
from lab.studies.figures.pool import print_pool_table
from nemo_brorl.rollouts.prompt_pool import EveryPrompt
from nemo_brorl.types import Prompt


class Epochs:
    """A prompt source that repeats the questions, in a new order each time. A prompt's payload has its index."""

    def __init__(self, questions: Questions, places: range, seed: int) -> None:
        self.prompts = questions.prompts
        self.places = torch.tensor(places)
        self.generator = torch.Generator().manual_seed(seed)
        self.order: list[int] = []
        self.num_taken = 0

    def take_prompts(self, num: int) -> list[Prompt]:
        """Return the next `num` cipher questions as prompts, and start a new epoch when the questions run out."""
        while len(self.order) < num:
            order = torch.randperm(len(self.places), generator=self.generator)
            self.order += self.places[order].tolist()
        places, self.order = self.order[:num], self.order[num:]
        taken = []
        for place in places:
            tokens = tuple(self.prompts[place].tolist())
            taken.append(Prompt(f"train/{self.num_taken}", "cipher", "exact_match", tokens, {"place": place}))
            self.num_taken += 1
        return taken

    def record_outcomes(self, outcomes: Sequence[tuple[Prompt, float]]) -> list[str]:
        """Return no log lines about the outcomes, because the cipher questions have no levels of difficulty."""
        return []

    def metrics(self) -> dict[str, float]:
        """Return an empty mapping, because the source of cipher questions has no metrics."""
        return {}


class PooledRun(PlainRun):
    """A run whose prompts come from the pool, of the questions at `places` or of all."""

    def __init__(
        self,
        questions: Questions,
        size: int,
        seed: int,
        pool: RetiringParams | None,
        advantage: str = "maxrl",
        rate: float = 2e-4,
        places: range | None = None,
        rollouts: int = ROLLOUTS,
    ) -> None:
        super().__init__(questions, size, advantage, rate, seed, rollouts)
        if places is None:
            places = range(len(questions.answers))
        epochs = Epochs(questions, places, seed)
        self.pool = EveryPrompt(epochs, seed) if pool is None else RetiringPool(epochs, pool)
        self.num_solved = 0  # rollouts of prompts with 0.9 or more right ones

    def unseen(self) -> Iterator[Tensor]:
        """Return an empty iterator, because the prompt pool chooses the questions."""
        return iter(())

    def sample_groups(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sample a step's rollouts of the prompt pool's next prompts, and return prompts, responses and advantages."""
        self.pool.begin_step()
        asked = self.pool.take_prompts(self.num_prompts)
        places = [prompt.payload["place"] for prompt in asked]
        prompts = self.questions.prompts[places]
        responses = sample(self.model, prompts, self.size, self.questions.end, self.generator)
        answers = [self.questions.answers[place] for place in places]
        rewards = score_responses(responses, answers, self.size).view(len(asked), self.size)
        self.record_rollouts(asked, rewards)
        return prompts, responses, self.advantage(rewards)

    def record_rollouts(self, asked: Sequence[Prompt], rewards: Tensor) -> None:
        """Count the rollouts of the sampled prompts, and update the prompt pool's success counts."""
        self.num_sampled += rewards.numel()
        self.num_solved += int((rewards.mean(dim=1) >= 0.9).sum()) * self.size
        if isinstance(self.pool, RetiringPool):
            self.pool.counts.discount()
            for prompt, successes in zip(asked, rewards.sum(dim=1).int().tolist(), strict=True):
                self.pool.counts.observe(prompt, successes, self.size)


def train(
    questions: Questions, held_out: Questions, size: int, retire: float, seed: int, options: argparse.Namespace
) -> None:
    """Train one run with or without retirement of solved prompts, and append its measurements to the output file."""
    pool = RetiringParams(retire_from=retire, recheck=options.recheck) if retire else None
    run = PooledRun(questions, size, seed, pool, options.advantage, options.rate, rollouts=options.rollouts)
    first = HELD_OUT if options.report else 0
    places = range(first, first + HELD_OUT)
    seconds = 0.0
    for step in range(options.steps + 1):
        if step % options.interval == 0:
            line = {"n": size, "retire": retire, "advantage": options.advantage, "lr": options.rate, "seed": seed,
                    "rollouts": options.rollouts, "recheck": options.recheck,
                    "sampled": run.num_sampled, "solved": run.num_solved,
                    "pass@1": float(answer_probabilities(run.model, held_out, places).mean()),
                    "seconds": seconds}  # fmt: skip
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if step < options.steps:
            started = time.process_time()
            run.step()
            seconds += time.process_time() - started


def main() -> None:
    """Train a run with every combination of the command line's settings, one seed after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/cipher_solved"))
    parser.add_argument("--output", type=Path, default=Path("runs/cipher_solved/pool.jsonl"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 512])
    parser.add_argument("--retire", type=float, nargs="+", default=[0.0, 0.9])
    parser.add_argument("--recheck", type=float, default=0.0, help="share of those asked that are retired")
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS, help="of a step")
    parser.add_argument("--advantage", default="maxrl")
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=75)
    parser.add_argument("--interval", type=int, default=15, help="steps between measurements")
    parser.add_argument("--report", action="store_true", help="measure on the questions that nothing was chosen with")
    parser.add_argument("--tables", action="store_true", help="table and figure of what the output holds, no run")
    options = parser.parse_args()
    if options.tables:
        print_pool_table(options.output)
        return
    torch.set_num_threads(1)
    questions = Questions(options.folder / "questions.jsonl", 2048)
    held_out = Questions(options.folder / "held_out.jsonl", 2 * HELD_OUT)
    for seed, size, retire in itertools.product(options.seeds, options.sizes, options.retire):
        train(questions, held_out, size, retire, seed, options)


if __name__ == "__main__":
    main()
