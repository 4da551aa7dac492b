"""What `policy.fp8` asks of other settings and of the model. Limits are those of Megatron 0.16.1 and Transformer Engine
2.11."""

from __future__ import annotations

from collections.abc import Iterator

from nemo_brorl.config.derived import num_gpus
from nemo_brorl.config.model_shape import ModelShape
from nemo_brorl.config.schema import BroRLConfig, PolicyConfig

FEATURES = 16  # FP8 products want feature counts that are multiples of it


def fp8_goes_together(config: BroRLConfig) -> Iterator[str]:
    """Settings beside `policy.fp8`; without it the other FP8 settings do nothing."""
    policy = config.policy
    if policy.fp8 is None:
        return
    if num_gpus(config) and policy.precision != "bf16":
        yield (
            f"policy.fp8={policy.fp8} trains on top of bf16: write policy.precision=bf16 in place of {policy.precision}"
        )
    if policy.fp8_params and not num_gpus(config):
        yield (
            "policy.fp8_params=true keeps weights in FP8, which needs Hopper GPUs (trainer.gpus_per_node > 0); on "
            "CPU FP8 is emulated "
            "and weights stay as they are: write policy.fp8_params=false"
        )
    if policy.fp8_recipe == "delayed" and _bf16_layers(policy):
        yield (
            f"policy.fp8_recipe=delayed takes its scales over all layers at once, so that none can stay in "
            f"{policy.precision}: write "
            "policy.fp8_bf16_first_layers=0 and policy.fp8_bf16_last_layers=0, or policy.fp8_recipe=tensorwise"
        )


def fp8_misfits(config: BroRLConfig, shape: ModelShape) -> Iterator[str]:
    """One message for every FP8 setting that does not fit the model."""
    policy = config.policy
    if policy.fp8 is None:
        return
    if _bf16_layers(policy) >= shape.num_layers:
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
                f"policy.{name}={layers} is more than the {per_stage} layers of a pipeline stage: write "
                f"{per_stage} or less"
            )
    if num_gpus(config):
        yield from _features(policy, shape)


def _features(policy: PolicyConfig, shape: ModelShape) -> Iterator[str]:
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
        if number % FEATURES:
            yield (
                f"policy.fp8={policy.fp8} needs multiples of {FEATURES} features and the model's {what} on a "
                f"tensor-parallel rank is "
                f"{number}: write policy.fp8=null or a smaller policy.tensor_model_parallel_size"
            )


def _bf16_layers(policy: PolicyConfig) -> int:
    return policy.fp8_bf16_first_layers + policy.fp8_bf16_last_layers
