"""Packing: which rollouts are trained together, on which data-parallel rank, in which micro-batch.

A micro-batch is a row of tokens: for each group in it, one copy of the prompt and then the responses that share it. The
cost of a cut is one more copy of a prompt, so cuts are contiguous within groups. Balance is by tokens; pipeline
parallelism needs the same number of micro-batches on every data-parallel rank, which the plan guarantees.

Every mini-batch takes an equal share of every group (stratified, seeded): with few prompts and a large N, a mini-batch
of whole groups would step on one prompt after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np

from nemo_brorl.algorithm.informative import disagree
from nemo_brorl.types import Bool, Int32, Int64, MicroBatch, PlannedGroup, Segment, TrainBatch, UpdatePlan

Item = tuple[int, int]  # (group, rollout)


def plan_update(
    batch: TrainBatch,
    *,
    num_mini_batches: int,
    data_parallel_size: int,
    token_budget: int,
    shared_prompt: bool,
    version: int,
    learning_rate: float,
    objective: str,
    seed: int,
) -> UpdatePlan:
    """Lay out a whole update. `token_budget` bounds the tokens of a micro-batch; the same seed gives the same plan.

    A batch that a deadline has left with fewer rollouts than mini-batches × ranks gets fewer mini-batches; one with
    fewer rollouts than ranks has all of them several times, equally often, which changes no mean.
    """
    num_rollouts = sum(len(rollouts) for rollouts in batch.rollouts)
    num_full = max(1, num_rollouts // data_parallel_size)  # mini-batches with a rollout for every rank
    parts = stratify(batch.rollouts, min(num_mini_batches, num_full), seed)
    if num_rollouts < data_parallel_size:
        copies = math.ceil(data_parallel_size / num_rollouts)
        parts = [sorted(parts[0] * copies)]
    is_measured = fresh_in_the_last(batch, parts[-1])
    groups = []
    for index, scored in enumerate(batch.groups):
        planned = PlannedGroup(
            prompt_ids=np.asarray(scored.prompt.token_ids, np.int32),
            chunks=tuple(chunk.data for chunk in scored.group.chunks),
            advantages=batch.advantages[index],
            staleness=version - 1 - scored.group.version,
            is_measured=is_measured[index],
        )
        groups.append(planned)
    prompt_lengths = [len(group.prompt_ids) for group in groups]
    response_lengths = [scored.group.lengths for scored in batch.groups]
    num_sampled = [scored.group.num_sampled for scored in batch.groups]
    packer = Packer(prompt_lengths, response_lengths, token_budget, shared_prompt, num_sampled)
    mini_batches = tuple(packer.pack(items, data_parallel_size) for items in parts)
    return UpdatePlan(version, objective, learning_rate, tuple(groups), mini_batches, batch.loss_scale)


def stratify(rollouts: Sequence[Sequence[int] | Int64], num_parts: int, seed: int) -> list[list[Item]]:
    """Split every group's rollouts, shuffled, into `num_parts` parts of nearly equal size.

    The remainders of different groups go to different parts, so the parts stay balanced.
    """
    parts: list[list[Item]] = [[] for _ in range(num_parts)]
    random = np.random.default_rng(seed)
    start = 0
    for group, members in enumerate(rollouts):
        shuffled = random.permutation(len(members)).tolist()
        for position, index in enumerate(shuffled):
            part = parts[(start + position) % num_parts]
            part.append((group, int(members[index])))
        start += len(members)
    return [sorted(part) for part in parts]


def fresh_in_the_last(batch: TrainBatch, last: Sequence[Item]) -> list[bool]:
    """For each group whether its rollouts of the last mini-batch are a sample like any other of the policy that drew
    them. They are not where the group was kept because of them, so its other rollouts must disagree by themselves, nor
    where the trained rollouts were chosen by their rewards."""
    in_last: list[set[int]] = [set() for _ in batch.groups]
    for group, rollout in last:
        in_last[group].add(rollout)
    fresh = []
    for scored, trained, held_out in zip(batch.groups, batch.rollouts, in_last, strict=True):
        is_chosen = scored.learn_from is None and len(trained) < len(scored.rewards)
        is_kept = True
        if batch.min_reward_range is not None:
            is_other = np.ones(len(scored.rewards), bool)
            is_other[list(held_out)] = False
            is_kept = disagree(scored.rewards[is_other], batch.min_reward_range)
        fresh.append(is_kept and not is_chosen)
    return fresh


class Packer:
    """Cuts a mini-batch into micro-batches, given the prompt length of each group, the response lengths [N], and how
    many tokens of each response [N] the loss counts (None: all)."""

    def __init__(
        self,
        prompt_lengths: Sequence[int],
        response_lengths: Sequence[Int32],
        token_budget: int,
        shared_prompt: bool,
        num_sampled: Sequence[Int32] | None = None,
    ) -> None:
        self.prompt_lengths = prompt_lengths
        self.response_lengths = [lengths.tolist() for lengths in response_lengths]
        self.num_sampled = self.response_lengths
        if num_sampled is not None:
            self.num_sampled = [counts.tolist() for counts in num_sampled]
        self.token_budget = token_budget
        self.shared_prompt = shared_prompt

    def pack(self, items: Sequence[Item], data_parallel_size: int) -> tuple[tuple[MicroBatch, ...], ...]:
        """[rank][micro-batch] of one mini-batch, equally many for every rank, none above the budget unless a single
        rollout is.

        Parts of equal cost if the fewest of them are within the budget. Else, with a long tail of lengths, as few as
        hold all rollouts in order, each as full as the fullest must be.
        """
        bounds = self._run(items).bounds(data_parallel_size)
        shares = [self._run(items[low:high]) for low, high in pairwise(bounds)]  # one a rank
        most = min(len(share.items) for share in shares)
        most_tokens = max(share.num_response_tokens for share in shares)
        fewest = min(most, max(1, math.ceil(most_tokens / self.token_budget)))
        fits = all(share.tokens(fewest).max() <= self.token_budget for share in shares)
        num = max(len(share.filled(self.token_budget)) - 1 for share in shares) if not fits else fewest
        ranks = []
        for share in shares:
            cuts = share.bounds(fewest) if fits else share.filled_evenly(min(num, most))
            micro_batches = [self._micro_batch(share.items[low:high]) for low, high in pairwise(cuts)]
            ranks.append(tuple(micro_batches))
        return tuple(ranks)

    def _run(self, items: Sequence[Item]) -> Run:
        """The items, which are in order of their groups, with their lengths."""
        groups = np.array([group for group, _ in items])
        lengths = np.array([self.response_lengths[group][rollout] for group, rollout in items], np.int64)
        prompts = np.asarray(self.prompt_lengths, np.int64)[groups]
        is_first = np.ones(len(items), bool)
        if self.shared_prompt:
            is_first[1:] = groups[1:] != groups[:-1]
        starts = np.flatnonzero(is_first)
        sharers = np.diff(np.append(starts, len(items)))
        return Run(items, lengths, prompts, is_first, np.repeat(sharers, sharers))

    def _micro_batch(self, items: Sequence[Item]) -> MicroBatch:
        segments = []
        if self.shared_prompt:
            for group, members in groupby(items, key=itemgetter(0)):
                rollouts = tuple(rollout for _, rollout in members)
                segments.append(Segment(group, rollouts))
        else:
            for group, rollout in items:
                segments.append(Segment(group, (rollout,)))
        num_response_tokens = sum(self.response_lengths[group][rollout] for group, rollout in items)
        num_loss_tokens = sum(self.num_sampled[group][rollout] for group, rollout in items)
        num_prompt_tokens = sum(self.prompt_lengths[segment.group] for segment in segments)
        return MicroBatch(tuple(segments), num_prompt_tokens + num_response_tokens, num_loss_tokens)


class Run:
    """Rollouts in order of their groups, to be cut into contiguous parts. Cutting one into many sizes costs little:
    with long tails of lengths, hundreds are tried before every part is within the budget."""

    def __init__(
        self,
        items: Sequence[Item],
        lengths: Int64,
        prompts: Int64,
        is_first: Bool,
        sharers: Int64,
    ) -> None:
        """Arrays [n] over the items: tokens of the response and of the prompt; whether it is the first that shares a
        copy of the prompt, and how many do."""
        self.items = items
        self.num_response_tokens = int(lengths.sum())
        self._costs = np.cumsum(lengths + prompts / sharers)
        self._lengths = np.concatenate([[0], np.cumsum(lengths)])
        self._prompts = prompts
        self._first_prompts = np.cumsum(prompts * is_first)  # up to and with each item, every copy once
        self._ends = np.append(0, self._lengths[1:] + self._first_prompts)  # tokens up to each bound, every copy once

    def bounds(self, num_parts: int) -> list[int]:
        """Where non-empty parts of nearly equal cost begin and end, [num_parts + 1]."""
        return [0, *self._marks(num_parts).tolist(), len(self.items)]

    def tokens(self, num_parts: int) -> Int64:
        """Tokens of each part, its copies of prompts included."""
        ends = np.append(self._marks(num_parts), len(self.items))
        starts = np.append(0, ends[:-1])
        prompts = self._prompts[starts] + self._first_prompts[ends - 1] - self._first_prompts[starts]
        return self._lengths[ends] - self._lengths[starts] + prompts

    def filled(self, limit: int) -> list[int]:
        """Bounds of the fewest contiguous parts of at most `limit` tokens; a rollout above it is alone."""
        bounds = [0]
        while bounds[-1] < len(self.items):
            start = bounds[-1]
            room = limit + self._lengths[start] - self._prompts[start] + self._first_prompts[start]
            end = int(np.searchsorted(self._ends, room, side="right")) - 1
            bounds.append(max(start + 1, end))
        return bounds

    def filled_evenly(self, num_parts: int) -> list[int]:
        """Bounds of exactly so many contiguous parts, the fullest as empty as can be."""
        low = 1
        high = int(self._ends[-1])
        while low < high:  # the smallest limit that needs no more parts
            middle = (low + high) // 2
            if len(self.filled(middle)) - 1 <= num_parts:
                high = middle
            else:
                low = middle + 1
        bounds = self.filled(high)
        while len(bounds) - 1 < num_parts:  # halve the part with the most rollouts
            place = int(np.argmax(np.diff(bounds)))
            bounds.insert(place + 1, (bounds[place] + bounds[place + 1]) // 2)
        return bounds

    def _marks(self, num_parts: int) -> Int64:
        """Bounds between parts; every part keeps at least one rollout."""
        num = len(self.items)
        assert num >= num_parts, f"{num} rollouts cannot fill {num_parts} parts"
        shares = self._costs[-1] * np.arange(1, num_parts) / num_parts
        marks = np.searchsorted(self._costs, shares, side="left") + 1
        order = np.arange(num_parts - 1)
        free = np.maximum.accumulate(np.maximum(marks - order, 1))
        return np.minimum(free, num - num_parts + 1) + order
