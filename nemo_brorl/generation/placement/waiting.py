"""Chunks that no engine has yet: they wait by prompt, those with the most work in a response first."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field

# Expected work of a response, negative; order of submission; prompt.
HeapEntry = tuple[float, int, str]


@dataclass
class WaitingPrompt:
    """A prompt with chunks that wait."""

    uid: str
    order: int  # of submission
    work_of_one: float  # expected of one of its responses, in decoded tokens; most first
    num_rollouts: int = 0
    chunks: deque[int] = field(default_factory=deque)

    def comes_before(self, other: WaitingPrompt) -> bool:
        """Say whether its responses are expected to be longer; of equal ones, whether it was submitted first."""
        if self.work_of_one == other.work_of_one:
            return self.order < other.order
        return self.work_of_one > other.work_of_one

    @property
    def heap_entry(self) -> HeapEntry:
        """Its place in a heap."""
        return (-self.work_of_one, self.order, self.uid)


class WaitingChunks:
    """Prompts in order of the work expected of a response, most first. Of equal ones, the first submitted.

    Two heaps with lazy deletion: all prompts, and those no engine holds (fresh). An entry whose expectation is not the
    prompt's any more is void. Every operation costs the logarithm of the number of prompts.
    """

    def __init__(self) -> None:
        self._prompts: dict[str, WaitingPrompt] = {}
        self._all: list[HeapEntry] = []
        self._fresh: list[HeapEntry] = []
        self._num_seen = 0
        self.num_chunks = 0
        self.work = 0.0  # decoded tokens expected of all
        self.first_in_line: deque[int] = deque()  # chunks that had an engine already and lost it

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
        """Append a chunk to its prompt's."""
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
        """Note that a prompt's responses are now expected to be this long."""
        prompt = self._prompts[uid]
        if prompt.work_of_one != work_of_one:
            self.work += prompt.num_rollouts * (work_of_one - prompt.work_of_one)
            prompt.work_of_one = work_of_one
            self._push(prompt, is_fresh)

    def longest(self) -> WaitingPrompt | None:
        """Return the prompt whose responses are expected to be the longest."""
        return self._top(self._all)

    def longest_fresh(self, holders: Container[str]) -> WaitingPrompt | None:
        """Return the same of the prompts that no engine holds, that is those that are not in `holders`."""
        # Entries of prompts that an engine has got meanwhile are cleared away here, not when it gets them.
        prompt = self._top(self._fresh)
        while prompt is not None and prompt.uid in holders:
            heapq.heappop(self._fresh)
            prompt = self._top(self._fresh)
        return prompt

    def note_fresh(self, uid: str) -> None:
        """Note that the last engine which held a prompt does not any more."""
        prompt = self._prompts.get(uid)
        if prompt is not None:
            heapq.heappush(self._fresh, prompt.heap_entry)

    def longest_of(self, uids: dict[str, None]) -> WaitingPrompt | None:
        """Return the same of some prompts. Those that have nothing waiting any more are taken out of `uids`."""
        longest: WaitingPrompt | None = None
        for uid in list(uids):
            prompt = self._prompts.get(uid)
            # Cleared away here: whoever takes the last chunk does not know who holds the prompt.
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
        """Take a chunk out if it is there; whether it was."""
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
        """Take a chunk out of its prompt's."""
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
            # No rounding is left behind when nothing waits.
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
