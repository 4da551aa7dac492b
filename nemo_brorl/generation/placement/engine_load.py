"""Load of one engine, as the placement believes it: the chunks it holds, the work they still are, the prompts in its
prefix cache. Work is counted in decoded tokens, by the costs of chunks. Chunks that no engine has yet wait by prompt,
those with the most work in a response first.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from nemo_brorl.config.rollouts import PlacementConfig
from nemo_brorl.ports import Forecast
from nemo_brorl.types import RolloutRequest

HeapEntry = tuple[float, int, str]  # expected work of a response, negative; order of submission; prompt


@dataclass
class WaitingPrompt:
    """A prompt with chunks that wait."""

    uid: str
    order: int  # of submission
    work_of_one: float  # expected of one of its responses, in decoded tokens; most first
    num_rollouts: int = 0
    chunks: deque[int] = field(default_factory=deque)

    def comes_before(self, other: WaitingPrompt) -> bool:
        """Whether its responses are expected to be longer; of equal ones, whether it was submitted first."""
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
        """A prompt's responses are now expected to be this long."""
        prompt = self._prompts[uid]
        if prompt.work_of_one != work_of_one:
            self.work += prompt.num_rollouts * (work_of_one - prompt.work_of_one)
            prompt.work_of_one = work_of_one
            self._push(prompt, is_fresh)

    def longest(self) -> WaitingPrompt | None:
        """The prompt whose responses are expected to be the longest."""
        return self._top(self._all)

    def longest_fresh(self, holders: Container[str]) -> WaitingPrompt | None:
        """The same of the prompts that no engine holds, that is those that are not in `holders`."""
        prompt = self._top(self._fresh)
        while prompt is not None and prompt.uid in holders:
            heapq.heappop(self._fresh)
            prompt = self._top(self._fresh)
        return prompt

    def note_fresh(self, uid: str) -> None:
        """The last engine that held a prompt does not any more."""
        prompt = self._prompts.get(uid)
        if prompt is not None:
            heapq.heappush(self._fresh, prompt.heap_entry)

    def longest_of(self, uids: dict[str, None]) -> WaitingPrompt | None:
        """The same of some prompts. Those that have nothing waiting any more are taken out of `uids`."""
        longest: WaitingPrompt | None = None
        for uid in list(uids):
            prompt = self._prompts.get(uid)
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
            self.work = 0.0  # no rounding is left behind when nothing waits

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


class ChunkCosts:
    """A chunk costs its rollouts times the tokens forecast for one of them, each of which costs `context_cost` more for
    every token it attends to, and its prompt times `prefill_cost` on an engine that does not hold the prompt."""

    def __init__(self, config: PlacementConfig, forecast: Forecast) -> None:
        self._config = config
        self._forecast = forecast

    def of_rollout(self, request: RolloutRequest, age: float = 0.0) -> float:
        """Work that is left of one rollout of a request, which have `age` tokens."""
        tokens = self._forecast.tokens(request, age)
        num_before = age
        if request.partial is not None and not age:
            num_before = float(request.partial.lengths.mean())
        context = len(request.prompt.token_ids) + num_before + tokens / 2  # of a token, on average
        return tokens * (1.0 + self._config.context_cost * context)

    def of_first_tokens(self, request: RolloutRequest) -> float:
        """Work of computing what a request begins with."""
        return self._config.prefill_cost * self.num_first_tokens(request)

    def num_first_tokens(self, request: RolloutRequest) -> int:
        """Tokens of the prompt, and of rollouts to go on with."""
        num_tokens = len(request.prompt.token_ids)
        if request.partial is not None:
            num_tokens += int(request.partial.lengths.sum())
        return num_tokens


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
        """A prompt is computed or read. Returns the prompts that had to go for it."""
        if uid in self._prompts:
            self._prompts.move_to_end(uid)
            return []
        self._prompts[uid] = num_tokens
        self._num_tokens += num_tokens
        gone = []
        while self._num_tokens > self._capacity and len(self._prompts) > 1:
            oldest, freed = self._prompts.popitem(last=False)
            self._num_tokens -= freed
            gone.append(oldest)
        return gone

    def drop(self, uid: str) -> None:
        """Nobody asks for this one any more."""
        self._num_tokens -= self._prompts.pop(uid, 0)

    def uids(self) -> list[str]:
        """All prompts, least recently used first."""
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
        """More rollouts of a chunk have begun or ended; news may arrive out of order, numbers never fall."""
        held = self.chunks[chunk]
        left_before = held.num_left
        work_before = held.work
        held.num_ended = max(held.num_ended, num_ended)
        held.num_begun = max(held.num_begun, num_begun, held.num_ended)
        held.work_of_one = work_of_one
        self._charge(held.num_left - left_before, held.work - work_before)

    def last_unbegun_chunk(self) -> int | None:
        """The last chunk given that has not begun and that nobody has asked for."""
        for chunk in reversed(self.chunks):
            held = self.chunks[chunk]
            if held.num_begun == 0 and not held.is_being_stolen:
                return chunk
        return None

    def _charge(self, num_rollouts: int, work: float) -> None:
        self.num_rollouts += num_rollouts
        self.work += work
        if not self.chunks:
            self.work = 0.0  # no rounding is left behind when all is done


class EngineOrder:
    """Engines by work, lowest number first of equals. A heap with lazy deletion: an entry with an old stamp is void."""

    def __init__(self, loads: Mapping[int, EngineLoad], most_first: bool = False) -> None:
        self._loads = loads
        self._sign = -1 if most_first else 1
        self._heap: list[tuple[float, int, int]] = []  # (work, engine, stamp)

    def push(self, engine: int) -> None:
        """An engine takes its place."""
        load = self._loads[engine]
        entry = (self._sign * load.work, engine, load.stamp)
        heapq.heappush(self._heap, entry)

    def first(self) -> int | None:
        """The first engine, or None; it keeps its place until its stamp changes."""
        while self._heap:
            _, engine, stamp = self._heap[0]
            if engine in self._loads and self._loads[engine].stamp == stamp:
                return engine
            heapq.heappop(self._heap)
        return None
