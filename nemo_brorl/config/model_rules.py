"""Check settings against the shape of the model that `policy.model` names, from its config.json."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from nemo_brorl.config.generation import CPU_HEAD_SIZES
from nemo_brorl.config.lengths import longest_response, max_model_len
from nemo_brorl.config.policy import PolicyConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError, ModelError
from nemo_brorl.core.model_folder import local_model
from nemo_brorl.core.model_shape import ModelShape, MoeShape, read_model_shape

FP8_FEATURES = 16  # FP8 products need multiples of this many features (Transformer Engine 2.11)


def check_model_rules(config: BroRLConfig, folder: Path | None = None, *, has_engines: bool = True) -> None:
    """Check the settings against the model's shape, when `policy.model` is a folder or `folder` is given.

    A command without engines (not `has_engines`) takes heads of any size. Raises ModelError for a missing or broken
    folder and ConfigError with every setting that does not fit.
    """
    folder = folder or local_model(config.policy.model)
    if folder is not None:
        _raise_all(config.policy.model, list(misfits(config, read_model_shape(folder), has_engines)))


def check_policy_fits(policy: PolicyConfig, folder: Path, on_gpu: bool) -> ModelShape:
    """Return the shape of the model in a folder, after checking that the policy's parallel settings can shard it.

    Raises ModelError or ConfigError.
    """
    shape = read_model_shape(folder)
    _raise_all(str(folder), list(policy_misfits(policy, shape, on_gpu)))
    return shape


def check_same_shape(shape: ModelShape, folder: Path) -> None:
    """Raise ModelError if the teacher in a folder has another shape than the policy, or is no model."""
    theirs = replace(read_model_shape(folder), max_positions=shape.max_positions)
    for name, value in vars(theirs).items():
        if value != (own := getattr(shape, name)):
            text = f"the teacher {folder} has another {name} ({value}, not {own}) than policy.model"
            raise ModelError(f"{text}. Set algorithm.kl.teacher to one made from it")


def _raise_all(model: str, messages: list[str]) -> None:
    if messages:
        lines = "\n".join(f"  - {message}" for message in messages)
        raise ConfigError(f"the settings do not fit the model {model}:\n{lines}")


def misfits(config: BroRLConfig, shape: ModelShape, has_engines: bool = True) -> Iterator[str]:
    """Yield one message for every setting that does not fit the shape of the model."""
    yield from policy_misfits(config.policy, shape, config.trainer.num_gpus > 0)
    yield from _heads("generation.tensor_parallel_size", config.generation.tensor_parallel_size, shape)
    if has_engines and config.trainer.num_gpus == 0 and shape.head_size not in CPU_HEAD_SIZES:
        yield (
            f"policy.model has heads of {shape.head_size} (head_dim, or hidden_size / num_attention_heads), and vLLM's "
            f"CPU build needs {', '.join(map(str, CPU_HEAD_SIZES))}: set policy.model to a model with heads of such a "
            "size, or train on GPUs (trainer.gpus_per_node)"
        )
    limit = max_model_len(config)
    if limit > shape.max_positions:
        yield (
            f"generation.max_model_len={limit} is more than the model's {shape.max_positions} positions: set "
            f"{_shorter(config, shape.max_positions)}"
        )


def _shorter(config: BroRLConfig, positions: int) -> str:
    """Return settings with which a prompt and its response fit into the model's positions."""
    prompt, wanted = config.data.max_prompt_tokens, []
    if prompt + longest_response(config) > positions:
        if prompt >= positions:
            prompt = positions // 2
            wanted.append(f"data.max_prompt_tokens={prompt}")
        wanted.append(f"rollouts.max_response_tokens={positions - prompt}")
        if (config.evaluation.max_response_tokens or 0) > positions - prompt:
            wanted.append(f"evaluation.max_response_tokens={positions - prompt}")
    if config.generation.max_model_len is not None or not wanted:
        wanted.append(f"generation.max_model_len={positions}")
    return " ".join(wanted)


def policy_misfits(policy: PolicyConfig, shape: ModelShape, on_gpu: bool) -> Iterator[str]:
    """Yield one message for every setting of the policy that does not fit the shape of the model."""
    yield from _tensor_parallel(policy, shape)
    yield from _pipeline_parallel(policy, shape)
    yield from _experts(policy, shape)
    yield from _fp8(policy, shape, on_gpu)


def _heads(name: str, size: int, shape: ModelShape) -> Iterator[str]:
    if shape.num_heads % size:
        yield (
            f"{name}={size} does not divide the model's {shape.num_heads} attention heads: set "
            f"{_divisor(size, shape.num_heads)}"
        )
    if shape.num_key_value_heads % size and size % shape.num_key_value_heads:
        yield (
            f"{name}={size} neither divides nor is a multiple of the model's {shape.num_key_value_heads} key-value "
            f"heads: set {_divisor(size, shape.num_key_value_heads)}"
        )


def _tensor_parallel(policy: PolicyConfig, shape: ModelShape) -> Iterator[str]:
    name, size = "policy.tensor_model_parallel_size", policy.tensor_model_parallel_size
    yield from _heads(name, size, shape)
    if size > shape.num_key_value_heads:
        yield (
            f"{name}={size} is more than the model's {shape.num_key_value_heads} key-value heads, which "
            f"the policy does not copy: set {shape.num_key_value_heads} or less"
        )
    sizes = {"intermediate_size": shape.ffn_size}
    if shape.moe and policy.expert_model_parallel_size == 1:  # then tensor parallelism splits every expert
        sizes["moe_intermediate_size"] = shape.moe.ffn_size
    for what, number in sizes.items():
        if number % size:
            yield f"{name}={size} does not divide the model's {what} of {number}: set {_divisor(size, number)}"


def _pipeline_parallel(policy: PolicyConfig, shape: ModelShape) -> Iterator[str]:
    stages = policy.pipeline_model_parallel_size
    virtual = policy.virtual_pipeline_model_parallel_size or 1
    if shape.num_layers % stages:
        yield (
            f"policy.pipeline_model_parallel_size={stages} does not divide the model's {shape.num_layers} layers: "
            f"set {_divisor(stages, shape.num_layers)}"
        )
    elif shape.num_layers // stages % virtual:
        per_stage = shape.num_layers // stages
        yield (
            f"policy.virtual_pipeline_model_parallel_size={virtual} does not divide the {per_stage} layers of a "
            f"pipeline stage: set {_divisor(virtual, per_stage)} or null".replace("set 1 or null", "set null")
        )


def _experts(policy: PolicyConfig, shape: ModelShape) -> Iterator[str]:
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
                    f"policy.{name}={written} is for mixture-of-experts models and this one is dense: set "
                    f"policy.{name}={wanted}"
                )
        return
    if moe.num_experts % size:
        yield (
            f"policy.expert_model_parallel_size={size} does not divide the model's {moe.num_experts} experts: set "
            f"{_divisor(size, moe.num_experts)}"
        )
    yield from _stages_without_experts(policy, moe)
    if policy.tensor_model_parallel_size > 1 and not policy.sequence_parallel:
        yield (
            f"policy.tensor_model_parallel_size={policy.tensor_model_parallel_size} without policy.sequence_parallel "
            "would send every token of a mixture-of-experts model to its experts once per rank: set "
            "policy.sequence_parallel=true"
        )


def _stages_without_experts(policy: PolicyConfig, moe: MoeShape) -> Iterator[str]:
    """Yield a message if a pipeline stage has no layer with experts.

    Such a stage has another optimizer than the other stages, and Megatron 0.16.1 then restores Adam's step in only one
    of them.
    """
    stages = policy.pipeline_model_parallel_size
    chunks = stages * (policy.virtual_pipeline_model_parallel_size or 1)
    per_chunk = max(1, len(moe.is_moe_layer) // chunks)
    with_experts = {layer // per_chunk % stages for layer, is_moe in enumerate(moe.is_moe_layer) if is_moe}
    if len(with_experts) < stages:
        yield (
            f"policy.pipeline_model_parallel_size={stages} leaves a pipeline stage with dense layers only, whose "
            "optimizer a checkpoint would not restore: set a smaller policy.pipeline_model_parallel_size"
        )


def _fp8(policy: PolicyConfig, shape: ModelShape, on_gpu: bool) -> Iterator[str]:
    """Yield one message for every FP8 setting that does not fit the shape of the model."""
    if policy.fp8 is None:
        return
    if policy.num_bf16_layers >= shape.num_layers:
        yield (
            f"policy.fp8_bf16_first_layers={policy.fp8_bf16_first_layers} and "
            f"policy.fp8_bf16_last_layers={policy.fp8_bf16_last_layers} "
            f"leave none of the model's {shape.num_layers} layers in FP8: set smaller numbers, or policy.fp8=null"
        )
    per_stage = shape.num_layers // policy.pipeline_model_parallel_size
    for name in ("fp8_bf16_first_layers", "fp8_bf16_last_layers"):
        layers = getattr(policy, name)
        if layers > per_stage:
            yield (
                f"policy.{name}={layers} is more than the {per_stage} layers of a pipeline stage: set {per_stage} or "
                "less"
            )
    if on_gpu:
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
                f"tensor-parallel rank is {number}: set policy.fp8=null or a smaller "
                "policy.tensor_model_parallel_size"
            )


def _divisor(at_most: int, of: int) -> int:
    """Return the largest divisor of the number `of` that is at most `at_most`."""
    return max(divisor for divisor in range(1, at_most + 1) if of % divisor == 0)
