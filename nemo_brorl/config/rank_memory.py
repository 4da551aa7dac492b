"""Estimate the bytes of a policy rank in an update.

They are its state, what a forward pass keeps, and what a backward pass adds. `bench/peak_memory.py` compares them with
a traced update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nemo_brorl.config.layer_memory import layer_activations, layer_scratch, mlp_activations
from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.config.rank_parameters import Parameters, rank_parameters
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.model_shape import ModelShape

_TILE_LOGITS = 1 << 27  # logits in one tile of policy/model/log_probs.py on a GPU

NUMBER_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class PolicyBytes:
    """Bytes of a policy rank's weights, gradients and optimizer state, for the plans of GPU, host and disk."""

    weights: float
    fp8_copies: float
    gradients: float
    optimizer: float  # this rank's share of the optimizer state
    reference: float
    parameters: Parameters


def policy_bytes(
    config: BroRLConfig,
    shape: ModelShape,
    layout: ParallelLayout,
    stage: int,
) -> PolicyBytes:
    """Return the bytes of a rank's weights, gradients, optimizer state and references.

    Megatron's distributed optimizer keeps weights in the policy's precision, fp32 gradients, and 12 bytes per parameter
    spread over the replicas. In fp32 it is 8 bytes, as weights are their own masters. Transformer Engine keeps an FP8
    copy of a weight for each direction.
    """
    policy = config.policy
    parameters = rank_parameters(shape, layout, stage)
    number = NUMBER_BYTES[policy.precision]
    whole = float(number * parameters.total)
    weights = whole
    copies = 0.0
    if policy.fp8 is not None:
        copies = 2.0 * parameters.linear
        if policy.fp8_params:
            weights -= number * parameters.linear
    state = 12 if policy.precision == "bf16" else 8
    optimizer = state * (parameters.dense / layout.replicas + parameters.experts / layout.expert_replicas)
    reference = whole * len(config.algorithm.kl.references)
    return PolicyBytes(weights, copies, 4.0 * parameters.total, optimizer, reference, parameters)


def activation_bytes(
    config: BroRLConfig,
    shape: ModelShape,
    layout: ParallelLayout,
    stage: int,
    tokens: float,
) -> float:
    """Return the bytes kept for the backward passes of the micro-batches in flight in a pipeline stage.

    Each micro-batch has `tokens` tokens on this rank. Of recomputed activations only the input is kept.
    """
    number = NUMBER_BYTES[config.policy.precision]
    kinds = _kinds_of_layers(shape)
    kept = 0.0
    for is_moe in kinds:
        if config.policy.recompute == "full":
            kept += number * shape.hidden_size / layout.sequence_ranks
            continue
        kept += layer_activations(shape, number, layout, is_moe=is_moe)
        if config.policy.recompute == "selective":
            kept -= mlp_activations(shape, number, layout, is_moe=is_moe)
    under_way = float(max(1, layout.pipeline - stage))
    if layout.chunks > 1:
        under_way = layout.pipeline * (1 + (layout.pipeline - 1) / (layout.pipeline * layout.chunks))
    return tokens * under_way * kept / layout.pipeline


def backward_bytes(
    config: BroRLConfig,
    shape: ModelShape,
    layout: ParallelLayout,
    stage: int,
    tokens: float,
) -> float:
    """Return the bytes that a policy rank's backward pass needs on top of the kept activations.

    The pass starts with the log-probs, on the last pipeline stage. Then it holds recomputed activations and gradients,
    one layer at a time.
    """
    number = NUMBER_BYTES[config.policy.precision]
    largest = 0.0
    for is_moe in set(_kinds_of_layers(shape)):
        of_layer = layer_scratch(shape, number, layout, is_moe=is_moe)
        if config.policy.recompute == "full":
            of_layer += layer_activations(shape, number, layout, is_moe=is_moe)
        elif config.policy.recompute == "selective":
            of_layer += mlp_activations(shape, number, layout, is_moe=is_moe)
        largest = max(largest, tokens * of_layer)
    if stage == layout.pipeline - 1:
        largest = max(largest, log_prob_bytes(config, shape, layout, tokens))
    return largest


def _kinds_of_layers(shape: ModelShape) -> Sequence[bool]:
    """Return for each layer of the model whether it has experts."""
    return shape.moe.is_moe_layer if shape.moe else (False,) * shape.num_layers


def log_prob_bytes(
    config: BroRLConfig,
    shape: ModelShape,
    layout: ParallelLayout,
    tokens: float,
) -> float:
    """Return the bytes that a policy rank needs to compute log-probs and their gradient.

    They are the hidden states of the last layer and of the tokens that predict, and their gradient. Log-probs are
    computed for some tokens at a time. For these there are the gradient's sum in fp32, a tile of logits in fp32, and
    the tile's gradient in the policy's precision. The output layer's own gradient is allocated when the tiles are freed
    (its sum is in the gradient buffer).
    """
    number = NUMBER_BYTES[config.policy.precision]
    rows = shape.padded_vocab_size(layout.tensor) // layout.tensor
    chunk = min(config.policy.log_prob_chunk_tokens, tokens)
    tile = (4 + number) * min(_TILE_LOGITS, chunk * rows) + 4 * chunk * shape.hidden_size
    gradient = number * rows * shape.hidden_size
    hidden = 3 * number * tokens * shape.hidden_size
    return max(tile, gradient) + hidden
