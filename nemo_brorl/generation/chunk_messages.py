"""Messages between the driver and an engine about chunks: requests, answers and what makes one wrong, and reports of
progress. Imports neither torch nor vllm.

When an engine tells the driver how far its chunks are is one rule for the engines and for the model of a cluster; the
caller has the clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from nemo_brorl.core.errors import ConfigError
from nemo_brorl.types import Bool, ChunkArrays, Int32, Int64, PartialRollouts, Period, RolloutRequest

LOG_PROB_SLACK = 1e-4  # a log-probability may be this far above 0 by rounding
SHORTEST_S = 0.25  # between two reports, however fast rollouts end


@dataclass(frozen=True)
class ChunkProgress:
    """How far an engine is with a chunk."""

    call_id: int
    num_begun: int  # rollouts with a token
    num_ended: int
    age: float  # tokens that those begun and not ended have, on average


Progress = tuple[ChunkProgress, ...]  # of the chunks in an engine's batch that have begun


@dataclass(frozen=True)
class ChunkMeta:
    """The small part of a chunk; the driver fetches this and leaves the ChunkArrays where they are."""

    call_id: int  # which call of `generate` this answers
    uid: str  # of the prompt
    indices: Int32  # [m] places in the group, ascending, of the rollouts that have ended
    lengths: Int32  # [m]
    is_stopped: Bool  # [m]
    version: int
    newest_version: int
    partial: PartialRollouts | None = None  # the others, when the chunk was cut; without their data
    num_sampled: Int32 | None = None  # [m], as in RolloutChunk
    progress: Progress = ()  # of the engine's other chunks
    period: Period | None = None


@dataclass(frozen=True)
class Withdrawn:
    """The engine gave the chunk back before it sampled a token of it, or dropped it."""


@dataclass(frozen=True)
class ChunkFailure:
    """The engine can no longer be trusted: a step failed, or what it sampled makes no sense."""

    reason: str
    is_garbage: bool = False


# What to know of a chunk, its rollouts that ended, and those that were cut off.
Reply = tuple[ChunkMeta | ChunkFailure | Withdrawn, ChunkArrays | None, ChunkArrays | None]


def response_lengths(arrays: ChunkArrays) -> Int32:
    """[n] tokens of each response."""
    offsets: Int64 = arrays.offsets
    return np.diff(offsets).astype(np.int32)


def no_arrays(num: int) -> ChunkArrays:
    """`num` responses without a token."""
    return ChunkArrays(
        token_ids=np.zeros(0, np.int32),
        log_probs=np.zeros(0, np.float32),
        offsets=np.zeros(num + 1, np.int64),
    )


def find_garbage(
    arrays: ChunkArrays,
    vocab_size: int,
    max_tokens: int,
    least: int = 1,
) -> str | None:
    """A fault of sampled arrays, or None. Responses have from `least` to `max_tokens` tokens."""
    lengths = response_lengths(arrays)
    tokens = arrays.token_ids
    log_probs = arrays.log_probs
    if lengths.size and (lengths.min() < least or lengths.max() > max_tokens):
        return f"responses of {lengths.min()} to {lengths.max()} tokens, {least} to {max_tokens} were asked for"
    if arrays.is_sampled is not None and len(arrays.is_sampled) != len(tokens):
        return f"{len(arrays.is_sampled)} marks of sampled tokens for {len(tokens)} tokens"
    if tokens.size and (tokens.min() < 0 or tokens.max() >= vocab_size):
        return f"token ids from {tokens.min()} to {tokens.max()}, the vocabulary has {vocab_size}"
    is_finite = np.isfinite(log_probs)
    if not is_finite.all():
        return f"{np.count_nonzero(~is_finite)} of {log_probs.size} log-probabilities are not finite"
    if log_probs.size and log_probs.max() > LOG_PROB_SLACK:
        return f"a log-probability of {log_probs.max():.4g}"
    return None


def find_mismatch(
    meta: ChunkMeta,
    call_id: int,
    request: RolloutRequest,
    known_versions: Collection[int],
) -> str | None:
    """Reason why this is no answer to the request, or None."""
    asked_for = request.prompt.uid
    if meta.call_id != call_id or meta.uid != asked_for:
        return f"call {call_id} for prompt {asked_for} was answered as call {meta.call_id} for prompt {meta.uid}"
    indices = meta.indices
    if meta.partial is not None:
        unsorted = np.concatenate([indices, meta.partial.indices])
        indices = np.sort(unsorted)
    if not np.array_equal(indices, request.indices):
        return f"prompt {meta.uid}: rollouts {indices.tolist()} came for {request.indices.tolist()}"
    num_ended = len(meta.indices)
    num_lengths = len(meta.lengths)
    num_ends = len(meta.is_stopped)
    if not num_ended == num_lengths == num_ends:
        return f"prompt {meta.uid}: {num_ended} rollouts have {num_lengths} lengths and {num_ends} ends"
    is_oldest_known = meta.version in known_versions
    if request.partial is not None and meta.version == request.partial.version:
        is_oldest_known = True
    if not is_oldest_known or meta.newest_version not in known_versions:
        return f"prompt {meta.uid}: versions {meta.version} to {meta.newest_version} were never published"
    return None


def check_lengths(requests: Sequence[RolloutRequest], max_model_len: int | None) -> None:
    """Raise ConfigError for a request that does not fit the engines' context, or resumes what has no token left to
    sample."""
    for request in requests:
        uid = request.prompt.uid
        num_prompt = len(request.prompt.token_ids)
        num_response = request.sampling.max_tokens
        if max_model_len is not None and num_prompt + num_response > max_model_len:
            raise ConfigError(
                f"prompt {uid} has {num_prompt} tokens and may be answered with {num_response}, "
                f"generation.max_model_len={max_model_len}; write at least {num_prompt + num_response}"
            )
        if request.partial is None:
            continue
        longest = request.partial.lengths.max()
        if longest >= num_response:
            raise ConfigError(
                f"prompt {uid} is resumed after {longest} tokens and may be answered with {num_response}; "
                f"write at least {longest + 1}"
            )


class ReportTimes:
    """A report is due once `every` rollouts have ended since anything was told, but not sooner than `SHORTEST_S` after
    that, or when `within_s` have passed. Only an engine with work reports; its time begins when it gets some."""

    def __init__(self, every: int, within_s: float) -> None:
        self.every = every
        self.within_s = within_s
        self._num_untold = 0  # rollouts
        self._told_at = 0.0

    def note_ended(self, num: int = 1) -> None:
        """More rollouts have ended."""
        self._num_untold += num

    def note_told(self, now: float) -> None:
        """Everything there is to tell has just gone out."""
        self._num_untold = 0
        self._told_at = now

    def note_begun(self, now: float) -> None:
        """There is work again."""
        self._told_at = now

    @property
    def due_at(self) -> float:
        """When a report is due at the latest."""
        has_enough = self._num_untold >= self.every
        return self._told_at + (SHORTEST_S if has_enough else self.within_s)

    def is_due(self, now: float) -> bool:
        """Whether to report now."""
        return now >= min(self.due_at, self._told_at + self.within_s)


class ProgressReports:
    """The driver's one question about progress, open until `times` say that it is due. An engine without work is never
    due, so nobody asks in vain. `now` are seconds of one clock."""

    def __init__(self) -> None:
        self.times = ReportTimes(every=1, within_s=0.0)
        self._question: Future[Progress] | None = None

    def ask(
        self,
        every: int,
        within_s: float,
        question: Future[Progress],
    ) -> None:
        """Answer `question` with the next report. One that was open until now is answered with nothing."""
        self.drop()
        self.times.every = every
        self.times.within_s = within_s
        self._question = question

    def is_due(self, now: float) -> bool:
        """Whether the open question should be answered now."""
        return self._question is not None and self.times.is_due(now)

    def tell(self, progress: Progress, now: float) -> None:
        """Answer the open question."""
        self._answer(progress)
        self.times.note_told(now)

    def drop(self) -> None:
        """Nobody waits any more."""
        self._answer(())

    def _answer(self, progress: Progress) -> None:
        if self._question is not None:
            self._question.set_result(progress)
        self._question = None
