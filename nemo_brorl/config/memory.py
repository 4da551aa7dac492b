"""Estimate roughly, before anything starts, whether a run on CPU fits into this machine's memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nemo_brorl.config.parallel_layout import layout_of
from nemo_brorl.config.rank_memory import NUMBER_BYTES, policy_bytes
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import ResourceError
from nemo_brorl.core.machine import GIB, available_gib
from nemo_brorl.core.model_folder import local_model
from nemo_brorl.core.model_shape import ModelShape, num_parameters, read_model_shape

# Private memory of processes with their imports, before they load a model. Measured on CPU.
DRIVER_GIB = 1.5  # the driver with NeMo, and Ray's own processes
POLICY_RANK_GIB = 0.7
ENGINE_GIB = 1.0
REWARD_WORKER_GIB = 0.15
STORE_WRITER_GIB = 0.15

LAYERS_IN_BACKWARD = 1.6  # layers' worth of gradients and copies on top of what a packed sequence keeps; measured
RETAINED = 1.07  # factor of activations for heap memory that is not returned between packed sequences; measured
BATCH_TOKENS = 4096  # tokens that vLLM's CPU build computes together
OBJECT_STORE_GIB = 1.0  # size of Ray's object store on one machine (cluster.py)
CPU_ROW = 512  # most tokens of the row of the dress rehearsal
SAVED_BYTES = 12  # bytes per parameter of all replicas' optimizer state, in the process that writes it

logger = get_logger(__name__)


@dataclass(frozen=True)
class CpuMemory:
    """Peak memory of the processes of a run on CPU, in GiB, by use. The planner's README has the formulas."""

    rank: Mapping[str, float]  # the first policy rank, which also writes the optimizer's state
    engine: Mapping[str, float]  # one engine
    others: Mapping[str, float]  # all other processes, and Ray's object store
    num_ranks: int
    num_engines: int

    @property
    def total(self) -> float:
        ranks, engines = self.num_ranks * sum(self.rank.values()), self.num_engines * sum(self.engine.values())
        return ranks + engines + sum(self.others.values())


def check_memory(config: BroRLConfig, with_policy: bool = True, folder: Path | None = None) -> None:
    """Refuse a CPU run that needs more memory than is free, and warn near the limit.

    `with_policy=False` counts engines and verifiers alone. `folder` is the model's folder, if policy.model is a Hugging
    Face name. Raises ResourceError. Does nothing when the free memory or the model's size is unknown, or when the run
    is on GPUs.
    """
    free = available_gib()
    folder = folder or local_model(config.policy.model)
    if free is None or folder is None or config.trainer.num_gpus > 0:
        return
    needed = needed_gib(config, read_model_shape(folder), with_policy)
    if needed > free:
        raise ResourceError(lack_of_memory(config, needed, free))
    if needed > 0.85 * free:
        logger.warning("memory is tight: about %.1f GiB needed, %.1f GiB free", needed, free)


def lack_of_memory(config: BroRLConfig, needed: float, free: float) -> str:
    """Return the error message for a run that needs more GiB than are free, with the settings that can be lowered."""
    sizes = RunSizes.from_config(config)
    lowered = {
        "policy.data_parallel_size": sizes.data_parallel,
        "generation.num_engines": sizes.num_engines,
        "generation.kv_cache_gib": sizes.kv_cache_gib,
        "policy.tokens_per_micro_batch": sizes.micro_batch_tokens,
    }
    named = ", ".join(f"{name} ({value:g})" for name, value in lowered.items())
    longest = config.data.max_prompt_tokens + config.rollouts.max_response_tokens
    return (
        f"this run needs about {needed:.1f} GiB of memory and {free:.1f} GiB are free: leave {named} to `auto` or "
        f"lower them; a micro-batch holds at least one prompt and response of {longest} tokens "
        "(data.max_prompt_tokens, rollouts.max_response_tokens); policy.recompute=full and policy.precision=bf16 "
        "generation.precision=bf16 need less, and so does a smaller model"
    )


def fullest_micro_batch(config: BroRLConfig) -> int:
    """Return the number of tokens of the fullest micro-batch that a context-parallel rank can get.

    It is the rank's limit of tokens per micro-batch, or all tokens of the rank's share of a mini-batch with all prompts
    and responses at their longest, whichever is smaller.
    """
    longest = config.rollouts.max_response_tokens
    prompt = config.data.max_prompt_tokens
    sizes = RunSizes.from_config(config)
    most = 1
    for num, prompts in config.rollouts.stage_sizes():
        trained = prompts * min(num, config.algorithm.train_rollouts or num)
        share = math.ceil(trained / config.algorithm.num_mini_batches / sizes.data_parallel)
        copies = min(share, prompts + 1) if config.policy.shared_prompt else share
        most = max(most, share * longest + copies * prompt)
    return min(sizes.micro_batch_tokens, math.ceil(most / config.policy.context_parallel_size))


def rehearsed_tokens(config: BroRLConfig) -> int:
    """Return the tokens of the row of the dress rehearsal, over all context-parallel ranks; 0: no rehearsal.

    It is the fullest row of the run, or a short one on a CPU, whose memory is checked before the start.
    """
    if not config.trainer.rehearsal:
        return 0
    num_tokens = fullest_micro_batch(config) * config.policy.context_parallel_size
    return num_tokens if config.trainer.num_gpus else min(num_tokens, CPU_ROW)


def needed_gib(config: BroRLConfig, shape: ModelShape, with_policy: bool = True) -> float:
    """Return the estimated GiB of all processes on a CPU machine, with the fullest micro-batches possible."""
    memory = cpu_memory(config, shape, fullest_micro_batch(config))
    return (memory if with_policy else replace(memory, num_ranks=0)).total


def cpu_memory(config: BroRLConfig, shape: ModelShape, tokens: float) -> CpuMemory:
    """Estimate the memory of a run on CPU, with micro-batches of `tokens` tokens on every rank."""
    sizes = RunSizes.from_config(config)
    size = num_parameters(shape)
    weights = NUMBER_BYTES[config.policy.precision] * size / GIB
    kept = weights if sizes.weight_transport == "object_store" else 0.0
    store = 3 * config.generation.weight_bucket_mib / 1024 + kept
    return CpuMemory(
        rank=_rank_gib(config, shape, tokens),
        engine=_engine_gib(config, shape, size),
        others={
            "driver": DRIVER_GIB,
            "verifiers": config.rewards.num_workers * REWARD_WORKER_GIB,
            "rollout store": STORE_WRITER_GIB if config.store.enabled else 0.0,
            "object store": min(store, OBJECT_STORE_GIB),
        },
        num_ranks=sizes.num_ranks,
        num_engines=sizes.num_engines,
    )


def kept_numbers(shape: ModelShape) -> float:
    """Return how many numbers per token a transformer layer keeps for the backward pass.

    They are the inputs of norms and sublayers, the projections and their rotated copies, the attention's output, gate,
    up and their product.
    """
    queries, groups = shape.num_heads * shape.head_size, shape.num_key_value_heads * shape.head_size
    inside = 3 * shape.ffn_size
    if shape.moe is not None:
        inside = shape.moe.experts_per_token * (3 * shape.moe.ffn_size + 2 * shape.hidden_size)
    if shape.has_joint_qk_norm:
        inside += 2 * (queries + groups)
    return (2.0 + shape.num_norms) * shape.hidden_size + 3 * queries + 3 * groups + inside


def _rank_gib(
    config: BroRLConfig,
    shape: ModelShape,
    tokens: float,
) -> dict[str, float]:
    policy, number = config.policy, NUMBER_BYTES[config.policy.precision]
    held = policy_bytes(config, shape, layout_of(config), 0)
    weights, reference = held.weights / GIB, held.reference / GIB
    layer = number * kept_numbers(shape) * tokens / GIB / policy.tensor_model_parallel_size
    layers = float(shape.num_layers)  # a pipeline's first stage holds as many packed sequences as there are stages
    activations = layer * (layers + LAYERS_IN_BACKWARD)
    if policy.recompute == "full":
        activations = layer * (1 + LAYERS_IN_BACKWARD) + layers * number * shape.hidden_size * tokens / GIB
    output = 4.0 * shape.vocab_size * shape.hidden_size / policy.tensor_model_parallel_size / GIB
    step = weights  # scratch of the optimizer, or of swapping in the reference
    update = RETAINED * activations + output + step
    saving = weights + SAVED_BYTES * held.parameters.total / GIB + reference
    return {
        "process": POLICY_RANK_GIB,
        "weights": weights,
        "gradients": held.gradients / GIB,
        "master weights, Adam": held.optimizer / GIB,
        "reference": reference,
        "activations": RETAINED * activations,
        "output layer, scratch": output + step,
        "checkpoint": max(0.0, saving - update),  # an update's memory is free while a checkpoint is written
    }


def _engine_gib(config: BroRLConfig, shape: ModelShape, size: int) -> dict[str, float]:
    sizes, number = RunSizes.from_config(config), NUMBER_BYTES[config.generation.precision]
    logits = 3 * 4 * sizes.max_num_seqs * shape.vocab_size / GIB
    return {
        "process": ENGINE_GIB,
        "weights": number * size / GIB,
        "KV cache": sizes.kv_cache_gib,
        "batch": logits + number * kept_numbers(shape) * BATCH_TOKENS / GIB,
    }
