"""Check settings of the policy against those of other sections."""

from __future__ import annotations

from collections.abc import Iterator

from nemo_brorl.config.needs import needs, needs_gpus, needs_gpus_shared_with_engines
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig, as_yaml


def ranks_are_there(run: BroRLConfig) -> Iterator[str]:
    policy = run.policy
    if policy.sequence_parallel and policy.tensor_model_parallel_size == 1:
        why = "splits activations over such ranks"
        yield needs(run, "policy.sequence_parallel", why, "policy.tensor_model_parallel_size above 1")
    if policy.virtual_pipeline_model_parallel_size is not None and policy.pipeline_model_parallel_size == 1:
        setting, why = "policy.virtual_pipeline_model_parallel_size", "cuts stages of a pipeline into chunks"
        yield needs(run, setting, why, "policy.pipeline_model_parallel_size above 1")
    if policy.offload != "none":
        yield from needs_gpus_shared_with_engines(run, "policy.offload", "makes room for engines on the same GPUs")


def kernels_take_the_settings(run: BroRLConfig) -> Iterator[str]:
    policy = run.policy
    if policy.moe.aux_loss_coefficient > 0 and policy.moe.freeze_router:
        yield needs(run, "policy.moe.aux_loss_coefficient", "trains the router", "policy.moe.freeze_router=false")
    if policy.moe.fused_permutation:
        yield from needs_gpus(run, "policy.moe.fused_permutation", "takes Transformer Engine's kernels")
    if policy.attention in ("flash", "flex"):
        yield from needs_gpus(run, "policy.attention", "has kernels for GPUs")
    if policy.attention == "flash" and policy.precision != "bf16":
        yield needs(run, "policy.attention", "takes bf16", "policy.precision=bf16")


def fp8_is_possible(run: BroRLConfig) -> Iterator[str]:
    policy = run.policy
    if policy.overlap_param_gather and policy.fp8_params:
        why = "would leave copies that are made of FP8 weights after a gather as they were"
        yield needs(run, "policy.overlap_param_gather", why, "policy.fp8_params=false")
    if policy.fp8 is None:
        return
    if run.trainer.gpus_per_node > 0 and policy.precision != "bf16":
        setting = "policy.fp8 with trainer.gpus_per_node"
        yield needs(run, setting, "trains on top of bf16", "policy.precision=bf16")
    if policy.fp8_recipe == "delayed":
        setting, why = "policy.fp8_recipe with policy.fp8", "takes its scales over all layers at once"
        if policy.fp8_bf16_first_layers:
            yield needs(run, setting, why, "policy.fp8_bf16_first_layers=0")
        if policy.fp8_bf16_last_layers:
            yield needs(run, setting, why, "policy.fp8_bf16_last_layers=0")
    if policy.fp8_params:
        setting = "policy.fp8_params with policy.fp8"
        yield from needs_gpus(run, setting, "keeps weights in FP8, which is emulated on CPU with weights as they are")
        if run.algorithm.kl.coefficient > 0 and not run.algorithm.kl.has_teacher:
            why = "keeps weights in FP8, which no KL reference can be exchanged with unrounded"
            yield needs(run, setting, why, "algorithm.kl.coefficient=0")


def policy_fills_its_devices(run: BroRLConfig) -> Iterator[str]:
    sizes = RunSizes.from_config(run)
    gpus, model_size, ranks = sizes.num_gpus, sizes.model_parallel, sizes.num_ranks
    is_chosen_later = gpus == 0 and run.policy.data_parallel_size is None
    experts, stage = run.policy.expert_model_parallel_size, ranks // run.policy.pipeline_model_parallel_size
    if stage % experts and not is_chosen_later:
        yield (
            f"policy.expert_model_parallel_size={experts} must divide the TP × CP × DP = {stage} ranks of a pipeline "
            "stage, from which it takes its ranks: set a divisor, or raise policy.data_parallel_size"
        )
    if gpus == 0:
        # Engines may be chosen later, too. This rule judges them once the sizes are known.
        fewest = ranks if run.generation.num_engines is None else min(ranks, sizes.num_engines)
        if not is_chosen_later and run.trainer.num_nodes > fewest:
            yield (
                f"trainer.num_nodes={run.trainer.num_nodes} with {ranks} policy ranks and {sizes.num_engines} "
                "engines on CPU: a node would have none of them; lower it, or raise policy.data_parallel_size and "
                "generation.num_engines"
            )
    elif model_size > gpus:
        yield (
            f"a policy replica needs TP × PP × CP = {model_size} GPUs and the run has {gpus} (trainer.num_nodes × "
            "trainer.gpus_per_node): lower policy.tensor_model_parallel_size or policy.pipeline_model_parallel_size"
        )
    elif run.generation.placement == "colocated" and ranks != gpus:
        yield (
            f"{gpus} GPUs cannot be filled by {sizes.data_parallel} policy replicas of TP × PP × CP = "
            f"{model_size}: choose sizes whose product is the number of GPUs, and leave policy.data_parallel_size=null"
        )


def gathers_overlap_where_gradients_do(run: BroRLConfig) -> Iterator[str]:
    """Yield a message if parameter all-gathers overlap with computation but gradient reductions do not.

    Megatron refuses that combination, too (Megatron-LM, arguments.py).
    """
    if run.policy.overlap_param_gather and not RunSizes.from_config(run).overlaps_gradients:
        yield (
            "policy.overlap_param_gather=true needs gradients that overlap, and "
            f"policy.overlap_grad_reduce={as_yaml(run.policy.overlap_grad_reduce)} has them reduced in one piece here: "
            "set policy.overlap_grad_reduce=true, or policy.overlap_param_gather=false"
        )


RULES = (
    ranks_are_there,
    kernels_take_the_settings,
    fp8_is_possible,
    policy_fills_its_devices,
    gathers_overlap_where_gradients_do,
)
