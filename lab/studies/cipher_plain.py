"""Train cipher chains in plain PyTorch, without engines: many runs in the time of one, and a check of the product.

    python lab/studies/cipher_chains.py
    python -m lab.studies.cipher_plain --sizes 16 512 --advantages maxrl --rates 2e-4 --seeds 1 2 3

Weights, questions and the arithmetic of an update are those of `lab/studies/sweeps/cipher_chains.yaml`: one optimizer
step for 4,096 rollouts (`--rollouts`), mean over tokens, Adam with the product's settings. Groups whose rewards agree
have no gradient and are not scored again, but Adam takes its step. Success on held-out questions is the exact
probability of the right answer, not a sample. Each measurement is a line of JSON in `--output`.

Predicted for `--rollouts 1024 --steps 300` before any such run: smaller steps bring every N further at 307,200 rollouts
than 4,096 do, N = 512 least, whose steps then see two questions. The order of N stays, 16 and 64 ahead of 512.

Predicted for `--sizes 512 --rates 1e-4 --steps 75` before any such run: at half the rate N = 512 stays below what it
has at 2e-4 after 307,200 rollouts, and so below N = 16.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, DynamicCache, PreTrainedModel, Qwen2ForCausalLM

from lab.studies.figures.cipher import arm_table, draw_curves, read_curves
from nemo_brorl.core.console import format_table

MODEL = Path("lab/studies/models/cipher")
ROLLOUTS = 4096  # rollouts a step
MAX_TOKENS = 16  # response tokens
HELD_OUT = 512  # questions of each half: one to choose settings with, one to report on
BETAS = (0.9, 0.95)
CLIP_GRAD = 1.0


class Questions:
    """The token ids of questions, all of one length, and of their right answers."""

    def __init__(self, path: Path, limit: int) -> None:
        tokenizer = AutoTokenizer.from_pretrained(MODEL)
        self.end = int(tokenizer.eos_token_id)
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:limit]]
        prompts = []
        self.answers: list[list[int]] = []
        for row in rows:
            message = [{"role": "user", "content": row["prompt"]}]
            prompts.append(tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False))
            answer = tokenizer.encode(f"<answer>{row['answer']}</answer>", add_special_tokens=False)
            self.answers.append([*answer, self.end])
        self.prompts = torch.tensor(prompts)


def read_prompts(model: PreTrainedModel, prompts: Tensor, copies: int) -> tuple[DynamicCache, Tensor]:
    """Return the KV cache of prompts (P, length), each repeated `copies` times, and the logits after the prompts.

    The logits are (P × copies, vocabulary).
    """
    cache = DynamicCache()
    logits = model(input_ids=prompts, past_key_values=cache).logits[:, -1]
    cache.batch_repeat_interleave(copies)
    return cache, logits.repeat_interleave(copies, dim=0)


@torch.no_grad()
def sample(model: PreTrainedModel, prompts: Tensor, copies: int, end: int, generator: torch.Generator) -> Tensor:
    """Sample `copies` responses to each of P prompts at temperature 1, padded with the end token after their end.

    The responses are (P × copies, tokens).
    """
    cache, logits = read_prompts(model, prompts, copies)
    responses = torch.full((len(logits), MAX_TOKENS), end)
    going_on = torch.arange(len(logits))
    for place in range(MAX_TOKENS):
        drawn = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)[:, 0]
        responses[going_on, place] = drawn
        kept = (drawn != end).nonzero()[:, 0]
        if len(kept) == 0:
            break
        if len(kept) < len(drawn):
            cache.batch_select_indices(kept)
            drawn = drawn[kept]
            going_on = going_on[kept]
        logits = model(input_ids=drawn[:, None], past_key_values=cache).logits[:, -1]
    return responses


def log_probs(model: PreTrainedModel, prompts: Tensor, copies: int, responses: Tensor) -> Tensor:
    """Return the model's log-probs of the tokens of P × copies responses to P prompts (P × copies, tokens)."""
    cache, first = read_prompts(model, prompts, copies)
    rest = model(input_ids=responses[:, :-1], past_key_values=cache).logits
    logits = torch.cat([first[:, None], rest], dim=1)
    return logits.log_softmax(dim=-1).gather(2, responses[..., None])[..., 0]


def sampled_mask(responses: Tensor, end: int) -> Tensor:
    """Return a mask (responses, tokens) of the sampled tokens, up to and with the first end token."""
    ended_before = (responses == end).cumsum(dim=1) - (responses == end).long()
    return ended_before == 0


def score_responses(responses: Tensor, answers: Sequence[list[int]], copies: int) -> Tensor:
    """Return a reward for each of P × copies responses: 1 where it is the right answer to its question, else 0."""
    rewards = torch.zeros(len(responses))
    for place, answer in enumerate(answers):
        group = responses[place * copies : (place + 1) * copies]
        if len(answer) <= group.shape[1]:
            right = (group[:, : len(answer)] == torch.tensor(answer)).all(dim=1)
            rewards[place * copies : (place + 1) * copies] = right.float()
    return rewards


def group_mean(rewards: Tensor) -> Tensor:
    return rewards - rewards.mean(dim=1, keepdim=True)


def grpo(rewards: Tensor) -> Tensor:
    return group_mean(rewards) / (rewards.std(dim=1, keepdim=True) + 1e-6)


def maxrl(rewards: Tensor) -> Tensor:
    """Return MaxRL advantages (arXiv 2602.02710): centred rewards over their mean, 0 for a group without success."""
    mean = rewards.mean(dim=1, keepdim=True)
    return torch.where(mean > 0, (rewards - mean) / mean.clamp_min(1e-9), 0.0)


ADVANTAGES: dict[str, Callable[[Tensor], Tensor]] = {"group_mean": group_mean, "grpo": grpo, "maxrl": maxrl}


def update_policy(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    prompts: Tensor,
    responses: Tensor,
    advantages: Tensor,
    end: int,
) -> None:
    """Take one optimizer step on the policy gradient, with a loss that is a mean over all sampled tokens."""
    copies = advantages.shape[1]
    mask = sampled_mask(responses, end)
    num_tokens = mask.sum()
    optimizer.zero_grad(set_to_none=False)
    informative = (advantages != 0).any(dim=1).nonzero()[:, 0]
    size = max(1, 1024 // copies)
    for chosen in informative.split(size) if len(informative) else ():
        rows = (chosen[:, None] * copies + torch.arange(copies)).flatten()
        scored = log_probs(model, prompts[chosen], copies, responses[rows])
        weights = advantages[chosen].flatten()[:, None] * mask[rows]
        loss = -(scored * weights).sum() / num_tokens
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_GRAD)
    optimizer.step()


@torch.no_grad()
def answer_probabilities(model: PreTrainedModel, questions: Questions, places: range) -> Tensor:
    """Return the policy's exact probability of the right answer to each question."""
    longest = max(len(answer) for answer in questions.answers)
    padded = []
    for place in places:
        answer = questions.answers[place]
        padded.append(answer + [questions.end] * (longest - len(answer)))
    answers = torch.tensor(padded)
    scored = log_probs(model, questions.prompts[places.start : places.stop], 1, answers)
    return (scored * sampled_mask(answers, questions.end)).sum(dim=1).exp()


def show_keep_rates(questions: Questions, sizes: Sequence[int]) -> None:
    """Print the base model's share of groups with right and wrong answers, and the rollouts for a full batch of them.

    Both follow from the model's exact probabilities of right answers.
    """
    model = Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    right = answer_probabilities(model, questions, range(len(questions.answers))).double()
    print(f"right with {float(right.mean()):.2g} over {len(right):,} questions")
    for size in sizes:
        kept = float((1 - (1 - right) ** size - right**size).mean())
        print(f"N = {size}: {kept:.2%} of groups disagree, {ROLLOUTS / kept:,.0f} rollouts for the first full batch")


class PlainRun:
    """A model, its optimizer, and the questions that it has not seen yet, in the order of a seed."""

    def __init__(
        self, questions: Questions, size: int, advantage: str, rate: float, seed: int, rollouts: int = ROLLOUTS
    ) -> None:
        self.questions = questions
        self.size = size
        self.num_prompts = rollouts // size  # prompts of a step
        self.advantage = ADVANTAGES[advantage]
        self.generator = torch.Generator().manual_seed(seed)
        self.model = Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, betas=BETAS, weight_decay=0.0)
        self.places = self.unseen()
        self.num_sampled = 0
        self.num_right = 0
        self.num_updates = 0

    def unseen(self) -> Iterator[Tensor]:
        """Return an iterator over the indices of each step's training questions, which come after the held-out ones."""
        order = torch.randperm(len(self.questions.answers) - 2 * HELD_OUT, generator=self.generator)
        return iter((order + 2 * HELD_OUT).split(self.num_prompts))

    def sample_groups(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sample N rollouts of each of the next P questions, and compute advantages from their rewards.

        Returns prompts (P, length), responses (P × N, tokens) and advantages (P, N).
        """
        places = next(self.places)
        prompts = self.questions.prompts[places]
        responses = sample(self.model, prompts, self.size, self.questions.end, self.generator)
        answers = [self.questions.answers[place] for place in places.tolist()]
        rewards = score_responses(responses, answers, self.size)
        self.num_sampled += len(responses)
        self.num_right += int(rewards.sum())
        return prompts, responses, self.advantage(rewards.view(len(places), self.size))

    def step(self) -> None:
        """Sample a fixed number of rollouts and take one policy update with all of them."""
        prompts, responses, advantages = self.sample_groups()
        update_policy(self.model, self.optimizer, prompts, responses, advantages, self.questions.end)
        self.num_updates += 1

    def filled_step(self, limit: int) -> None:
        """Sample until the batch is full of informative groups, as DAPO does, and train on them.

        No update is made if the run reaches `limit` rollouts before the batch is full.
        """
        wanted = self.num_prompts
        kept: list[tuple[Tensor, Tensor, Tensor]] = []
        num_kept = 0
        while num_kept < wanted:
            if self.num_sampled >= limit:
                return
            prompts, responses, advantages = self.sample_groups()
            informative = (advantages != 0).any(dim=1)
            groups = responses.view(len(prompts), self.size, -1)
            kept.append((prompts[informative], groups[informative], advantages[informative]))
            num_kept += int(informative.sum())
        prompts, groups, advantages = (torch.cat(parts)[:wanted] for parts in zip(*kept, strict=True))
        update_policy(self.model, self.optimizer, prompts, groups.flatten(0, 1), advantages, self.questions.end)
        self.num_updates += 1


def train(questions: Questions, size: int, advantage: str, rate: float, seed: int, options: argparse.Namespace) -> None:
    """Train one run of the cipher task (to encipher digits), and append measurements to the output file."""
    run = PlainRun(questions, size, advantage, rate, seed, options.rollouts)
    first = HELD_OUT if options.report else 0
    places = range(first, first + HELD_OUT)
    limit = options.steps * options.rollouts
    measured_at = 0
    started = time.monotonic()
    while True:
        if run.num_sampled >= measured_at:
            line = {"n": size, "advantage": advantage, "lr": rate, "fill": options.fill, "seed": seed,
                    "rollouts": options.rollouts, "sampled": run.num_sampled, "updates": run.num_updates,
                    "successes": run.num_right,
                    "pass@1": float(answer_probabilities(run.model, questions, places).mean()),
                    "seconds": time.monotonic() - started}  # fmt: skip
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            measured_at = run.num_sampled + options.interval * options.rollouts
        if run.num_sampled >= limit:
            return
        if options.fill == "full":
            run.filled_step(limit)
        else:
            run.step()


def main() -> None:
    """Train a run with every combination of the command line's settings, one seed after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, default=Path("runs/cipher/questions.jsonl"))
    parser.add_argument("--output", type=Path, default=Path("runs/cipher/plain.jsonl"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 512])
    parser.add_argument("--advantages", nargs="+", default=["maxrl"], choices=tuple(ADVANTAGES))
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--fill", default="samples", choices=("samples", "full"), help="what ends a step")
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS, help="of a step")
    parser.add_argument("--interval", type=int, default=10, help="steps between measurements")
    parser.add_argument("--report", action="store_true", help="measure on the questions that nothing was chosen with")
    parser.add_argument("--tables", action="store_true", help="table and figure of what the output holds, no run")
    parser.add_argument("--keep-rates", action="store_true", help="of the base, over 4,096 questions; no run")
    options = parser.parse_args()
    if options.tables:
        curves = read_curves(options.output.read_text(encoding="utf-8").splitlines())
        print("\n".join(format_table(*arm_table(curves))))
        draw_curves(curves, options.output.with_suffix(".png"))
        return
    torch.set_num_threads(1)
    if options.keep_rates:
        show_keep_rates(Questions(options.questions, 4096), options.sizes)
        return
    needed = options.steps * options.rollouts // min(options.sizes) + 2 * HELD_OUT + options.rollouts
    questions = Questions(options.questions, needed)
    for seed, advantage, rate, size in itertools.product(
        options.seeds, options.advantages, options.rates, options.sizes
    ):
        train(questions, size, advantage, rate, seed, options)


if __name__ == "__main__":
    main()
