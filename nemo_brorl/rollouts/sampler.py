"""Sampling and scoring of groups through the Generator and Verifier ports. Training, validation, evaluation and the
warm-up's probes all come through here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from nemo_brorl.core.console import Console
from nemo_brorl.core.object_store import wait_any
from nemo_brorl.core.stall_watch import Heartbeat, Stalled
from nemo_brorl.core.timeline import CHUNKS, Exchange, Timeline, Work, chunk_key
from nemo_brorl.ports import Forecast, GenerationSession, Generator, Verifier
from nemo_brorl.rollouts.ledger import GroupLedger, OpenGroup, request_to_go_on, requests_for, requests_to_resume
from nemo_brorl.types import (
    PartialRollouts,
    Period,
    Prompt,
    RolloutChunk,
    RolloutRequest,
    Sampling,
    ScoredChunk,
    ScoredGroup,
)

TURN_S = 1.0  # a wait for news ends after this long, so that deadlines and stop requests are looked at

ReplayKey = tuple[str, bytes, bytes]  # prompt, rollouts, what they go on from


class ChunkSpans:
    """When chunks were asked for and came back by the driver's clock, put together with what their workers say."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._asked_at: dict[str, float] = {}  # by chunk; of its last question

    def asked(self, request: RolloutRequest) -> None:
        """A chunk is asked of the engines, or of the verifiers."""
        self._asked_at[_key(request)] = self._timeline.now()

    def sampled(self, chunk: RolloutChunk) -> None:
        """An engine's answer has come."""
        details = {
            "num_rollouts": len(chunk.lengths),
            "tokens": int(chunk.lengths.sum()),
            "version": chunk.version,
            "task": chunk.request.prompt.task,
        }
        self._note(f"engine {chunk.engine}", "sample", chunk.request, chunk.period, details)

    def scored(self, scored: ScoredChunk) -> None:
        """A verifier's answer has come."""
        details = {
            "num_rollouts": len(scored.rewards),
            "mean_reward": round(float(scored.rewards.mean()), 4) if len(scored.rewards) else 0.0,
            "verifier": scored.chunk.request.prompt.verifier,
        }
        request = scored.chunk.request
        self._note(f"verifier {scored.worker}", "score", request, scored.period, details)

    def _note(
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
        self._timeline.note(process, [work], exchange)


def _key(request: RolloutRequest) -> str:
    return chunk_key(request.prompt.uid, int(request.indices[0]))


class RolloutStream:
    """Groups being sampled: requests go out, scored chunks come back, settled groups come out. Scoring overlaps
    sampling. Trajectories whose environment has answered are asked for again at once, until the group is cut.

    Only small objects pass through here. The order in which groups settle depends on which engine was faster; what is
    sampled does not.
    """

    def __init__(
        self,
        generator: Generator,
        verifier: Verifier,
        chunk_size: int,
        seed: int,
        heartbeat: Heartbeat,
        forecast: Forecast | None = None,
        replay_cache: ReplayCache | None = None,
    ) -> None:
        """`replay_cache`: what is in it is not sampled, and what comes back is noted there."""
        self.session: GenerationSession = generator.open_session(forecast)
        self.verifier = verifier
        self.chunk_size = chunk_size
        self.seed = seed
        self.heartbeat = heartbeat
        self.replay_cache = replay_cache
        self.ledger = GroupLedger()
        self.num_asked = 0  # rollouts, ever
        self.num_settled = 0  # rollouts that came back
        self.num_tokens = 0  # sampled here, also of rollouts that were cut
        self.sampled_at = time.monotonic()  # when the last of them was
        self._cut: set[str] = set()  # groups whose trajectories do not go on
        self._num_sampling = 0  # rollouts that no engine has answered for
        self._replayed: list[ScoredChunk] = []  # for the next turn
        self._spans = ChunkSpans(heartbeat.timeline)

    @property
    def is_idle(self) -> bool:
        """Whether no rollout is out."""
        return self.ledger.num_out == 0

    def open(
        self,
        prompt: Prompt,
        num_rollouts: int,
        sampling: Sampling,
        deadline_s: float | None = None,
    ) -> None:
        """Begin a group of `num_rollouts`; `deadline_s` is of each of its requests."""
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
        """Go on with a group that was cut: its partial rollouts are asked for again."""
        self._cut.discard(group.uid)
        self.ledger.open(group)
        self.num_asked += group.num_partial
        requests = requests_to_resume(group, self.seed)
        for request in requests:
            self.ledger.ask(group.uid, request.indices.tolist())
        self._submit(requests)

    def cut(self) -> None:
        """End all rollouts that are out now; their groups settle soon."""
        unsettled = self.ledger.unsettled()
        self._cut.update(unsettled)
        self.session.cut(unsettled)

    def advance(self, timeout_s: float = TURN_S) -> list[OpenGroup]:
        """Wait for news, at most `timeout_s`; groups that have settled since, in the order they did. The stream follows
        them until `release`. Raises StallError when the run was given up."""
        self.heartbeat.check()
        pending = [*self.session.pending(), *self.verifier.pending()]
        if self._replayed:
            timeout_s = 0.0  # there is news already
        wait_any(pending, timeout_s)
        chunks = self.session.poll()
        scores = [*self._replayed, *self.verifier.poll()]
        self._replayed = []
        if chunks or scores:
            self.heartbeat.beat(f"{self.num_settled:,} of {self.num_asked:,} rollouts")
        settled: list[OpenGroup] = []
        for chunk in chunks:
            self._note_sampled(chunk)
            self._spans.sampled(chunk)
            if len(chunk.lengths):
                self._spans.asked(chunk.request)
                self.verifier.submit(chunk)
            else:
                self._receive(chunk, None, settled)
        for scored in scores:
            self._spans.scored(scored)
            if self.replay_cache is not None:
                self.replay_cache.note(scored)
            self._receive(scored.chunk, scored, settled)
        return settled

    def release(self, uid: str) -> OpenGroup:
        """Stop following a settled group."""
        return self.ledger.release(uid)

    def close(self) -> None:
        """Drop what is being sampled."""
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
        if scored is not None and scored.goes_on is not None and uid not in self._cut:
            self._go_on(group, scored.goes_on)
        if self.ledger.is_settled(uid):
            settled.append(group)

    def _go_on(self, group: OpenGroup, block: PartialRollouts) -> None:
        """Ask for the next turn of trajectories."""
        self.num_settled -= len(block.indices)
        self.ledger.ask(group.uid, block.indices.tolist())
        self._submit([request_to_go_on(group, block, self.seed)])

    def _submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Send requests to the engines, but for those whose answer is there already: it comes back in the next turn."""
        to_sample: list[RolloutRequest] = []
        for request in requests:
            self._num_sampling += len(request.indices)
        for request in requests:
            replayed = None if self.replay_cache is None else self.replay_cache.take(request)
            if replayed is None:
                to_sample.append(request)
                self._spans.asked(request)
            else:
                self._note_sampled(replayed.chunk, replayed.goes_on)
                self._replayed.append(replayed)
        if to_sample:
            self.session.submit(to_sample)

    def _note_sampled(self, chunk: RolloutChunk, goes_on: PartialRollouts | None = None) -> None:
        """Count tokens sampled for this chunk, those it came with apart; `goes_on` are trajectories no longer in it."""
        self.num_tokens += chunk.sampled_tokens
        for block in (chunk.partial, goes_on):
            if block is not None:
                self.num_tokens += block.sampled_tokens
        if chunk.request.partial is not None:
            self.num_tokens -= chunk.request.partial.sampled_tokens
        self._num_sampling -= len(chunk.request.indices)
        if self._num_sampling == 0:
            self.sampled_at = time.monotonic()


@dataclass(frozen=True)
class SampledGroups:
    """Scored groups in the order of their prompts, and where the time went."""

    groups: list[ScoredGroup]
    generate_s: float  # until the last chunk was sampled
    reward_s: float  # after that, until the last one was scored


class Sampler:
    """Draws and scores whole groups of a fixed size."""

    def __init__(
        self,
        generator: Generator,
        verifier: Verifier,
        console: Console,
        chunk_size: int,
        seed: int,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self.generator = generator
        self.verifier = verifier
        self.console = console
        self.chunk_size = chunk_size
        self.seed = seed
        self.heartbeat = heartbeat or Heartbeat()

    def stage(self, name: str, *others: Stalled) -> AbstractContextManager[None]:
        """Inside, the run waits for engines, verifiers and those that `others` name."""
        return self.heartbeat.stage(name, self.generator.stalled, self.verifier.stalled, *others)

    def open_stream(
        self,
        forecast: Forecast | None = None,
        chunk_size: int | None = None,
        replay_cache: ReplayCache | None = None,
    ) -> RolloutStream:
        """Stream of groups that are begun, extended and cut one by one. One stream at a time."""
        return RolloutStream(
            self.generator,
            self.verifier,
            chunk_size or self.chunk_size,
            self.seed,
            self.heartbeat,
            forecast,
            replay_cache,
        )

    def sample(
        self,
        prompts: Sequence[Prompt],
        num_per_prompt: int,
        sampling: Sampling,
        stage: str,
    ) -> SampledGroups:
        """`num_per_prompt` rollouts of each prompt. The order of the result does not depend on which engine was
        faster."""
        start = time.monotonic()
        self.console.begin()
        stream = self.open_stream()
        closed: dict[str, ScoredGroup] = {}
        with closing(stream), self.stage(stage):
            for prompt in prompts:
                stream.open(prompt, num_per_prompt, sampling)
            while not stream.is_idle:
                for group in stream.advance():
                    stream.release(group.uid)
                    closed[group.uid] = group.close()
                seconds = time.monotonic() - start
                self.console.progress(stage, stream.num_settled, stream.num_asked, "rollouts", seconds)
        self.console.clear()
        return SampledGroups(
            groups=[closed[prompt.uid] for prompt in prompts],
            generate_s=stream.sampled_at - start,
            reward_s=time.monotonic() - stream.sampled_at,
        )


class ReplayCache:
    """Cache of the chunks of one step: `take` those of the step that was cut, `note` those that come back in this one.

    The step begins anew with the prompts, seeds and weights of the one that was cut, so it asks for the same rollouts
    again, chunk by chunk. Chunks that had come back whole and scored are replayed as they are. Others are sampled
    again, also those of which a part had ended: the order of rollouts within a group is that of its chunks, and results
    do not change with the moment of the cut.
    """

    def __init__(self, chunks: Iterable[ScoredChunk] = ()) -> None:
        self.num_taken = 0  # rollouts
        self._new: list[ScoredChunk] = []
        self._old: dict[ReplayKey, ScoredChunk] = {}
        for scored in chunks:
            self._old[_replay_key(scored.chunk.request)] = scored

    @property
    def chunks(self) -> tuple[ScoredChunk, ...]:
        """Chunks that a later step may replay if this one is cut now."""
        return (*self._new, *self._old.values())

    def take(self, request: RolloutRequest) -> ScoredChunk | None:
        """The answer to a request; None where it must be sampled. One to another question (other settings, or another
        prompt) is none."""
        found = self._old.pop(_replay_key(request), None)
        if found is None:
            return None
        if not _is_same(found.chunk.request, request):
            return None
        self.num_taken += len(found.rewards)
        return found

    def note(self, scored: ScoredChunk) -> None:
        """Keep a chunk that has come back, if it is whole."""
        if scored.chunk.partial is None:
            self._new.append(scored)


def _replay_key(request: RolloutRequest) -> ReplayKey:
    """Prompt, rollouts, and what they go on from: a trajectory is asked for once a turn."""
    lengths = b""
    if request.partial is not None:
        lengths = request.partial.lengths.tobytes()
    indices = request.indices.tobytes()
    return request.prompt.uid, indices, lengths


def _is_same(old: RolloutRequest, new: RolloutRequest) -> bool:
    """Whether both ask for the same tokens."""
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
