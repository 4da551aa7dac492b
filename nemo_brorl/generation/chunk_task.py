"""One chunk inside an engine: which rollouts it asks of vLLM, and what goes back to the driver. Imports neither torch
nor vllm."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from nemo_brorl.core.errors import ConfigError
from nemo_brorl.types import Bool, ChunkArrays, Int32, Int64, RolloutRequest

LOG_PROB_SLACK = 1e-4  # a log-probability may be this far above 0 by rounding

_SEED_BITS = 62  # of a group's seed: adding a rollout's index stays below 2**63


@dataclass(frozen=True)
class BeginningsMeta:
    """The small part of the rollouts that were cut off."""

    indices: Int32  # [u] places in the group, ascending
    lengths: Int32  # [u] tokens so far
    version: int  # oldest policy version that sampled one of the tokens


@dataclass(frozen=True)
class ChunkProgress:
    """How far an engine is with a chunk."""

    flight: int
    num_begun: int  # rollouts with a token
    num_ended: int
    age: float  # tokens that those begun and not ended have, on average


@dataclass(frozen=True)
class ChunkMeta:
    """The small part of a chunk; the driver fetches this and leaves the ChunkArrays where they are."""

    flight: int  # which call of `generate` this answers
    uid: str  # of the prompt
    indices: Int32  # [m] places in the group, ascending, of the rollouts that have ended
    lengths: Int32  # [m]
    is_stopped: Bool  # [m]
    version: int
    newest_version: int
    unfinished: BeginningsMeta | None = None  # the others, when the chunk was cut
    progress: tuple[ChunkProgress, ...] = ()  # of the engine's other chunks


@dataclass(frozen=True)
class Withdrawn:
    """The engine gave the chunk back before it sampled a token of it, or dropped it."""


@dataclass(frozen=True)
class ChunkFailure:
    """The engine can no longer be trusted: a step failed, or what it sampled makes no sense."""

    reason: str
    is_garbage: bool = False


Reply = tuple[
    ChunkMeta | ChunkFailure | Withdrawn, ChunkArrays | None, ChunkArrays | None
]  # …, of the ended, of the unfinished


@dataclass(frozen=True)
class Continuation:
    """What vLLM sampled for one rollout in this engine."""

    token_ids: Sequence[int]
    log_probs: Sequence[float]
    versions: Sequence[int]  # that sampled them, oldest first; empty without tokens
    has_ended: bool
    is_stopped: bool


@dataclass(frozen=True)
class RolloutTask:
    """What vLLM is asked for one rollout."""

    row: int  # in the chunk
    token_ids: list[int]  # the prompt and what was sampled before
    seed: int
    max_tokens: int


def rollout_seed(group_seed: int, index: int, num_begun: int) -> int:
    """The seed of a rollout: group's + index from its first token, so that neither chunks nor engines matter. A
    continuation takes another one, of the same two and the tokens it goes on from: the old one would repeat the
    beginning's draws."""
    seed = (group_seed & (2**_SEED_BITS - 1)) + index
    if num_begun == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{num_begun}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)


class ChunkWork:
    """Life: `tasks` go into vLLM's batch → `put` what each rollout came to, as it ends → `reply` when none is left, or
    the chunk is cut. `beginnings` are those of `request.resumed`, or None to sample all from the prompt."""

    def __init__(
        self, flight: int, request: RolloutRequest, beginnings: ChunkArrays | None, answer: Future[Reply]
    ) -> None:
        self.flight = flight
        self.request = request
        self.answer = answer
        self.ids: list[str] = []  # vLLM's own, by row
        # time.monotonic() when the first token was seen; kept where there is a deadline
        self.begun_at: float | None = None
        self._beginnings = beginnings
        self._rows: list[Continuation | None] = [None] * request.num_rollouts
        self._num_left = request.num_rollouts

    @property
    def is_finished(self) -> bool:
        """Whether every rollout has ended."""
        return self._num_left == 0

    @property
    def num_sampled(self) -> int:
        """Tokens sampled here so far, of rollouts that were put."""
        return sum(len(part.token_ids) for part in self._rows if part is not None)

    def tasks(self) -> Iterator[RolloutTask]:
        """One per rollout, in order."""
        prompt, max_tokens = list(self.request.prompt.token_ids), self.request.sampling.max_tokens
        for row, index in enumerate(self.request.indices.tolist()):
            begun = self._begun(row)
            token_ids = prompt + self._beginnings.token_ids[begun].tolist() if self._beginnings is not None else prompt
            num_begun = begun.stop - begun.start
            yield RolloutTask(row, token_ids, rollout_seed(self.request.seed, index, num_begun), max_tokens - num_begun)

    def num_resumed(self, row: int) -> int:
        """Tokens the rollout had before it came here."""
        begun = self._begun(row)
        return int(begun.stop - begun.start)

    def put(self, row: int, continuation: Continuation) -> None:
        """A rollout has ended, or was cut off."""
        self._rows[row] = continuation
        self._num_left -= continuation.has_ended

    def missing(self) -> list[int]:
        """Rows that have not been put."""
        return [row for row, continuation in enumerate(self._rows) if continuation is None]

    def reply(self, version: int, vocab_size: int) -> Reply:
        """Everything that was put, packed. `version` is the engine's now: of what has no tokens."""
        ended = [row for row, part in enumerate(self._rows) if part is not None and part.has_ended]
        rest = [row for row, part in enumerate(self._rows) if part is not None and not part.has_ended]
        arrays, beginnings = self._pack(ended), self._pack(rest)
        reason = find_garbage(arrays, vocab_size, self.request.sampling.max_tokens) or find_garbage(
            beginnings, vocab_size, self.request.sampling.max_tokens, least=0
        )
        if reason is not None:
            return ChunkFailure(f"prompt {self.request.prompt.uid}: {reason}", is_garbage=True), None, None
        indices, versions = self.request.indices, self._versions(ended, version)
        unfinished = (
            BeginningsMeta(indices[rest], _lengths(beginnings), min(self._versions(rest, version))) if rest else None
        )
        is_stopped = np.array([part.is_stopped for part in self._rows if part is not None and part.has_ended], bool)
        meta = ChunkMeta(
            self.flight,
            self.request.prompt.uid,
            indices[ended],
            _lengths(arrays),
            is_stopped,
            min(versions),
            max(versions),
            unfinished,
        )
        return meta, arrays, beginnings if rest else None

    def _begun(self, row: int) -> slice:
        """Where the rollout's beginning lies in `_beginnings`."""
        if self._beginnings is None:
            return slice(0, 0)
        return slice(*self._beginnings.offsets[row : row + 2].tolist())

    def _versions(self, rows: Sequence[int], version: int) -> list[int]:
        """Versions that sampled a token of these rollouts; `version` when there is no token."""
        versions = [sampled for row in rows for sampled in self._continuation(row).versions]
        if self.request.resumed is not None and any(self._begun(row).stop > self._begun(row).start for row in rows):
            versions.append(self.request.resumed.version)
        return versions or [version]

    def _pack(self, rows: Sequence[int]) -> ChunkArrays:
        """Beginning and continuation of each rollout, end to end."""
        begun = [self._begun(row) for row in rows]
        parts = [self._continuation(row) for row in rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(
            [part.stop - part.start + len(more.token_ids) for part, more in zip(begun, parts, strict=True)],
            out=offsets[1:],
        )
        token_ids, log_probs = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.float32)
        for start, end, part, more in zip(offsets[:-1].tolist(), offsets[1:].tolist(), begun, parts, strict=True):
            middle = start + part.stop - part.start
            if self._beginnings is not None:
                token_ids[start:middle] = self._beginnings.token_ids[part]
                log_probs[start:middle] = self._beginnings.log_probs[part]
            token_ids[middle:end] = more.token_ids
            log_probs[middle:end] = more.log_probs
        return ChunkArrays(token_ids, log_probs, offsets)

    def _continuation(self, row: int) -> Continuation:
        part = self._rows[row]
        assert part is not None, f"rollout {row} of chunk {self.flight} was not put"
        return part


def find_garbage(arrays: ChunkArrays, vocab_size: int, max_tokens: int, least: int = 1) -> str | None:
    """What is wrong with sampled arrays, or None. Responses have from `least` to `max_tokens` tokens."""
    lengths, tokens, log_probs = _lengths(arrays), arrays.token_ids, arrays.log_probs
    if lengths.size and (lengths.min() < least or lengths.max() > max_tokens):
        return f"responses of {lengths.min()} to {lengths.max()} tokens, {least} to {max_tokens} were asked for"
    if tokens.size and (tokens.min() < 0 or tokens.max() >= vocab_size):
        return f"token ids from {tokens.min()} to {tokens.max()}, the vocabulary has {vocab_size}"
    if not np.isfinite(log_probs).all():
        return f"{np.count_nonzero(~np.isfinite(log_probs))} of {log_probs.size} log-probabilities are not finite"
    if log_probs.size and log_probs.max() > LOG_PROB_SLACK:
        return f"a log-probability of {log_probs.max():.4g}"
    return None


def find_mismatch(meta: ChunkMeta, flight: int, request: RolloutRequest, known_versions: Collection[int]) -> str | None:
    """Why this is no answer to the request, or None."""
    rest = meta.unfinished
    indices = meta.indices if rest is None else np.sort(np.concatenate([meta.indices, rest.indices]))
    oldest = set(known_versions) if request.resumed is None else {*known_versions, request.resumed.version}
    if (meta.flight, meta.uid) != (flight, request.prompt.uid):
        return (
            f"flight {flight} of prompt {request.prompt.uid} was answered as flight {meta.flight} of prompt {meta.uid}"
        )
    if not np.array_equal(indices, request.indices):
        return f"prompt {meta.uid}: rollouts {indices.tolist()} came for {request.indices.tolist()}"
    if not len(meta.indices) == len(meta.lengths) == len(meta.is_stopped):
        return (
            f"prompt {meta.uid}: {len(meta.indices)} rollouts have {len(meta.lengths)} lengths and "
            f"{len(meta.is_stopped)} ends"
        )
    if meta.newest_version not in known_versions or meta.version not in oldest:
        return f"prompt {meta.uid}: versions {meta.version} to {meta.newest_version} were never published"
    return None


def check_lengths(requests: Sequence[RolloutRequest], max_model_len: int) -> None:
    """Raise ConfigError for a request that does not fit the engines' context, or resumes what has no token left to
    sample."""
    for request in requests:
        num_prompt, num_response = len(request.prompt.token_ids), request.sampling.max_tokens
        if num_prompt + num_response > max_model_len:
            raise ConfigError(
                f"prompt {request.prompt.uid} has {num_prompt} tokens and may be answered with {num_response}, "
                f"generation.max_model_len={max_model_len}; write at least {num_prompt + num_response}"
            )
        if request.resumed is not None and request.resumed.lengths.max() >= num_response:
            raise ConfigError(
                f"prompt {request.prompt.uid} is resumed after {request.resumed.lengths.max()} tokens and may be "
                f"answered with "
                f"{num_response}; write at least {request.resumed.lengths.max() + 1}"
            )


def no_arrays(num: int) -> ChunkArrays:
    """`num` responses without a token."""
    return ChunkArrays(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(num + 1, np.int64))


def _lengths(arrays: ChunkArrays) -> Int32:
    offsets: Int64 = arrays.offsets
    return np.diff(offsets).astype(np.int32)
