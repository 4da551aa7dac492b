"""What rollouts of a group share, by the ends of their turns, and runs of such rollouts to be cut into parts.

Levels are a prompt, the first turn with what was observed after it, the second one, and so on. What lies on a level
counts once for neighbours that share it and all levels before; a cut between them makes it count twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nemo_brorl.types import Bool, Int32, Int64, TurnEnds, UInt64

Item = tuple[int, int]  # (group, rollout)

DEEPEST = 16  # levels below a prompt that are shared: each is a pass of the attention over all that lies below it


class Levels(NamedTuple):
    """Of a group's rollouts: how far each level reaches, the prompt included, and what it is."""

    ends: Int64  # [N, levels], the last one is the whole response
    keys: UInt64  # [N, levels], equal where rollouts have the same tokens until there; any in the last

    def with_columns(self, num: int) -> Levels:
        """The same with further levels in which nothing lies."""
        missing = ((0, 0), (0, num - self.ends.shape[1]))
        return Levels(np.pad(self.ends, missing, mode="edge"), np.pad(self.keys, missing))


def levels_of(
    prompt_length: int,
    lengths: Int32,
    turn_ends: TurnEnds | None,
    least_shared: int,
) -> Levels:
    """A prompt, at most `DEEPEST` ends of turns, and whole responses. Where a turn ends too soon after the last level,
    its level is empty: the tokens belong to the next."""
    num = len(lengths)
    start = np.zeros(num, np.int64)
    ends = [start]
    keys = [np.zeros(num, np.uint64)]
    if turn_ends is not None:
        for turn in range(min(turn_ends.lengths.shape[1], DEEPEST)):
            end = turn_ends.lengths[:, turn]
            is_enough = end - start >= least_shared
            start = np.where(is_enough, end, start)
            ends.append(start)
            keys.append(np.where(is_enough, turn_ends.keys[:, turn], np.uint64(0)))
    ends.append(lengths.astype(np.int64))
    keys.append(np.zeros(num, np.uint64))
    return Levels(prompt_length + np.stack(ends, axis=1), np.stack(keys, axis=1))


class Run:
    """Rollouts in the order of their paths, to be cut into contiguous parts. Cutting one into many sizes costs little:
    with long tails of lengths, hundreds are tried before every part is within the budget."""

    def __init__(self, items: Sequence[Item], lengths: Int64, is_new: Bool) -> None:
        """Arrays [n, levels] over the items: tokens of the item on each level, and whether the one before it does not
        share them."""
        self.items = items
        new = (lengths * is_new).sum(axis=1)
        self._shared = lengths.sum(axis=1) - new  # tokens that an item shares with the one before
        self._ends = np.append(0, np.cumsum(new))  # tokens up to each bound, each once
        self.num_tokens = int(self._ends[-1])
        costs = np.zeros(len(items))
        for level in range(lengths.shape[1]):
            starts = np.flatnonzero(is_new[:, level])
            sharers = np.diff(np.append(starts, len(items)))
            costs += lengths[:, level] / np.repeat(sharers, sharers)
        self._costs = np.cumsum(costs)

    def bounds(self, num_parts: int) -> list[int]:
        """Where non-empty parts of nearly equal cost begin and end, [num_parts + 1]."""
        return [0, *self._marks(num_parts).tolist(), len(self.items)]

    def tokens(self, num_parts: int) -> Int64:
        """Tokens of each part, with a copy of its own of what it shares with the one before."""
        ends = np.append(self._marks(num_parts), len(self.items))
        starts = np.append(0, ends[:-1])
        return self._ends[ends] - self._ends[starts] + self._shared[starts]

    def tokens_between(self, low: int, high: int) -> int:
        """Tokens of the part [low, high)."""
        return int(self._ends[high] - self._ends[low] + self._shared[low])

    def filled(self, limit: int) -> list[int]:
        """Bounds of the fewest contiguous parts of at most `limit` tokens; a rollout above it is alone."""
        bounds = [0]
        while bounds[-1] < len(self.items):
            start = bounds[-1]
            room = limit + self._ends[start] - self._shared[start]
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
