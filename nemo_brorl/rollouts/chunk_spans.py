"""Timeline spans of chunks: when they were requested, sampled and scored."""

from __future__ import annotations

from typing import Any

from nemo_brorl.core.timeline import CHUNKS, Exchange, Timeline, Work, chunk_key
from nemo_brorl.types import (
    Period,
    RolloutChunk,
    RolloutRequest,
    ScoredChunk,
)


class ChunkSpans:
    """Recorder of chunk spans, which combines the driver's times with those that workers report."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._asked_at: dict[str, float] = {}  # chunk key → time of its last request

    def note_requested(self, request: RolloutRequest) -> None:
        """Record the time at which a chunk of rollouts was sent to the engines or to the verifiers."""
        self._asked_at[_key(request)] = self._timeline.now()

    def note_sampled(self, chunk: RolloutChunk) -> None:
        """Add the time span in which an engine sampled a chunk of rollouts to the run's timeline."""
        details = {
            "num_rollouts": len(chunk.lengths),
            "tokens": int(chunk.lengths.sum()),
            "version": chunk.version,
            "task": chunk.request.prompt.task,
        }
        self._add_span(f"engine {chunk.engine}", "sample", chunk.request, chunk.period, details)

    def note_scored(self, scored: ScoredChunk) -> None:
        """Add the time span in which a verifier scored a chunk of rollouts to the run's timeline."""
        details = {
            "num_rollouts": len(scored.rewards),
            "mean_reward": round(float(scored.rewards.mean()), 4) if len(scored.rewards) else 0.0,
            "verifier": scored.chunk.request.prompt.verifier,
        }
        request = scored.chunk.request
        self._add_span(f"verifier {scored.worker}", "score", request, scored.period, details)

    def _add_span(
        self,
        process: str,
        name: str,
        request: RolloutRequest,
        period: Period | None,
        details: dict[str, Any],
    ) -> None:
        key = _key(request)
        asked_at = self._asked_at.pop(key, None)
        if period is None or asked_at is None:
            return
        work = Work(name, period.began_at, period.ended_at, CHUNKS, (key,), details)
        exchange = Exchange(asked_at, period.received_at, period.ended_at, self._timeline.now())
        self._timeline.record_work(process, [work], exchange)


def _key(request: RolloutRequest) -> str:
    return chunk_key(request.prompt.uid, int(request.indices[0]))
