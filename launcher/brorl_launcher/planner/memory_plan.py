"""Memory of one GPU at the moments when it is fullest, term by term; README.md of this folder has the
formulas and where they are from.

Moments of colocated roles (`training/device_handover.py`): *start*, when both roles are on the device and nothing is
offloaded yet (parity gate, resume); *generate*; *update*; *publish*. Disaggregated, a GPU has one role: *update* for
the policy's, *generate* for the engines'.

A policy rank's tensors in an update are what it always holds, what a forward pass keeps, and what a backward pass needs
besides. `bench/peak_memory.py` holds them against a traced update.

Of a node beside its GPUs: host memory, the object store, checkpoints on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from brorl_launcher.planner.model_cost import (
    Cut,
    Parameters,
    key_value_bytes,
    layer_activations,
    layer_scratch,
    mlp_activations,
    rank_parameters,
)
from brorl_launcher.planner.workload import Engines, Hardware, MicroBatches, Workload
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.machine import GIB
from nemo_brorl.core.model_shape import ModelShape

_TILE_LOGITS = 1 << 27  # of policy/model/log_probs.py on a GPU
NUMBER_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class PolicyBytes:
    """Bytes of one rank's parts; shared by the plans of GPU, host and disk."""

    weights: float
    fp8_copies: float
    gradients: float
    optimizer: float  # this rank's share
    reference: float
    parameters: Parameters


def policy_bytes(
    config: BroRLConfig,
    shape: ModelShape,
    cut: Cut,
    stage: int,
) -> PolicyBytes:
    """Megatron's distributed optimizer: weights in the precision, fp32 gradients, and 12 bytes (fp32: 8, weights are
    their own masters) a parameter over the replicas. Transformer Engine keeps an FP8 copy of a weight for each
    direction."""
    policy = config.policy
    parameters = rank_parameters(shape, cut, stage)
    number = NUMBER_BYTES[policy.precision]
    whole = float(number * parameters.total)
    weights = whole
    copies = 0.0
    if policy.fp8 is not None:
        copies = 2.0 * parameters.linear
        if policy.fp8_params:
            weights -= number * parameters.linear
    state = 12 if policy.precision == "bf16" else 8
    optimizer = state * (parameters.dense / cut.replicas + parameters.experts / cut.expert_replicas)
    reference = whole if config.algorithm.kl.coefficient > 0 else 0.0
    return PolicyBytes(weights, copies, 4.0 * parameters.total, optimizer, reference, parameters)


def activation_bytes(
    config: BroRLConfig,
    shape: ModelShape,
    cut: Cut,
    stage: int,
    tokens: float,
) -> float:
    """Bytes kept for the backward passes of the micro-batches that are under way in this stage, of `tokens` tokens on
    this rank each: of what is computed again, its input."""
    number = NUMBER_BYTES[config.policy.precision]
    kinds = _kinds_of_layers(shape)
    kept = 0.0
    for is_moe in kinds:
        if config.policy.recompute == "full":
            kept += number * shape.hidden_size / cut.sequence_ranks
            continue
        kept += layer_activations(shape, number, cut, is_moe=is_moe)
        if config.policy.recompute == "selective":
            kept -= mlp_activations(shape, number, cut, is_moe=is_moe)
    under_way = float(max(1, cut.pipeline - stage))
    if cut.virtual > 1:
        under_way = cut.pipeline * (1 + (cut.pipeline - 1) / (cut.pipeline * cut.virtual))
    return tokens * under_way * kept / cut.pipeline


def backward_bytes(
    config: BroRLConfig,
    shape: ModelShape,
    cut: Cut,
    stage: int,
    tokens: float,
) -> float:
    """Bytes that a backward pass holds beside what was kept. It begins with the log-probs, on the last stage; then, of
    one layer at a time, what is computed again is there, and gradients."""
    number = NUMBER_BYTES[config.policy.precision]
    largest = 0.0
    for is_moe in set(_kinds_of_layers(shape)):
        of_layer = layer_scratch(shape, number, cut, is_moe=is_moe)
        if config.policy.recompute == "full":
            of_layer += layer_activations(shape, number, cut, is_moe=is_moe)
        elif config.policy.recompute == "selective":
            of_layer += mlp_activations(shape, number, cut, is_moe=is_moe)
        largest = max(largest, tokens * of_layer)
    if stage == cut.pipeline - 1:
        largest = max(largest, log_prob_bytes(config, shape, cut, tokens))
    return largest


def _kinds_of_layers(shape: ModelShape) -> Sequence[bool]:
    """Of every layer whether it has experts."""
    return shape.moe.is_moe_layer if shape.moe else (False,) * shape.num_layers


def log_prob_bytes(
    config: BroRLConfig,
    shape: ModelShape,
    cut: Cut,
    tokens: float,
) -> float:
    """Bytes of log-probs: hidden states, the last layer's and those of tokens that predict, with their gradient; of a
    chunk the gradient's sum in fp32, a tile of logits in fp32 and its gradient in the precision. The output layer's own
    gradient has a place when the tiles are gone (what is in it lies in the gradient buffer)."""
    number = NUMBER_BYTES[config.policy.precision]
    rows = shape.padded_vocab_size(cut.tensor) // cut.tensor
    chunk = min(config.policy.log_prob_chunk_tokens, tokens)
    tile = (4 + number) * min(_TILE_LOGITS, chunk * rows) + 4 * chunk * shape.hidden_size
    gradient = number * rows * shape.hidden_size
    hidden = 3 * number * tokens * shape.hidden_size
    return max(tile, gradient) + hidden


# Assumed, GiB: what processes take of a GPU beside tensors. Not measured by this project.
POLICY_CONTEXT = 1.2  # CUDA context, cuBLAS and Transformer Engine workspaces
COMMUNICATOR = 0.25  # buffers of one NCCL communicator
ENGINE_CONTEXT = 0.8  # CUDA context and workspaces of an engine, beyond its share
CUDA_GRAPHS = 1.0  # of an engine, beyond its share, unless generation.enforce_eager
SLEEP_RESIDUAL = 0.5  # of a sleeping engine, beside its context and graphs
FRAGMENTATION = 0.05  # of activations and what a backward pass holds, that the allocator cannot use
MOMENTS = ("start", "generate", "update", "publish")


@dataclass(frozen=True)
class Term:
    """One use of memory."""

    name: str
    gib: Mapping[str, float]  # by moment; those that are not there: 0
    note: str
    role: str = "policy"  # whose it is: policy, engine

    def at(self, moment: str) -> float:
        return self.gib.get(moment, 0.0)


def term(name: str, note: str, **gib: float) -> Term:
    """One of the policy's terms by its moments."""
    return Term(name, MappingProxyType(dict(gib)), note)


def engine_term(name: str, note: str, **gib: float) -> Term:
    """One of an engine's."""
    return Term(name, MappingProxyType(dict(gib)), note, role="engine")


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of a GPU by what it holds."""

    role: str  # "GPU", or with roles on devices of their own "policy GPU", "engine GPU"
    terms: tuple[Term, ...]
    capacity_gib: float

    @property
    def moments(self) -> tuple[str, ...]:
        return tuple(moment for moment in MOMENTS if self.peak(moment) > 0)

    def peak(self, moment: str, role: str | None = None) -> float:
        """GiB at a moment, of everything or of one role."""
        return sum(term.at(moment) for term in self.terms if role in (None, term.role))

    @property
    def worst(self) -> str:
        """The moment that needs most."""
        return max(MOMENTS, key=self.peak)

    @property
    def fits(self) -> bool:
        return self.peak(self.worst) <= self.capacity_gib

    def largest(self, moment: str) -> Term:
        return max(self.terms, key=lambda term: term.at(moment))


def bucket_gib(config: BroRLConfig, shape: ModelShape) -> float:
    """GiB of buckets that are alive while weights travel. vLLM puts a mixture's layer together when it has all of its
    experts, and holds their buckets until then."""
    size = 4 * config.generation.weight_bucket_mib / 1024
    if shape.moe is not None:
        numbers = 3 * shape.moe.num_experts * shape.moe.ffn_size * shape.hidden_size
        size += NUMBER_BYTES[config.policy.precision] * numbers / GIB
    return size


def num_communicators(cut: Cut) -> int:
    """NCCL communicators of a policy rank: the world's and one for each way of cutting that is used."""
    used = (cut.tensor, cut.pipeline, cut.context, cut.expert, cut.data)
    return 1 + sum(degree > 1 for degree in used)


@dataclass(frozen=True)
class EnginePlan:
    """One engine, per GPU in GiB, and what fits into its cache."""

    weights_gib: float
    working_gib: float  # activations and logits that vLLM keeps room for
    cache_gib: float  # what is left of its share for keys and values
    beyond_gib: float  # context and graphs, beyond its share
    share_gib: float  # generation.gpu_memory_utilization of the device
    token_bytes: float  # keys and values of one token, on one GPU
    concurrency: int  # rollouts of mean length that are sampled together

    @property
    def cache_tokens(self) -> int:
        return int(max(0.0, self.cache_gib) * GIB / self.token_bytes)


def engine_plan(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    work: Workload,
) -> EnginePlan:
    """Engine as vLLM makes it of its share of a GPU: weights, room for a batch, the rest for keys and values."""
    generation = config.generation
    number = NUMBER_BYTES[generation.precision]
    tensor = generation.tensor_parallel_size
    parameters = rank_parameters(shape, Cut(tensor=tensor), 0)
    weights = number * parameters.total / GIB
    if generation.engine_args.get("quantization") == "fp8":
        weights -= (number - 1) * parameters.linear / GIB
    rows = shape.padded_vocab_size(tensor)  # logits are gathered
    ffn = shape.ffn_size if shape.moe is None else shape.moe.experts_per_token * shape.moe.ffn_size
    sizes = RunSizes.of(config)
    batch = (sizes.engine_batch_tokens or 0) * number * (4 * shape.hidden_size + 3 * ffn / tensor)
    logits = 2 * 4 * sizes.max_num_seqs * rows
    working = (batch + logits) / GIB
    share = sizes.gpu_share * hardware.memory_gib
    cache_number = 1 if str(generation.engine_args.get("kv_cache_dtype")).startswith("fp8") else number
    token = key_value_bytes(shape, cache_number) / min(tensor, shape.num_key_value_heads)
    cache = share - weights - working
    sharers = min(work.num_per_prompt, config.rollouts.chunk_size)  # rollouts with one copy of their prompt, at least
    live = work.response_tokens * (1 + work.response_spread**2) / 2 + work.prompt_tokens / sharers
    concurrency = int(max(0.0, cache) * GIB / token / max(1.0, live))
    beyond = ENGINE_CONTEXT
    if not generation.enforce_eager:
        beyond += CUDA_GRAPHS
    return EnginePlan(weights, working, cache, beyond, share, token, min(concurrency, sizes.max_num_seqs))


def gpu_memory(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    cut: Cut,
    engines: Engines,
    micro: MicroBatches,
    engine: EnginePlan,
) -> tuple[DeviceMemory, ...]:
    """The fullest GPU of each role: the pipeline stage that needs most."""
    generating = _engine_terms(config, engine)
    fullest: list[DeviceMemory] = []  # of each stage
    for stage in sorted({0, cut.pipeline - 1}):
        learning = _policy_terms(config, shape, cut, micro, stage)
        if engines.is_colocated:
            fullest.append(DeviceMemory("GPU", (*learning, *generating), hardware.memory_gib))
        else:
            fullest.append(DeviceMemory("policy GPU", _only(learning, "update"), hardware.memory_gib))
    policy = max(fullest, key=lambda memory: memory.peak(memory.worst))
    if engines.is_colocated:
        return (policy,)
    return (policy, DeviceMemory("engine GPU", _only(generating, "generate"), hardware.memory_gib))


def _only(terms: Iterable[Term], moment: str) -> tuple[Term, ...]:
    """Terms at one moment alone."""
    kept = []
    for part in terms:
        kept.append(replace(part, gib=MappingProxyType({moment: part.at(moment)})))
    return tuple(kept)


def _policy_terms(
    config: BroRLConfig,
    shape: ModelShape,
    cut: Cut,
    micro: MicroBatches,
    stage: int,
) -> list[Term]:
    held = policy_bytes(config, shape, cut, stage)
    offload = config.policy.offload
    fullest = micro.budget if micro.num > 1 else min(micro.tokens, micro.budget)
    tokens = fullest / cut.context
    activations = activation_bytes(config, shape, cut, stage, tokens) / GIB
    backward = backward_bytes(config, shape, cut, stage, tokens) / GIB
    contexts = POLICY_CONTEXT + COMMUNICATOR * num_communicators(cut)
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
        term("weights", parameters, **weights),
        term("gradients", "fp32", **gradients),
        term("master weights, Adam", f"over {cut.replicas} replicas", **optimizer),
        term("activations", row_note, update=activations),
        term("backward pass", "log-probs, or a layer's scratch and what is computed again", update=backward),
        term("fragmentation", f"{FRAGMENTATION:.0%} of the two above", update=lost),
        term("contexts, NCCL", f"{num_communicators(cut)} communicators", **moments(contexts, False)),
        term("weight buckets", f"{config.generation.weight_bucket_mib:g} MiB each", start=buckets, publish=buckets),
    ]
    if not RunSizes.of(config).gives_memory_back:
        kept = activations + backward + lost
        found.append(term("kept by torch", "freed after the update, for the next one", generate=kept, publish=kept))
    if held.fp8_copies:
        found.insert(1, term("FP8 weights", "a copy for each direction", update=held.fp8_copies / GIB))
    if held.reference:
        rows = shape.padded_vocab_size(cut.tensor) // cut.tensor
        largest = rows * shape.hidden_size * NUMBER_BYTES[config.policy.precision] / GIB
        found.append(term("reference", "in host memory; one tensor at a time here", update=largest))
    return found


def _engine_terms(config: BroRLConfig, engine: EnginePlan) -> list[Term]:
    generation = config.generation
    with_weights = ["start", "generate", "publish"]  # moments at which an engine has its weights
    if generation.sleep in ("off", "cache"):
        with_weights.append("update")
    with_cache: tuple[str, ...] = ("start", "generate")
    residual = SLEEP_RESIDUAL
    if generation.sleep == "off":
        with_cache = MOMENTS
        residual = 0.0
    weights = dict.fromkeys(with_weights, engine.weights_gib)
    batch = dict.fromkeys(with_cache, engine.working_gib)
    cache = dict.fromkeys(with_cache, max(0.0, engine.cache_gib))
    cache_note = f"of {RunSizes.of(config).gpu_share:g} of the GPU: {engine.cache_tokens:,} tokens"
    context = dict.fromkeys(MOMENTS, engine.beyond_gib)
    return [
        engine_term("engine weights", f"{generation.precision}, over {generation.tensor_parallel_size}", **weights),
        engine_term("engine batch", "activations and logits", **batch),
        engine_term("KV cache", cache_note, **cache),
        engine_term("engine context", "CUDA context and graphs", **context),
        engine_term("sleep residual", f"generation.sleep={generation.sleep}", update=residual, publish=residual),
    ]


# Assumed, GiB of host memory of a process with its imports and a CUDA context.
RANK_GIB = 4.0
ENGINE_GIB = 4.0
VERIFIER_GIB = 0.5
DRIVER_GIB = 4.0
# torch rounds a pinned allocation up to a power of two: between 1 and 2 times as much, 1.5 in the mean
PINNED_ROUNDING = 1.5
ROLLOUT_TOKEN_BYTES = 8  # int32 token ids and float32 log-probs
OPTIMIZER_BYTES = 12  # of a parameter in a checkpoint: master weights and two moments in fp32


@dataclass(frozen=True)
class NodeTerm:
    """One use of a node's memory, or of the shared disk."""

    name: str
    gib: float
    note: str


@dataclass(frozen=True)
class NodeMemory:
    """The first node, which has the driver and the published weights."""

    terms: tuple[NodeTerm, ...]
    capacity_gib: float
    object_store_gib: float  # what of it is in Ray's object store
    checkpoint_gib: float  # of one checkpoint on disk
    disk_gib: float  # of all that are kept, one more while it is written, and the best weights

    @property
    def peak(self) -> float:
        return sum(term.gib for term in self.terms)

    @property
    def fits(self) -> bool:
        return self.peak <= self.capacity_gib

    @property
    def largest(self) -> NodeTerm:
        return max(self.terms, key=lambda term: term.gib)


def node_memory(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    held: PolicyBytes,
    cut: Cut,
    engines: Engines,
    work: Workload,
) -> NodeMemory:
    """Memory of a node of GPUs that is full of policy ranks, engines, or both."""
    policy, generation = config.policy, config.generation
    ranks = hardware.per_node
    num_engines = max(1, min(engines.num, hardware.per_node // engines.tensor))
    published = NUMBER_BYTES[policy.precision] * rank_parameters(shape, Cut(), 0).total / GIB
    moved = {"none": 0.0, "optimizer": held.optimizer, "all": held.optimizer + held.weights}[policy.offload]
    saved = held.weights + held.optimizer + held.reference
    sleeping = 0
    if generation.sleep == "offload":
        per_gpu = rank_parameters(shape, Cut(tensor=engines.tensor), 0).total
        sleeping = NUMBER_BYTES[generation.precision] * per_gpu
    store = _object_store_gib(config, work, published)
    processes = DRIVER_GIB + ranks * RANK_GIB + num_engines * engines.tensor * ENGINE_GIB
    pinned = PINNED_ROUNDING * ranks / GIB  # GiB of a node for each byte of a rank
    terms = (
        NodeTerm("processes", processes, f"driver, {ranks} ranks, engines"),
        NodeTerm("reference", pinned * held.reference, "pinned"),
        NodeTerm("offloaded policy", pinned * moved, f"policy.offload={policy.offload}, pinned"),
        NodeTerm("checkpoint in flight", pinned * saved, "weights, optimizer and reference, pinned"),
        NodeTerm("sleeping engines", ranks * sleeping / GIB, f"generation.sleep={generation.sleep}"),
        NodeTerm("verifiers", config.rewards.num_workers * VERIFIER_GIB, f"{config.rewards.num_workers} workers"),
        NodeTerm("object store", store, "rollouts of a step, published weights"),
    )
    return NodeMemory(terms, hardware.host_memory_gib, store, *checkpoint_gib(config, shape))


def checkpoint_gib(config: BroRLConfig, shape: ModelShape) -> tuple[float, float]:
    """(one checkpoint, everything a run keeps) on disk: those that are kept, one more while it is written, and the best
    weights."""
    number = NUMBER_BYTES[config.policy.precision]
    weights = number * rank_parameters(shape, Cut(), 0).total / GIB
    one = weights * (number + OPTIMIZER_BYTES) / number
    if config.algorithm.kl.coefficient > 0:
        one += weights  # the reference
    return one, (config.trainer.keep_checkpoints + 1) * one + weights


def _object_store_gib(config: BroRLConfig, work: Workload, published: float) -> float:
    """GiB of the object store: rollouts of a step and as many surplus ones; one copy of the published weights, and
    buckets of the next on their way."""
    surplus = 2.0 if config.dynamic_sampling.max_staleness > 0 or config.rollouts.overlap else 1.0
    rollouts = surplus * work.sampled * work.response_tokens * ROLLOUT_TOKEN_BYTES / GIB
    kept = published if config.generation.keep_published else 0.0
    on_the_way = min(published, 3 * config.generation.weight_bucket_mib / 1024)
    if RunSizes.of(config).weight_transport == "object_store":
        on_the_way = published
    return rollouts + kept + on_the_way
