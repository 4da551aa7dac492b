"""Packing: which rollouts are trained together, on which data-parallel rank, in which micro-batch.

A micro-batch is a row of tokens: for each group in it, one copy of the prompt and then the responses that share it. The cost of
a cut is one more copy of a prompt, so cuts are contiguous within groups. Balance is by tokens; pipeline parallelism needs
the same number of micro-batches on every data-parallel rank, which the plan guarantees.

Every mini-batch takes an equal share of every group (stratified, seeded): with few prompts and a large N, a mini-batch of whole
groups would step on one prompt after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np

from nemo_brorl.types import Int32, Int64, MicroBatch, PlannedGroup, Segment, TrainBatch, UpdatePlan

Item = tuple[int, int]  # (group, rollout)


def plan_update(
    batch: TrainBatch, *, num_mini_batches: int, data_parallel_size: int, token_budget: int, shared_prompt: bool,
    version: int, learning_rate: float, objective: str, seed: int,
) -> UpdatePlan:  # fmt: skip
    """Lay out a whole update. `token_budget` bounds the tokens of a micro-batch; the same seed gives the same plan."""
    groups = tuple(
        PlannedGroup(
            prompt_ids=np.asarray(scored.prompt.token_ids, np.int32),
            chunks=tuple(chunk.data for chunk in scored.group.chunks),
            advantages=advantages,
            staleness=version - 1 - scored.group.version,
        )
        for scored, advantages in zip(batch.groups, batch.advantages, strict=True)
    )
    lengths = [scored.group.lengths for scored in batch.groups]
    packer = Packer([len(group.prompt_ids) for group in groups], lengths, token_budget, shared_prompt)
    mini_batches = tuple(packer.pack(items, data_parallel_size) for items in stratify(batch.rollouts, num_mini_batches, seed))
    return UpdatePlan(version, objective, learning_rate, groups, mini_batches)


def stratify(rollouts: Sequence[Sequence[int] | Int64], num_parts: int, seed: int) -> list[list[Item]]:
    """Split every group's rollouts, shuffled, into `num_parts` parts of nearly equal size.

    The remainders of different groups go to different parts, so the parts stay balanced.
    """
    parts: list[list[Item]] = [[] for _ in range(num_parts)]
    random = np.random.default_rng(seed)
    start = 0
    for group, members in enumerate(rollouts):
        for position, index in enumerate(random.permutation(len(members)).tolist()):
            parts[(start + position) % num_parts].append((group, int(members[index])))
        start += len(members)
    return [sorted(part) for part in parts]


class Packer:
    """Cuts a mini-batch into micro-batches, given the prompt length of each group and the response lengths [N]."""

    def __init__(self, prompt_lengths: Sequence[int], response_lengths: Sequence[Int32], token_budget: int, shared_prompt: bool) -> None:
        self.prompt_lengths = prompt_lengths
        self.response_lengths = response_lengths
        self.token_budget = token_budget
        self.shared_prompt = shared_prompt

    def pack(self, items: Sequence[Item], data_parallel_size: int) -> tuple[tuple[MicroBatch, ...], ...]:
        """[rank][micro-batch] of one mini-batch, equally many for every rank, none above the budget unless a single
        rollout is."""
        shares = self._cut(items, data_parallel_size)
        tokens = max(sum(int(self.response_lengths[group][rollout]) for group, rollout in share) for share in shares)
        most = min(len(share) for share in shares)
        for num in range(min(most, max(1, -(-tokens // self.token_budget))), most + 1):
            ranks = tuple(tuple(self._micro_batch(part) for part in self._cut(share, num)) for share in shares)
            if all(micro.num_tokens <= self.token_budget for rank in ranks for micro in rank):
                return ranks
        return ranks

    def _cut(self, items: Sequence[Item], num_parts: int) -> list[Sequence[Item]]:
        """Contiguous, non-empty parts of nearly equal cost."""
        assert len(items) >= num_parts, f"{len(items)} rollouts cannot fill {num_parts} parts"
        sizes = {group: len(list(members)) for group, members in groupby(items, key=lambda item: item[0])}
        costs = [self._cost(group, rollout, 1 if not self.shared_prompt else sizes[group]) for group, rollout in items]
        total = np.cumsum(costs)
        marks = np.searchsorted(total, total[-1] * np.arange(1, num_parts) / num_parts, side="left") + 1
        for index in range(len(marks)):  # every part keeps at least one rollout
            low = marks[index - 1] + 1 if index else 1
            marks[index] = min(max(marks[index], low), len(items) - (num_parts - 1 - index))
        bounds = [0, *marks.tolist(), len(items)]
        return [items[low:high] for low, high in pairwise(bounds)]

    def _cost(self, group: int, rollout: int, sharers: int) -> float:
        return float(self.response_lengths[group][rollout]) + self.prompt_lengths[group] / sharers

    def _micro_batch(self, items: Sequence[Item]) -> MicroBatch:
        if self.shared_prompt:
            segments = tuple(
                Segment(group, tuple(rollout for _, rollout in members)) for group, members in groupby(items, key=lambda item: item[0])
            )
        else:
            segments = tuple(Segment(group, (rollout,)) for group, rollout in items)
        num_loss_tokens = sum(int(self.response_lengths[group][rollout]) for group, rollout in items)
        num_prompt_tokens = sum(self.prompt_lengths[segment.group] for segment in segments)
        return MicroBatch(segments, num_prompt_tokens + num_loss_tokens, num_loss_tokens)
