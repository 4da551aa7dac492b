"""Model one engine with continuous batching: rollouts enter free slots, and each step decodes one token of each."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lab.studies.cluster_model.curve import EngineCurve
from nemo_brorl.generation.placement.engine_load import PrefixCache


@dataclass
class Chunk:
    """Rollouts of one prompt that an engine gets together."""

    number: int
    prompt: int
    prompt_tokens: int
    lengths: Sequence[int]  # response lengths, which only the engine may read
    num_started: int = 0
    num_ended: int = 0
    started_at: int = 0  # sum of the steps in which the running rollouts started

    @property
    def is_done(self) -> bool:
        return self.num_ended == len(self.lengths)


@dataclass
class EngineModel:
    """An engine whose time advances from one end of a rollout to the next, in closed form.

    Between two ends the batch does not change. `next_end_s` is when the batch changes next by itself. The caller calls
    `run_to_next_end` then, and `add` or `withdraw` in between. Prompts that are not in the prefix cache are computed
    before the step, which takes longer by that.
    """

    curve: EngineCurve
    max_batch: int
    cache: PrefixCache
    time_s: float = 0.0  # time reached, always between two steps
    busy_s: float = 0.0
    prefill_tokens: int = 0
    num_steps: int = 0
    num_ended: int = 0  # ended rollouts
    waiting: deque[Chunk] = field(default_factory=deque)
    _ends: list[tuple[int, int, int]] = field(default_factory=list)  # heap of (step, chunk, context at the end)
    _chunks: dict[int, Chunk] = field(default_factory=dict)  # started chunks that are not done
    _context: int = 0  # tokens attended to in the next step

    @property
    def batch(self) -> int:
        """Number of rollouts that the simulated engine is decoding."""
        return len(self._ends)

    @property
    def next_end_s(self) -> float:
        """Simulated time at which the engine's next rollout ends, or infinity without one."""
        if not self._ends:
            return math.inf
        return self.time_s + self.curve.decode_s(self.batch, self._context, self._ends[0][0] - self.num_steps)

    def add(self, chunk: Chunk, now_s: float) -> None:
        """Queue a chunk of rollouts on the simulated engine.

        It starts at the end of the current step, or at once when the engine is idle, if the batch has room.
        """
        self.waiting.append(chunk)
        if self.batch < self.max_batch and self._is_between_steps(now_s):
            self._admit()

    @property
    def begun(self) -> Iterable[Chunk]:
        """Chunks of rollouts that the engine has started and not finished."""
        return self._chunks.values()

    def run_until(self, now_s: float) -> None:
        """Simulate an engine up to the end of the step under way at `now_s`, unless a rollout ends with that step."""
        self._is_between_steps(now_s)

    def age(self, chunk: Chunk) -> float:
        """Return the mean number of tokens that the running rollouts of a chunk have so far."""
        num_running = chunk.num_started - chunk.num_ended
        return self.num_steps - chunk.started_at / num_running if num_running else 0.0

    def withdraw(self, number: int) -> Chunk | None:
        """Remove and return a queued chunk of rollouts, or return None when it has started or is not on this engine."""
        for chunk in self.waiting:
            if chunk.number == number and chunk.num_started == 0:
                self.waiting.remove(chunk)
                return chunk
        return None

    def run_to_next_end(self) -> list[Chunk]:
        """Simulate decoding until a rollout ends, admit waiting ones, and return the chunks with an ended rollout."""
        self._decode(self._ends[0][0] - self.num_steps)
        ended: dict[int, Chunk] = {}
        while self._ends and self._ends[0][0] == self.num_steps:
            _, number, context = heapq.heappop(self._ends)
            self._context -= context
            chunk = self._chunks[number]
            chunk.num_ended += 1
            chunk.started_at -= self.num_steps - (context - chunk.prompt_tokens)
            self.num_ended += 1
            ended[number] = chunk
        for number, chunk in ended.items():
            if chunk.is_done:
                del self._chunks[number]
        self._admit()
        return list(ended.values())

    def _decode(self, num_steps: int) -> None:
        seconds = self.curve.decode_s(self.batch, self._context, num_steps)
        self.time_s += seconds
        self.busy_s += seconds
        self.num_steps += num_steps
        self._context += num_steps * self.batch

    def _is_between_steps(self, now_s: float) -> bool:
        """Simulate an engine up to the end of the step under way at `now_s`, and return whether this was possible.

        The result is False when a rollout ends with that step, because waiting rollouts are admitted then anyway.
        """
        if not self._ends:
            self.time_s = max(self.time_s, now_s)
            return True
        if now_s <= self.time_s:
            return True
        growth = self.curve.context_s * self.batch / 2
        first = self.curve.decode_s(self.batch, self._context, 1) - growth
        elapsed = now_s - self.time_s
        steps = (
            elapsed / first if growth == 0 else (math.sqrt(first * first + 4 * growth * elapsed) - first) / (2 * growth)
        )
        if math.ceil(steps) >= self._ends[0][0] - self.num_steps:
            return False
        self._decode(math.ceil(steps))
        return True

    def _admit(self) -> None:
        while self.waiting and self.batch < self.max_batch:
            chunk = self.waiting[0]
            if chunk.num_started == 0:
                self._prefill(chunk)
                self._chunks[chunk.number] = chunk
            last = min(len(chunk.lengths), chunk.num_started + self.max_batch - self.batch)
            for length in chunk.lengths[chunk.num_started : last]:
                heapq.heappush(self._ends, (self.num_steps + length, chunk.number, chunk.prompt_tokens + length))
            self._context += (last - chunk.num_started) * chunk.prompt_tokens
            chunk.started_at += (last - chunk.num_started) * self.num_steps
            chunk.num_started = last
            if last == len(chunk.lengths):
                self.waiting.popleft()

    def _prefill(self, chunk: Chunk) -> None:
        uid = str(chunk.prompt)
        if uid not in self.cache:
            seconds = chunk.prompt_tokens / self.curve.prefill_tokens_per_s
            self.time_s += seconds
            self.busy_s += seconds
            self.prefill_tokens += chunk.prompt_tokens
        self.cache.use(uid, chunk.prompt_tokens)
