"""A stream that samples and scores groups."""

from __future__ import annotations

import time
from collections.abc import Sequence

from nemo_brorl.cluster.object_store import wait_any
from nemo_brorl.core.stall_watch import Heartbeat
from nemo_brorl.ports import ChunkScorer, Forecast, GenerationSession, Generator
from nemo_brorl.rollouts.chunk_spans import ChunkSpans
from nemo_brorl.rollouts.ledger import GroupLedger, OpenGroup, request_to_resume, requests_for, requests_to_resume
from nemo_brorl.rollouts.replay_cache import ReplayCache
from nemo_brorl.types import (
    PartialRollouts,
    Prompt,
    RolloutChunk,
    RolloutRequest,
    Sampling,
    ScoredChunk,
)

TURN_S = 1.0  # longest wait for results, so that deadlines and stop requests are checked


class RolloutStream:
    """Groups being sampled: requests go out, scored chunks come back, finished groups come out.

    Scoring overlaps sampling. Trajectories whose environment has replied are requested again at once, until their group
    is cut. Only small objects pass through here. The order in which groups finish depends on which engine was faster.
    What is sampled does not.
    """

    def __init__(
        self,
        generator: Generator,
        verifier: ChunkScorer,
        chunk_size: int,
        seed: int,
        heartbeat: Heartbeat,
        forecast: Forecast | None = None,
        replay_cache: ReplayCache | None = None,
    ) -> None:
        """Open a session in which engines sample groups of rollouts.

        Rollouts in `replay_cache` are not sampled again, and new rollouts are added to it.
        """
        self.session: GenerationSession = generator.open_session(forecast)
        self.verifier = verifier
        self.chunk_size = chunk_size
        self.seed = seed
        self.heartbeat = heartbeat
        self.replay_cache = replay_cache
        self.ledger = GroupLedger()
        self.num_asked = 0  # rollouts requested so far
        self.num_settled = 0  # rollouts that came back
        self.num_tokens = 0  # tokens sampled by this stream, also of rollouts that were cut
        self.sampled_at = time.monotonic()  # time when no rollout was left to sample
        self._cut: set[str] = set()  # groups whose trajectories are not resumed
        self._num_sampling = 0  # rollouts that no engine has returned
        self._replayed: list[ScoredChunk] = []  # replayed chunks for the next `advance`
        self._spans = ChunkSpans(heartbeat.timeline)

    @property
    def is_idle(self) -> bool:
        """Return True if all requested rollouts have been returned, finished or cut off."""
        return self.ledger.num_out == 0

    @property
    def num_sampled(self) -> int:
        """Number of requested rollouts that engines have returned, scored or not."""
        return self.num_asked - self._num_sampling

    def open(
        self,
        prompt: Prompt,
        num_rollouts: int,
        sampling: Sampling,
        deadline_s: float | None = None,
    ) -> None:
        """Start to sample a group of `num_rollouts` for a prompt.

        `deadline_s` is the deadline in seconds of each of the group's requests.
        """
        self._cut.discard(prompt.uid)
        self.ledger.open(OpenGroup(prompt, sampling, deadline_s))
        self.ledger.ask(prompt.uid, range(num_rollouts))
        self.num_asked += num_rollouts
        requests = requests_for(
            [prompt],
            num_per_prompt=num_rollouts,
            chunk_size=self.chunk_size,
            sampling=sampling,
            run_seed=self.seed,
            deadline_s=deadline_s,
        )
        self._submit(requests)

    def resume(self, group: OpenGroup) -> None:
        """Resume a group with rollouts that were cut off, by requesting these rollouts again."""
        self._cut.discard(group.uid)
        self.ledger.open(group)
        self.num_asked += group.num_partial
        requests = requests_to_resume(group, self.seed)
        for request in requests:
            self.ledger.ask(group.uid, request.indices.tolist())
        self._submit(requests)

    def cut(self) -> None:
        """Cut off all rollouts that are being sampled.

        A later call of `advance` returns their groups.
        """
        unsettled = self.ledger.unsettled()
        self._cut.update(unsettled)
        self.session.cut(unsettled)

    def advance(self, timeout_s: float = TURN_S) -> list[OpenGroup]:
        """Wait at most `timeout_s` seconds for results, and return the groups whose requested rollouts have all ended.

        Rollouts that were cut off count as ended. Groups are in the order in which they finished, and stay in the
        ledger until `release`. Raises StallError when the run was stopped because it stalled.
        """
        self.heartbeat.check()
        pending = [*self.session.pending(), *self.verifier.pending()]
        if self._replayed:
            timeout_s = 0.0  # replayed chunks are results already
        wait_any(pending, timeout_s)
        chunks = self.session.poll()
        scores = [*self._replayed, *self.verifier.poll()]
        self._replayed = []
        if chunks or scores:
            self.heartbeat.beat(f"{self.num_settled:,} of {self.num_asked:,} rollouts")
        settled: list[OpenGroup] = []
        for chunk in chunks:
            self._note_sampled(chunk)
            self._spans.note_sampled(chunk)
            if len(chunk.lengths):
                self._spans.note_requested(chunk.request)
                self.verifier.submit(chunk)
            else:
                self._receive(chunk, None, settled)
        for scored in scores:
            self._spans.note_scored(scored)
            if self.replay_cache is not None:
                self.replay_cache.add_chunk(scored)
            self._receive(scored.chunk, scored, settled)
        return settled

    def release(self, uid: str) -> OpenGroup:
        """Remove and return a group whose requested rollouts have all been returned, finished or cut off."""
        return self.ledger.release(uid)

    def close(self) -> None:
        """Drop all rollouts that are being sampled or scored."""
        self.session.close()
        self.verifier.forget()

    def _receive(
        self,
        chunk: RolloutChunk,
        scored: ScoredChunk | None,
        settled: list[OpenGroup],
    ) -> None:
        self.ledger.receive(chunk, scored)
        uid = chunk.request.prompt.uid
        group = self.ledger.groups[uid]
        self.num_settled += len(chunk.request.indices)
        if scored is not None and scored.unfinished is not None and uid not in self._cut:
            self._request_next_turn(group, scored.unfinished)
        if self.ledger.is_settled(uid):
            settled.append(group)

    def _request_next_turn(self, group: OpenGroup, partial: PartialRollouts) -> None:
        """Request the next turn of trajectories whose environment has replied."""
        self.num_settled -= len(partial.indices)
        self.ledger.ask(group.uid, partial.indices.tolist())
        self._submit([request_to_resume(group, partial, self.seed)])

    def _submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Send requests for rollouts to the engines.

        A request whose rollouts were sampled before an interruption is answered from the replay cache in the next
        `advance`.
        """
        to_sample: list[RolloutRequest] = []
        for request in requests:
            self._num_sampling += len(request.indices)
        for request in requests:
            replayed = None if self.replay_cache is None else self.replay_cache.take_chunk(request)
            if replayed is None:
                to_sample.append(request)
                self._spans.note_requested(request)
            else:
                self._note_sampled(replayed.chunk, replayed.unfinished)
                self._replayed.append(replayed)
        if to_sample:
            self.session.submit(to_sample)

    def _note_sampled(self, chunk: RolloutChunk, unfinished: PartialRollouts | None = None) -> None:
        """Count the newly sampled tokens of a chunk of rollouts, without those from which its rollouts were resumed.

        `unfinished` are trajectories of the request that have not ended and are no longer in `chunk`.
        """
        self.num_tokens += chunk.sampled_tokens
        for partial in (chunk.partial, unfinished):
            if partial is not None:
                self.num_tokens += partial.sampled_tokens
        if chunk.request.partial is not None:
            self.num_tokens -= chunk.request.partial.sampled_tokens
        self._num_sampling -= len(chunk.request.indices)
        if self._num_sampling == 0:
            self.sampled_at = time.monotonic()
