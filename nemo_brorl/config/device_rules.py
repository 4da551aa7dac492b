"""Rules about devices: who is on which GPU, what needs one, and what taking turns on it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nemo_brorl.config.derived import (
    data_parallel_size,
    model_parallel_size,
    num_engines,
    num_gpus,
    num_policy_ranks,
    overlaps_gradients,
)
from nemo_brorl.config.schema import BroRLConfig

MIN_CPU_HEAD_DIM = 32  # vLLM's CPU attention has no kernel for less


def policy_fills_its_devices(config: BroRLConfig) -> Iterator[str]:
    gpus, model_size, ranks = num_gpus(config), model_parallel_size(config), num_policy_ranks(config)
    is_chosen_later = gpus == 0 and config.policy.data_parallel_size is None
    experts, stage = config.policy.expert_model_parallel_size, ranks // config.policy.pipeline_model_parallel_size
    if stage % experts and not is_chosen_later:
        yield (
            f"policy.expert_model_parallel_size={experts} must divide the TP × CP × DP = {stage} ranks of a pipeline "
            "stage, from which it takes its ranks: write a divisor, or raise policy.data_parallel_size"
        )
    if gpus == 0:
        if not is_chosen_later and config.trainer.num_nodes > min(ranks, num_engines(config)):
            yield (
                f"trainer.num_nodes={config.trainer.num_nodes} with {ranks} policy ranks and {num_engines(config)} "
                "engines on CPU: a node would have none of them; lower it, or raise policy.data_parallel_size and "
                "generation.num_engines"
            )
    elif model_size > gpus:
        yield (
            f"a policy replica needs TP × PP × CP = {model_size} GPUs and the run has {gpus} (trainer.num_nodes × "
            "trainer.gpus_per_node): lower policy.tensor_model_parallel_size or policy.pipeline_model_parallel_size"
        )
    elif config.generation.placement == "colocated" and ranks != gpus:
        yield (
            f"{gpus} GPUs cannot be filled by {data_parallel_size(config)} policy replicas of TP × PP × CP = "
            f"{model_size}: choose sizes whose product is the number of GPUs, and leave policy.data_parallel_size=null"
        )


def engines_fill_their_devices(config: BroRLConfig) -> Iterator[str]:
    gpus, generation = num_gpus(config), config.generation
    degree, is_disaggregated = generation.tensor_parallel_size, generation.placement == "disaggregated"
    if gpus == 0:
        if degree > 1:
            yield (
                f"generation.tensor_parallel_size={degree} needs GPUs: on CPU write 1 and raise generation.num_engines"
            )
        return
    if is_disaggregated and config.policy.data_parallel_size is None and generation.num_engines is None:
        yield (
            "generation.placement=disaggregated does not share out the GPUs: write generation.num_engines or "
            "policy.data_parallel_size"
        )
        return
    for_policy = num_policy_ranks(config) if is_disaggregated else 0
    wanted = num_engines(config) * degree
    if is_disaggregated and for_policy + wanted < gpus:
        yield (
            f"the policy takes {for_policy} GPUs and generation {wanted}, which leaves {gpus - for_policy - wanted} of "
            f"{gpus} idle: change generation.num_engines, generation.tensor_parallel_size or policy.data_parallel_size"
        )
    if wanted > gpus - for_policy:
        yield (
            f"generation.num_engines={num_engines(config)} × generation.tensor_parallel_size={degree} = {wanted} GPUs "
            f"and {gpus - for_policy} are there for generation: write generation.num_engines=null to fill them"
        )


def engines_are_on_one_node(config: BroRLConfig) -> Iterator[str]:
    degree, on_node, ranks = config.generation.tensor_parallel_size, config.trainer.gpus_per_node, 0
    if num_gpus(config) == 0 or degree == 1:
        return
    if config.generation.placement == "disaggregated":
        ranks = num_policy_ranks(config)
    if on_node % degree:
        yield (
            f"generation.tensor_parallel_size={degree} does not divide trainer.gpus_per_node={on_node}, and an engine "
            "must be on one node: write a divisor"
        )
    elif ranks % degree:
        yield (
            f"the policy takes the first {ranks} GPUs, and engines of generation.tensor_parallel_size={degree} fill "
            f"nodes of {on_node} only after a multiple of {degree}: change policy.data_parallel_size or "
            "generation.tensor_parallel_size"
        )


def transport_reaches_engines(config: BroRLConfig) -> Iterator[str]:
    """CUDA IPC needs a policy rank on every engine's GPU, NCCL needs a GPU for every process; Ray's object store
    reaches everything."""
    transport, placement = config.generation.weight_transport, config.generation.placement
    if transport == "cuda_ipc" and num_gpus(config) == 0:
        yield "generation.weight_transport=cuda_ipc shares GPU memory and there are no GPUs: write auto"
    elif transport == "cuda_ipc" and placement == "disaggregated":
        yield (
            "generation.weight_transport=cuda_ipc needs engines on the policy's GPUs and "
            "generation.placement=disaggregated gives them others: write auto, or collective"
        )
    if transport == "collective" and num_gpus(config) > 0 and placement == "colocated":
        yield (
            "generation.weight_transport=collective is NCCL, which refuses two processes on one GPU, and "
            "generation.placement=colocated puts an engine beside every policy rank: write auto, or cuda_ipc"
        )


def turns_free_something(config: BroRLConfig) -> Iterator[str]:
    """Host memory is where everything is on CPU already, and disaggregated engines have GPUs of their own."""
    offload, is_disaggregated = config.policy.offload, config.generation.placement == "disaggregated"
    if offload != "none" and num_gpus(config) == 0:
        yield f"policy.offload={offload} moves GPU memory to the host and there is nothing to free on CPU: write none"
    elif offload != "none" and is_disaggregated:
        yield (
            f"policy.offload={offload} makes room for engines on the policy's GPUs, and with "
            "generation.placement=disaggregated there are none: write policy.offload=none"
        )


def roles_do_not_take_turns_while_they_overlap(config: BroRLConfig) -> Iterator[str]:
    if not config.rollouts.overlap:
        return
    if config.trainer.gpus_per_node > 0 and config.generation.placement == "colocated":
        yield (
            "rollouts.overlap=true samples while the policy learns, on devices of their own: write "
            "generation.placement=disaggregated"
        )
    turns = (("policy.offload", config.policy.offload, "none"), ("generation.sleep", config.generation.sleep, "off"))
    for name, value, off in turns:
        if value != off:
            yield (
                f"{name}={value} lets roles take turns and rollouts.overlap=true runs both at once: write {name}={off}"
            )


def kernels_exist(config: BroRLConfig) -> Iterator[str]:
    policy, is_on_gpu = config.policy, num_gpus(config) > 0
    size, unit, device = config.generation.block_size, 32, "CPU"
    if is_on_gpu:
        unit, device = 16, "GPU"
    if size % unit:
        fitting = max(unit, size // unit * unit)
        yield f"generation.block_size={size} must be a multiple of {unit} on {device}: write {fitting}"
    if policy.attention == "flash" and policy.precision != "bf16":
        yield (
            f"policy.attention=flash takes bf16 and policy.precision={policy.precision}: write policy.precision=bf16, "
            "or policy.attention=flex"
        )
    if policy.fp8 is not None and is_on_gpu and policy.precision != "bf16":
        yield (
            f"policy.fp8={policy.fp8} trains on top of bf16: write policy.precision=bf16 in place of {policy.precision}"
        )


def cpus_have_what_is_asked(config: BroRLConfig) -> Iterator[str]:
    if num_gpus(config) > 0:
        return
    policy, sft = config.policy, config.sft
    if policy.attention in ("flash", "flex"):
        yield f"policy.attention={policy.attention} needs GPUs (its kernels are for them): on CPU write auto or sdpa"
    if policy.fp8 is not None and policy.fp8_params:
        yield (
            "policy.fp8_params=true keeps weights in FP8, which needs Hopper GPUs (trainer.gpus_per_node > 0); on CPU "
            "FP8 is emulated and weights stay as they are: write policy.fp8_params=false"
        )
    if policy.moe.fused_permutation:
        yield (
            "policy.moe.fused_permutation=true takes Transformer Engine's kernels, which need GPUs: write "
            "policy.moe.fused_permutation=false"
        )
    if config.generation.is_quantised:
        yield (
            "generation.engine_args quantises what samples (quantization, kv_cache_dtype), which needs GPUs: leave it "
            "out on CPU"
        )
    if config.generation.engine_args.get("speculative_config") is not None:
        yield (
            "generation.engine_args.speculative_config needs GPUs: with drafts, some log-probs of vLLM's CPU build are "
            "not finite; leave it out on CPU"
        )
    head_dim, rest = divmod(sft.hidden_size, sft.num_attention_heads)
    if rest == 0 and head_dim < MIN_CPU_HEAD_DIM:
        yield (
            f"sft.hidden_size={sft.hidden_size} over sft.num_attention_heads={sft.num_attention_heads} gives heads of "
            f"{head_dim}, and vLLM's CPU build needs {MIN_CPU_HEAD_DIM}: write fewer heads"
        )


def weights_overlap_where_gradients_do(config: BroRLConfig) -> Iterator[str]:
    """Megatron's own rule (Megatron-LM, arguments.py)."""
    if config.policy.overlap_param_gather and not overlaps_gradients(config):
        chosen = "null" if config.policy.overlap_grad_reduce is None else "false"
        yield (
            f"policy.overlap_param_gather=true needs gradients that overlap, and policy.overlap_grad_reduce={chosen} "
            "has them reduced in one piece here: write policy.overlap_grad_reduce=true, or "
            "policy.overlap_param_gather=false"
        )


def profiles_have_their_device(config: BroRLConfig) -> Iterator[str]:
    if num_gpus(config) > 0:
        return
    if config.profile.kind == "nsys":
        yield "profile.kind=nsys records what GPUs do and there are none (trainer.gpus_per_node=0): write torch"
    if config.profile.memory_snapshot:
        yield "profile.memory_snapshot=true is of GPU memory and there is none (trainer.gpus_per_node=0): write false"


DEVICE_RULES: tuple[Callable[[BroRLConfig], Iterator[str]], ...] = (
    policy_fills_its_devices,
    engines_fill_their_devices,
    engines_are_on_one_node,
    transport_reaches_engines,
    turns_free_something,
    roles_do_not_take_turns_while_they_overlap,
    kernels_exist,
    cpus_have_what_is_asked,
    weights_overlap_where_gradients_do,
    profiles_have_their_device,
)
