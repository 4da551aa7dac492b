"""The Ray actor around one vLLM engine.

All calls into vLLM, its construction included, happen on one thread, in turns: a step of the batch, then whatever was
asked for meanwhile (new rollouts, an abort, a bucket of weights, counters), then the next step. vLLM keeps the CUDA
stream of the thread that warms it up, and torch the device and stream of each thread. The actor's coroutines only wait.
The driver imports this module to start actors, so vllm and torch are imported when an engine is built, in its process.
`ChunkBatch` has the chunks in the engine's batch, and lives on that one thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import ray

from nemo_brorl.core.console import get_logger, setup_logging
from nemo_brorl.core.errors import GenerationError, WeightSyncError
from nemo_brorl.generation.chunk_messages import (
    ChunkFailure,
    ChunkMeta,
    ChunkProgress,
    Progress,
    ProgressReports,
    Reply,
    Withdrawn,
)
from nemo_brorl.generation.chunk_task import ChunkTask, Continuation, EngineCounters, RolloutTask, VllmRequests
from nemo_brorl.generation.device import EngineSettings, prepare_process
from nemo_brorl.generation.engine_handle import EngineReady
from nemo_brorl.generation.routes import return_routes
from nemo_brorl.generation.sleep import SleepMode
from nemo_brorl.types import (
    BucketNotice,
    ChunkArrays,
    EngineStats,
    RolloutRequest,
    Sampling,
    TensorInfo,
    WeightBucket,
    WeightLink,
)
from nemo_brorl.weights.incoming import (
    IncomingWeights,
    LoadReport,
    check_manifest,
    has_tied_head,
    read_shapes,
)


class Requests(Protocol):
    """Rollouts in vLLM's batch, as `VllmRequests` offers them."""

    vocab_size: int

    def add(self, name: str, task: RolloutTask, sampling: Sampling) -> str: ...

    def step(self) -> list[tuple[str, Continuation]]: ...

    def num_tokens(self, identity: str) -> int | None: ...

    def so_far(self, identity: str) -> Continuation: ...

    def abort(self, identities: Sequence[str]) -> None: ...

    def set_version(self, version: int) -> None: ...


class ChunkBatch:
    """Life of a chunk: `add` queues its rollouts → `step`s sample them together with everything else → answered when
    its last one has ended, or earlier, by `cut` or the request's deadline; `withdraw` and `abort` drop it, with
    `Withdrawn` as the answer.

    `cut` and `abort` may overtake the chunk on its way here: calls that are not known are remembered.
    """

    def __init__(self, requests: Requests) -> None:
        self.version = 0
        self.num_tokens = 0  # sampled so far
        self.num_samples = 0  # rollouts that have ended
        self.num_resumed = 0  # tokens that rollouts were gone on with from
        self.num_cached = 0  # of these, found in the prefix cache
        self._requests = requests
        self._chunks: dict[int, ChunkTask] = {}  # by call
        self._rollouts: dict[str, tuple[ChunkTask, int]] = {}  # unfinished, by name: chunk and row
        self._cut_early: set[int] = set()
        self._dropped_early: set[int] = set()
        self._failure: ChunkFailure | None = None
        self._reports = ProgressReports()
        self.set_version(0)

    @property
    def is_idle(self) -> bool:
        """Whether a step would do nothing, or must not be made."""
        return not self._chunks or self._failure is not None

    def set_version(self, version: int) -> None:
        """Tokens sampled from now on are of this policy version."""
        self.version = version
        self._requests.set_version(version)

    def add(self, chunk: ChunkTask) -> None:
        """Queue a chunk's rollouts."""
        if self._failure is not None:
            chunk.answer.set_result((self._failure, None, None))
            return
        if not self._chunks:
            self._reports.times.note_begun(time.monotonic())
        self._chunks[chunk.call_id] = chunk
        if chunk.call_id in self._dropped_early:
            self._drop(chunk)
            return
        sampling = chunk.request.sampling
        for task in chunk.rollouts():
            name = f"{chunk.call_id}/{task.row}"
            identity = self._requests.add(name, task, sampling)
            chunk.ids.append(identity)
            self._rollouts[name] = (chunk, task.row)
        if chunk.call_id in self._cut_early:
            self.cut([chunk.call_id])

    def step(self) -> None:
        """One step; answers the chunks it finishes."""
        ended = self._requests.step()
        for name, continuation in ended:
            chunk, row = self._rollouts.pop(name)
            chunk.put(row, continuation)
            self._reports.times.note_ended()
            if chunk.is_finished:
                self._answer(chunk)
        now = time.monotonic()
        self._note_begun(now)
        self._cut_overdue(now)
        if self._chunks and self._reports.is_due(now):
            self._reports.tell(self._progress(), now)

    def report(
        self,
        every: int,
        within_s: float,
        question: Future[Progress],
    ) -> None:
        """Answer `question` with how far all chunks are, when `ReportTimes` says."""
        self._reports.ask(every, within_s, question)

    def cut(self, call_ids: Collection[int]) -> None:
        """End these chunks with what they have."""
        for call_id in call_ids:
            chunk = self._chunks.get(call_id)
            if chunk is None:
                self._cut_early.add(call_id)
                continue
            for row in chunk.missing():
                identity = chunk.ids[row]
                chunk.put(row, self._requests.so_far(identity))
            self._remove_rollouts(chunk)
            self._answer(chunk)

    def withdraw(self, call_id: int) -> bool:
        """Drop a chunk unless a token of it was sampled; whether it was dropped."""
        chunk = self._chunks.get(call_id)
        if chunk is None:
            return False
        for identity in chunk.ids:
            if self._requests.num_tokens(identity) != 0:
                return False
        self._drop(chunk)
        return True

    def abort(self, call_ids: Collection[int]) -> None:
        """Drop these chunks. Nothing else is in flight, here or on its way, and nobody waits for a report."""
        self._reports.drop()
        self._cut_early.clear()
        self._dropped_early = set(call_ids) - self._chunks.keys()
        for chunk in list(self._chunks.values()):
            self._drop(chunk)

    def fail(self, failure: ChunkFailure) -> None:
        """Answer everything in flight, and everything that comes later, with this."""
        self._failure = failure
        for chunk in self._chunks.values():
            chunk.answer.set_result((failure, None, None))
        self._chunks.clear()
        self._rollouts.clear()

    def _note_begun(self, now: float) -> None:
        for chunk in self._chunks.values():
            first = chunk.ids[0]  # vLLM begins with the first rollout of a chunk
            if chunk.begun_at is None and self._requests.num_tokens(first) != 0:
                chunk.begun_at = now

    def _cut_overdue(self, now: float) -> None:
        for chunk in list(self._chunks.values()):
            deadline_s = chunk.request.deadline_s
            if deadline_s is None or chunk.begun_at is None:
                continue
            if now - chunk.begun_at > deadline_s:
                self.cut([chunk.call_id])

    def _progress(self) -> Progress:
        """Progress of every chunk in the batch that has begun."""
        progress = []
        for chunk in self._chunks.values():
            num_running = 0  # begun and not ended
            num_waiting = 0
            num_tokens = 0  # of those that are running
            for row in chunk.missing():
                sampled = self._requests.num_tokens(chunk.ids[row])
                if sampled:
                    num_running += 1
                    num_tokens += sampled + chunk.num_resumed(row)
                elif sampled == 0:
                    num_waiting += 1  # None: it has ended in this step, and was not put yet
            num_begun = len(chunk.ids) - num_waiting
            if num_begun:
                news = ChunkProgress(
                    call_id=chunk.call_id,
                    num_begun=num_begun,
                    num_ended=num_begun - num_running,
                    age=num_tokens / max(1, num_running),
                )
                progress.append(news)
        return tuple(progress)

    def _answer(self, chunk: ChunkTask) -> None:
        del self._chunks[chunk.call_id]
        vocab_size = self._requests.vocab_size
        meta, arrays, partial = chunk.reply(self.version, vocab_size)
        if isinstance(meta, ChunkMeta):
            meta = dataclasses.replace(meta, progress=self._progress(), period=chunk.period())
            self._reports.times.note_told(time.monotonic())
            self.num_samples += len(meta.lengths)
            self.num_tokens += chunk.num_sampled
            num_resumed, num_cached = chunk.prefix_hits()
            self.num_resumed += num_resumed
            self.num_cached += num_cached
        chunk.answer.set_result((meta, arrays, partial))

    def _drop(self, chunk: ChunkTask) -> None:
        self._remove_rollouts(chunk)
        del self._chunks[chunk.call_id]
        chunk.answer.set_result((Withdrawn(), None, None))

    def _remove_rollouts(self, chunk: ChunkTask) -> None:
        """Take what is left of a chunk out of the batch."""
        self._requests.abort(chunk.ids)
        for row in range(len(chunk.ids)):
            self._rollouts.pop(f"{chunk.call_id}/{row}", None)


T = TypeVar("T")

logger = get_logger(__name__)


class RolloutEngine:
    """One vLLM engine: rollouts in chunks, weight updates, counters.

    `generate` puts a chunk into the batch and answers when the batch lets it go. While weights change no step is made;
    what is in flight goes on under the new ones.
    """

    def __init__(self, settings: EngineSettings) -> None:
        setup_logging(f"engine {settings.index}")
        sleeps = settings.sleep != "off"
        prepare_process(settings.on_cpu, settings.worker_environment, sleeps)
        self._settings = settings
        self._is_stepping = False
        self._is_held = False  # no step now: the weights are half old, half new
        self._incoming: IncomingWeights | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vllm")
        self._ready: EngineReady = self._thread.submit(self._build).result()

    async def ready(self) -> EngineReady:
        """Answers once the engine is built."""
        return self._ready

    @ray.method(num_returns=3)
    async def generate(
        self,
        call_id: int,
        request: RolloutRequest,
        partial: ChunkArrays | None,
    ) -> Reply:
        """The rollouts of the request as three Ray returns: what to know, the ended ones, and the unfinished ones if it
        was cut.

        `call_id` is a number of the caller's that was not used before; `partial` are the tokens of `request.partial`.
        """
        answer: Future[Reply] = Future()
        chunk = ChunkTask(call_id, request, partial, answer)
        await self._on_thread(self._add, chunk)
        return await asyncio.wrap_future(answer)

    async def cut(self, call_ids: Collection[int]) -> None:
        """End these chunks with what they have; those that are not here yet, as soon as they come."""
        await self._on_thread(self._batch.cut, call_ids)

    async def withdraw(self, call_id: int) -> bool:
        """Give a chunk back unless a token of it was sampled; whether it was. Its `generate` then answers Withdrawn."""
        return await self._on_thread(self._batch.withdraw, call_id)

    async def abort(self, call_ids: Collection[int]) -> None:
        """Drop these chunks, which is all there are, also those that are not here yet."""
        await self._on_thread(self._batch.abort, call_ids)

    async def progress(self, every: int, within_s: float) -> Progress:
        """How far the chunks here are, once `every` more rollouts have ended or a busy engine has told nothing for
        `within_s`, see `ReportTimes`. An engine without chunks does not answer before it has some."""
        question: Future[Progress] = Future()
        await self._on_thread(self._batch.report, every, within_s, question)
        return await asyncio.wrap_future(question)

    async def stats(self) -> EngineStats:
        """Counters since the engine was started."""
        return await self._on_thread(self._stats)

    async def begin_weights(self, manifest: Sequence[TensorInfo]) -> None:
        """Check an announced update against the model's folder. Raises WeightSyncError; nothing was touched then."""
        folder = Path(self._settings.model_folder)
        check_manifest(manifest, read_shapes(folder), has_tied_head(folder))
        self._incoming = IncomingWeights(manifest)

    async def receive_weights(self, bucket: WeightBucket | BucketNotice) -> None:
        """Load the next bucket. Raises WeightSyncError; after an error the actor must be replaced."""
        await self._on_thread(self._receive, bucket)

    async def finish_weights(self, version: int) -> LoadReport:
        """Complete the update: what was computed under the old weights is forgotten, later tokens carry `version`."""
        return await self._on_thread(self._finish, version)

    async def restore(self, manifest: Sequence[TensorInfo], version: int, *buckets: WeightBucket) -> EngineReady:
        """A whole update in one call, for an engine that replaces a dead one."""
        await self.begin_weights(manifest)
        for bucket in buckets:
            await self.receive_weights(bucket)
        await self.finish_weights(version)
        return self._ready

    async def join_weight_link(self, link: WeightLink, number: int) -> None:
        """Bring the workers into a weight broadcast, as receiver `number`. Raises ReceiverLostError."""
        await self._on_thread(self._workers, "join_weight_link", link, number)

    async def sleep(self) -> int:
        """Give up what `generation.sleep` says. Bytes that are still held."""
        return await self._on_thread(self._sleep)

    async def wake(self, tag: str) -> None:
        """Make room for "weights" or for the "kv_cache" again."""
        await self._on_thread(self._sleep_mode.wake, tag)

    async def _on_thread(self, call: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, call, *args)

    def _workers(self, method: str, *args: Any) -> None:
        self._engine.model_executor.collective_rpc(method, args=args)

    # ---- below: on the vLLM thread only ----

    def _build(self) -> EngineReady:
        settings = self._settings
        start = time.perf_counter()
        gc.disable()  # collections during the import cost a CPU-second ...
        from vllm import EngineArgs, LLMEngine

        gc.freeze()  # ... and the five that vLLM asks for while loading cost two more, without this
        gc.enable()
        keep_rendezvous_in_memory()
        imported = time.perf_counter()
        self._engine = LLMEngine.from_engine_args(EngineArgs(**settings.arguments))
        self._workers("apply_device_fixes")
        if settings.records_routes:
            return_routes(self._engine)
        self._counters = EngineCounters(self._engine)
        self._batch = ChunkBatch(VllmRequests(self._engine))
        self._sleep_mode = SleepMode(self._engine, settings.sleep, settings.on_cpu)
        return EngineReady(
            engine=settings.index,
            process=os.getpid(),
            import_s=imported - start,
            load_s=time.perf_counter() - imported,
            cache_bytes=self._engine.engine_core.engine_core.available_gpu_memory_for_kv_cache,
        )

    def _add(self, chunk: ChunkTask) -> None:
        self._batch.add(chunk)
        self._step_if_needed()

    def _step_if_needed(self) -> None:
        if self._is_stepping or self._is_held or self._batch.is_idle:
            return
        self._is_stepping = True
        step = self._thread.submit(self._step)
        step.add_done_callback(self._note_failure)

    def _step(self) -> None:
        self._is_stepping = False
        if not self._is_held:
            self._batch.step()
            self._step_if_needed()

    def _note_failure(self, step: Future[None]) -> None:
        """A failed step leaves the batch in an unknown state: everything in flight fails, and so does what comes
        later."""
        cause = step.exception()
        if cause is not None:
            logger.error("a step failed", exc_info=cause)
            self._batch.fail(ChunkFailure(f"{type(cause).__name__}: {cause}"))

    def _hold(self) -> None:
        """No step until `_release`; what is in flight waits."""
        self._is_held = True

    def _release(self) -> None:
        self._is_held = False
        self._step_if_needed()

    def _sleep(self) -> int:
        if not self._batch.is_idle:
            raise GenerationError("an engine was told to sleep while chunks are in flight; close the session first")
        return self._sleep_mode.sleep()

    def _receive(self, bucket: WeightBucket | BucketNotice) -> None:
        if self._incoming is None:
            raise WeightSyncError("a bucket arrived before its manifest")
        is_first = not self._incoming.has_started
        self._incoming.accept(bucket)
        if is_first:
            self._hold()  # from here on the model is half old, half new
            self._workers("start_load")
        self._workers("load_bucket", bucket)

    def _finish(self, version: int) -> LoadReport:
        if self._incoming is None:
            raise WeightSyncError("an update was finished before its manifest arrived")
        report = self._incoming.finish(version)
        self._incoming = None
        self._workers("finish_load")
        # Keys and values of the old weights are wrong under the new ones; vLLM would reuse them silently. Those of
        # rollouts in flight are computed again.
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise WeightSyncError("the prefix cache could not be reset")
        self._batch.set_version(version)
        self._release()
        return report

    def _stats(self) -> EngineStats:
        return EngineStats(
            engine=self._settings.index,
            version=self._batch.version,
            prefix_cache_queries=self._counters.prefix_cache_queries,
            prefix_cache_hits=self._counters.prefix_cache_hits,
            num_preemptions=self._counters.num_preemptions,
            generated_tokens=self._batch.num_tokens,
            generated_samples=self._batch.num_samples,
            resumed_tokens=self._batch.num_resumed,
            resumed_hits=self._batch.num_cached,
        )


def keep_rendezvous_in_memory() -> None:
    """Let vLLM's only worker meet itself by a file that is gone when this process is. vLLM's own, among the temporary
    files, stays there when the process is killed, as engines are at the end of a run."""
    from vllm.v1.executor import uniproc_executor

    def file_in_memory() -> str:
        descriptor = os.memfd_create("rendezvous")
        return f"file:///proc/{os.getpid()}/fd/{descriptor}"

    uniproc_executor.get_file_store_init_method = file_in_memory
