"""Cache of the chunks of a step that was cut, so that a resumed run does not sample them again."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nemo_brorl.types import (
    PartialRollouts,
    RolloutRequest,
    ScoredChunk,
)

ReplayKey = tuple[str, bytes, bytes]  # prompt uid, rollout indices, lengths they resume from


class ReplayCache:
    """Cache of the chunks of one step, so that a resumed run samples only what a cut step had not finished.

    `take_chunk` returns chunks of the step that was cut, and `add_chunk` keeps those that come back in this one.

    The step restarts with the prompts, seeds and weights of the one that was cut, so it requests the same rollouts
    again, chunk by chunk. Chunks that had come back whole and scored are replayed as they are. Other chunks are sampled
    again, even if some of their rollouts had ended. The order of rollouts within a group is that of its chunks, so
    results do not depend on the moment of the cut.
    """

    def __init__(self, chunks: Iterable[ScoredChunk] = ()) -> None:
        self.num_taken = 0  # replayed rollouts
        self._new: list[ScoredChunk] = []
        self._old: dict[ReplayKey, ScoredChunk] = {}
        for scored in chunks:
            self._old[_replay_key(scored.chunk.request)] = scored

    @property
    def chunks(self) -> tuple[ScoredChunk, ...]:
        """Return the scored rollouts that a resumed run need not sample again if this step is interrupted now."""
        return (*self._new, *self._old.values())

    def take_chunk(self, request: RolloutRequest) -> ScoredChunk | None:
        """Return the stored chunk of rollouts that answers a request, or None if the rollouts must be sampled.

        A chunk that was sampled with other settings or for another prompt is not used.
        """
        stored = self._old.pop(_replay_key(request), None)
        if stored is None:
            return None
        if not _is_same(stored.chunk.request, request):
            return None
        self.num_taken += len(stored.rewards)
        return stored

    def add_chunk(self, scored: ScoredChunk) -> None:
        """Store a scored chunk of rollouts for reuse after an interruption, unless rollouts in it were cut off."""
        if scored.chunk.partial is None:
            self._new.append(scored)


def _replay_key(request: RolloutRequest) -> ReplayKey:
    """Return the prompt uid, the rollout indices and the lengths from which a request resumes rollouts.

    The lengths are needed because a trajectory with several turns is requested once for each turn.
    """
    lengths = b""
    if request.partial is not None:
        lengths = request.partial.lengths.tobytes()
    indices = request.indices.tobytes()
    return request.prompt.uid, indices, lengths


def _is_same(old: RolloutRequest, new: RolloutRequest) -> bool:
    """Return True if two requests for rollouts would sample the same tokens."""
    is_same_prompt = old.prompt.token_ids == new.prompt.token_ids
    is_same_verifier = old.prompt.verifier == new.prompt.verifier
    is_same_draw = old.seed == new.seed and old.sampling == new.sampling
    if not (is_same_prompt and is_same_verifier and is_same_draw):
        return False
    return _begin_alike(old.partial, new.partial)


def _begin_alike(old: PartialRollouts | None, new: PartialRollouts | None) -> bool:
    if old is None or new is None:
        return old is new
    if old.version != new.version:
        return False
    return np.array_equal(old.lengths, new.lengths)
