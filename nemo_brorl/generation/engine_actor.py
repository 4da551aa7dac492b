"""The Ray actor around one vLLM engine.

All calls into vLLM, its construction included, happen on one thread, in turns: a step of the batch, then whatever was
asked for meanwhile (new rollouts, an abort, a bucket of weights, counters), then the next step. vLLM keeps the CUDA
stream of the thread that warms it up, and torch the device and stream of each thread. The actor's coroutines only wait.
The driver imports this module to start actors, so vllm and torch are imported when an engine is built, in its process.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import ray

from nemo_brorl.core.console import get_logger, setup_logging
from nemo_brorl.core.errors import GenerationError, WeightSyncError
from nemo_brorl.generation import vllm_adapter
from nemo_brorl.generation.chunk_batch import ChunkBatch
from nemo_brorl.generation.chunk_messages import ChunkFailure, Progress, Reply
from nemo_brorl.generation.chunk_task import ChunkTask
from nemo_brorl.generation.device import EngineSettings, prepare_process
from nemo_brorl.generation.engine_handle import EngineReady
from nemo_brorl.generation.sleep_mode import SleepMode
from nemo_brorl.generation.vllm_requests import EngineCounters, VllmRequests
from nemo_brorl.types import (
    BucketNotice,
    ChunkArrays,
    EngineStats,
    RolloutRequest,
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
        # No step now: the weights are half old, half new.
        self._is_held = False
        self._incoming: IncomingWeights | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vllm")
        # Waited for here: Ray runs no method of an actor before its constructor has ended.
        self._ready: EngineReady = self._thread.submit(self._build).result()

    async def ready(self) -> EngineReady:
        """Answer once the engine is built."""
        return self._ready

    @ray.method(num_returns=3)
    async def generate(
        self,
        call_id: int,
        request: RolloutRequest,
        partial: ChunkArrays | None,
    ) -> Reply:
        """Sample the rollouts of a request and answer as three Ray returns: what to know, the ended ones, and the
        unfinished ones if it was cut.

        `call_id` is a number of the caller's that was not used before; `partial` are the tokens of `request.partial`.
        """
        # A future of threads: the engine's thread sets it, this coroutine waits.
        answer: Future[Reply] = Future()
        chunk = ChunkTask(call_id, request, partial, answer)
        await self._on_thread(self._add, chunk)
        return await asyncio.wrap_future(answer)

    async def cut(self, call_ids: Collection[int]) -> None:
        """End these chunks with what they have; those that are not here yet, as soon as they come."""
        await self._on_thread(self._batch.cut, call_ids)

    async def withdraw(self, call_id: int) -> bool:
        """Return a chunk that has not started. True: it has not, and its `generate` answers ReturnedChunk."""
        return await self._on_thread(self._batch.withdraw, call_id)

    async def abort(self, call_ids: Collection[int]) -> None:
        """Drop these chunks, which is all there are, also those that are not here yet."""
        await self._on_thread(self._batch.abort, call_ids)

    async def progress(self, every: int, within_s: float) -> Progress:
        """Say how far the chunks here are, once `every` more rollouts have ended or a busy engine has told nothing for
        `within_s`, see `ReportTimes`. An engine without chunks does not answer before it has some."""
        question: Future[Progress] = Future()
        await self._on_thread(self._batch.report, every, within_s, question)
        return await asyncio.wrap_future(question)

    async def stats(self) -> EngineStats:
        """Return the counters since the engine was started."""
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
        """Load a whole update in one call, for an engine that replaces a dead one."""
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
        self._engine.collective_rpc(method, args=args)

    # ---- below: on the vLLM thread only ----

    def _build(self) -> EngineReady:
        settings = self._settings
        start = time.perf_counter()
        # Collections during the import cost a CPU-second, and the five that vLLM asks for while loading cost two more
        # unless what was imported is left out of them.
        gc.disable()
        from vllm import EngineArgs, LLMEngine

        gc.freeze()
        gc.enable()
        vllm_adapter.keep_rendezvous_in_memory()
        imported = time.perf_counter()
        self._engine = LLMEngine.from_engine_args(EngineArgs(**settings.arguments))
        self._workers("apply_device_fixes")
        if settings.records_routes:
            self._workers("record_routes")
            vllm_adapter.return_routes(self._engine)
        self._counters = EngineCounters(self._engine)
        self._batch = ChunkBatch(VllmRequests(self._engine, vllm_adapter.lean_scheduler(self._engine)))
        self._sleep_mode = SleepMode(self._engine, settings.sleep, settings.on_cpu)
        return EngineReady(
            engine=settings.index,
            process=os.getpid(),
            import_s=imported - start,
            load_s=time.perf_counter() - imported,
            cache_bytes=vllm_adapter.cache_bytes(self._engine),
        )

    def _add(self, chunk: ChunkTask) -> None:
        self._batch.add(chunk)
        self._step_if_needed()

    def _step_if_needed(self) -> None:
        if self._is_stepping or self._is_held or self._batch.is_idle:
            return
        # Submitted, not called in a loop: what was asked for meanwhile stands before it in the thread's queue.
        self._is_stepping = True
        step = self._thread.submit(self._step)
        step.add_done_callback(self._note_failure)

    def _step(self) -> None:
        self._is_stepping = False
        # A bucket may have come between the submission of this step and its turn.
        if not self._is_held:
            self._batch.step()
            self._step_if_needed()

    def _note_failure(self, step: Future[None]) -> None:
        """Note that a failed step leaves the batch in an unknown state: everything in flight fails, and so does what
        comes later."""
        cause = step.exception()
        if cause is not None:
            logger.error("a step failed", exc_info=cause)
            self._batch.fail(ChunkFailure(f"{type(cause).__name__}: {cause}"))

    def _hold(self) -> None:
        """Make no step until `_release`; what is in flight waits."""
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
        # Refused before the model is touched, where it can be.
        self._incoming.accept(bucket)
        if is_first:
            # From here on the model is half old, half new.
            self._hold()
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
