"""Ways to hand out rollouts: what other systems do, and ours, the planner of the real pool unchanged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from lab.studies.cluster_model.cluster import Dispatcher
from lab.studies.cluster_model.engine import Chunk
from lab.studies.cluster_model.load import ClusterShape, Load
from nemo_brorl.generation.placement.costs import PlacementCosts
from nemo_brorl.generation.placement.lengths import LengthHistory
from nemo_brorl.generation.placement.placement import ChunkPlacement, Steal
from nemo_brorl.types import Prompt, RolloutRequest, Sampling


class Fixed:
    """Everything is decided at the start: engine e gets `shares[e]`."""

    def __init__(self, shares: Sequence[Sequence[Chunk]]) -> None:
        self._assignments = deque((engine, chunk) for engine, share in enumerate(shares) for chunk in share)

    def assign(self) -> tuple[int, Chunk] | None:
        """The next of what was decided."""
        return self._assignments.popleft() if self._assignments else None

    def progress(self, engine: int, number: int, num_started: int, num_ended: int, age: float) -> None:
        """Nothing follows from it."""

    def finish(self, engine: int, chunk: Chunk) -> None:
        """Nothing follows from it."""

    def steals(self) -> list[Steal]:
        """Nobody."""
        return []

    def withdrawn(self, number: int) -> None:
        """Never asked."""

    def kept(self, number: int) -> None:
        """Never asked."""


class Pulled(Fixed):
    """The next of a queue goes to the engine with the fewest rollouts, as soon as it has fewer than its batch."""

    def __init__(self, chunks: Sequence[Chunk], shape: ClusterShape) -> None:
        super().__init__([])
        self._queue = deque(chunks)
        self._room = shape.max_batch
        self._held = [0] * shape.num_engines
        self._ended: dict[int, int] = {}  # by chunk
        self._free = set(range(shape.num_engines))

    def assign(self) -> tuple[int, Chunk] | None:
        """Queue order."""
        if not self._queue or not self._free:
            return None
        engine = min(self._free, key=lambda candidate: (self._held[candidate], candidate))
        chunk = self._queue.popleft()
        self._charge(engine, len(chunk.lengths))
        return engine, chunk

    def progress(self, engine: int, number: int, num_started: int, num_ended: int, age: float) -> None:
        """Ended rollouts have left the batch."""
        self._charge(engine, self._ended.get(number, 0) - num_ended)
        self._ended[number] = num_ended

    def finish(self, engine: int, chunk: Chunk) -> None:
        """So have the last of a chunk."""
        self.progress(engine, chunk.number, len(chunk.lengths), len(chunk.lengths), 0.0)
        del self._ended[chunk.number]

    def _charge(self, engine: int, num_rollouts: int) -> None:
        self._held[engine] += num_rollouts
        if self._held[engine] < self._room:
            self._free.add(engine)
        else:
            self._free.discard(engine)


class Planned:
    """`ChunkPlacement` with forecasts of a `LengthHistory` that hears the lengths of chunks when they are done."""

    def __init__(
        self,
        load: Load,
        shape: ClusterShape,
        history: LengthHistory,
        max_tokens: int,
        chunk_size: int = 64,
        costs: PlacementCosts | None = None,
    ) -> None:
        self._chunks = list(pieces(load, chunk_size))
        sampling = Sampling(1.0, 1.0, max_tokens)
        tokens = {num: tuple(range(num)) for num in set(load.prompt_tokens)}
        prompts = [
            Prompt(str(index), task, "none", tokens[num], {})
            for index, (task, num) in enumerate(zip(load.tasks, load.prompt_tokens, strict=True))
        ]
        requests = [
            RolloutRequest(prompts[chunk.prompt], chunk.number, len(chunk.lengths), 0, sampling)
            for chunk in self._chunks
        ]
        self._placement = ChunkPlacement(requests, shape.max_batch, costs, history)
        for engine in range(shape.num_engines):
            self._placement.add_engine(engine)
        self.steals = self._placement.steals
        self.progress = self._placement.progress
        self.withdrawn = self._placement.withdrawn
        self.kept = self._placement.kept

    def assign(self) -> tuple[int, Chunk] | None:
        """The planner's."""
        assignment = self._placement.assign()
        return None if assignment is None else (assignment[0], self._chunks[assignment[1]])

    def finish(self, engine: int, chunk: Chunk) -> None:
        """The planner hears of the lengths now."""
        self._placement.finish(engine, chunk.number, np.asarray(chunk.lengths, np.int32))


def warm_history(before: Load) -> LengthHistory:
    """What is known after a step with other prompts of the same tasks."""
    history = LengthHistory()
    for prompt, (task, lengths) in enumerate(zip(before.tasks, before.lengths, strict=True)):
        history.observe(task, f"before/{prompt}", np.asarray(lengths, np.int32))
    return history


def pieces(load: Load, size: int) -> Iterator[Chunk]:
    """Groups in chunks of at most `size`, numbered in order."""
    number = 0
    for prompt, (num_tokens, lengths) in enumerate(zip(load.prompt_tokens, load.lengths, strict=True)):
        for first in range(0, len(lengths), size):
            yield Chunk(number, prompt, num_tokens, lengths[first : first + size])
            number += 1


def whole_groups(load: Load, shape: ClusterShape) -> Dispatcher:
    """Each group to the engine that was given the fewest rollouts, all at once."""
    shares: list[list[Chunk]] = [[] for _ in range(shape.num_engines)]
    given = [0] * shape.num_engines
    for chunk in pieces(load, max(map(len, load.lengths))):
        engine = int(np.argmin(given))
        shares[engine].append(chunk)
        given[engine] += len(chunk.lengths)
    return Fixed(shares)


def whole_groups_pulled(load: Load, shape: ClusterShape) -> Dispatcher:
    """Groups go out as engines get room: the kinder form of pinning."""
    return Pulled(list(pieces(load, max(map(len, load.lengths)))), shape)


def static_split(load: Load, shape: ClusterShape) -> Dispatcher:
    """All rollouts in order of their prompts, cut into as many equal parts as there are engines."""
    singles = list(pieces(load, 1))
    bounds = np.linspace(0, len(singles), shape.num_engines + 1).round().astype(int).tolist()
    return Fixed([singles[first:last] for first, last in pairwise(bounds)])


def scatter(load: Load, shape: ClusterShape) -> Dispatcher:
    """Single rollouts, round robin, all at once."""
    singles = list(pieces(load, 1))
    return Fixed([singles[engine :: shape.num_engines] for engine in range(shape.num_engines)])


def scatter_pulled(load: Load, shape: ClusterShape) -> Dispatcher:
    """Single rollouts to whichever engine has the fewest: the best balance and the most prefill."""
    return Pulled(list(pieces(load, 1)), shape)


def known_lengths(load: Load, shape: ClusterShape) -> Dispatcher:
    """Single rollouts, the longest first, to whichever engine has the fewest: what nobody can do who does not know how
    they end."""
    return Pulled(sorted(pieces(load, 1), key=lambda chunk: -chunk.lengths[0]), shape)


BASELINES = {
    "whole groups": whole_groups,
    "whole groups, pulled": whole_groups_pulled,
    "static split": static_split,
    "per-sample scatter": scatter,
    "per-sample scatter, pulled": scatter_pulled,
    "per-sample, lengths known": known_lengths,
}
