"""The Ray actor around one vLLM engine.

All calls into vLLM, its construction included, happen on one thread. It alternates between a step of the batch and the
calls that came in meanwhile: new rollouts, an abort, a bucket of weights, counters. vLLM keeps the CUDA stream of the
thread that warms it up, and torch the device and stream of each thread. The actor's coroutines only wait.

The driver imports this module to start actors, so vllm and torch are imported when an engine is built, in its process.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import ray

from nemo_brorl.core.console import get_logger, setup_logging
from nemo_brorl.core.errors import GenerationError, WeightSyncError
from nemo_brorl.core.quick_imports import quick_imports
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
    """One vLLM engine that samples rollouts in chunks, receives weights and counts what it does.

    `generate` adds a chunk to the batch and answers when the chunk leaves it. No step is made while weights change.
    Rollouts in flight are continued under the new weights.
    """

    def __init__(self, settings: EngineSettings) -> None:
        setup_logging(f"engine {settings.index}")
        sleeps = settings.sleep != "off"
        prepare_process(settings.on_cpu, settings.worker_environment, sleeps)
        self._settings = settings
        self._is_stepping = False
        # True while the weights are half old and half new: no step may be made.
        self._is_held = False
        self._incoming: IncomingWeights | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vllm")
        # The constructor waits, because Ray runs no method of an actor before it has returned.
        self._ready: EngineReady = self._thread.submit(self._build).result()

    async def ready(self) -> EngineReady:
        """Return the seconds that the vLLM engine took to build, and the size of its KV cache.

        Ray answers this call once the engine is built.
        """
        return self._ready

    @ray.method(num_returns=3)
    async def generate(
        self,
        call_id: int,
        request: RolloutRequest,
        partial: ChunkArrays | None,
    ) -> Reply:
        """Sample the rollouts of a request, and return the reply to the driver, in three Ray objects.

        They are the small part of the reply without tokens, the tokens of ended rollouts, and the tokens of unfinished
        rollouts. The third one is None unless the rollouts were cut off. `call_id` must be new in each call. `partial`
        are the tokens of `request.partial`.
        """
        # The engine's thread sets this future, and the coroutine waits for it.
        answer: Future[Reply] = Future()
        chunk = ChunkTask(call_id, request, partial, answer)
        await self._on_thread(self._add, chunk)
        return await asyncio.wrap_future(answer)

    async def cut(self, call_ids: Collection[int]) -> None:
        """Stop sampling these chunks of rollouts, and answer each with the tokens sampled so far.

        A chunk that reaches the engine after this call is ended at once.
        """
        await self._on_thread(self._batch.cut, call_ids)

    async def withdraw(self, call_id: int) -> bool:
        """Drop a chunk of rollouts if no token of it was sampled yet, and return True if it was dropped.

        The call of `generate` for this chunk then answers with ReturnedChunk.
        """
        return await self._on_thread(self._batch.withdraw, call_id)

    async def abort(self, call_ids: Collection[int]) -> None:
        """Drop these chunks of rollouts, which must be all chunks of the engine, including those that arrive later."""
        await self._on_thread(self._batch.abort, call_ids)

    async def progress(self, every: int, within_s: float) -> Progress:
        """Return the progress of the chunks of rollouts in the engine's batch once a report is due.

        A report is due when `every` more rollouts have ended, or `within_s` seconds after the last report (see
        `ReportTimes`). An engine without chunks does not answer until it has some.
        """
        question: Future[Progress] = Future()
        await self._on_thread(self._batch.report, every, within_s, question)
        return await asyncio.wrap_future(question)

    async def stats(self) -> EngineStats:
        """Return the engine's counters, such as sampled tokens, since the engine started."""
        return await self._on_thread(self._stats)

    async def begin_weights(self, manifest: Sequence[TensorInfo]) -> None:
        """Check that the manifest of a weight update matches the model's files.

        Raises WeightSyncError if it does not match, and leaves the model unchanged then.
        """
        folder = Path(self._settings.model_folder)
        check_manifest(manifest, read_shapes(folder), has_tied_head(folder))
        self._incoming = IncomingWeights(manifest)

    async def receive_weights(self, bucket: WeightBucket | BucketNotice) -> None:
        """Load the next bucket of tensors of a weight update into the engine.

        Raises WeightSyncError when that fails. The engine actor must be replaced after an error.
        """
        await self._on_thread(self._receive, bucket)

    async def finish_weights(self, version: int) -> LoadReport:
        """Complete a weight update and clear the prefix cache.

        Tokens sampled from now on are recorded with policy version `version`.
        """
        return await self._on_thread(self._finish, version)

    async def restore(self, manifest: Sequence[TensorInfo], version: int, *buckets: WeightBucket) -> EngineReady:
        """Load a whole weight update in one call, into an engine that replaces a lost engine."""
        await self.begin_weights(manifest)
        for bucket in buckets:
            await self.receive_weights(bucket)
        await self.finish_weights(version)
        return self._ready

    async def join_weight_link(self, link: WeightLink, number: int) -> None:
        """Connect the engine's workers to a broadcast of policy weights, as receiver `number`.

        Raises ReceiverLostError when the connection fails.
        """
        await self._on_thread(self._workers, "join_weight_link", link, number)

    async def sleep(self) -> int:
        """Free the engine's memory that the sleep mode `generation.sleep` covers.

        Returns the number of bytes that the engine still holds.
        """
        return await self._on_thread(self._sleep)

    async def wake(self, tag: str) -> None:
        """Allocate the memory of a sleeping engine again, for the "weights" or for the "kv_cache"."""
        await self._on_thread(self._sleep_mode.wake, tag)

    async def _on_thread(self, call: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, call, *args)

    def _workers(self, method: str, *args: Any) -> None:
        self._engine.collective_rpc(method, args=args)

    # ---- methods that run on the vLLM thread only ----

    def _build(self) -> EngineReady:
        settings = self._settings
        start = time.perf_counter()
        # transformers imports scikit-learn for a kind of decoding that vLLM does not use: half a second, 70 MB.
        with quick_imports("sklearn"):
            from vllm import EngineArgs, LLMEngine
        vllm_adapter.keep_rendezvous_in_memory()
        imported = time.perf_counter()
        self._engine = LLMEngine.from_engine_args(EngineArgs(**settings.arguments))
        self._workers("apply_device_fixes")
        lean = vllm_adapter.lean_scheduler(self._engine)
        if lean is not None:
            self._workers("sample_by_arrays")
        if settings.records_routes:
            self._workers("record_routes")
            vllm_adapter.return_routes(self._engine)
        self._counters = EngineCounters(self._engine)
        self._batch = ChunkBatch(VllmRequests(self._engine, lean))
        self._sleep_mode = SleepMode(self._engine, settings.sleep, settings.on_cpu)
        return EngineReady(
            engine=settings.index,
            process=os.getpid(),
            import_s=imported - start,
            load_s=time.perf_counter() - imported,
            cache_bytes=vllm_adapter.cache_bytes(self._engine),
            scheduler_name=vllm_adapter.scheduler_name(self._engine),
        )

    def _add(self, chunk: ChunkTask) -> None:
        self._batch.add(chunk)
        self._step_if_needed()

    def _step_if_needed(self) -> None:
        if self._is_stepping or self._is_held or self._batch.is_idle:
            return
        # Submitted, not called in a loop, so that calls which came meanwhile run before the next step.
        self._is_stepping = True
        step = self._thread.submit(self._step)
        step.add_done_callback(self._note_failure)

    def _step(self) -> None:
        self._is_stepping = False
        # A bucket of weights may have come after this step was submitted.
        if not self._is_held:
            self._batch.step()
            self._step_if_needed()

    def _note_failure(self, step: Future[None]) -> None:
        """Answer all rollout requests, now and later, with a failure if a step of vLLM raised an exception.

        The exception leaves vLLM's batch in an unknown state.
        """
        cause = step.exception()
        if cause is not None:
            logger.error("a step failed", exc_info=cause)
            self._batch.fail(ChunkFailure(f"{type(cause).__name__}: {cause}"))

    def _hold(self) -> None:
        """Stop sampling in this engine until `_release` is called.

        Unfinished rollouts stay in vLLM's batch and wait.
        """
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
        # Checks that need no model run before the model is changed.
        self._incoming.accept(bucket)
        if is_first:
            # From here on the weights are half old and half new.
            self._hold()
            self._workers("start_load")
        self._workers("load_bucket", bucket)

    def _finish(self, version: int) -> LoadReport:
        if self._incoming is None:
            raise WeightSyncError("an update was finished before its manifest arrived")
        report = self._incoming.finish(version)
        self._incoming = None
        self._workers("finish_load")
        # Keys and values of the old weights are wrong under the new ones, and vLLM would reuse them silently. vLLM
        # recomputes those of rollouts in flight.
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
