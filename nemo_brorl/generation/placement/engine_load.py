"""Load of one engine, as the placement believes it: the chunks it holds, the work they still are, the prompts in its
prefix cache. Work is counted in decoded tokens, by the costs of chunks.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class HeldChunk:
    """A chunk that an engine was given and has not finished."""

    uid: str  # of its prompt
    num_rollouts: int
    work_of_one: float  # still to come of a rollout that has not ended, in decoded tokens
    prefill_work: float  # 0 where the engine had the prompt already
    num_begun: int = 0
    num_ended: int = 0
    is_being_stolen: bool = False  # a thief has been proposed, the victim has not answered

    @property
    def num_left(self) -> int:
        """Rollouts that have a place in the batch, or wait for one."""
        return self.num_rollouts - self.num_ended

    @property
    def work(self) -> float:
        """Decoded tokens that are left of it."""
        work = self.num_left * self.work_of_one
        return work if self.num_begun else work + self.prefill_work


class PrefixCache:
    """Prompts an engine is believed to hold: the last used ones, up to `capacity` tokens.

    The engine's own cache also holds responses and forgets blocks under pressure, so this is a guess. A wrong guess
    costs one prefill.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._prompts: OrderedDict[str, int] = OrderedDict()  # prompt uid → tokens, least recently used first
        self._num_tokens = 0

    def __contains__(self, uid: str) -> bool:
        return uid in self._prompts

    def use(self, uid: str, num_tokens: int) -> list[str]:
        """Note that a prompt is computed or read. Returns the prompts that had to go for it."""
        if uid in self._prompts:
            self._prompts.move_to_end(uid)
            return []
        self._prompts[uid] = num_tokens
        self._num_tokens += num_tokens
        gone = []
        # One prompt always stays: it is being computed, whatever its size.
        while self._num_tokens > self._capacity and len(self._prompts) > 1:
            oldest, freed = self._prompts.popitem(last=False)
            self._num_tokens -= freed
            gone.append(oldest)
        return gone

    def drop(self, uid: str) -> None:
        """Let go of a prompt: nobody asks for it any more."""
        # It may have been evicted before.
        self._num_tokens -= self._prompts.pop(uid, 0)

    def uids(self) -> list[str]:
        """Return all prompts, least recently used first."""
        return list(self._prompts)


class EngineLoad:
    """One available engine: chunks in the order they were given, their rollouts and their work."""

    def __init__(self, cache_tokens: int) -> None:
        self.chunks: dict[int, HeldChunk] = {}
        self.cache = PrefixCache(cache_tokens)
        self.prompts_held: dict[str, None] = {}  # in its cache, those that may have waiting chunks
        self.turns_held: dict[str, None] = {}  # the same of trajectories that it sampled so far
        self.num_chunks_of: Counter[str] = Counter()  # by prompt
        self.num_rollouts = 0  # that have not ended
        self.work = 0.0  # decoded tokens that are expected to be left
        self.counted_work = 0.0  # of it in the placement's sum over engines
        self.is_stealing = False  # a chunk of another engine, which has not answered
        self.stamp = 0  # of its newest place in the placement's heaps

    def add(self, chunk: int, held: HeldChunk) -> None:
        """Charge the engine with a chunk."""
        self.chunks[chunk] = held
        self.num_chunks_of[held.uid] += 1
        self._charge(held.num_left, held.work)

    def remove(self, chunk: int) -> HeldChunk:
        """Free what a chunk was charged with."""
        held = self.chunks.pop(chunk)
        self.num_chunks_of[held.uid] -= 1
        # A Counter would keep zeros, and prompts come and go for days.
        if not self.num_chunks_of[held.uid]:
            del self.num_chunks_of[held.uid]
        self._charge(-held.num_left, -held.work)
        return held

    def advance(
        self,
        chunk: int,
        num_begun: int,
        num_ended: int,
        work_of_one: float,
    ) -> None:
        """Note that more rollouts of a chunk have begun or ended; news may arrive out of order, numbers never fall."""
        held = self.chunks[chunk]
        left_before = held.num_left
        work_before = held.work
        held.num_ended = max(held.num_ended, num_ended)
        # The answer of one chunk tells of the others, too, and may overtake an earlier report.
        held.num_begun = max(held.num_begun, num_begun, held.num_ended)
        held.work_of_one = work_of_one
        self._charge(held.num_left - left_before, held.work - work_before)

    def last_unbegun_chunk(self) -> int | None:
        """Return the last chunk given that has not begun and that nobody has asked for."""
        # The engine begins chunks in the order in which it got them, so the last is the likeliest to be free.
        for chunk in reversed(self.chunks):
            held = self.chunks[chunk]
            if held.num_begun == 0 and not held.is_being_stolen:
                return chunk
        return None

    def _charge(self, num_rollouts: int, work: float) -> None:
        self.num_rollouts += num_rollouts
        self.work += work
        if not self.chunks:
            # No rounding is left behind when all is done.
            self.work = 0.0


class EngineOrder:
    """Engines by work, lowest number first of equals. A heap with lazy deletion: an entry with an old stamp is void."""

    def __init__(self, loads: Mapping[int, EngineLoad], most_first: bool = False) -> None:
        self._loads = loads
        self._sign = -1 if most_first else 1
        self._heap: list[tuple[float, int, int]] = []  # (work, engine, stamp)

    def push(self, engine: int) -> None:
        """Have an engine take its place."""
        load = self._loads[engine]
        entry = (self._sign * load.work, engine, load.stamp)
        heapq.heappush(self._heap, entry)

    def first(self) -> int | None:
        """Return the first engine, or None; it keeps its place until its stamp changes."""
        while self._heap:
            # Engines that died, or whose work has changed since, have left their entries behind.
            _, engine, stamp = self._heap[0]
            if engine in self._loads and self._loads[engine].stamp == stamp:
                return engine
            heapq.heappop(self._heap)
        return None
