"""Which engine samples which chunk. Pure bookkeeping: no Ray, no clock, no randomness.

Seeds belong to rollouts, so placement never changes what is sampled, only how fast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from nemo_brorl.types import RolloutRequest


@dataclass
class _Load:
    """What one available engine holds."""

    chunks: set[int] = field(default_factory=set)
    rollouts: int = 0
    tokens: int = 0


class ChunkPlacement:
    """Hands chunks to engines until all are finished.

    Life of a chunk: waiting ──assign──► assigned to an engine ──finish──► finished; `lose` puts the chunks of a dead
    engine back to waiting, first in line. `assign` charges the engine with the chunk's rollouts and tokens, `finish` and
    `lose` free them. An engine has room while it holds at most `max_rollouts` rollouts, that is one chunk more than its
    batch, so that the next chunk is there when a slot of the batch falls free. Engines are unavailable until `add_engine`.

    Whose turn: the engine with room and the fewest outstanding tokens (lowest number first). What it gets: the next chunk
    of a prompt it has sampled before (the prompt is in its prefix cache); else of a prompt no engine has; else it steals
    from the prompt with the most waiting chunks.

    Two engines, prompts A and B of two chunks each: A0→0, B0→1, A1→0, B1→1.
    """

    def __init__(self, requests: Sequence[RolloutRequest], max_rollouts: int) -> None:
        self._requests = tuple(requests)
        self._max_rollouts = max_rollouts
        self._waiting: dict[str, deque[int]] = {}  # prompt uid → its chunks, in order
        for chunk, request in enumerate(self._requests):
            self._waiting.setdefault(request.prompt.uid, deque()).append(chunk)
        self._loads: dict[int, _Load] = {}  # by available engine
        self._holders: dict[str, set[int]] = {uid: set() for uid in self._waiting}  # engines that have sampled the prompt
        self._num_unfinished = len(self._requests)

    @property
    def is_finished(self) -> bool:
        """Whether every chunk is finished."""
        return self._num_unfinished == 0

    def add_engine(self, engine: int) -> None:
        """An engine is ready, with an empty prefix cache."""
        self._loads[engine] = _Load()

    def assign(self) -> tuple[int, int] | None:
        """(engine, chunk) of the next assignment; None when nothing waits or no engine has room."""
        with_room = [engine for engine, load in self._loads.items() if load.rollouts <= self._max_rollouts]
        if not self._waiting or not with_room:
            return None
        engine = min(with_room, key=lambda candidate: (self._loads[candidate].tokens, candidate))
        uid = self._choose_prompt(engine)
        chunk = self._waiting[uid].popleft()
        if not self._waiting[uid]:
            del self._waiting[uid]
        self._holders[uid].add(engine)
        self._loads[engine].chunks.add(chunk)
        self._charge(engine, chunk, sign=1)
        return engine, chunk

    def finish(self, engine: int, chunk: int) -> None:
        """A chunk arrived from an engine, which has room again."""
        self._loads[engine].chunks.remove(chunk)
        self._charge(engine, chunk, sign=-1)
        self._num_unfinished -= 1

    def lose(self, engine: int) -> None:
        """An engine died: it is unavailable until `add_engine`, its cache is gone, and what it held waits again."""
        load = self._loads.pop(engine)
        for chunk in sorted(load.chunks, reverse=True):
            self._waiting.setdefault(self._requests[chunk].prompt.uid, deque()).appendleft(chunk)
        for holders in self._holders.values():
            holders.discard(engine)

    def _choose_prompt(self, engine: int) -> str:
        for uid in self._waiting:
            if engine in self._holders[uid]:
                return uid
        for uid in self._waiting:
            if not self._holders[uid]:
                return uid
        return max(self._waiting, key=lambda uid: len(self._waiting[uid]))

    def _charge(self, engine: int, chunk: int, sign: int) -> None:
        """Add or remove what a chunk may cost: its prompt, and its responses at full length."""
        request = self._requests[chunk]
        tokens = len(request.prompt.token_ids) + request.num_rollouts * request.sampling.max_tokens
        self._loads[engine].rollouts += sign * request.num_rollouts
        self._loads[engine].tokens += sign * tokens
