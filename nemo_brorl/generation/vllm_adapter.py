"""All uses of vLLM's private interfaces, written against vLLM 0.32.0.

LLMEngine, EngineArgs and SamplingParams are public, and other modules use them. Private interfaces may change with the
next release. Each use here says why the public interface does not suffice, and
`tests/unit/generation/test_vllm_adapter.py` checks it against the installed version. This module imports nothing of
vLLM at import time, because the driver imports it to start actors, and vLLM takes ten seconds.

`fix_seeded_prefill`, `repack_heads`, `pack_experts_again` and `RouteRecorder` repair the CPU build. GPUs need none of
them.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nemo_brorl.types import Int64, Routes

if TYPE_CHECKING:
    from torch import Tensor, nn
    from vllm import LLMEngine
    from vllm.config import ModelConfig, VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.metrics.stats import PrefixCacheStats
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from nemo_brorl.generation.lean_scheduler import LeanMixin

VERSION = "0.32.0"


# ---- the engine and its core ----


def keep_rendezvous_in_memory() -> None:
    """Make the only worker of a vLLM engine rendezvous through a file in memory, which ends with the process.

    vLLM's own rendezvous file stays in the temporary directory when the process is killed, as engines are at the end of
    a run.
    """
    from vllm.v1.executor import uniproc_executor

    def file_in_memory() -> str:
        descriptor = os.memfd_create("rendezvous")
        return f"file:///proc/{os.getpid()}/fd/{descriptor}"

    uniproc_executor.get_file_store_init_method = file_in_memory


def cache_bytes(engine: LLMEngine) -> int:
    """Return the size of the KV cache in each worker of a vLLM engine, in bytes.

    An engine that replaces this one gets a KV cache of the same size. vLLM only logs the number.
    """
    return int(_core(engine).available_gpu_memory_for_kv_cache)


def is_drained(engine: LLMEngine) -> bool:
    """Return True if the vLLM engine holds nothing of requests that have ended or were aborted.

    LLMEngine counts the requests whose output it has not returned. Its scheduler also knows running batches, and ended
    requests of which the workers were not notified.
    """
    core = _core(engine)
    return not core.scheduler.has_requests() and not core.batch_queue


def _core(engine: LLMEngine) -> EngineCore:
    """Return vLLM's engine core, which runs in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0)."""
    return engine.engine_core.engine_core


def _scheduler(engine: LLMEngine) -> Scheduler:
    return _core(engine).scheduler


# ---- requests and counters ----


class StepOutput(NamedTuple):
    """What one request got in one step."""

    identity: str
    token_ids: list[int]
    log_probs: list[float]
    num_cached: int | None  # tokens of its prompt found in the prefix cache, with its first output
    routes: Routes | None  # experts of the tokens computed since the last output
    finish_reason: str | None  # "stop", "length", …; None: it is unfinished


def add_siblings(
    engine: LLMEngine,
    identities: Sequence[str],
    token_ids: list[int],
    params: SamplingParams,
    seeds: Sequence[int],
) -> None:
    """Queue requests for responses to one prompt, which differ by their seeds alone.

    `LLMEngine.add_request` would check and hash the prompt for each request, and keep a second record of each. Here
    vLLM checks the first request. The others get copies of its parameters and of its block hashes.
    """
    from vllm.v1.request import Request

    core = _core(engine)
    params.seed = seeds[0]
    prompt = {"type": "token", "prompt_token_ids": token_ids}
    tasks = engine.get_supported_tasks()
    checked = engine.input_processor.process_inputs(identities[0], prompt, params, supported_tasks=tasks)
    first, wave = core.preprocess_add_request(checked)
    core.add_request(first, wave)
    for identity, seed in zip(identities[1:], seeds[1:], strict=True):
        own_params = copy.copy(first.sampling_params)
        own_params.seed = seed
        sibling = Request(identity, token_ids, own_params, None, arrival_time=first.arrival_time)
        sibling.block_hashes = first.block_hashes.copy()
        sibling._block_hasher = first._block_hasher
        core.add_request(sibling, wave)


def step(engine: LLMEngine) -> Iterator[StepOutput]:
    """Run one step of the vLLM engine and yield the new tokens of each request.

    `LLMEngine.step` would pass every token of every step through its output processor, which is for text and streams.
    """
    for output in engine.engine_core.get_output().outputs:
        log_probs, stats, reason = output.new_logprobs, output.prefill_stats, output.finish_reason
        yield StepOutput(
            identity=output.request_id,
            token_ids=output.new_token_ids,
            log_probs=[] if log_probs is None else log_probs.logprobs[:, 0].tolist(),
            num_cached=None if stats is None else stats.num_cached_tokens,
            routes=output.routed_experts,
            finish_reason=None if reason is None else str(reason),
        )


def abort(engine: LLMEngine, identities: Sequence[str]) -> None:
    """Remove requests from the vLLM engine's batch, ignoring requests that have ended."""
    engine.engine_core.abort_requests(list(identities))


def lean_scheduler(engine: LLMEngine) -> LeanMixin | None:
    """Return the engine's scheduler if it is LeanScheduler, else None.

    LeanScheduler keeps the tokens of unfinished requests.
    """
    from nemo_brorl.generation.lean_scheduler import LeanMixin

    scheduler = _scheduler(engine)
    return scheduler if isinstance(scheduler, LeanMixin) else None


def scheduler_name(engine: LLMEngine) -> str:
    """Return the name of the class of the engine's scheduler, such as LeanScheduler."""
    return type(_scheduler(engine)).__name__


def count_prefix_cache(engine: LLMEngine) -> PrefixCacheStats:
    """Return an object that counts prefix-cache `queries` and `hits` from now on, in tokens.

    vLLM's own metrics cost an observation for every token of every step, on the thread that also schedules and
    launches. They stay off, and both numbers are read where the scheduler counts them.
    """
    from vllm.v1.metrics.stats import PrefixCacheStats

    stats = PrefixCacheStats()
    manager = _scheduler(engine).kv_cache_manager
    # The counts are never reset: only the scheduler's log stats, which are off, would do that.
    manager.prefix_cache_stats = stats
    manager.log_stats = True
    return stats


def on_preemption(engine: LLMEngine, note: Callable[[], None]) -> None:
    """Call `note` whenever vLLM preempts a request because the KV cache is full.

    The scheduler counts preemptions only for vLLM's metrics, which are off.
    """
    scheduler = _scheduler(engine)
    preempt = scheduler._preempt_request

    def preempt_and_note(*args: Any, **kwargs: Any) -> None:
        note()
        preempt(*args, **kwargs)

    scheduler._preempt_request = preempt_and_note


# ---- weights, in a worker ----


def begin_reload(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Prepare the model in a vLLM worker for loading new weights.

    Linear layers keep only a packed form of their weights, so `load_weights` alone would write into tensors that no
    kernel reads.
    """
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

    with set_current_vllm_config(vllm_config):
        initialize_layerwise_reload(model)


def load_tensors(
    model: nn.Module,
    tensors: Iterable[tuple[str, Tensor]],
    vllm_config: VllmConfig,
) -> None:
    """Load some tensors into the model of a vLLM worker.

    A layer is completed once it has all of its tensors. Completing a layer reads vLLM's current configuration, which
    vLLM sets only while it starts.
    """
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(vllm_config):
        model.load_weights(tensors)


def finish_reload(
    model: nn.Module,
    model_config: ModelConfig,
    vllm_config: VllmConfig,
) -> None:
    """Complete the layers of a vLLM worker's model after the last tensor of a weight update was loaded."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

    with set_current_vllm_config(vllm_config):
        finalize_layerwise_reload(model, model_config)


def own_gpu_bytes(uuid: str) -> int:
    """Return the bytes of GPU memory that this process holds, with the CUDA context and libraries included.

    It is 0 where the driver does not report it. vLLM ships the interface to the driver.
    """
    from vllm.third_party import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid():
                return int(process.usedGpuMemory or 0)
    except pynvml.NVMLError:
        return 0
    return 0


# ---- repairs of the CPU build, in a worker ----


def fix_seeded_prefill() -> None:
    """Repair seeded sampling under chunked prefill in vLLM's CPU build.

    vLLM also samples a token for a request in the middle of its prompt, and throws the token away. It then winds the
    request's random generator back by an offset, which CPU generators do not have, and the engine dies. The repair
    takes the generators of these requests out of the batch while vLLM samples, so they do not move.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    # In tests one process builds several engines.
    if hasattr(CPUModelRunner, "sample_tokens_before_fix"):
        return
    original = CPUModelRunner.sample_tokens

    def sample_tokens(self: CPUModelRunner, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        is_discarded = self.discard_request_mask.np[: self.input_batch.num_reqs]
        held_back = {}
        for row in np.flatnonzero(is_discarded).tolist():
            if row in generators:
                held_back[row] = generators.pop(row)
        try:
            return original(self, *args, **kwargs)
        finally:
            generators.update(held_back)

    CPUModelRunner.sample_tokens_before_fix = original
    CPUModelRunner.sample_tokens = sample_tokens


def repack_heads(model: nn.Module, is_tied: bool) -> None:
    """Pack the weights of output heads again after a layerwise reload of vLLM's CPU build.

    The CPU build multiplies with a packed copy of the weight. An output head that is tied to the embedding is not
    reloaded under its own name, so its packed copy would silently stay that of the old weights. The head is pointed at
    the new embedding and packed again.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    heads = []
    embeddings = []
    for module in model.modules():
        # ParallelLMHead is a subclass of VocabParallelEmbedding.
        if isinstance(module, ParallelLMHead):
            heads.append(module)
        elif isinstance(module, VocabParallelEmbedding):
            embeddings.append(module)
    for head in heads:
        if is_tied:
            assert len(embeddings) == 1, f"a tied head needs one embedding, the model has {len(embeddings)}"
            head.weight = embeddings[0].weight
        head.quant_method.process_weights_after_loading(head)


def pack_experts_again(model: nn.Module) -> None:
    """Make the next layerwise reload of vLLM's CPU build pack the weights of mixture-of-experts layers.

    Call it before the reload. The CPU build packs these weights when it first makes a layer's kernel, and at no later
    load, so the kernel would silently read plain weights as packed ones. For a layer without a kernel, the load makes a
    new kernel.
    """
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, UnquantizedFusedMoEMethod):
            method.moe_kernel = None


# ---- routes of the CPU build ----


def return_routes(engine: LLMEngine) -> None:
    """Make an engine of vLLM's CPU build return expert routes, as `enable_return_routed_experts` does on CUDA.

    The engine's workers must have a `RouteRecorder` attached.
    """
    from vllm.distributed.aux_output_connector.connector import AuxOutputSchedulerConnector

    _scheduler(engine).aux_output_connector = AuxOutputSchedulerConnector()


class RouteRecorder:
    """Recorder of expert routes in a worker of vLLM's CPU build.

    It connects vLLM's `RoutedExpertsCapturer`, which has the experts of a step's tokens, with vLLM's scheduler, which
    needs those of each request. Routes are stored by the token's slot in the KV cache, so a prefix that another request
    has computed has its routes, too. Asynchronous scheduling and speculation are not supported. The CPU build does not
    have them.
    """

    def __init__(self, runner: GPUModelRunner, vllm_config: VllmConfig) -> None:
        """Allocate room for one expert route per KV cache slot.

        `runner` is the model runner of vLLM's CPU build, which is made from the one for GPUs.
        """
        from vllm.model_executor.layers.fused_moe.routed_experts_capturer import (
            RoutedExpertsCapturer,
            bind_routed_experts_capturer,
        )

        max_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self._runner = runner
        self._capturer = RoutedExpertsCapturer(max_tokens, vllm_config)
        bind_routed_experts_capturer(runner.get_model(), self._capturer)
        cache = runner.kv_cache_config
        self._block_size: int = cache.kv_cache_groups[0].kv_cache_spec.block_size
        num_slots = cache.num_blocks * self._block_size
        shape = (num_slots, *self._capturer.shape_per_token)
        dtype = self._capturer.output_dtype_name
        self._kept = np.zeros(shape, dtype)

    def attach(self) -> None:
        """Add the expert routes of the requests' tokens to the output of every step of vLLM from now on."""
        sample_tokens = self._runner.sample_tokens

        def sample_with_routes(*args: Any, **kwargs: Any) -> Any:
            # Read before sampling, which clears the runner's state of the step.
            state = self._runner.execute_model_state
            if state is None:
                return sample_tokens(*args, **kwargs)
            routes = self._routes_of(state.scheduler_output)
            output = sample_tokens(*args, **kwargs)
            output.aux_output_connector_output = routes
            return output

        self._runner.sample_tokens = sample_with_routes

    def _routes_of(self, scheduler_output: SchedulerOutput) -> dict[str, Any]:
        """Return the expert routes of each request as vLLM's AuxRequestOutput.

        They start at the request's first token whose route the scheduler does not have yet.
        """
        from vllm.distributed.aux_output_connector.connector import AuxRequestOutput

        num_rows = scheduler_output.total_num_scheduled_tokens
        rows = self._capturer.snapshot_routing_data(num_rows).numpy()
        ends = self._keep(scheduler_output.num_scheduled_tokens, rows)
        wanted = scheduler_output.aux_output_connector_metadata.requests
        outputs = {}
        for request, start in wanted.items():
            slots = self._cache_slots(request, start, ends[request])
            routes = self._kept[slots]
            outputs[request] = AuxRequestOutput(start, routes)
        return outputs

    def _keep(
        self,
        num_scheduled: Mapping[str, int],
        rows: NDArray[Any],
    ) -> dict[str, int]:
        """Store the expert routes of a step's tokens, and return how many tokens of each request the step computes."""
        batch = self._runner.input_batch
        ends: dict[str, int] = {}
        first_row = 0
        # A step's tokens are in the order of the batch, not in that of the scheduler.
        for index, request in enumerate(batch.req_ids):
            last_row = first_row + num_scheduled[request]
            start = int(batch.num_computed_tokens_cpu[index])
            end = start + num_scheduled[request]
            slots = self._cache_slots(request, start, end)
            self._kept[slots] = rows[first_row:last_row]
            ends[request] = end
            first_row = last_row
        return ends

    def _cache_slots(
        self,
        request: str,
        start: int,
        end: int,
    ) -> Int64:
        """Return the KV cache slots of tokens [start, end) of a request."""
        state = self._runner.requests[request]
        # There is one group of layers, because models with several attention windows are refused at the start.
        blocks = np.array(state.block_ids[0], np.int64)
        positions = np.arange(start, end)
        numbers, within = np.divmod(positions, self._block_size)
        return blocks[numbers] * self._block_size + within
