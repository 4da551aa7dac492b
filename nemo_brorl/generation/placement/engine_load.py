"""Estimated load of one engine: its chunks, their remaining work, and the prompts in its prefix cache.

Work is counted in decoded tokens, by the costs of chunks.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class AssignedChunk:
    """A chunk that is assigned to an engine and not finished."""

    uid: str  # name of its prefix: the prompt's uid, or the name of a trajectory's turn
    num_rollouts: int
    work_of_one: float  # remaining work of a rollout that has not ended, in decoded tokens
    prefill_work: float  # 0 if the engine had the prompt already
    num_started: int = 0
    num_ended: int = 0

    @property
    def num_left(self) -> int:
        """Return the number of the chunk's rollouts that are in the engine's batch or wait for a slot in it."""
        return self.num_rollouts - self.num_ended

    @property
    def work(self) -> float:
        """Return the remaining work of the chunk's rollouts on its engine, in decoded tokens."""
        work = self.num_left * self.work_of_one
        return work if self.num_started else work + self.prefill_work


class PrefixCache:
    """Estimate of the prompts in an engine's prefix cache: the ones used last, up to `capacity` tokens.

    The engine's real cache also holds responses and evicts blocks under pressure, so this is a guess. A wrong guess
    costs one prefill.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._prompts: OrderedDict[str, int] = OrderedDict()  # prompt uid → tokens, least recently used first
        self._num_tokens = 0

    def __contains__(self, uid: str) -> bool:
        return uid in self._prompts

    def use(self, uid: str, num_tokens: int) -> list[str]:
        """Record that an engine computes a prompt or reads it from its prefix cache.

        Returns the prompts that were evicted from the prefix cache to make room for it.
        """
        if uid in self._prompts:
            self._prompts.move_to_end(uid)
            return []
        self._prompts[uid] = num_tokens
        self._num_tokens += num_tokens
        gone = []
        # One prompt always stays, because it is being computed, whatever its size.
        while self._num_tokens > self._capacity and len(self._prompts) > 1:
            oldest, freed = self._prompts.popitem(last=False)
            self._num_tokens -= freed
            gone.append(oldest)
        return gone

    def drop(self, uid: str) -> None:
        """Remove a prompt from the estimated prefix cache of an engine, because no rollout needs it any more."""
        # The prompt may have been evicted before.
        self._num_tokens -= self._prompts.pop(uid, 0)

    def uids(self) -> list[str]:
        """Return the uids of all prompts in the engine's prefix cache, least recently used first."""
        return list(self._prompts)


class EngineLoad:
    """Load of one available engine: its chunks in the order of assignment, their rollouts and their work."""

    def __init__(self, cache_tokens: int) -> None:
        self.chunks: dict[int, AssignedChunk] = {}
        self._movable: dict[int, None] = {}  # chunks that have not started and were offered to no other engine
        self.cache = PrefixCache(cache_tokens)
        self.cached_prompts: dict[str, None] = {}  # cached prompts that may have waiting chunks
        self.cached_turns: dict[str, None] = {}  # trajectories that it sampled so far and that may have waiting turns
        self.num_chunks_of: Counter[str] = Counter()  # key: prompt uid
        self.num_rollouts = 0  # rollouts that have not ended
        self.work = 0.0  # expected remaining work, in decoded tokens
        self.counted_work = 0.0  # share of `work` in the placement's sum over engines
        self.is_stealing = False  # waits for the answer of another engine about a chunk
        self.stamp = 0  # number of its newest entry in the placement's heaps

    def add(self, chunk: int, assigned: AssignedChunk) -> None:
        """Add a chunk of rollouts to the engine's load."""
        self.chunks[chunk] = assigned
        self._movable[chunk] = None
        self.num_chunks_of[assigned.uid] += 1
        self._charge(assigned.num_left, assigned.work)

    def remove(self, chunk: int) -> AssignedChunk:
        """Remove a chunk of rollouts from the engine's load."""
        assigned = self.chunks.pop(chunk)
        self._movable.pop(chunk, None)
        self.num_chunks_of[assigned.uid] -= 1
        # A Counter keeps zeros, and runs see new prompts for days.
        if not self.num_chunks_of[assigned.uid]:
            del self.num_chunks_of[assigned.uid]
        self._charge(-assigned.num_left, -assigned.work)
        return assigned

    def advance(
        self,
        chunk: int,
        num_started: int,
        num_ended: int,
        work_of_one: float,
    ) -> None:
        """Update how many rollouts of a chunk the engine has started and ended.

        Progress reports may arrive out of order, so the numbers never fall.
        """
        assigned = self.chunks[chunk]
        left_before = assigned.num_left
        work_before = assigned.work
        assigned.num_ended = max(assigned.num_ended, num_ended)
        # The reply of one chunk also reports on the engine's other chunks, and may overtake an earlier report.
        assigned.num_started = max(assigned.num_started, num_started, assigned.num_ended)
        assigned.work_of_one = work_of_one
        if assigned.num_started:
            self._movable.pop(chunk, None)
        self._charge(assigned.num_left - left_before, assigned.work - work_before)

    def last_unstarted_chunk(self) -> int | None:
        """Return the last chunk of rollouts assigned to this engine that may move to another engine, or None.

        The engine has not started it, and it was not offered to another engine.
        """
        # An engine starts chunks in the order of assignment, so the last one is the likeliest not to have started.
        return next(reversed(self._movable), None)

    def offer(self, chunk: int) -> None:
        """Record that a chunk of rollouts was offered to another engine, and its own engine has not answered yet."""
        del self._movable[chunk]

    def _charge(self, num_rollouts: int, work: float) -> None:
        self.num_rollouts += num_rollouts
        self.work += work
        if not self.chunks:
            # Clear the rounding errors of the sum.
            self.work = 0.0


class EngineOrder:
    """Engines ordered by work, and by index among equals.

    A heap with lazy deletion: an entry with an old stamp is void.
    """

    def __init__(self, loads: Mapping[int, EngineLoad], most_first: bool = False) -> None:
        self._loads = loads
        self._sign = -1 if most_first else 1
        self._heap: list[tuple[float, int, int]] = []  # (work, engine, stamp)

    def push(self, engine: int) -> None:
        """Insert an engine into the heap that orders engines by their remaining work."""
        load = self._loads[engine]
        entry = (self._sign * load.work, engine, load.stamp)
        heapq.heappush(self._heap, entry)

    def first(self) -> int | None:
        """Return the engine with the least remaining work (or most, for `most_first`), or None if there is no engine.

        The engine stays in the heap until its load changes.
        """
        while self._heap:
            # Entries of engines that died, or whose work has changed, are still in the heap.
            _, engine, stamp = self._heap[0]
            if engine in self._loads and self._loads[engine].stamp == stamp:
                return engine
            heapq.heappop(self._heap)
        return None
