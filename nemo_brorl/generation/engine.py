"""The Ray actor around one vLLM engine.

All calls into vLLM happen on one thread, in turns: a step of the batch, then whatever was asked for meanwhile (new rollouts,
an abort, a bucket of weights, counters), then the next step. The actor's coroutines only wait. The driver imports this module
to start actors, so vllm and torch are imported inside the constructor, in the actor's process.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import ray

from nemo_brorl.errors import WeightSyncError
from nemo_brorl.generation.device import EngineSettings, prepare_process
from nemo_brorl.generation.incoming import IncomingWeights, LoadReport, check_manifest, has_tied_head, read_shapes
from nemo_brorl.logs import get_logger, setup_logging
from nemo_brorl.types import Bool, ChunkArrays, EngineStats, Int32, RolloutRequest, TensorInfo, WeightBucket

T = TypeVar("T")

logger = get_logger(__name__)

_SEED_MASK = 2**62 - 1  # of the group's seed: adding a rollout's index stays below 2**63


@dataclass(frozen=True)
class ChunkMeta:
    """The small part of a finished chunk; the driver fetches this and leaves the ChunkArrays where they are."""

    lengths: Int32  # [n]
    is_stopped: Bool  # [n]
    version: int


@dataclass(frozen=True)
class ChunkFailure:
    """What the driver gets instead when the engine can no longer sample."""

    reason: str


Chunk = tuple[ChunkMeta | ChunkFailure, ChunkArrays | None]


@dataclass(frozen=True)
class EngineReady:
    """An engine that can be used, and how long it took."""

    engine: int
    process: int
    import_s: float
    load_s: float


class RolloutEngine:
    """One vLLM engine: rollouts in chunks, weight updates, counters.

    Life of a chunk: `generate` adds its requests to the batch → steps sample it together with everything else in flight →
    it is packed when its last rollout ends, or dropped by `abort`. Weights change only while nothing is in flight, so
    that a chunk has one version.
    """

    def __init__(self, settings: EngineSettings) -> None:
        setup_logging(f"engine {settings.index}")
        prepare_process(settings.on_cpu)
        self._settings = settings
        start = time.perf_counter()
        gc.disable()  # collections during the import cost a CPU-second ...
        from vllm import EngineArgs, LLMEngine

        gc.freeze()  # ... and the five that vLLM asks for while loading cost two more, without this
        gc.enable()
        imported = time.perf_counter()
        self._engine = LLMEngine.from_engine_args(EngineArgs(**settings.arguments))
        self._workers("apply_device_fixes")
        self._ready = EngineReady(settings.index, os.getpid(), imported - start, time.perf_counter() - imported)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vllm")
        self._chunks: dict[str, Future[Chunk]] = {}  # by request id, in flight
        self._num_requests = 0
        self._is_stepping = False
        self._failure: ChunkFailure | None = None
        self._version = 0
        self._incoming: IncomingWeights | None = None
        self._generated_tokens = 0
        self._generated_samples = 0

    async def ready(self) -> EngineReady:
        """Answers once the engine is built."""
        return self._ready

    @ray.method(num_returns=2)
    async def generate(self, request: RolloutRequest) -> Chunk | tuple[None, None]:
        """All rollouts of the request as two Ray returns, or two None when it was aborted."""
        chunk: Future[Chunk] = Future()
        await self._on_thread(lambda: self._add(request, chunk))
        try:
            return await asyncio.wrap_future(chunk)
        except asyncio.CancelledError:
            return None, None

    async def abort(self) -> int:
        """Drop everything in flight; returns the number of chunks dropped."""
        return await self._on_thread(self._abort)

    async def stats(self) -> EngineStats:
        """Counters since the engine was started."""
        return await self._on_thread(self._stats)

    async def begin_weights(self, manifest: Sequence[TensorInfo]) -> None:
        """Check an announced update against the model's folder. Raises WeightSyncError; nothing was touched then."""
        if self._chunks:
            raise WeightSyncError(f"{len(self._chunks)} chunks are in flight; finish or close `generate` before loading weights")
        folder = Path(self._settings.model_folder)
        check_manifest(manifest, read_shapes(folder), has_tied_head(folder))
        self._incoming = IncomingWeights(manifest)

    async def receive_weights(self, bucket: WeightBucket) -> None:
        """Load the next bucket. Raises WeightSyncError; after an error the actor must be replaced."""
        await self._on_thread(lambda: self._receive(bucket))

    async def finish_weights(self, version: int) -> LoadReport:
        """Complete the update: prefixes cached under the old weights are forgotten, later chunks carry `version`."""
        return await self._on_thread(lambda: self._finish(version))

    async def restore(self, manifest: Sequence[TensorInfo], version: int, *buckets: WeightBucket) -> EngineReady:
        """A whole update in one call, for an engine that replaces a dead one."""
        await self.begin_weights(manifest)
        for bucket in buckets:
            await self.receive_weights(bucket)
        await self.finish_weights(version)
        return self._ready

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _workers(self, method: str, *args: Any) -> None:
        self._engine.model_executor.collective_rpc(method, args=args)

    # ---- below: on the vLLM thread only ----

    def _add(self, request: RolloutRequest, chunk: Future[Chunk]) -> None:
        if self._failure is not None:
            chunk.set_result((self._failure, None))
            return
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            n=request.num_rollouts,
            # vLLM draws the i-th of n with seed + i, so a rollout's seed does not depend on how its group was cut.
            seed=(request.seed & _SEED_MASK) + request.first_index,
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            max_tokens=request.sampling.max_tokens,
            logprobs=0,  # of the sampled token only
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._num_requests += 1
        name = str(self._num_requests)
        self._engine.add_request(name, {"prompt_token_ids": list(request.prompt.token_ids)}, params)
        self._chunks[name] = chunk
        if not self._is_stepping:
            self._step_again()

    def _step_again(self) -> None:
        self._is_stepping = True
        self._thread.submit(self._step).add_done_callback(self._note_failure)

    def _step(self) -> None:
        outputs = self._engine.step()
        for output in outputs:
            if output.finished and output.request_id in self._chunks:
                self._chunks.pop(output.request_id).set_result(self._pack(output.outputs))
        if self._engine.has_unfinished_requests():
            self._step_again()
        else:
            self._is_stepping = False

    def _note_failure(self, step: Future[None]) -> None:
        """A failed step leaves the batch in an unknown state: everything in flight fails, and so does what comes later."""
        cause = step.exception()
        if cause is None:
            return
        logger.error("a step failed", exc_info=cause)
        self._failure = ChunkFailure(f"{type(cause).__name__}: {cause}")
        for chunk in self._chunks.values():
            chunk.set_result((self._failure, None))
        self._chunks.clear()

    def _pack(self, completions: Sequence[Any]) -> Chunk:
        lengths = np.fromiter((len(completion.token_ids) for completion in completions), np.int32, len(completions))
        offsets = np.zeros(len(completions) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        token_ids = np.empty(offsets[-1], np.int32)
        log_probs = np.empty(offsets[-1], np.float32)
        for start, end, completion in zip(offsets[:-1].tolist(), offsets[1:].tolist(), completions, strict=True):
            token_ids[start:end] = completion.token_ids
            log_probs[start:end] = completion.logprobs.logprobs
        is_stopped = np.array([completion.finish_reason == "stop" for completion in completions])
        self._generated_samples += len(completions)
        self._generated_tokens += len(token_ids)
        return ChunkMeta(lengths, is_stopped, self._version), ChunkArrays(token_ids, log_probs, offsets)

    def _abort(self) -> int:
        self._engine.abort_request(list(self._chunks))
        num_dropped = len(self._chunks)
        for chunk in self._chunks.values():
            chunk.cancel()
        self._chunks.clear()
        return num_dropped

    def _receive(self, bucket: WeightBucket) -> None:
        if self._incoming is None:
            raise WeightSyncError("a bucket arrived before its manifest")
        is_first = not self._incoming.has_started
        self._incoming.accept(bucket)
        if is_first:
            self._workers("start_load")
        self._workers("load_bucket", bucket)

    def _finish(self, version: int) -> LoadReport:
        if self._incoming is None:
            raise WeightSyncError("an update was finished before its manifest arrived")
        report = self._incoming.finish(version)
        self._incoming = None
        self._workers("finish_load")
        # Keys and values of the old weights are wrong under the new ones; vLLM would reuse them silently.
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise WeightSyncError("the prefix cache could not be reset")
        self._version = version
        return report

    def _stats(self) -> EngineStats:
        counters = {metric.name: int(metric.value) for metric in self._engine.get_metrics() if hasattr(metric, "value")}
        return EngineStats(
            engine=self._settings.index,
            version=self._version,
            prefix_cache_queries=counters["vllm:prefix_cache_queries"],
            prefix_cache_hits=counters["vllm:prefix_cache_hits"],
            num_preemptions=counters["vllm:num_preemptions"],
            generated_tokens=self._generated_tokens,
            generated_samples=self._generated_samples,
        )
