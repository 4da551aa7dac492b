"""Dispatch rollouts to engines as other systems do, and as this project does, with the real pool's planner."""

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
    """A dispatcher that decides everything at the start: engine e gets `shares[e]`."""

    def __init__(self, shares: Sequence[Sequence[Chunk]]) -> None:
        self._assignments = deque((engine, chunk) for engine, share in enumerate(shares) for chunk in share)

    def assign(self) -> tuple[int, Chunk] | None:
        """Return the next chunk of rollouts with the engine that was fixed at the start, or None when all are sent."""
        return self._assignments.popleft() if self._assignments else None

    def progress(self, engine: int, number: int, num_started: int, num_ended: int, age: float) -> None:
        """Ignore an engine's progress report, because all rollouts were assigned to engines at the start."""

    def finish(self, engine: int, chunk: Chunk) -> None:
        """Ignore the end of a chunk of rollouts, because all rollouts were assigned to engines at the start."""

    def steals(self) -> list[Steal]:
        """Return an empty list, because this dispatcher moves no rollouts between engines."""
        return []

    def withdrawn(self, number: int) -> None:
        """Ignore a chunk of rollouts that an engine gave back, because this dispatcher never requests one."""

    def kept(self, number: int) -> None:
        """Ignore that an engine keeps a chunk of rollouts, because this dispatcher never requests one back."""


class Pulled(Fixed):
    """A dispatcher that sends the next chunk to the engine with the fewest rollouts.

    It does so as soon as that engine has fewer rollouts than its batch holds.
    """

    def __init__(self, chunks: Sequence[Chunk], shape: ClusterShape) -> None:
        super().__init__([])
        self._queue = deque(chunks)
        self._room = shape.max_batch
        self._held = [0] * shape.num_engines
        self._ended: dict[int, int] = {}  # ended rollouts by chunk
        self._free = set(range(shape.num_engines))

    def assign(self) -> tuple[int, Chunk] | None:
        """Return the next chunk of rollouts in the queue, and the engine with the fewest rollouts.

        The result is None when the queue is empty or no engine has room.
        """
        if not self._queue or not self._free:
            return None
        engine = min(self._free, key=lambda candidate: (self._held[candidate], candidate))
        chunk = self._queue.popleft()
        self._charge(engine, len(chunk.lengths))
        return engine, chunk

    def progress(self, engine: int, number: int, num_started: int, num_ended: int, age: float) -> None:
        """Count how many rollouts of a chunk have ended, because ended rollouts leave room in the engine's batch."""
        self._charge(engine, self._ended.get(number, 0) - num_ended)
        self._ended[number] = num_ended

    def finish(self, engine: int, chunk: Chunk) -> None:
        """Count all rollouts of a finished chunk as ended, so that its engine gets the next chunk."""
        self.progress(engine, chunk.number, len(chunk.lengths), len(chunk.lengths), 0.0)
        del self._ended[chunk.number]

    def _charge(self, engine: int, num_rollouts: int) -> None:
        self._held[engine] += num_rollouts
        if self._held[engine] < self._room:
            self._free.add(engine)
        else:
            self._free.discard(engine)


class Planned:
    """The real pool's `ChunkPlacement`, which forecasts lengths from a `LengthHistory` of finished chunks."""

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
        """Return the next chunk of rollouts and its engine as the real vLLM pool's planner chooses them, or None."""
        assignment = self._placement.assign()
        return None if assignment is None else (assignment[0], self._chunks[assignment[1]])

    def finish(self, engine: int, chunk: Chunk) -> None:
        """Report the response lengths of a finished chunk of rollouts to the planner of the real vLLM pool."""
        self._placement.finish(engine, chunk.number, np.asarray(chunk.lengths, np.int32))


def warm_history(before: Load) -> LengthHistory:
    """Return the record of response lengths after an earlier simulated step with other prompts of the same tasks."""
    history = LengthHistory()
    for prompt, (task, lengths) in enumerate(zip(before.tasks, before.lengths, strict=True)):
        history.observe(task, f"before/{prompt}", np.asarray(lengths, np.int32))
    return history


def pieces(load: Load, size: int) -> Iterator[Chunk]:
    """Yield the rollouts of a simulated step as numbered chunks of at most `size` rollouts of one prompt."""
    number = 0
    for prompt, (num_tokens, lengths) in enumerate(zip(load.prompt_tokens, load.lengths, strict=True)):
        for first in range(0, len(lengths), size):
            yield Chunk(number, prompt, num_tokens, lengths[first : first + size])
            number += 1


def whole_groups(load: Load, shape: ClusterShape) -> Dispatcher:
    """Return a dispatcher that assigns whole groups at the start of a step, each to the engine with fewest rollouts."""
    shares: list[list[Chunk]] = [[] for _ in range(shape.num_engines)]
    given = [0] * shape.num_engines
    for chunk in pieces(load, max(map(len, load.lengths))):
        engine = int(np.argmin(given))
        shares[engine].append(chunk)
        given[engine] += len(chunk.lengths)
    return Fixed(shares)


def whole_groups_pulled(load: Load, shape: ClusterShape) -> Dispatcher:
    """Return a dispatcher that sends each whole group to one engine as soon as that engine has room.

    It does better than a dispatcher that assigns every group to an engine at the start.
    """
    return Pulled(list(pieces(load, max(map(len, load.lengths)))), shape)


def static_split(load: Load, shape: ClusterShape) -> Dispatcher:
    """Return a dispatcher that cuts all rollouts, in order of their prompts, into one equal slice for each engine."""
    singles = list(pieces(load, 1))
    bounds = np.linspace(0, len(singles), shape.num_engines + 1).round().astype(int).tolist()
    return Fixed([singles[first:last] for first, last in pairwise(bounds)])


def scatter(load: Load, shape: ClusterShape) -> Dispatcher:
    """Return a dispatcher that assigns single rollouts to engines round robin, all at the start of a step."""
    singles = list(pieces(load, 1))
    return Fixed([singles[engine :: shape.num_engines] for engine in range(shape.num_engines)])


def scatter_pulled(load: Load, shape: ClusterShape) -> Dispatcher:
    """Return a dispatcher that sends single rollouts to the engine with the fewest rollouts, as soon as it has room.

    Sending single rollouts balances the engines best and needs the most prefill.
    """
    return Pulled(list(pieces(load, 1)), shape)


def known_lengths(load: Load, shape: ClusterShape) -> Dispatcher:
    """Return a dispatcher that sends single rollouts, the longest first, to the engine with the fewest.

    It is a reference, because no real dispatcher knows the response lengths in advance.
    """
    return Pulled(sorted(pieces(load, 1), key=lambda chunk: -chunk.lengths[0]), shape)


BASELINES = {
    "whole groups": whole_groups,
    "whole groups, pulled": whole_groups_pulled,
    "static split": static_split,
    "per-sample scatter": scatter,
    "per-sample scatter, pulled": scatter_pulled,
    "per-sample, lengths known": known_lengths,
}
