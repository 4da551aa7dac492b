"""Whether a run on CPU fits into this machine's memory, roughly, before anything is started."""

from __future__ import annotations

from pathlib import Path

from nemo_brorl.config.derived import data_parallel_size, model_parallel_size, num_engines, num_gpus, num_policy_ranks
from nemo_brorl.config.hf_shapes import num_parameters
from nemo_brorl.config.model_rules import local_model
from nemo_brorl.config.model_shape import ModelShape, read_model_shape
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.errors import ResourceError
from nemo_brorl.logs import get_logger

logger = get_logger(__name__)

GIB = 1024**3

# Resident sizes of idle processes with their imports, measured on CPU.
DRIVER_GIB = 1.5  # the driver with NeMo, Ray's own processes
POLICY_RANK_GIB = 0.7
ENGINE_GIB = 1.3
REWARD_WORKER_GIB = 0.15

BYTES_PER_PARAMETER = 20  # weights, gradients and two Adam moments in fp32, and the reference's weights
SAVE_BYTES_PER_PARAMETER = 26  # copies of weights, optimizer and reference while a checkpoint is written, some of them twice
ACTIVATIONS_PER_TOKEN = 40  # fp32 numbers per token, layer and hidden unit kept for the backward pass


def check_memory(config: BroRLConfig) -> None:
    """Refuse a CPU run that needs more memory than is free, and warn near the limit.

    Raises ResourceError. Says nothing when the free memory or the model's size is unknown, or when the run is on GPUs.
    """
    free = available_gib()
    folder = local_model(config)
    if free is None or folder is None or num_gpus(config) > 0:
        return
    needed = needed_gib(config, read_model_shape(folder))
    if needed > free:
        raise ResourceError(
            f"this run needs about {needed:.1f} GiB of memory and {free:.1f} GiB are free: lower generation.num_engines "
            f"({num_engines(config)}), generation.kv_cache_gib ({config.generation.kv_cache_gib}) or "
            f"policy.tokens_per_micro_batch ({config.policy.tokens_per_micro_batch}), or use a smaller model"
        )
    if needed > 0.85 * free:
        logger.warning("memory is tight: about %.1f GiB needed, %.1f GiB free", needed, free)


def needed_gib(config: BroRLConfig, shape: ModelShape) -> float:
    """An estimate of all processes' memory on a CPU machine, in GiB."""
    policy, replicas, size = config.policy, data_parallel_size(config), num_parameters(shape)
    state = size * (BYTES_PER_PARAMETER + SAVE_BYTES_PER_PARAMETER)
    tokens_per_layer = policy.tokens_per_micro_batch * policy.context_parallel_size * shape.num_layers * shape.hidden_size
    activations = 4 * ACTIVATIONS_PER_TOKEN * tokens_per_layer
    output_gradient = 4 * shape.vocab_size * shape.hidden_size * model_parallel_size(config)  # in fp32; logits are tiles of a few MiB
    engine = 4 * size / GIB + config.generation.kv_cache_gib + ENGINE_GIB
    return (
        DRIVER_GIB
        + num_policy_ranks(config) * POLICY_RANK_GIB
        + replicas * (state + activations + output_gradient) / GIB
        + num_engines(config) * engine
        + config.rewards.num_workers * REWARD_WORKER_GIB
    )


def available_gib(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Memory that new processes can use: what the kernel calls available, within the container's limit. None: unknown."""
    machine = _kernel_available(meminfo)
    limit = _container_left(cgroup)
    known = [size for size in (machine, limit) if size is not None]
    return min(known) / GIB if known else None


def _kernel_available(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _container_left(cgroup: Path) -> int | None:
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - used
