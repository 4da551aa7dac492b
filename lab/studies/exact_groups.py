"""Draw groups of rollouts of cipher chains exactly, and cheaper than by sampling every rollout.

A question has one right token sequence, so the number of right rollouts is binomial with the exact probability, and
groups whose rewards agree are never sampled. Wrong rollouts are drawn given that they are wrong: first the place where
they leave the right answer, then another token there, then freely. Equal beginnings of a question's rollouts are read
by the model once, and rollouts that are equal to the end are one row with their number. The distribution of a batch is
that of plain sampling.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from lab.studies.cipher_plain import MAX_TOKENS, Questions, sampled_mask

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

ROWS_AT_ONCE = 1024  # rows scored at once
DRAWN_AT_ONCE = 2048  # rollouts drawn at once


class Task:
    """The questions, the families that they name, and their right answers as padded tokens."""

    def __init__(self, path: Path, limit: int) -> None:
        self.questions = Questions(path, limit)
        rows = path.read_text(encoding="utf-8").splitlines()[:limit]
        self.families = [json.loads(row)["prompt"][0] for row in rows]
        self.end = self.questions.end
        self.length = max(map(len, self.questions.answers))
        padded = [answer + [self.end] * (self.length - len(answer)) for answer in self.questions.answers]
        self.answers = torch.tensor(padded)
        self.mask = sampled_mask(self.answers, self.end)


def read_rows(model: PreTrainedModel, prompts: Tensor, rows: Tensor) -> tuple[DynamicCache, Tensor]:
    """Return the KV cache of prompts and the logits after them, for each row the index of its prompt."""
    cache = DynamicCache()
    logits = model(input_ids=prompts, past_key_values=cache).logits[:, -1]
    cache.batch_select_indices(rows)
    return cache, logits[rows]


def score_rows(model: PreTrainedModel, prompts: Tensor, rows: Tensor, responses: Tensor) -> Tensor:
    """Return the log-probs of the tokens of responses [R, tokens], for each row the index of its prompt."""
    used, of_row = rows.unique(return_inverse=True)
    cache, first = read_rows(model, prompts[used], of_row)
    rest = model(input_ids=responses[:, :-1], past_key_values=cache).logits
    logits = torch.cat([first[:, None], rest], dim=1).log_softmax(dim=-1)
    return logits.gather(2, responses[..., None])[..., 0]


@torch.no_grad()
def answer_log_probs(model: PreTrainedModel, task: Task, places: Tensor) -> Tensor:
    """Return the log-probs of the tokens of questions' right answers [P, tokens], 0 behind their end."""
    parts = []
    for part in places.split(ROWS_AT_ONCE):
        scored = score_rows(model, task.questions.prompts[part], torch.arange(len(part)), task.answers[part])
        parts.append(scored * task.mask[part])
    return torch.cat(parts)


def chances_of(log_probs: Tensor) -> Float64:
    """Return the probabilities of answers from the log-probs of their tokens."""
    chances: Float64 = log_probs.double().sum(dim=1).exp().numpy().clip(0, 1)
    return chances


@dataclass(frozen=True)
class Outcomes:
    """Rewards of a step's groups: accepted right rollouts, and right ones that were not accepted."""

    accepted: Int64
    rejected: Int64


def draw_outcomes(chances: Float64, ceilings: Float64, size: int, random: np.random.Generator) -> Outcomes:
    """Draw how many of a group's rollouts are right and accepted, and how many of the others are right."""
    accepted = random.binomial(size, chances * ceilings)
    others = chances * (1 - ceilings) / (1 - chances * ceilings).clip(1e-12)
    return Outcomes(accepted, random.binomial(size - accepted, np.clip(others, 0, 1)))


def leaving_chances(right: Tensor, mask: Tensor) -> Tensor:
    """Return the probability [P, tokens] that a response leaves the right answer at a token, in double precision.

    `right` are the log-probs of the right answers' tokens.
    """
    chances = right.double().exp()
    ones = torch.ones(len(chances), 1, dtype=torch.double)
    before = torch.cat([ones, chances.cumprod(dim=1)[:, :-1]], dim=1)
    return before * (1 - chances).clamp_min(0) * mask


@dataclass(frozen=True)
class Rows:
    """Different responses to a step's questions, with the number of rollouts that gave each."""

    groups: Tensor  # [R] index of the question
    tokens: Tensor  # [R, MAX_TOKENS], padded with the end token
    log_probs: Tensor  # [R, MAX_TOKENS] of the sampler, 0 behind the end
    numbers: Tensor  # [R] rollouts


def no_rows() -> Rows:
    tokens = torch.zeros(0, MAX_TOKENS, dtype=torch.long)
    none = tokens[:, 0]
    return Rows(none, tokens, tokens.float(), none)


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several parts, one part behind the other."""
    return Rows(
        torch.cat([part.groups for part in parts]),
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.log_probs for part in parts]),
        torch.cat([part.numbers for part in parts]),
    )


def draw_wrong(
    model: PreTrainedModel, task: Task, places: Tensor, right: Tensor, numbers: Tensor, generator: torch.Generator
) -> Rows:
    """Draw `numbers` [P] wrong responses to the questions `places` [P].

    `right` [P, tokens] are the log-probs of their right answers' tokens.
    """
    rows = torch.arange(len(places)).repeat_interleave(numbers)
    parts = [no_rows()]
    for part in rows.split(DRAWN_AT_ONCE) if len(rows) else ():
        used, inner = part.unique(return_inverse=True)
        found = _draw_wrong(model, task, places[used], right[used], inner, generator)
        parts.append(Rows(used[found.groups], found.tokens, found.log_probs, found.numbers))
    return join_rows(parts)


def draw_rollouts(
    model: PreTrainedModel,
    task: Task,
    places: Tensor,
    right: Tensor,
    size: int,
    drawn: Outcomes,
    generator: torch.Generator,
) -> Rows:
    """Draw the wrong rollouts of groups of `size`, and put behind them one row of right ones for each question."""
    num_right = torch.tensor(drawn.accepted + drawn.rejected)
    wrong = draw_wrong(model, task, places, right, size - num_right, generator)
    answers = torch.full((len(places), MAX_TOKENS), task.end)
    answers[:, : task.length] = task.answers[places]
    scored = torch.zeros(len(places), MAX_TOKENS)
    scored[:, : task.length] = right
    return join_rows([wrong, Rows(torch.arange(len(places)), answers, scored, num_right)])


@torch.no_grad()
def _draw_wrong(
    model: PreTrainedModel, task: Task, places: Tensor, right: Tensor, rows: Tensor, generator: torch.Generator
) -> Rows:
    leaves_at = torch.multinomial(leaving_chances(right, task.mask[places])[rows], 1, generator=generator)[:, 0]
    answers = task.answers[places]
    # A node is a beginning that some of a question's rollouts share. At first every question is one.
    cache, logits = read_rows(model, task.questions.prompts[places], torch.arange(len(places)))
    groups = torch.arange(len(places))
    tokens = torch.full((len(places), MAX_TOKENS), task.end)
    scored = torch.zeros(len(places), MAX_TOKENS)
    node_of, leaves, group_of = rows, leaves_at, rows
    ended: list[Rows] = []
    for place in range(MAX_TOKENS):
        log_chances = logits.log_softmax(dim=-1)
        drawn = _draw_tokens(log_chances, node_of, leaves == place, _expected(answers, group_of, place), generator)
        if place < task.length:
            drawn = torch.where(leaves > place, answers[group_of, place], drawn)
        vocabulary = logits.shape[1]
        keys, child_of, numbers = (node_of * vocabulary + drawn).unique(return_inverse=True, return_counts=True)
        parent, token = keys // vocabulary, keys % vocabulary
        groups, tokens, scored = groups[parent], tokens[parent], scored[parent]
        tokens[:, place] = token
        scored[:, place] = log_chances[parent, token]
        has_ended = (token == task.end) | (place + 1 == MAX_TOKENS)
        ended.append(Rows(groups[has_ended], tokens[has_ended], scored[has_ended], numbers[has_ended]))
        if has_ended.all():
            break
        goes_on = ~has_ended
        new_index = goes_on.cumsum(0) - 1
        going_on = goes_on[child_of]
        node_of, leaves, group_of = new_index[child_of[going_on]], leaves[going_on], group_of[going_on]
        groups, tokens, scored = groups[goes_on], tokens[goes_on], scored[goes_on]
        cache.batch_select_indices(parent[goes_on])
        logits = model(input_ids=token[goes_on, None], past_key_values=cache).logits[:, -1]
    return join_rows(ended)


def _expected(answers: Tensor, groups: Tensor, place: int) -> Tensor:
    """Return the right token of each rollout at a place, the end token behind the longest answer."""
    return answers[groups, min(place, answers.shape[1] - 1)]


def _draw_tokens(
    log_chances: Tensor, nodes: Tensor, is_leaving: Tensor, expected: Tensor, generator: torch.Generator
) -> Tensor:
    """Draw a token for each rollout from its node's chances, without the expected one where the rollout leaves."""
    chances = log_chances.double().exp()
    leaving, variant = nodes[is_leaving].unique(return_inverse=True)
    others = chances[leaving]
    # All rollouts of a node that leave at a token have the same right answer.
    others[variant, expected[is_leaving]] = 0
    row_of = nodes.clone()
    row_of[is_leaving] = len(chances) + variant
    sums = torch.cat([chances, others]).clamp_min(0).cumsum(dim=1)
    sums = sums / sums[:, -1:].clamp_min(1e-300)
    # One search finds all tokens: the sums of row r lie between r and r + 1.
    table = (sums + torch.arange(len(sums))[:, None]).flatten()
    drawn = torch.rand(len(nodes), generator=generator, dtype=torch.double)
    width = log_chances.shape[1]
    found = torch.searchsorted(table, drawn + row_of, right=True) - row_of * width
    return found.clamp(0, width - 1)
