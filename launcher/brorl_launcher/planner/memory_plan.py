"""Plan the memory of one GPU at the moments when it is fullest, term by term.

README.md of this folder has the formulas and their sources.

Moments of colocated roles (`training/device_handover.py`): *generate*, *update* and *publish*. A run starts with an
update and a publication: engines sleep before the policy loads. Disaggregated, a GPU has one role: *update* counts for
the policy's, *generate* for the engines'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from brorl_launcher.planner.hardware import Hardware
from brorl_launcher.planner.model_cost import key_value_bytes
from brorl_launcher.planner.workload import Engines, MicroBatches, Workload
from nemo_brorl.config.gpu_contexts import bucket_gib, engine_context_gib, num_communicators, policy_context_gib
from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.config.rank_memory import NUMBER_BYTES, activation_bytes, backward_bytes, policy_bytes
from nemo_brorl.config.rank_parameters import rank_parameters
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.machine import GIB
from nemo_brorl.core.model_shape import ModelShape

# Assumed values, not measured by this project.
SLEEP_RESIDUAL = 0.5  # GiB of a sleeping engine without its context and graphs
FRAGMENTATION = 0.05  # share of activations and backward memory that the allocator cannot use
MOMENTS = ("generate", "update", "publish")


@dataclass(frozen=True)
class Term:
    """One use of GPU memory, in GiB at each moment."""

    name: str
    gib: Mapping[str, float]  # GiB by moment; absent: 0
    note: str
    role: str = "policy"  # policy or engine

    def gib_at(self, moment: str) -> float:
        return self.gib.get(moment, 0.0)


def policy_term(name: str, note: str, **gib: float) -> Term:
    """Return a term of the GPU memory estimate: a use by the policy, with its GiB at each moment of a training step."""
    return Term(name, MappingProxyType(dict(gib)), note)


def engine_term(name: str, note: str, **gib: float) -> Term:
    """Return a term of the GPU memory estimate: a use by an engine, with its GiB at each moment of a training step."""
    return Term(name, MappingProxyType(dict(gib)), note, role="engine")


@dataclass(frozen=True)
class DeviceMemory:
    """The memory terms of a GPU and its capacity."""

    role: str  # "GPU", or with separate devices "policy GPU" or "engine GPU"
    terms: tuple[Term, ...]
    capacity_gib: float

    @property
    def moments(self) -> tuple[str, ...]:
        return tuple(moment for moment in MOMENTS if self.peak(moment) > 0)

    def peak(self, moment: str, role: str | None = None) -> float:
        """Return the GiB of GPU memory in use at a moment of a step, by the policy and engines or by one of them."""
        return sum(term.gib_at(moment) for term in self.terms if role in (None, term.role))

    @property
    def worst_moment(self) -> str:
        """Return the moment of a training step at which the GPU needs the most memory."""
        return max(MOMENTS, key=self.peak)

    @property
    def fits(self) -> bool:
        return self.peak(self.worst_moment) <= self.capacity_gib

    def largest(self, moment: str) -> Term:
        return max(self.terms, key=lambda term: term.gib_at(moment))


@dataclass(frozen=True)
class EnginePlan:
    """The memory of one engine in GiB per GPU, and the capacity of its KV cache."""

    weights_gib: float
    working_gib: float  # activations and logits for which vLLM reserves room
    cache_gib: float  # rest of its share, for keys and values
    beyond_gib: float  # context and graphs beyond its share
    share_gib: float  # share of the device by generation.gpu_memory_utilization
    token_bytes: float  # keys and values of one token on one GPU
    concurrency: int  # rollouts of mean length sampled together

    @property
    def cache_tokens(self) -> int:
        return int(max(0.0, self.cache_gib) * GIB / self.token_bytes)


def cached_token_bytes(config: BroRLConfig, shape: ModelShape) -> float:
    """Return the bytes of one token's keys and values on one GPU of an engine."""
    generation = config.generation
    has_fp8 = str(generation.engine_args.get("kv_cache_dtype")).startswith("fp8")
    number = 1 if has_fp8 else NUMBER_BYTES[generation.precision]
    return key_value_bytes(shape, number) / min(generation.tensor_parallel_size, shape.num_key_value_heads)


def engine_plan(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    work: Workload,
) -> EnginePlan:
    """Estimate how a vLLM engine divides its share of the GPU memory.

    The share holds the weights and room for a batch, and the rest is the KV cache.
    """
    generation = config.generation
    number = NUMBER_BYTES[generation.precision]
    tensor = generation.tensor_parallel_size
    parameters = rank_parameters(shape, ParallelLayout(tensor=tensor), 0)
    weights = number * parameters.total / GIB
    if generation.engine_args.get("quantization") == "fp8":
        weights -= (number - 1) * parameters.linear / GIB
    rows = shape.padded_vocab_size(tensor)  # logits are gathered over the ranks
    ffn = shape.ffn_size if shape.moe is None else shape.moe.experts_per_token * shape.moe.ffn_size
    sizes = RunSizes.from_config(config)
    batch = (sizes.engine_batch_tokens or 0) * number * (4 * shape.hidden_size + 3 * ffn / tensor)
    logits = 2 * 4 * sizes.max_num_seqs * rows
    working = (batch + logits) / GIB
    share = sizes.gpu_share * hardware.memory_gib
    token = cached_token_bytes(config, shape)
    cache = share - weights - working
    sharers = min(
        work.num_per_prompt, config.rollouts.chunk_size
    )  # fewest rollouts that share one copy of their prompt
    live = work.response_tokens * (1 + work.response_spread**2) / 2 + work.prompt_tokens / sharers
    concurrency = int(max(0.0, cache) * GIB / token / max(1.0, live))
    beyond = engine_context_gib(config)
    return EnginePlan(weights, working, cache, beyond, share, token, min(concurrency, sizes.max_num_seqs))


def gpu_memory(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    layout: ParallelLayout,
    engines: Engines,
    micro: MicroBatches,
    engine: EnginePlan,
) -> tuple[DeviceMemory, ...]:
    """Return the estimated GPU memory of the policy and of an engine, on the GPU that needs most.

    GPUs of the first and the last pipeline stage are compared. There is one GPU for both roles if they are colocated.
    """
    generating = _engine_terms(config, engine)
    fullest: list[DeviceMemory] = []  # fullest GPU of each stage
    for stage in sorted({0, layout.pipeline - 1}):
        learning = _policy_terms(config, shape, layout, micro, stage)
        if engines.is_colocated:
            fullest.append(DeviceMemory("GPU", (*learning, *generating), hardware.memory_gib))
        else:
            fullest.append(DeviceMemory("policy GPU", _at_moment_only(learning, "update"), hardware.memory_gib))
    policy = max(fullest, key=lambda memory: memory.peak(memory.worst_moment))
    if engines.is_colocated:
        return (policy,)
    return (policy, DeviceMemory("engine GPU", _at_moment_only(generating, "generate"), hardware.memory_gib))


def _at_moment_only(terms: Iterable[Term], moment: str) -> tuple[Term, ...]:
    """Return the terms of a GPU memory estimate, limited to one moment of a training step."""
    kept = []
    for part in terms:
        kept.append(replace(part, gib=MappingProxyType({moment: part.gib_at(moment)})))
    return tuple(kept)


def _policy_terms(
    config: BroRLConfig,
    shape: ModelShape,
    layout: ParallelLayout,
    micro: MicroBatches,
    stage: int,
) -> list[Term]:
    held = policy_bytes(config, shape, layout, stage)
    offload = config.policy.offload
    fullest = micro.budget if micro.num > 1 else min(micro.tokens, micro.budget)
    tokens = fullest / layout.context
    activations = activation_bytes(config, shape, layout, stage, tokens) / GIB
    backward = backward_bytes(config, shape, layout, stage, tokens) / GIB
    contexts = policy_context_gib(layout)
    buckets = bucket_gib(config, shape)
    parameters = f"{held.parameters.total / 1e6:,.0f} M parameters in {config.policy.precision}"

    def moments(size: float, is_away: bool) -> dict[str, float]:
        sizes = dict.fromkeys(MOMENTS, size)
        if is_away:
            del sizes["generate"]
        return sizes

    weights = moments(held.weights / GIB, offload == "all")
    gradients = moments(held.gradients / GIB, offload != "none")
    optimizer = moments(held.optimizer / GIB, offload != "none")
    row_note = f"{tokens:,.0f} tokens a micro-batch, recompute {config.policy.recompute or 'none'}"
    lost = FRAGMENTATION * (activations + backward)
    found = [
        policy_term("weights", parameters, **weights),
        policy_term("gradients", "fp32", **gradients),
        policy_term("master weights, Adam", f"over {layout.replicas} replicas", **optimizer),
        policy_term("activations", row_note, update=activations),
        policy_term("backward pass", "log-probs, or a layer's scratch and what is computed again", update=backward),
        policy_term("fragmentation", f"{FRAGMENTATION:.0%} of the two above", update=lost),
        policy_term("contexts, NCCL", f"{num_communicators(layout)} communicators", **moments(contexts, False)),
        policy_term("weight buckets", f"{config.generation.weight_bucket_mib:g} MiB each", publish=buckets),
    ]
    if not RunSizes.from_config(config).gives_memory_back:
        kept = activations + backward + lost
        found.append(policy_term("kept by torch", "cached for the next update", generate=kept, publish=kept))
    if held.fp8_copies:
        found.insert(1, policy_term("FP8 weights", "a copy for each direction", update=held.fp8_copies / GIB))
    if held.reference:
        rows = shape.padded_vocab_size(layout.tensor) // layout.tensor
        largest = rows * shape.hidden_size * NUMBER_BYTES[config.policy.precision] / GIB
        found.append(policy_term("reference", "in host memory; one tensor at a time here", update=largest))
    return found


def _engine_terms(config: BroRLConfig, engine: EnginePlan) -> list[Term]:
    generation = config.generation
    with_weights = ["generate", "publish"]  # moments at which an engine has its weights
    if generation.sleep in ("off", "cache"):
        with_weights.append("update")
    with_cache: tuple[str, ...] = ("generate",)
    residual = SLEEP_RESIDUAL
    if generation.sleep == "off":
        with_cache = MOMENTS
        residual = 0.0
    weights = dict.fromkeys(with_weights, engine.weights_gib)
    batch = dict.fromkeys(with_cache, engine.working_gib)
    cache = dict.fromkeys(with_cache, max(0.0, engine.cache_gib))
    cache_note = f"of {RunSizes.from_config(config).gpu_share:g} of the GPU: {engine.cache_tokens:,} tokens"
    context = dict.fromkeys(MOMENTS, engine.beyond_gib)
    return [
        engine_term("engine weights", f"{generation.precision}, over {generation.tensor_parallel_size}", **weights),
        engine_term("engine batch", "activations and logits", **batch),
        engine_term("KV cache", cache_note, **cache),
        engine_term("engine context", "CUDA context and graphs", **context),
        engine_term("sleep residual", f"generation.sleep={generation.sleep}", update=residual, publish=residual),
    ]
