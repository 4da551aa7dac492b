"""Estimate of which engines have which prefixes in their cache: prompts, or trajectories up to their next turn."""

from __future__ import annotations

from collections.abc import Mapping

from nemo_brorl.generation.placement.costs import ChunkCosts
from nemo_brorl.generation.placement.engine_load import EngineLoad
from nemo_brorl.generation.placement.waiting import WaitingChunks
from nemo_brorl.types import RolloutRequest


class PrefixHolders:
    """Names of the prefixes of chunks, with the engines that are assumed to hold each prefix.

    The name is the uid of the prompt, which other chunks share. The next turn of trajectories whose tokens an engine
    has gets a name of its own, while the chunk exists.
    """

    def __init__(
        self,
        engines: Mapping[int, EngineLoad],
        waiting: WaitingChunks,
        costs: ChunkCosts,
    ) -> None:
        self.by_prefix: dict[str, set[int]] = {}  # prefix name → engines that hold it
        self._names: dict[int, str] = {}  # chunk number → prefix name
        self._turns: dict[int, int] = {}  # chunk with a name of its own → engine that sampled its last tokens
        self._engines = engines
        self._waiting = waiting
        self._costs = costs

    def add(self, chunk: int, request: RolloutRequest) -> str:
        """Register a new chunk of rollouts, and return the name of its prefix in the engines' prefix caches."""
        name = request.prompt.uid
        partial = request.partial
        is_turn = partial is not None and partial.engine in self._engines
        # No other chunk has these tokens, so the name is the chunk's own.
        if is_turn:
            name = f"{name}, chunk {chunk}"
        self._names[chunk] = name
        if partial is not None and is_turn:
            self._turns[chunk] = partial.engine
            self.add_holder(partial.engine, chunk, request)
            self._engines[partial.engine].cached_turns[name] = None
        for engine in self.by_prefix.get(name, ()):
            self._engines[engine].cached_prompts[name] = None
        return name

    def name(self, chunk: int) -> str:
        """Return the name of the prefix that a chunk's rollouts start from."""
        return self._names[chunk]

    def turn_holder(self, chunk: int) -> int | None:
        """Return the engine whose prefix cache holds the tokens of trajectories up to their next turn.

        The result is None if that engine was lost, or if the chunk is not the next turn of trajectories.
        """
        engine = self._turns.get(chunk)
        if engine is None or engine not in self.by_prefix.get(self._names[chunk], ()):
            return None
        return engine

    def add_holder(
        self,
        engine: int,
        chunk: int,
        request: RolloutRequest,
    ) -> None:
        """Record that an engine's prefix cache now holds the prefix of a chunk of rollouts.

        Prefixes that the engine evicts to make room are recorded as lost.
        """
        name = self._names[chunk]
        load = self._engines[engine]
        self.by_prefix.setdefault(name, set()).add(engine)
        load.cached_prompts[name] = None
        num_tokens = self._costs.num_first_tokens(request)
        # The engine's real cache does the same, and does not report it.
        for evicted in load.cache.use(name, num_tokens):
            self.forget(engine, evicted)
            load.cached_prompts.pop(evicted, None)
            load.cached_turns.pop(evicted, None)

    def forget(self, engine: int, name: str) -> None:
        """Record that an engine's prefix cache no longer holds a prefix."""
        holders = self.by_prefix[name]
        holders.discard(engine)
        if not holders:
            del self.by_prefix[name]
            self._waiting.note_fresh(name)

    def remove(self, chunk: int) -> str:
        """Remove a chunk of rollouts, and return the name of its prefix.

        If the chunk is the next turn of trajectories, its prefix is removed from all caches, because no other chunk has
        it.
        """
        name = self._names.pop(chunk)
        if self._turns.pop(chunk, None) is None:
            return name
        for engine in self.by_prefix.pop(name, ()):
            load = self._engines[engine]
            load.cache.drop(name)
            load.cached_prompts.pop(name, None)
            load.cached_turns.pop(name, None)
        return name
