"""Chunks that no engine has yet, queued by prompt. The prompts with the most work in a response come first."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field

# (minus the expected work of a response, order of submission, prompt uid)
HeapEntry = tuple[float, int, str]


@dataclass
class WaitingPrompt:
    """A prompt that has waiting chunks."""

    uid: str
    order: int  # order of submission
    work_of_one: float  # expected work of one response, in decoded tokens
    num_rollouts: int = 0
    chunks: deque[int] = field(default_factory=deque)

    def comes_before(self, other: WaitingPrompt) -> bool:
        """Return True if this prompt should be sampled before the `other` prompt.

        Its responses are expected to be longer, or they are equally long and it was submitted first.
        """
        if self.work_of_one == other.work_of_one:
            return self.order < other.order
        return self.work_of_one > other.work_of_one

    @property
    def heap_entry(self) -> HeapEntry:
        """Return this prompt's entry in the heaps of prompts that wait for an engine."""
        return (-self.work_of_one, self.order, self.uid)


class WaitingChunks:
    """Waiting prompts, ordered by the expected work of a response, most first. Among equals, the first submitted.

    Two heaps with lazy deletion hold all prompts, and the fresh prompts, which no engine holds. An entry is void once
    the prompt's expected work has changed. Every operation costs the logarithm of the number of prompts.
    """

    def __init__(self) -> None:
        self._prompts: dict[str, WaitingPrompt] = {}
        self._all: list[HeapEntry] = []
        self._fresh: list[HeapEntry] = []
        self._num_seen = 0
        self.num_chunks = 0
        self.work = 0.0  # expected work of all waiting chunks, in decoded tokens
        self.first_in_line: deque[int] = deque()  # chunks that had an engine before

    def __contains__(self, uid: str) -> bool:
        return uid in self._prompts

    def __getitem__(self, uid: str) -> WaitingPrompt:
        return self._prompts[uid]

    def add(
        self,
        uid: str,
        chunk: int,
        num_rollouts: int,
        work_of_one: float,
        is_fresh: bool,
    ) -> None:
        """Append a chunk of rollouts to the queue of its prompt."""
        prompt = self._prompts.get(uid)
        if prompt is None:
            prompt = WaitingPrompt(uid, self._num_seen, work_of_one)
            self._prompts[uid] = prompt
            self._num_seen += 1
            self._push(prompt, is_fresh)
        prompt.chunks.append(chunk)
        self._count(prompt, 1, num_rollouts)

    def expect(
        self,
        uid: str,
        work_of_one: float,
        is_fresh: bool,
    ) -> None:
        """Set the expected work of sampling one response of a prompt that waits for an engine, in decoded tokens."""
        prompt = self._prompts[uid]
        if prompt.work_of_one != work_of_one:
            self.work += prompt.num_rollouts * (work_of_one - prompt.work_of_one)
            prompt.work_of_one = work_of_one
            self._push(prompt, is_fresh)

    def longest(self) -> WaitingPrompt | None:
        """Return the prompt with the longest expected responses among those waiting for an engine, or None."""
        return self._top(self._all)

    def longest_fresh(self, holders: Container[str]) -> WaitingPrompt | None:
        """Return the waiting prompt with the longest expected responses that is in no engine's prefix cache, or None.

        `holders` contains the prompts that an engine's prefix cache holds.
        """
        # Entries of prompts that an engine has got meanwhile are removed here, not when it gets them.
        prompt = self._top(self._fresh)
        while prompt is not None and prompt.uid in holders:
            heapq.heappop(self._fresh)
            prompt = self._top(self._fresh)
        return prompt

    def note_fresh(self, uid: str) -> None:
        """Record that a prompt is no longer in any engine's prefix cache."""
        prompt = self._prompts.get(uid)
        if prompt is not None:
            heapq.heappush(self._fresh, prompt.heap_entry)

    def longest_of(self, uids: dict[str, None]) -> WaitingPrompt | None:
        """Return the prompt among `uids` with the longest expected responses, or None if none of them waits.

        Prompts without rollouts that wait for an engine are removed from `uids`.
        """
        longest: WaitingPrompt | None = None
        for uid in list(uids):
            prompt = self._prompts.get(uid)
            # Removed here, because the code that takes the last chunk does not know who holds the prompt.
            if prompt is None:
                del uids[uid]
            elif longest is None or prompt.comes_before(longest):
                longest = prompt
        return longest

    def discard(
        self,
        uid: str,
        chunk: int,
        num_rollouts: int,
    ) -> bool:
        """Remove a chunk of rollouts from those that wait for an engine.

        Returns True if the chunk was waiting.
        """
        if chunk in self.first_in_line:
            self.first_in_line.remove(chunk)
            return True
        prompt = self._prompts.get(uid)
        if prompt is None or chunk not in prompt.chunks:
            return False
        self.remove(uid, chunk, num_rollouts)
        return True

    def remove(
        self,
        uid: str,
        chunk: int,
        num_rollouts: int,
    ) -> None:
        """Remove a chunk of rollouts from the queue of its prompt."""
        prompt = self._prompts[uid]
        prompt.chunks.remove(chunk)
        self._count(prompt, -1, -num_rollouts)
        if not prompt.chunks:
            del self._prompts[uid]

    def _count(
        self,
        prompt: WaitingPrompt,
        num_chunks: int,
        num_rollouts: int,
    ) -> None:
        prompt.num_rollouts += num_rollouts
        self.num_chunks += num_chunks
        self.work += num_rollouts * prompt.work_of_one
        if not self.num_chunks:
            # Clear the rounding errors of the sum.
            self.work = 0.0

    def _push(self, prompt: WaitingPrompt, is_fresh: bool) -> None:
        heapq.heappush(self._all, prompt.heap_entry)
        if is_fresh:
            heapq.heappush(self._fresh, prompt.heap_entry)

    def _top(self, heap: list[HeapEntry]) -> WaitingPrompt | None:
        while heap:
            prompt = self._prompts.get(heap[0][2])
            if prompt is not None and prompt.heap_entry == heap[0]:
                return prompt
            heapq.heappop(heap)
        return None
