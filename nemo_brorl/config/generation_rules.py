"""Check settings of generation against those of other sections."""

from __future__ import annotations

from collections.abc import Iterator

from nemo_brorl.config.needs import COLOCATED, needs, needs_gpus, needs_gpus_shared_with_engines
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_folder import local_model


def devices_are_of_the_kind(run: BroRLConfig) -> Iterator[str]:
    generation = run.generation
    if generation.tensor_parallel_size > 1:
        setting, why = "generation.tensor_parallel_size", "is of GPUs (on CPU raise generation.num_engines)"
        yield from needs_gpus(run, setting, why)
    if generation.sleep != "off" and generation.placement != "colocated":
        yield needs(run, "generation.sleep", "makes room for the policy on the same devices", COLOCATED)
    if generation.weight_transport == "cuda_ipc":
        why = "shares memory of the GPUs that policy and engines are on"
        yield from needs_gpus_shared_with_engines(run, "generation.weight_transport", why)
    is_nccl = generation.weight_transport == "collective" and run.trainer.gpus_per_node > 0
    if is_nccl and generation.placement != "disaggregated":
        setting = "generation.weight_transport with trainer.gpus_per_node"
        why = "is NCCL, which refuses two processes on one GPU"
        yield needs(run, setting, why, "generation.placement=disaggregated")


def engines_fill_their_devices(run: BroRLConfig) -> Iterator[str]:
    sizes, generation, for_policy = RunSizes.from_config(run), run.generation, 0
    gpus = sizes.num_gpus
    degree, on_node = generation.tensor_parallel_size, run.trainer.gpus_per_node
    if gpus == 0:
        return
    if on_node % degree:
        yield (
            f"generation.tensor_parallel_size={degree} does not divide trainer.gpus_per_node={on_node}, and an engine "
            "must be on one node: set a divisor"
        )
    if generation.placement == "disaggregated":
        if run.policy.data_parallel_size is None and generation.num_engines is None:
            yield (
                "generation.placement=disaggregated does not share out the GPUs: set generation.num_engines or "
                "policy.data_parallel_size"
            )
            return
        for_policy = sizes.num_ranks
    wanted, left = sizes.num_engines * degree, gpus - for_policy
    if for_policy and wanted < left:
        yield (
            f"the policy takes {for_policy} GPUs and generation {wanted}, which leaves {left - wanted} of {gpus} idle: "
            "change generation.num_engines, generation.tensor_parallel_size or policy.data_parallel_size"
        )
    if wanted > left:
        yield (
            f"generation.num_engines={sizes.num_engines} × generation.tensor_parallel_size={degree} = {wanted} GPUs "
            f"and {left} are there for generation: set generation.num_engines=null to fill them"
        )
    if on_node % degree == 0 and for_policy % degree:
        yield (
            f"the policy takes the first {for_policy} GPUs, and engines of generation.tensor_parallel_size={degree} "
            f"fill nodes of {on_node} only after a multiple of {degree}: change policy.data_parallel_size or "
            "generation.tensor_parallel_size"
        )


def kernels_exist(run: BroRLConfig) -> Iterator[str]:
    engine_args, is_on_gpu = run.generation.engine_args, run.trainer.num_gpus > 0
    quantises = "generation.engine_args quantises what samples (quantization, kv_cache_dtype)"
    if run.generation.is_quantised and not is_on_gpu:
        yield f"{quantises}, which needs GPUs: leave it out on CPU"
    if run.generation.is_quantised and not run.algorithm.importance_correction.enabled:
        yield (
            f"{quantises}, so rollouts are not of the policy that learns from them: set "
            "algorithm.importance_correction.enabled=true"
        )
    if engine_args.get("speculative_config") is not None and not is_on_gpu:
        yield (
            "generation.engine_args.speculative_config needs GPUs: with drafts, some log-probs of vLLM's CPU build are "
            "not finite; leave it out on CPU"
        )


def drafts_exist(run: BroRLConfig) -> Iterator[str]:
    drafts = run.generation.engine_args.get("speculative_config") or {}
    model = str(drafts.get("model") or "ngram")
    if model == "ngram":
        return
    try:
        local_model(model)
    except ModelError:
        yield (
            f"generation.engine_args.speculative_config.model={model} is no folder here: set the folder or the name "
            "owner/name of a draft model"
        )


RULES = (devices_are_of_the_kind, engines_fill_their_devices, kernels_exist, drafts_exist)
