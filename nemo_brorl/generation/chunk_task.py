"""One chunk inside an engine: its rollouts for vLLM, and its reply to the driver.

This module imports neither torch nor vllm.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from nemo_brorl.generation.check_replies import find_garbage
from nemo_brorl.generation.chunk_messages import ChunkFailure, ChunkMeta, Reply, no_arrays, response_lengths
from nemo_brorl.generation.routes import RowRoutes, packed_routes
from nemo_brorl.types import (
    ChunkArrays,
    PartialRollouts,
    Period,
    RolloutRequest,
    Routes,
    TurnRecord,
)

# Bits kept of a group's seed, so that seed + rollout index stays below 2**63.
_SEED_BITS = 62


@dataclass(frozen=True)
class Continuation:
    """Tokens that vLLM sampled for one rollout in this engine."""

    token_ids: Sequence[int]
    log_probs: Sequence[float]
    versions: Sequence[int]  # policy versions that sampled them, oldest first; empty without tokens
    has_ended: bool
    is_stopped: bool
    num_cached: int = 0  # resumed tokens that the prefix cache had
    routes: Routes | None = None  # [tokens, layers, k] of all tokens that the engine has computed, prompt first


@dataclass(frozen=True)
class RolloutTask:
    """A request to vLLM for one rollout."""

    row: int  # index in the chunk
    token_ids: list[int]  # prompt, then the tokens that were sampled before
    seed: int
    max_tokens: int
    has_next_turn: bool  # True if an environment may reply and the response be resumed after that


def rollout_seed(
    group_seed: int,
    index: int,
    num_resumed: int,
) -> int:
    """Return the seed for sampling one rollout of a group.

    It is the group's seed + the rollout's index, so what is sampled does not depend on how rollouts are split into
    requests or on which engine samples them. A rollout that is resumed after `num_resumed` tokens gets a seed derived
    from this sum and `num_resumed`, because the original seed would repeat the draws of its first tokens.
    """
    seed = (group_seed & (2**_SEED_BITS - 1)) + index
    if num_resumed == 0:
        return seed
    text = f"{seed}/{num_resumed}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)


class ChunkTask:
    """One chunk while an engine samples it.

    `rollouts` go into vLLM's batch, `put` stores the continuation of each as it ends, and `reply` returns the result
    when none is left or the chunk is cut. `partial` are the tokens of `request.partial`, or None to sample everything
    from the prompt.
    """

    def __init__(
        self,
        call_id: int,
        request: RolloutRequest,
        partial: ChunkArrays | None,
        answer: Future[Reply],
    ) -> None:
        self.call_id = call_id
        self.request = request
        self.answer = answer
        self.ids: list[str] = []  # vLLM's request ids, by row
        self.received_at = time.monotonic()
        self.started_at: float | None = None  # time.monotonic() when the first token was seen
        self._partial = partial or no_arrays(request.num_rollouts)
        self._offsets: list[int] = self._partial.offsets.tolist()
        self._continuations: list[Continuation | None] = [None] * request.num_rollouts
        self._num_left = request.num_rollouts

    @property
    def is_finished(self) -> bool:
        """Return True if every rollout of the chunk has ended or was cut off."""
        return self._num_left == 0

    @property
    def num_sampled(self) -> int:
        """Return the number of tokens that this engine sampled for rollouts that have ended or were cut off."""
        num_tokens = 0
        for continuation in self._continuations:
            if continuation is not None:
                num_tokens += len(continuation.token_ids)
        return num_tokens

    def prefix_hits(self) -> tuple[int, int]:
        """Return how many tokens the rollouts were resumed from, and how many of these tokens the prefix cache had.

        The prompt's tokens are counted for each resumed rollout.
        """
        num_tokens = 0
        num_cached = 0
        num_prompt = len(self.request.prompt.token_ids)
        for row, continuation in enumerate(self._continuations):
            num_resumed = self.num_resumed(row)
            if num_resumed and continuation is not None:
                num_tokens += num_prompt + num_resumed
                num_cached += continuation.num_cached
        return num_tokens, num_cached

    def rollouts(self) -> Iterator[RolloutTask]:
        """Yield a sampling request to vLLM for each rollout of the chunk, in order."""
        request = self.request
        prompt = list(request.prompt.token_ids)
        indices = request.indices.tolist()
        for row, index in enumerate(indices):
            token_ids = prompt
            num_resumed = self.num_resumed(row)
            if num_resumed:
                resumed = self._partial.token_ids[self._resumed(row)]
                token_ids = prompt + resumed.tolist()
            yield RolloutTask(
                row=row,
                token_ids=token_ids,
                seed=rollout_seed(request.seed, index, num_resumed),
                max_tokens=self._num_left_to_sample(row),
                has_next_turn=request.prompt.has_episodes,
            )

    def num_resumed(self, row: int) -> int:
        """Return how many response tokens a rollout already had when this engine received it."""
        return self._offsets[row + 1] - self._offsets[row]

    def _num_left_to_sample(self, row: int) -> int:
        """Return how many more tokens a rollout may sample in the current turn of its trajectory.

        The limit is that of the whole response, or that of the turn if the turn has fewer tokens left.
        """
        sampling = self.request.sampling
        num_resumed = self.num_resumed(row)
        left = sampling.max_tokens - num_resumed
        if sampling.max_turn_tokens is None:
            return left
        # A turn starts after the environment's last token, which may be many tokens ago in a resumed rollout.
        num_before = 0  # tokens up to the end of the last observation
        is_sampled = self._partial.is_sampled
        if is_sampled is not None:
            own = is_sampled[self._resumed(row)]
            observed = np.flatnonzero(~own)
            num_before = int(observed.max(initial=-1)) + 1
        num_of_turn = num_resumed - num_before
        return min(left, sampling.max_turn_tokens - num_of_turn)

    def period(self) -> Period:
        """Return the period in which an engine had a chunk of rollouts, which ends at the time of this call.

        It also holds the time at which the first token of the chunk was sampled.
        """
        # Times are taken by the monotonic clock, and sent by the clock that other processes share.
        offset = time.time() - time.monotonic()
        started_at = self.started_at or time.monotonic()
        return Period(
            received_at=self.received_at + offset,
            began_at=started_at + offset,
            ended_at=time.time(),
        )

    def put(self, row: int, continuation: Continuation) -> None:
        """Store the sampled tokens of a rollout that has ended or was cut off."""
        self._continuations[row] = continuation
        if continuation.has_ended:
            self._num_left -= 1

    def missing(self) -> list[int]:
        """Return the indices, within the chunk, of rollouts whose tokens were not stored yet."""
        rows = []
        for row, continuation in enumerate(self._continuations):
            if continuation is None:
                rows.append(row)
        return rows

    def reply(self, version: int, vocab_size: int) -> Reply:
        """Return the engine's reply to the driver, with the tokens of all rollouts that were stored by `put`.

        `version` is the engine's current policy version, for rollouts without a token. The reply is a ChunkFailure if
        the sampled arrays are invalid, for example with token ids outside the vocabulary.
        """
        ended = []
        is_stopped = []
        cut_off = []
        for row, continuation in enumerate(self._continuations):
            if continuation is not None and continuation.has_ended:
                ended.append(row)
                is_stopped.append(continuation.is_stopped)
            elif continuation is not None:
                cut_off.append(row)
        # Sampled arrays are checked before they are used, also those of rollouts that other engines will resume.
        arrays = self._pack(ended)
        partial_arrays = self._pack(cut_off)
        prompt = self.request.prompt
        max_tokens = self.request.sampling.max_tokens
        reason = find_garbage(arrays, vocab_size, max_tokens)
        if reason is None:
            reason = find_garbage(partial_arrays, vocab_size, max_tokens, least=0)
        if reason is not None:
            return ChunkFailure(f"prompt {prompt.uid}: {reason}", is_garbage=True), None, None
        indices = self.request.indices
        versions = self._versions(ended, version)
        partial = None
        if cut_off:
            partial = PartialRollouts(
                indices=indices[cut_off],
                lengths=response_lengths(partial_arrays),
                version=min(self._versions(cut_off, version)),
                data=None,
                num_sampled=partial_arrays.num_sampled,
                turns=self._turns(cut_off),
            )
        meta = ChunkMeta(
            call_id=self.call_id,
            uid=prompt.uid,
            indices=indices[ended],
            lengths=response_lengths(arrays),
            is_stopped=np.array(is_stopped, bool),
            version=min(versions),
            newest_version=max(versions),
            partial=partial,
            num_sampled=arrays.num_sampled,
        )
        return meta, arrays, partial_arrays if cut_off else None

    def _turns(self, rows: Sequence[int]) -> TurnRecord | None:
        """Return the earlier turns of these trajectories, which ended before this engine received the trajectories.

        The result is None if the tokens of these turns are lost, because then everything is sampled again.
        """
        resumed = self.request.partial
        if resumed is None or resumed.turns is None or self._partial.is_sampled is None:
            return None
        return resumed.turns.select(rows)

    def _resumed(self, row: int) -> slice:
        """Return where the tokens of one resumed rollout are in the concatenated tokens of all resumed rollouts."""
        return slice(self._offsets[row], self._offsets[row + 1])

    def _versions(self, rows: Sequence[int], version: int) -> list[int]:
        """Return the policy versions that sampled a token of these rollouts, or `version` if they have no token."""
        versions: list[int] = []
        for row in rows:
            versions += self._continuation(row).versions
            if self.num_resumed(row) and self.request.partial is not None:
                versions.append(self.request.partial.version)
        return versions or [version]

    def _pack(self, rows: Sequence[int]) -> ChunkArrays:
        """Concatenate, rollout after rollout, the tokens that it was resumed from and the tokens sampled after them."""
        offsets = [0]
        for row in rows:
            num_sampled = len(self._continuation(row).token_ids)
            offsets.append(offsets[-1] + self.num_resumed(row) + num_sampled)
        token_ids = np.empty(offsets[-1], np.int32)
        log_probs = np.empty(offsets[-1], np.float32)
        is_sampled = np.ones(offsets[-1], bool)
        for place, row in enumerate(rows):
            start = offsets[place]
            end = offsets[place + 1]
            middle = start + self.num_resumed(row)
            resumed = self._resumed(row)
            token_ids[start:middle] = self._partial.token_ids[resumed]
            log_probs[start:middle] = self._partial.log_probs[resumed]
            if self._partial.is_sampled is not None:
                is_sampled[start:middle] = self._partial.is_sampled[resumed]
            continuation = self._continuation(row)
            token_ids[middle:end] = continuation.token_ids
            log_probs[middle:end] = continuation.log_probs
        return ChunkArrays(
            token_ids=token_ids,
            log_probs=log_probs,
            offsets=np.array(offsets, np.int64),
            is_sampled=None if self._partial.is_sampled is None else is_sampled,
            routes=self._routes(rows, offsets),
            prompt_routes=self._prompt_routes(),
        )

    def _routes(self, rows: Sequence[int], offsets: Sequence[int]) -> Routes | None:
        """Return the mixture-of-experts routes of the rollouts' tokens, or None if no route is known."""
        known = []
        for row in rows:
            earlier = None
            if self._partial.routes is not None:
                earlier = self._partial.routes[self._resumed(row)]
            known.append(RowRoutes(earlier, self._continuation(row).routes))
        return packed_routes(known, offsets, len(self.request.prompt.token_ids))

    def _prompt_routes(self) -> Routes | None:
        """Return the expert routes of the prompt's tokens, as computed for the first rollout that has them.

        All rollouts of one request share the prompt's keys and values, so they share its routes.
        """
        # A token keeps the route with which it was first computed.
        if self._partial.prompt_routes is not None:
            return self._partial.prompt_routes
        num_prompt = len(self.request.prompt.token_ids)
        for continuation in self._continuations:
            if continuation is not None and continuation.routes is not None:
                return continuation.routes[:num_prompt]
        return None

    def _continuation(self, row: int) -> Continuation:
        continuation = self._continuations[row]
        assert continuation is not None, f"rollout {row} of call {self.call_id} was not put"
        return continuation
