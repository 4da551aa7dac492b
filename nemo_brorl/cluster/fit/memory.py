"""Whether a run on CPU fits into this machine's memory, roughly, before anything is started; and rules that need the
model's own config.json: what `policy.model` names, and whether the settings fit its shape.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nemo_brorl.config.derived import (
    data_parallel_size,
    fullest_micro_batch,
    kv_cache_gib,
    longest_response,
    max_model_len,
    max_num_seqs,
    micro_batch_tokens,
    num_engines,
    num_gpus,
    num_policy_ranks,
)
from nemo_brorl.config.policy import PolicyConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import ConfigError, ModelError, ResourceError
from nemo_brorl.core.model_shape import ModelShape, MoeShape, num_parameters, read_model_shape

FP8_FEATURES = 16  # FP8 products want feature counts that are multiples of it (Transformer Engine 2.11)


def local_model(config: BroRLConfig) -> Path | None:
    """The folder of `policy.model`; None when it is a Hugging Face name (`owner/name`, found later through the hub's
    cache).

    Raises ModelError when it looks like a folder and is not there.
    """
    model = config.policy.model
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    is_name = model.count("/") == 1 and not model.startswith((".", "~", "runs/"))
    if is_name and not folder.parent.is_dir():
        return None
    raise ModelError(
        f"policy.model={model}: there is no such folder. `make train` or `brorl base` makes a small "
        f"model in sft.new.output={config.sft.new.output}; or write the folder or the name of a Hugging Face model"
    )


def check_model_rules(config: BroRLConfig, folder: Path | None = None) -> None:
    """Check the settings against the model's shape when `policy.model` is a folder, or one is given.

    Raises ModelError for a missing or broken folder and ConfigError with every setting that does not fit.
    """
    folder = folder or local_model(config)
    if folder is not None:
        _raise_all(config.policy.model, list(misfits(config, read_model_shape(folder))))


def check_policy_fits(config: BroRLConfig, folder: Path) -> ModelShape:
    """The shape of the model in a folder that the policy can cut as the settings say. Raises ModelError or
    ConfigError."""
    shape = read_model_shape(folder)
    _raise_all(str(folder), list(policy_misfits(config, shape)))
    return shape


def _raise_all(model: str, found: list[str]) -> None:
    if found:
        raise ConfigError(f"the settings do not fit the model {model}:\n" + "\n".join(f"  - {text}" for text in found))


def misfits(config: BroRLConfig, shape: ModelShape) -> Iterator[str]:
    """One message for every setting that does not fit the model."""
    yield from policy_misfits(config, shape)
    yield from _heads("generation.tensor_parallel_size", config.generation.tensor_parallel_size, shape)
    limit = max_model_len(config)
    if limit > shape.max_positions:
        yield (
            f"generation.max_model_len={limit} is more than the model's {shape.max_positions} positions: write "
            f"generation.max_model_len={shape.max_positions}, which leaves "
            f"{shape.max_positions - longest_response(config)} for the prompt"
        )


def policy_misfits(config: BroRLConfig, shape: ModelShape) -> Iterator[str]:
    """One message for every setting of the policy that does not fit the model."""
    yield from _tensor_parallel(config, shape)
    yield from _pipeline_parallel(config, shape)
    yield from _experts(config, shape)
    yield from _fp8(config, shape)


def _heads(name: str, size: int, shape: ModelShape) -> Iterator[str]:
    if shape.num_heads % size:
        yield (
            f"{name}={size} does not divide the model's {shape.num_heads} attention heads: write "
            f"{_divisor(size, shape.num_heads)}"
        )
    if shape.num_key_value_heads % size and size % shape.num_key_value_heads:
        yield (
            f"{name}={size} neither divides nor is a multiple of the model's {shape.num_key_value_heads} key-value "
            f"heads: write {_divisor(size, shape.num_key_value_heads)}"
        )


def _tensor_parallel(config: BroRLConfig, shape: ModelShape) -> Iterator[str]:
    name, size = "policy.tensor_model_parallel_size", config.policy.tensor_model_parallel_size
    yield from _heads(name, size, shape)
    if size > shape.num_key_value_heads:
        yield (
            f"{name}={size} is more than the model's {shape.num_key_value_heads} key-value heads, which "
            f"the policy does not copy: write {shape.num_key_value_heads} or less"
        )
    sizes = {"intermediate_size": shape.ffn_size}
    if shape.moe and config.policy.expert_model_parallel_size == 1:  # tensor-parallel ranks then share every expert
        sizes["moe_intermediate_size"] = shape.moe.ffn_size
    for what, number in sizes.items():
        if number % size:
            yield f"{name}={size} does not divide the model's {what} of {number}: write {_divisor(size, number)}"


def _pipeline_parallel(config: BroRLConfig, shape: ModelShape) -> Iterator[str]:
    stages = config.policy.pipeline_model_parallel_size
    virtual = config.policy.virtual_pipeline_model_parallel_size or 1
    if shape.num_layers % stages:
        yield (
            f"policy.pipeline_model_parallel_size={stages} does not divide the model's {shape.num_layers} layers: "
            f"write {_divisor(stages, shape.num_layers)}"
        )
    elif shape.num_layers // stages % virtual:
        per_stage = shape.num_layers // stages
        yield (
            f"policy.virtual_pipeline_model_parallel_size={virtual} does not divide the {per_stage} layers of a "
            f"pipeline stage: write {_divisor(virtual, per_stage)} or null".replace("write 1 or null", "write null")
        )


def _experts(config: BroRLConfig, shape: ModelShape) -> Iterator[str]:
    policy = config.policy
    size, moe = policy.expert_model_parallel_size, shape.moe
    if moe is None:
        settings: dict[str, tuple[float, float]] = {"expert_model_parallel_size": (size, 1)}
        settings["moe.aux_loss_coefficient"] = (policy.moe.aux_loss_coefficient, 0)
        settings["moe.freeze_router"] = (policy.moe.freeze_router, False)
        settings["moe.router_replay"] = (policy.moe.router_replay, False)
        settings["moe.fused_permutation"] = (policy.moe.fused_permutation, False)
        for name, (value, neutral) in settings.items():
            if value != neutral:
                written, wanted = str(value).lower(), str(neutral).lower()
                yield (
                    f"policy.{name}={written} is for mixture-of-experts models and this one is dense: write "
                    f"policy.{name}={wanted}"
                )
        return
    if moe.num_experts % size:
        yield (
            f"policy.expert_model_parallel_size={size} does not divide the model's {moe.num_experts} experts: write "
            f"{_divisor(size, moe.num_experts)}"
        )
    yield from _stages_without_experts(config, moe)
    if policy.tensor_model_parallel_size > 1 and not policy.sequence_parallel:
        yield (
            f"policy.tensor_model_parallel_size={policy.tensor_model_parallel_size} without policy.sequence_parallel "
            "would send every token of a mixture-of-experts model to its experts once per rank: write "
            "policy.sequence_parallel=true"
        )


def _stages_without_experts(config: BroRLConfig, moe: MoeShape) -> Iterator[str]:
    """Optimizers differ between such a stage and the others, and Megatron 0.16.1 then restores Adam's step on one of
    them only."""
    stages = config.policy.pipeline_model_parallel_size
    chunks = stages * (config.policy.virtual_pipeline_model_parallel_size or 1)
    per_chunk = max(1, len(moe.is_moe_layer) // chunks)
    with_experts = {layer // per_chunk % stages for layer, is_moe in enumerate(moe.is_moe_layer) if is_moe}
    if len(with_experts) < stages:
        yield (
            f"policy.pipeline_model_parallel_size={stages} leaves a pipeline stage with dense layers only, whose "
            "optimizer a checkpoint would not restore: write a smaller policy.pipeline_model_parallel_size"
        )


def _fp8(config: BroRLConfig, shape: ModelShape) -> Iterator[str]:
    """One message for every FP8 setting that does not fit the model."""
    policy = config.policy
    if policy.fp8 is None:
        return
    if policy.num_bf16_layers >= shape.num_layers:
        yield (
            f"policy.fp8_bf16_first_layers={policy.fp8_bf16_first_layers} and "
            f"policy.fp8_bf16_last_layers={policy.fp8_bf16_last_layers} "
            f"leave none of the model's {shape.num_layers} layers in FP8: write smaller numbers, or policy.fp8=null"
        )
    per_stage = shape.num_layers // policy.pipeline_model_parallel_size
    for name in ("fp8_bf16_first_layers", "fp8_bf16_last_layers"):
        layers = getattr(policy, name)
        if layers > per_stage:
            yield (
                f"policy.{name}={layers} is more than the {per_stage} layers of a pipeline stage: write {per_stage} or "
                "less"
            )
    if num_gpus(config):
        yield from _fp8_features(policy, shape)


def _fp8_features(policy: PolicyConfig, shape: ModelShape) -> Iterator[str]:
    size = policy.tensor_model_parallel_size
    query = shape.num_heads * shape.head_size
    features = {
        "hidden size": shape.hidden_size,
        "MLP's size": shape.ffn_size // size,
        "queries' size": query // size,
        "queries', keys' and values' size": (query + 2 * shape.num_key_value_heads * shape.head_size) // size,
    }
    if shape.moe:
        features["experts' size"] = shape.moe.ffn_size // (size if policy.expert_model_parallel_size == 1 else 1)
    for what, number in features.items():
        if number % FP8_FEATURES:
            yield (
                f"policy.fp8={policy.fp8} needs multiples of {FP8_FEATURES} features and the model's {what} on a "
                f"tensor-parallel rank is {number}: write policy.fp8=null or a smaller "
                "policy.tensor_model_parallel_size"
            )


def _divisor(at_most: int, of: int) -> int:
    """The largest divisor of `of` that is not above `at_most`."""
    return max(divisor for divisor in range(1, at_most + 1) if of % divisor == 0)


logger = get_logger(__name__)

GIB = 1024**3

# Private memory of processes with their imports, before they hold a model; measured on CPU.
DRIVER_GIB = 1.5  # the driver with NeMo, Ray's own processes
POLICY_RANK_GIB = 0.7
ENGINE_GIB = 1.0
REWARD_WORKER_GIB = 0.15
STORE_WRITER_GIB = 0.15

NUMBER_BYTES = {"fp32": 4, "bf16": 2}
LAYERS_IN_BACKWARD = 1.6  # layers' worth of gradients and copies that live beside what a row keeps; measured
RETAINED = 1.07  # of activations: what the heap holds on to between rows; measured
BATCH_TOKENS = 4096  # that vLLM's CPU build computes together
OBJECT_STORE_GIB = 1.0  # of Ray on one machine (cluster.py)
SAVED_BYTES = 12  # of a parameter's optimizer state, of all replicas, in the process that writes it


@dataclass(frozen=True)
class CpuMemory:
    """What the processes of a run on CPU hold when they are fullest, in GiB, by use. The planner's README has the
    formulas."""

    rank: Mapping[str, float]  # of one policy rank: the first, which also writes the optimizer's state
    engine: Mapping[str, float]  # of one engine
    others: Mapping[str, float]  # of all other processes, and Ray's object store
    num_ranks: int
    num_engines: int

    @property
    def total(self) -> float:
        ranks, engines = self.num_ranks * sum(self.rank.values()), self.num_engines * sum(self.engine.values())
        return ranks + engines + sum(self.others.values())


def check_memory(config: BroRLConfig, with_policy: bool = True, folder: Path | None = None) -> None:
    """Refuse a CPU run that needs more memory than is free, and warn near the limit. `with_policy=False`: engines and
    verifiers alone. `folder`: of the model, where policy.model is a name.

    Raises ResourceError. Says nothing when the free memory or the model's size is unknown, or when the run is on GPUs.
    """
    free = available_gib()
    folder = folder or local_model(config)
    if free is None or folder is None or num_gpus(config) > 0:
        return
    needed = needed_gib(config, read_model_shape(folder), with_policy)
    if needed > free:
        raise ResourceError(
            f"this run needs about {needed:.1f} GiB of memory and {free:.1f} GiB are free: {_way_out(config)}"
        )
    if needed > 0.85 * free:
        logger.warning("memory is tight: about %.1f GiB needed, %.1f GiB free", needed, free)


def _way_out(config: BroRLConfig) -> str:
    """What of a run that does not fit can be made smaller."""
    sizes = {
        "policy.data_parallel_size": data_parallel_size(config),
        "generation.num_engines": num_engines(config),
        "generation.kv_cache_gib": kv_cache_gib(config),
        "policy.tokens_per_micro_batch": micro_batch_tokens(config),
    }
    named = ", ".join(f"{name} ({value:g})" for name, value in sizes.items())
    longest = config.data.max_prompt_tokens + config.rollouts.max_response_tokens
    return (
        f"leave {named} to `auto` or lower them; a micro-batch holds at least one prompt and response of "
        f"{longest} tokens (data.max_prompt_tokens, rollouts.max_response_tokens); policy.recompute=full and "
        "policy.precision=bf16 generation.precision=bf16 need less, and so does a smaller model"
    )


def needed_gib(config: BroRLConfig, shape: ModelShape, with_policy: bool = True) -> float:
    """An estimate of all processes' memory on a CPU machine, in GiB, with micro-batches as full as they can get."""
    memory = cpu_memory(config, shape, fullest_micro_batch(config))
    return (memory if with_policy else replace(memory, num_ranks=0)).total


def cpu_memory(config: BroRLConfig, shape: ModelShape, tokens: float) -> CpuMemory:
    """Of a run on CPU, with micro-batches of `tokens` tokens on every rank."""
    size = num_parameters(shape)
    weights = NUMBER_BYTES[config.policy.precision] * size / GIB
    store = 3 * config.generation.weight_bucket_mib / 1024 + (weights if config.generation.keep_published else 0.0)
    return CpuMemory(
        rank=_rank_gib(config, shape, size, tokens),
        engine=_engine_gib(config, shape, size),
        others={
            "driver": DRIVER_GIB,
            "verifiers": config.rewards.num_workers * REWARD_WORKER_GIB,
            "rollout store": STORE_WRITER_GIB if config.store.enabled else 0.0,
            "object store": min(store, OBJECT_STORE_GIB),
        },
        num_ranks=num_policy_ranks(config),
        num_engines=num_engines(config),
    )


def kept_numbers(shape: ModelShape) -> float:
    """Numbers that a layer keeps of each token for the backward pass: inputs and outputs of two norms, the projections
    and their rotated copies, the attention's output, gate, up and their product."""
    queries, groups = shape.num_heads * shape.head_size, shape.num_key_value_heads * shape.head_size
    inside = 3 * shape.ffn_size
    if shape.moe is not None:
        inside = shape.moe.experts_per_token * (3 * shape.moe.ffn_size + 2 * shape.hidden_size)
    return 4.0 * shape.hidden_size + 3 * queries + 3 * groups + inside


def _rank_gib(
    config: BroRLConfig,
    shape: ModelShape,
    size: int,
    tokens: float,
) -> dict[str, float]:
    policy, number = config.policy, NUMBER_BYTES[config.policy.precision]
    replicas = data_parallel_size(config) * policy.context_parallel_size
    held = size / (policy.tensor_model_parallel_size * policy.pipeline_model_parallel_size) / GIB
    has_reference = config.algorithm.kl.coefficient > 0
    layer = number * kept_numbers(shape) * tokens / GIB / policy.tensor_model_parallel_size
    layers = float(shape.num_layers)  # a pipeline's first stage holds as many rows as there are stages
    activations = layer * (layers + LAYERS_IN_BACKWARD)
    if policy.recompute == "full":
        activations = layer * (1 + LAYERS_IN_BACKWARD) + layers * number * shape.hidden_size * tokens / GIB
    output = 4.0 * shape.vocab_size * shape.hidden_size / policy.tensor_model_parallel_size / GIB
    step = number * held  # the optimizer's scratch, or that of a reference that is swapped in
    update = RETAINED * activations + output + step
    saving = held * (number + SAVED_BYTES + (number if has_reference else 0))
    return {
        "process": POLICY_RANK_GIB,
        "weights": number * held,
        "gradients": 4 * held,
        "master weights, Adam": (8 if number == 4 else 12) * held / replicas,
        "reference": number * held if has_reference else 0.0,
        "activations": RETAINED * activations,
        "output layer, scratch": output + step,
        "checkpoint": max(0.0, saving - update),  # nothing of an update is held meanwhile
    }


def _engine_gib(config: BroRLConfig, shape: ModelShape, size: int) -> dict[str, float]:
    number = NUMBER_BYTES[config.generation.precision]
    logits = 3 * 4 * max_num_seqs(config) * shape.vocab_size / GIB
    return {
        "process": ENGINE_GIB,
        "weights": number * size / GIB,
        "KV cache": kv_cache_gib(config),
        "batch": logits + number * kept_numbers(shape) * BATCH_TOKENS / GIB,
    }


def available_gib(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Memory that new processes can use: what the kernel calls available, within the container's limit. None:
    unknown."""
    machine = _kernel_available(meminfo)
    limit = _container_left(cgroup)
    known = [size for size in (machine, limit) if size is not None]
    return min(known) / GIB if known else None


def gpu_gib() -> float | None:
    """Memory of this machine's first GPU as the driver reports it; None: there is none."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return float(done.stdout.splitlines()[0]) / 1024
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


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
