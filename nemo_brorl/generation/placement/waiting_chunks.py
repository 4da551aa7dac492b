"""Chunks that no engine has yet, by prompt, those with the most work in a response first."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field


@dataclass
class WaitingPrompt:
    """A prompt with chunks that wait."""

    uid: str
    order: int  # of submission
    work_of_one: float  # expected of one of its responses, in decoded tokens; most first
    num_rollouts: int = 0
    chunks: deque[int] = field(default_factory=deque)


class WaitingChunks:
    """Prompts in order of the work expected of a response, most first. Of equal ones, the first submitted.

    Two heaps with lazy deletion: all prompts, and those no engine holds (fresh). An entry whose expectation is not the
    prompt's any more is void. Every operation costs the logarithm of the number of prompts.
    """

    def __init__(self) -> None:
        self._prompts: dict[str, WaitingPrompt] = {}
        self._all: list[tuple[float, int, str]] = []
        self._fresh: list[tuple[float, int, str]] = []
        self._num_seen = 0
        self.num_chunks = 0
        self.work = 0.0  # decoded tokens expected of all
        self.first_in_line: deque[int] = deque()  # chunks that had an engine already and lost it

    def __contains__(self, uid: str) -> bool:
        return uid in self._prompts

    def __getitem__(self, uid: str) -> WaitingPrompt:
        return self._prompts[uid]

    def add(self, uid: str, chunk: int, num_rollouts: int, work_of_one: float, is_fresh: bool) -> None:
        """Append a chunk to its prompt's."""
        if uid not in self._prompts:
            self._prompts[uid] = WaitingPrompt(uid, self._num_seen, work_of_one)
            self._num_seen += 1
            self._push(self._prompts[uid], is_fresh)
        self._prompts[uid].chunks.append(chunk)
        self._count(self._prompts[uid], 1, num_rollouts)

    def expect(self, uid: str, work_of_one: float, is_fresh: bool) -> None:
        """A prompt's responses are now expected to be this long."""
        prompt = self._prompts[uid]
        if prompt.work_of_one != work_of_one:
            self.work += prompt.num_rollouts * (work_of_one - prompt.work_of_one)
            prompt.work_of_one = work_of_one
            self._push(prompt, is_fresh)

    def longest(self) -> WaitingPrompt | None:
        """The prompt whose responses are expected to be the longest."""
        return self._top(self._all)

    def longest_fresh(self, holders: dict[str, set[int]]) -> WaitingPrompt | None:
        """The same of the prompts that no engine holds."""
        while (prompt := self._top(self._fresh)) is not None and holders.get(prompt.uid):
            heapq.heappop(self._fresh)
        return prompt

    def note_fresh(self, uid: str) -> None:
        """The last engine that held a prompt does not any more."""
        prompt = self._prompts.get(uid)
        if prompt is not None:
            heapq.heappush(self._fresh, (-prompt.work_of_one, prompt.order, uid))

    def remove(self, uid: str, chunk: int, num_rollouts: int) -> None:
        """Take a chunk out."""
        prompt = self._prompts[uid]
        prompt.chunks.remove(chunk)
        self._count(prompt, -1, -num_rollouts)
        if not prompt.chunks:
            del self._prompts[uid]

    def _count(self, prompt: WaitingPrompt, num_chunks: int, num_rollouts: int) -> None:
        prompt.num_rollouts += num_rollouts
        self.num_chunks += num_chunks
        self.work = self.work + num_rollouts * prompt.work_of_one if self.num_chunks else 0.0

    def _push(self, prompt: WaitingPrompt, is_fresh: bool) -> None:
        heapq.heappush(self._all, (-prompt.work_of_one, prompt.order, prompt.uid))
        if is_fresh:
            heapq.heappush(self._fresh, (-prompt.work_of_one, prompt.order, prompt.uid))

    def _top(self, heap: list[tuple[float, int, str]]) -> WaitingPrompt | None:
        while heap:
            negative, order, uid = heap[0]
            prompt = self._prompts.get(uid)
            if prompt is not None and prompt.order == order and prompt.work_of_one == -negative:
                return prompt
            heapq.heappop(heap)
        return None
