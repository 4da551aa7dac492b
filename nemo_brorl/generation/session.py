"""A sampling session: sends requests to engines, returns chunks as they finish, and replaces dead engines."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from ray.exceptions import ObjectLostError

from nemo_brorl.cluster.actor_transport import ActorTransport
from nemo_brorl.config.generation import GenerationConfig
from nemo_brorl.core.errors import GenerationError
from nemo_brorl.generation.answers import answered_chunk, unsampled_chunk
from nemo_brorl.generation.check_replies import check_lengths, find_mismatch
from nemo_brorl.generation.chunk_messages import ChunkFailure, ChunkMeta, Progress, ReturnedChunk
from nemo_brorl.generation.engine_handle import EngineHandle, why_lost
from nemo_brorl.generation.in_flight import ChunkInFlight, InFlight
from nemo_brorl.generation.placement.placement import ChunkPlacement
from nemo_brorl.types import RolloutChunk, RolloutRequest

# An engine reports its progress after REPORT_EVERY ended rollouts, and at least every REPORT_S seconds. In the cluster
# model (lab/studies/cluster_model) sampling is as fast with 32 rollouts as with 16, and 7 % slower with reports of
# finished chunks alone. 32 costs 70 messages per thousand rollouts.
REPORT_EVERY = 32
REPORT_S = 5.0


class VllmSession:
    """A GenerationSession over the engines of a pool.

    Life of a request: submitted ──placement──► in flight on an engine ──its ChunkMeta──► returned by `poll`, once. It
    goes back to the placement when its engine is lost, or returns the chunk for an idle engine. An engine is lost when
    it died, failed a step, returned garbage, or was silent for `timeout_s` while it had work. A request that is cut is
    ended by its engine, or by the session when no engine has it.

    Handles know whether their engine is usable, and other code may replace engines meanwhile. An engine that lacks the
    published weights gets no chunks until it has them.

    Only `close` waits. Each chunk in flight is one open call to its engine. One more call to each engine is always
    open, which the engine answers with its progress (`REPORT_EVERY`).
    """

    def __init__(
        self,
        handles: Sequence[EngineHandle],
        placement: ChunkPlacement,
        config: GenerationConfig,
        call_ids: Iterator[int],  # ids for calls of `generate`, unique in the pool
        known_versions: Collection[int],
        transport: ActorTransport,
        restore_weights: Callable[[], None],
    ) -> None:
        """Open the session. `restore_weights` may give the published weights back to engines that lack them."""
        self.is_open = True
        self._handles = handles
        self._placement = placement
        self._config = config
        self._call_ids = call_ids
        self._known_versions = known_versions
        self._transport = transport
        self._restore_weights = restore_weights
        self._requests: dict[int, RolloutRequest] = {}  # unfinished requests; key: chunk number
        self._in_flight = InFlight()
        self._cut: set[int] = set()  # chunks that were cut and have not ended
        self._num_losses: Counter[int] = Counter()  # number of engines lost with a chunk; key: chunk number
        self._restarted: set[int] = set()  # chunks whose partial rollouts were lost
        self._ended: list[RolloutChunk] = []  # chunks for the next poll

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Queue requests for rollouts, and send them to vLLM engines that have room.

        Raises ConfigError, and queues nothing, if a request does not fit `generation.max_model_len`.
        """
        check_lengths(requests, self._config.max_model_len)
        chunks = self._placement.submit(requests)
        for chunk, request in zip(chunks, requests, strict=True):
            self._requests[chunk] = request
        self._admit_ready_engines()
        self._dispatch()

    def cut(self, uids: Collection[str]) -> None:
        """End all unfinished requests for rollouts of the prompts with these uids.

        A later call of `poll` returns the rollouts with the tokens that they have.
        """
        chosen_uids = set(uids)
        call_ids: dict[int, list[int]] = {}  # engine index → calls to cut
        for chunk, request in self._requests.items():
            if request.prompt.uid not in chosen_uids or chunk in self._cut:
                continue
            self._cut.add(chunk)
            in_flight = self._in_flight.chunks.get(chunk)
            if in_flight is not None:
                call_ids.setdefault(in_flight.engine, []).append(in_flight.call_id)
        # The call's own result is not needed: a chunk that is cut is answered like any other.
        for index, to_cut in call_ids.items():
            self._in_flight.engines[index].actor.cut.remote(to_cut)
        self._end_cut_chunks_without_engine()

    def poll(self) -> list[RolloutChunk]:
        """Return the chunks of rollouts that have finished since the last call.

        Raises GenerationError when an engine fails too often, or engines fail too often on the same chunk.
        """
        # This comes first, because a result of an engine that was replaced meanwhile must be ignored.
        self._drop_replaced_engines()
        resolved = self._transport.wait(self._in_flight.references())
        results = self._transport.results(resolved, self._config.timeout_s)
        for reference, result in zip(resolved, results, strict=True):
            self._in_flight.take_result(reference, result)
        # This comes after the results, because a result shows that its engine is alive.
        self._replace_silent_engines()
        for handle in self._handles:
            handle.check_start()
        if self._requests:
            self._restore_weights()
        self._admit_ready_engines()
        self._end_cut_chunks_without_engine()
        self._dispatch()
        self._ask_for_chunks_back()
        ended = self._ended
        self._ended = []
        return ended

    def pending(self) -> list[Any]:
        """Return Ray references, one of which resolves when `poll` may have new results.

        An engine that does not answer is found only by `poll`, so the caller must also call `poll` from time to time.
        """
        # Chunks have ended already: return one reference that has resolved.
        if self._ended:
            return [self._transport.put(None)]
        references = self._in_flight.references()
        for handle in self._handles:
            if handle.starting is not None:
                references.append(handle.starting)
        return references

    def busy_engines(self) -> frozenset[int]:
        """Return the indices of the engines that have rollouts to sample.

        It is safe to call from any thread.
        """
        return self._in_flight.busy_engines()

    def close(self) -> None:
        """Drop unfinished requests for rollouts and wait until the engines are idle.

        Engines that do not answer are replaced.
        """
        aborts = {}
        busy = self._in_flight.busy_engines()
        # All engines get the call before the first one is waited for.
        for index in busy:
            engine = self._in_flight.engines[index]
            aborts[index] = engine.actor.abort.remote(list(engine.chunks))
        for index in busy:
            engine = self._in_flight.engines[index]
            answers = [in_flight.meta for in_flight in engine.chunks.values()]
            results = self._transport.results([aborts[index], *answers], self._config.timeout_s)
            failures = [result for result in results if isinstance(result, Exception)]
            # An engine that was replaced meanwhile has a new actor, which has not failed.
            if failures and self._handles[index].actor is engine.actor:
                self._handles[index].replace(failures[0])
        self.is_open = False
        self._in_flight = InFlight()
        self._requests.clear()
        self._cut.clear()
        self._ended.clear()

    def _note_chunk(self, in_flight: ChunkInFlight, result: Any) -> None:
        """Handle an engine's reply to a call of `generate`, or the exception that the call raised."""
        chunk = in_flight.chunk
        engine = in_flight.engine
        request = self._requests[chunk]
        if isinstance(result, ChunkMeta):
            mismatch = find_mismatch(result, in_flight.call_id, request, self._known_versions)
            if mismatch is None:
                self._finish(in_flight, result)
            else:
                self._lose(engine, ChunkFailure(mismatch, is_garbage=True))
        elif isinstance(result, ReturnedChunk):
            # The reply to `withdraw` moves the chunk, and may come later.
            in_flight.is_given_back = True
            if not in_flight.is_asked_back:
                self._lose(engine, ChunkFailure(f"engine {engine} gave a chunk back unasked", is_garbage=True))
        elif isinstance(result, ObjectLostError) and self._has_partial(chunk):
            # The node that held the partial rollouts was lost. The engine has not failed: sample them again.
            self._restarted.add(chunk)
            self._in_flight.remove(in_flight)
            self._launch(engine, chunk)
        else:
            self._lose(engine, result)

    def _has_partial(self, chunk: int) -> bool:
        """Return True if the engine resumes the rollouts of this chunk from tokens that it is given."""
        return self._requests[chunk].partial is not None and chunk not in self._restarted

    def _finish(self, in_flight: ChunkInFlight, meta: ChunkMeta) -> None:
        self._in_flight.remove(in_flight)
        chunk = in_flight.chunk
        self._placement.finish(in_flight.engine, chunk, meta.lengths)
        self._note_chunk_progress(in_flight.engine, meta.progress)
        self._handles[in_flight.engine].note_chunk()
        self._cut.discard(chunk)
        request = self._requests.pop(chunk)
        self._ended.append(answered_chunk(in_flight, request, meta))

    def _note_withdrawal(self, in_flight: ChunkInFlight, is_withdrawn: Any) -> None:
        """Handle an engine's reply to `withdraw`, which asks it to give back a chunk of rollouts."""
        in_flight.is_asked_back = False
        if self._in_flight.chunks.get(in_flight.chunk) is not in_flight:
            # The chunk has finished meanwhile.
            self._placement.kept(in_flight.chunk)
        elif is_withdrawn is True:
            self._in_flight.remove(in_flight)
            self._placement.withdrawn(in_flight.chunk)
        elif in_flight.is_given_back:
            reason = f"engine {in_flight.engine} gave a chunk back and says that it keeps it"
            self._lose(in_flight.engine, ChunkFailure(reason, is_garbage=True))
        # Any other reply is a failure of the engine, which the open call of the chunk reports.
        elif is_withdrawn is False:
            self._placement.kept(in_flight.chunk)

    def _note_progress(self, engine: int, progress: Any) -> None:
        """Handle an engine's progress report, or the exception that the call for the report raised."""
        if isinstance(progress, Exception):
            self._lose(engine, progress)
            return
        in_use = self._in_flight.engines[engine]
        # A report without news is no sign of life: it may come from an engine whose steps bring nothing.
        if progress != in_use.last_progress:
            self._handles[engine].touch()
        in_use.last_progress = progress
        self._note_chunk_progress(engine, progress)
        self._ask_for_progress(engine)

    def _note_chunk_progress(self, engine: int, progress: Progress) -> None:
        chunks = self._in_flight.engines[engine].chunks
        for news in progress:
            in_flight = chunks.get(news.call_id)
            if in_flight is not None:
                self._placement.progress(engine, in_flight.chunk, news.num_started, news.num_ended, news.age)

    def _ask_for_progress(self, engine: int) -> None:
        actor = self._in_flight.engines[engine].actor
        reference = actor.progress.remote(REPORT_EVERY, REPORT_S)
        self._in_flight.expect(reference, engine, self._note_progress, engine)

    def _drop_replaced_engines(self) -> None:
        for index, engine in list(self._in_flight.engines.items()):
            if self._handles[index].actor is not engine.actor:
                self._drop(index, "it was replaced")

    def _replace_silent_engines(self) -> None:
        cause = TimeoutError(f"no answer within generation.timeout_s={self._config.timeout_s:g}")
        for index in self._in_flight.busy_engines():
            if self._handles[index].silence_s >= self._config.timeout_s:
                self._lose(index, cause)

    def _lose(self, engine: int, cause: object) -> None:
        self._handles[engine].replace(cause)
        self._drop(engine, why_lost(cause))

    def _drop(self, engine: int, reason: str) -> None:
        """Remove a lost engine from the session, and queue its chunks of rollouts again."""
        self._placement.lose(engine)
        for in_flight in self._in_flight.drop_engine(engine):
            chunk = in_flight.chunk
            self._handles[engine].num_resampled += in_flight.num_rollouts
            # Without a limit, a chunk that kills its engine would kill all of them.
            self._num_losses[chunk] += 1
            if self._num_losses[chunk] > self._config.max_restarts:
                request = self._requests[chunk]
                raise GenerationError(
                    f"prompt {request.prompt.uid}, rollouts from {request.first_index}, was lost with "
                    f"{self._num_losses[chunk]} engines, generation.max_restarts={self._config.max_restarts}; last: "
                    f"{reason}"
                )

    def _admit_ready_engines(self) -> None:
        for handle in self._handles:
            is_usable = handle.starting is None and not handle.lacks_weights
            if is_usable and handle.index not in self._in_flight.engines:
                self._in_flight.add_engine(handle.index, handle.actor)
                self._placement.add_engine(handle.index)
                self._ask_for_progress(handle.index)

    def _dispatch(self) -> None:
        while (assignment := self._placement.assign()) is not None:
            self._launch(*assignment)

    def _launch(self, index: int, chunk: int) -> None:
        request = self._requests[chunk]
        resumed = request.partial
        partial = None
        if resumed is not None:
            if self._has_partial(chunk):
                # An argument of its own, so that Ray moves the tokens from the node that holds them.
                partial = resumed.data
            without_data = dataclasses.replace(resumed, data=None)
            request = dataclasses.replace(request, partial=without_data)
        engine = self._in_flight.engines[index]
        # An engine without chunks was silent because it was idle.
        if not engine.chunks:
            self._handles[index].touch()
        call_id = next(self._call_ids)
        references = engine.actor.generate.remote(call_id, request, partial)
        in_flight = ChunkInFlight(call_id, index, chunk, request.num_rollouts, *references)
        self._in_flight.add(in_flight)
        self._in_flight.expect(in_flight.meta, index, self._note_chunk, in_flight)

    def _end_cut_chunks_without_engine(self) -> None:
        for chunk in sorted(self._cut - self._in_flight.chunks.keys()):
            is_cancelled = self._placement.cancel(chunk)
            assert is_cancelled, f"chunk {chunk} is held by an engine that does not have it"
            self._cut.remove(chunk)
            request = self._requests.pop(chunk)
            self._ended.append(unsampled_chunk(request, self._handles[0].version))

    def _ask_for_chunks_back(self) -> None:
        for steal in self._placement.steals():
            engine = self._in_flight.engines[steal.victim]
            in_flight = self._in_flight.chunks[steal.chunk]
            num_others = engine.num_rollouts - in_flight.num_rollouts
            # The batch has room for the chunk next to the engine's other chunks.
            may_have_begun = num_others < self._placement.max_rollouts
            if steal.chunk in self._cut or may_have_begun:
                self._placement.kept(steal.chunk)
                continue
            in_flight.is_asked_back = True
            withdrawal = engine.actor.withdraw.remote(in_flight.call_id)
            self._in_flight.expect(withdrawal, steal.victim, self._note_withdrawal, in_flight)
