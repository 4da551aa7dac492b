"""Which engines are believed to hold what chunks begin with: a prompt, or trajectories up to their next turn."""

from __future__ import annotations

from collections.abc import Mapping

from nemo_brorl.generation.placement.costs import ChunkCosts
from nemo_brorl.generation.placement.engine_load import EngineLoad
from nemo_brorl.generation.placement.waiting import WaitingChunks
from nemo_brorl.types import RolloutRequest


class PrefixHolders:
    """What a chunk begins with has a name: the uid of its prompt, which others begin with too, or, for the next turn of
    trajectories whose tokens an engine has, one of its own, as long as the chunk is there."""

    def __init__(
        self,
        engines: Mapping[int, EngineLoad],
        waiting: WaitingChunks,
        costs: ChunkCosts,
    ) -> None:
        self.of: dict[str, set[int]] = {}  # by name
        self._names: dict[int, str] = {}  # by chunk
        self._turns: dict[int, int] = {}  # by chunk with a name of its own: the engine that sampled its last tokens
        self._engines = engines
        self._waiting = waiting
        self._costs = costs

    def add(self, chunk: int, request: RolloutRequest) -> str:
        """Return the name of what a new chunk begins with, from now on."""
        name = request.prompt.uid
        partial = request.partial
        is_turn = partial is not None and partial.engine in self._engines
        # Its tokens are nobody else's, so it shares its name with no other chunk.
        if is_turn:
            name = f"{name}, chunk {chunk}"
        self._names[chunk] = name
        if partial is not None and is_turn:
            self._turns[chunk] = partial.engine
            self.add_holder(partial.engine, chunk, request)
            self._engines[partial.engine].turns_held[name] = None
        for engine in self.of.get(name, ()):
            self._engines[engine].prompts_held[name] = None
        return name

    def name(self, chunk: int) -> str:
        """Say what the chunk begins with."""
        return self._names[chunk]

    def turn_holder(self, chunk: int) -> int | None:
        """Return the engine with the tokens of trajectories at their next turn; None where it is gone, or this is no
        turn."""
        engine = self._turns.get(chunk)
        if engine is None or engine not in self.of.get(self._names[chunk], ()):
            return None
        return engine

    def add_holder(
        self,
        engine: int,
        chunk: int,
        request: RolloutRequest,
    ) -> None:
        """Note that an engine holds what a chunk begins with, in place of others."""
        name = self._names[chunk]
        load = self._engines[engine]
        self.of.setdefault(name, set()).add(engine)
        load.prompts_held[name] = None
        num_tokens = self._costs.num_first_tokens(request)
        # The engine's own cache does the same, and tells nobody.
        for evicted in load.cache.use(name, num_tokens):
            self.forget(engine, evicted)
            load.prompts_held.pop(evicted, None)
            load.turns_held.pop(evicted, None)

    def forget(self, engine: int, name: str) -> None:
        """Note that an engine holds this no more."""
        holders = self.of[name]
        holders.discard(engine)
        if not holders:
            del self.of[name]
            self._waiting.note_fresh(name)

    def remove(self, chunk: int) -> str:
        """Note that a chunk is gone; nobody else begins with what a turn did. Returns its name."""
        name = self._names.pop(chunk)
        if self._turns.pop(chunk, None) is None:
            return name
        for engine in self.of.pop(name, ()):
            load = self._engines[engine]
            load.cache.drop(name)
            load.prompts_held.pop(name, None)
            load.turns_held.pop(name, None)
        return name
