"""Pack rollouts: decide which are trained on together, on which data-parallel rank, in which micro-batch.

A micro-batch is a row of tokens. It has one copy of the prompt for each of its groups, and then the responses that
share the prompt. Turns that trajectories share also have one copy. Every cut adds a copy of what is on both of its
sides. So groups are cut into contiguous pieces, and trajectories are in the order of their turns. Ranks are balanced by
computed tokens. The plan gives every data-parallel rank the same number of micro-batches, as pipeline parallelism
needs.

Every mini-batch takes an equal share of every group (stratified, seeded). With few prompts and a large N, mini-batches
of whole groups would step on one prompt after another.

`plan_step` lays out a step's update by the settings, for the training loop and for `brorl replay`.

Levels say what rollouts of a group share: the prompt, the first turn with its observation, the second turn, and so on.
Tokens of a level count once for neighbours that share it and all levels before. A cut between them makes them count
twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from brorl_graders import full_mark

from nemo_brorl.algorithm.advantages import disagree
from nemo_brorl.config.algorithm import AlgorithmConfig
from nemo_brorl.config.policy import PolicyConfig
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.types import (
    Bool,
    GroupSlice,
    Int32,
    Int64,
    MicroBatch,
    PlannedGroup,
    TrainBatch,
    TurnEnds,
    UInt64,
    UpdatePlan,
)

Item = tuple[int, int]  # group index, rollout index

# Levels below a prompt that are shared. Each costs one attention pass over all tokens below it.
DEEPEST = 16

SEED_STRIDE = 1_000_003  # distance between the seeds of runs whose `trainer.seed` differs by one


class Levels(NamedTuple):
    """Shared levels of a group's N rollouts: where each level ends, the prompt included, and a key of its tokens."""

    ends: Int64  # [N, levels], tokens up to the end of each level; the last level is the whole response
    keys: UInt64  # [N, levels], equal where rollouts agree up to the level's end; unused in the last level

    def with_columns(self, num: int) -> Levels:
        """Return the levels at which a group's rollouts may share tokens, padded with empty levels to `num` levels.

        A level is the prompt, one or more turns, or the rest of a response.
        """
        missing = ((0, 0), (0, num - self.ends.shape[1]))
        return Levels(np.pad(self.ends, missing, mode="edge"), np.pad(self.keys, missing))


def levels_of(
    prompt_length: int,
    lengths: Int32,
    turn_ends: TurnEnds | None,
    min_shared_tokens: int,
) -> Levels:
    """Return the points up to which rollouts of one prompt may share tokens: prompt end, turn ends and response end.

    A level is the tokens between two of these points. At most `DEEPEST` turn ends count. `lengths` [N] are response
    lengths in tokens. A turn that ends less than `min_shared_tokens` after the previous point gets an empty level, and
    its tokens belong to the next level.
    """
    num = len(lengths)
    start = np.zeros(num, np.int64)
    ends = [start]
    keys = [np.zeros(num, np.uint64)]
    if turn_ends is not None:
        for turn in range(min(turn_ends.lengths.shape[1], DEEPEST)):
            end = turn_ends.lengths[:, turn]
            is_enough = end - start >= min_shared_tokens
            start = np.where(is_enough, end, start)
            ends.append(start)
            keys.append(np.where(is_enough, turn_ends.keys[:, turn], np.uint64(0)))
    ends.append(lengths.astype(np.int64))
    keys.append(np.zeros(num, np.uint64))
    return Levels(prompt_length + np.stack(ends, axis=1), np.stack(keys, axis=1))


class RolloutSpan:
    """Consecutive rollouts in packing order, which can be cut into contiguous parts.

    Trying many numbers of parts is cheap. With long-tailed lengths, hundreds are tried before every part is within the
    token budget.
    """

    def __init__(self, items: Sequence[Item], lengths: Int64, is_new: Bool) -> None:
        """Take n consecutive rollouts in packing order, and arrays [n, levels] that say which tokens neighbours share.

        Levels are the prompt, the turns that rollouts of a prompt may share, and the rest of the response. `lengths`
        are the tokens of a rollout on each level. `is_new` is True where the rollout before does not share them.
        """
        self.items = items
        new = (lengths * is_new).sum(axis=1)
        self._shared = lengths.sum(axis=1) - new  # tokens that a rollout shares with the one before
        self._ends = np.append(0, np.cumsum(new))  # tokens before each bound, shared ones counted once
        self.num_tokens = int(self._ends[-1])
        costs = np.zeros(len(items))
        for level in range(lengths.shape[1]):
            starts = np.flatnonzero(is_new[:, level])
            sharers = np.diff(np.append(starts, len(items)))
            costs += lengths[:, level] / np.repeat(sharers, sharers)
        self._costs = np.cumsum(costs)

    def bounds(self, num_parts: int) -> list[int]:
        """Return bounds [num_parts + 1] that cut a list of rollouts into contiguous parts of nearly equal cost.

        No part is empty. Cost is measured in tokens. The cost of tokens that rollouts share is divided among these.
        """
        return [0, *self._marks(num_parts).tolist(), len(self.items)]

    def tokens(self, num_parts: int) -> Int64:
        """Return the number of tokens in each of `num_parts` contiguous parts of a list of rollouts, [num_parts].

        The parts have nearly equal cost. Tokens that rollouts of two parts share count in both parts.
        """
        ends = np.append(self._marks(num_parts), len(self.items))
        starts = np.append(0, ends[:-1])
        return self._ends[ends] - self._ends[starts] + self._shared[starts]

    def tokens_between(self, low: int, high: int) -> int:
        """Return the number of tokens in rollouts `low` to `high` − 1 of a list in packing order.

        Tokens that several of these rollouts share count once.
        """
        return int(self._ends[high] - self._ends[low] + self._shared[low])

    def filled(self, limit: int) -> list[int]:
        """Return bounds that cut a list of rollouts into the fewest contiguous parts of at most `limit` tokens each.

        A rollout of more than `limit` tokens is a part alone.
        """
        bounds = [0]
        while bounds[-1] < len(self.items):
            start = bounds[-1]
            room = limit + self._ends[start] - self._shared[start]
            end = int(np.searchsorted(self._ends, room, side="right")) - 1
            bounds.append(max(start + 1, end))
        return bounds

    def filled_evenly(self, num_parts: int) -> list[int]:
        """Return the bounds that cut a list of rollouts into `num_parts` parts, whose largest has the fewest tokens.

        The parts are contiguous.
        """
        low = 1
        high = int(self._ends[-1])
        # Bisect for the smallest limit that needs no more parts.
        while low < high:
            middle = (low + high) // 2
            if len(self.filled(middle)) - 1 <= num_parts:
                high = middle
            else:
                low = middle + 1
        bounds = self.filled(high)
        # Halve the part with the most rollouts.
        while len(bounds) - 1 < num_parts:
            place = int(np.argmax(np.diff(bounds)))
            bounds.insert(place + 1, (bounds[place] + bounds[place + 1]) // 2)
        return bounds

    def _marks(self, num_parts: int) -> Int64:
        """Return bounds between `num_parts` non-empty contiguous parts of a list of rollouts, of nearly equal cost."""
        num = len(self.items)
        assert num >= num_parts, f"{num} rollouts cannot fill {num_parts} parts"
        shares = self._costs[-1] * np.arange(1, num_parts) / num_parts
        marks = np.searchsorted(self._costs, shares, side="left") + 1
        order = np.arange(num_parts - 1)
        # Move bounds to the right where a part would be empty, and back to the left where later parts would be.
        free = np.maximum.accumulate(np.maximum(marks - order, 1))
        return np.minimum(free, num - num_parts + 1) + order


class Sharing(NamedTuple):
    """Which tokens of a group's responses have only one copy in a micro-batch."""

    prompt: bool = True  # one copy of the prompt; False: nothing is shared
    min_tokens: int = 0  # fewest tokens beyond the prompt that get one copy; 0: only the prompt does


def plan_update(
    batch: TrainBatch,
    *,
    num_mini_batches: int,
    data_parallel_size: int,
    token_budget: int,
    sharing: Sharing,
    version: int,
    learning_rate: float,
    objective: str,
    seed: int,
) -> UpdatePlan:
    """Return the deterministic plan of the policy update whose result is the weights of version `version`.

    `token_budget` bounds a micro-batch's tokens. A batch that a deadline cut below mini-batches × ranks rollouts gets
    fewer mini-batches. Fewer rollouts than ranks are all repeated equally often, which changes no mean.
    """
    num_rollouts = sum(len(rollouts) for rollouts in batch.rollouts)
    num_full = max(1, num_rollouts // data_parallel_size)  # mini-batches with at least one rollout per rank
    parts = stratify(batch.rollouts, min(num_mini_batches, num_full), seed)
    # A rank without rows would block the other ranks in the gradient's all-reduce.
    if num_rollouts < data_parallel_size:
        copies = math.ceil(data_parallel_size / num_rollouts)
        parts = [sorted(parts[0] * copies)]
    is_measured = fresh_in_the_last(batch, parts[-1])
    groups = []
    for index, scored in enumerate(batch.groups):
        planned = PlannedGroup(
            prompt_ids=np.asarray(scored.prompt.token_ids, np.int32),
            chunks=tuple(chunk.data for chunk in scored.group.chunks),
            advantages=(batch.turn_advantages or batch.advantages)[index],
            staleness=version - 1 - scored.group.version,
            is_measured=is_measured[index],
            num_turns=scored.num_turns,
            task=scored.prompt.task,
        )
        groups.append(planned)
    prompt_lengths = [len(group.prompt_ids) for group in groups]
    response_lengths = [scored.group.lengths for scored in batch.groups]
    num_sampled = [scored.group.num_sampled for scored in batch.groups]
    packer = Packer(
        prompt_lengths,
        response_lengths,
        token_budget,
        sharing,
        num_sampled,
        turn_ends=[scored.turn_ends for scored in batch.groups],
    )
    mini_batches = tuple(packer.pack(items, data_parallel_size) for items in parts)
    return UpdatePlan(version, objective, learning_rate, tuple(groups), mini_batches, batch.loss_scale)


def plan_step(
    batch: TrainBatch,
    algorithm: AlgorithmConfig,
    policy: PolicyConfig,
    sizes: RunSizes,
    *,
    seed: int,
    step: int,
    version: int,
    learning_rate: float,
) -> UpdatePlan:
    """Return the plan of the policy update in training step `step`, counted from 1.

    The result of the update is the weights of version `version`. The same step always has the same plan: its seed
    depends only on `seed` and `step`.
    """
    return plan_update(
        batch,
        num_mini_batches=algorithm.num_mini_batches,
        data_parallel_size=sizes.data_parallel,
        token_budget=sizes.row_tokens,
        sharing=Sharing(policy.shared_prompt, policy.min_shared_tokens),
        version=version,
        learning_rate=learning_rate,
        objective=algorithm.loss,
        seed=seed * SEED_STRIDE + step - 1,
    )


def stratify(rollouts: Sequence[Sequence[int] | Int64], num_parts: int, seed: int) -> list[list[Item]]:
    """Shuffle each group's rollouts and split them over `num_parts` mini-batches, nearly equally many to each.

    `rollouts` are the rollout indices of each group. Remainders of different groups go to different mini-batches, so
    that mini-batches stay balanced. Returns sorted (group, rollout) pairs for each mini-batch.
    """
    parts: list[list[Item]] = [[] for _ in range(num_parts)]
    random = np.random.default_rng(seed)
    start = 0
    for group, members in enumerate(rollouts):
        shuffled = random.permutation(len(members)).tolist()
        for position, index in enumerate(shuffled):
            part = parts[(start + position) % num_parts]
            part.append((group, int(members[index])))
        # The next group starts at the part where this one stopped, so no part collects the remainders of all groups.
        start += len(members)
    return [sorted(part) for part in parts]


def fresh_in_the_last(batch: TrainBatch, last: Sequence[Item]) -> list[bool]:
    """Return for each group whether its rollouts in the last mini-batch are an unbiased sample of the sampling policy.

    `last` are the (group, rollout) pairs of the last mini-batch. A group's rollouts in it are biased in two cases:
    dynamic sampling kept the group only because of them, since the group's other rollouts have equal rewards, or
    rollouts were chosen for training by their rewards.
    """
    in_last: list[set[int]] = [set() for _ in batch.groups]
    for group, rollout in last:
        in_last[group].add(rollout)
    fresh = []
    for scored, trained, held_out in zip(batch.groups, batch.rollouts, in_last, strict=True):
        is_chosen = scored.train_indices is None and len(trained) < len(scored.rewards)
        is_kept = True
        if batch.min_reward_range is not None:
            is_other = np.ones(len(scored.rewards), bool)
            is_other[list(held_out)] = False
            is_kept = disagree(scored.rewards[is_other], batch.min_reward_range, full_mark(scored.prompt.payload))
        fresh.append(is_kept and not is_chosen)
    return fresh


class Packer:
    """Packs mini-batches into micro-batches of a bounded number of tokens.

    The ends of turns tell what responses share, in levels: the prompt, the first turn, the second, and so on. A level
    of less than `sharing.min_tokens` tokens counts as part of the next one, as in a row (`policy/rows/segments.py`).
    """

    def __init__(
        self,
        prompt_lengths: Sequence[int],
        response_lengths: Sequence[Int32],
        token_budget: int,
        sharing: Sharing,
        num_sampled: Sequence[Int32] | None = None,
        turn_ends: Sequence[TurnEnds | None] = (),
    ) -> None:
        """Take the prompt and response lengths of all groups of a batch, in tokens.

        `num_sampled` are the tokens of each response that the loss counts, [N] per group (None: all tokens).
        `turn_ends` are the ends of the turns in each group's rollouts (None: unknown).
        """
        self.num_sampled = response_lengths if num_sampled is None else num_sampled
        self.token_budget = token_budget
        self.shares_prompt = sharing.prompt
        self._levels: list[Levels] = []
        ends_of_groups = turn_ends or [None] * len(prompt_lengths)
        for prompt, lengths, ends in zip(prompt_lengths, response_lengths, ends_of_groups, strict=True):
            if sharing.min_tokens == 0:
                ends = None
            self._levels.append(levels_of(prompt, lengths, ends, sharing.min_tokens))
        # `_rollout_span` stacks the levels of several groups, so all need one width.
        most = max(levels.ends.shape[1] for levels in self._levels)
        self._levels = [levels.with_columns(most) for levels in self._levels]

    def pack(self, items: Sequence[Item], data_parallel_size: int) -> tuple[tuple[MicroBatch, ...], ...]:
        """Return the micro-batches of one mini-batch as [rank][micro-batch], equally many for every rank.

        No micro-batch exceeds the token budget unless a single rollout does. The micro-batches of a rank have equal
        cost if the fewest possible ones are then within the budget. With a long tail of response lengths they are
        instead the fewest that hold all rollouts in order, filled as evenly as possible.
        """
        items = sorted(items, key=self._path)
        bounds = self._rollout_span(items).bounds(data_parallel_size)
        shares = [self._rollout_span(items[low:high]) for low, high in pairwise(bounds)]  # one for each rank
        # Ranks have equally many micro-batches, and none of them may be empty.
        most = min(len(share.items) for share in shares)
        most_tokens = max(share.num_tokens for share in shares)
        fewest = min(most, max(1, math.ceil(most_tokens / self.token_budget)))
        # Parts of equal cost keep ranks in step, but a few long responses can push one part above the budget.
        if all(share.tokens(fewest).max() <= self.token_budget for share in shares):
            cuts_of_shares = [share.bounds(fewest) for share in shares]
        else:
            num = max(len(share.filled(self.token_budget)) - 1 for share in shares)
            cuts_of_shares = [share.filled_evenly(min(num, most)) for share in shares]
        ranks = []
        for share, cuts in zip(shares, cuts_of_shares, strict=True):
            micro_batches = [self._micro_batch(share, low, high) for low, high in pairwise(cuts)]
            ranks.append(tuple(micro_batches))
        return tuple(ranks)

    def _path(self, item: Item) -> tuple[int, ...]:
        """Return a rollout's sort key, by which rollouts with a longer shared prefix come closer together."""
        group, rollout = item
        return (group, *self._levels[group].keys[rollout].tolist(), rollout)

    def _rollout_span(self, items: Sequence[Item]) -> RolloutSpan:
        groups = np.array([group for group, _ in items])
        ends = np.stack([self._levels[group].ends[rollout] for group, rollout in items])
        keys = np.stack([self._levels[group].keys[rollout] for group, rollout in items])
        is_new = np.ones(ends.shape, bool)
        if self.shares_prompt:
            is_other_group = groups[1:] != groups[:-1]
            is_other = (keys[1:] != keys[:-1]) | is_other_group[:, None]
            # Equal tokens after different ones have different hidden states and cannot be shared.
            is_after_other = np.logical_or.accumulate(is_other, axis=1)
            # The last level is the end of the whole response, which no other rollout shares.
            is_new[1:, :-1] = is_after_other[:, :-1]
        return RolloutSpan(items, np.diff(ends, axis=1, prepend=0), is_new)

    def _micro_batch(self, span: RolloutSpan, low: int, high: int) -> MicroBatch:
        items = span.items[low:high]
        slices = []
        if self.shares_prompt:
            for group, members in groupby(items, key=itemgetter(0)):
                rollouts = tuple(rollout for _, rollout in members)
                slices.append(GroupSlice(group, rollouts))
        else:
            for group, rollout in items:
                slices.append(GroupSlice(group, (rollout,)))
        num_loss_tokens = sum(int(self.num_sampled[group][rollout]) for group, rollout in items)
        return MicroBatch(tuple(slices), span.tokens_between(low, high), num_loss_tokens)
