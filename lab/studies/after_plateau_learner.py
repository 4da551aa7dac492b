"""Learn from exact groups of the study after a plateau: its questions, its base, and an update of the policy."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen2ForCausalLM

from lab.studies.after_plateau_tables import EQUAL_SAMPLES
from lab.studies.cipher_plain import BETAS, CLIP_GRAD, HELD_OUT, MODEL, sampled_mask
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
    draw_rollouts,
    score_rows,
)

TRAINED = 2048  # questions that come again, behind two times HELD_OUT: to decide by, and to report
CEILINGS = (0.56, 0.13)  # Beta distribution of the probability that a right answer is accepted
SKILLS = (0.15, 0.9)  # share of digits that the base has right, of the first and the last family
TEACHING_STEPS = 300
TAUGHT_AT_ONCE = 512  # questions
TEACHING_RATE = 1e-3
MINI_BATCHES = 8
CLIP = (0.2, 0.27)  # of the ratio, as the public recipe of ProRLv2
RATE = 1e-4  # of the run before the plateau


@dataclass(frozen=True)
class Arm:
    """How a run samples and learns: filled until `prompts` groups can teach, or `prompts` groups sampled."""

    size: int
    prompts: int
    is_filled: bool = True
    rate: float = RATE
    rollouts: int = EQUAL_SAMPLES
    is_maxrl: bool = False


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
        accepted = torch.tensor(drawn.accepted)
        rows = draw_rollouts(self.model, self.task, places, right, arm.size, drawn, self.generator)
        of_row = torch.zeros_like(rows.numbers)
        of_row[-num:] = accepted
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
