"""The least work that any implementation has to do, in FLOPs and bytes, and the time it takes at the measured ceilings.

A product of [m, k] and [k, n] is 2 m k n FLOPs. Forward and backward of a layer's matrix is three such products, of
attention over one pair of tokens twelve times its head sizes. What an implementation computes twice (recomputation,
logits in the backward pass) is not counted: the fraction of the ceiling falls for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.gpu.setting import Ceilings
from bench.gpu.shapes import layer_parameters, weight_bytes
from nemo_brorl.core.model_shape import ModelShape


@dataclass(frozen=True)
class TokenWork:
    """What a training step goes over."""

    tokens: int  # that pass the layers
    predicted: int  # that pass the output layer
    pairs: int  # of tokens that attend to each other


def separate_documents(lengths: Sequence[int], predicted: int) -> TokenWork:
    """Documents that see themselves alone."""
    return TokenWork(sum(lengths), predicted, sum(length * (length + 1) // 2 for length in lengths))


def shared_prompt(prompt: int, responses: Sequence[int]) -> TokenWork:
    """One copy of the prompt, which all responses see."""
    own = separate_documents([prompt, *responses], sum(responses))
    return TokenWork(own.tokens, own.predicted, own.pairs + prompt * sum(responses))


def training_flops(shape: ModelShape, work: TokenWork) -> float:
    """Forward and backward."""
    products = 6.0 * (layer_parameters(shape) * work.tokens + shape.vocab_size * shape.hidden_size * work.predicted)
    return products + 12.0 * shape.num_layers * shape.num_heads * shape.head_size * work.pairs


def optimizer_bytes(num_parameters: int) -> float:
    """Return the bytes that one Adam step moves.

    It reads gradient, master weight and two moments in fp32. It writes the last three of them, and the bf16 weight.
    """
    return num_parameters * (4 * 4 + 3 * 4 + 2.0)


def training_seconds(shape: ModelShape, work: TokenWork, ceilings: Ceilings) -> float:
    """Floor of forward, backward and one optimizer step in bf16."""
    return (
        training_flops(shape, work) / ceilings.bf16_flops
        + optimizer_bytes(weight_bytes(shape) // 2) / ceilings.copy_bytes
    )


@dataclass(frozen=True)
class GenerationWork:
    """Prompts with equally many responses each, all of one length, at most `in_flight` rollouts at once."""

    num_prompts: int
    group_size: int
    prompt: int
    response: int
    in_flight: int


def cache_bytes_per_token(shape: ModelShape) -> int:
    """Keys and values in bf16."""
    return 2 * 2 * shape.num_layers * shape.num_key_value_heads * shape.head_size


def generation_seconds(shape: ModelShape, work: GenerationWork, ceilings: Ceilings) -> float:
    """Return the least seconds that generation can take on a card with these ceilings.

    Every prompt is computed once. Every engine step reads all weights once, the cache of each response, and the cache
    of a prompt once for all responses that share it.
    """
    samples = work.num_prompts * work.group_size
    per_token = 2.0 * layer_parameters(shape)
    head = 2.0 * shape.vocab_size * shape.hidden_size
    prefill = per_token * work.num_prompts * work.prompt
    prefill += (
        4.0
        * shape.num_layers
        * shape.num_heads
        * shape.head_size
        * work.num_prompts
        * work.prompt
        * (work.prompt + 1)
        / 2
    )
    decode_flops = samples * work.response * (per_token + head)
    waves = max(1.0, samples / work.in_flight)
    steps = waves * work.response
    read = steps * weight_bytes(shape)
    in_flight = min(samples, work.in_flight)
    prompts_in_flight = max(1.0, in_flight / work.group_size)
    per_step = in_flight * (work.response + 1) / 2 + prompts_in_flight * work.prompt
    read += steps * per_step * cache_bytes_per_token(shape)
    return prefill / ceilings.bf16_flops + max(decode_flops / ceilings.bf16_flops, read / ceilings.copy_bytes)


def sync_seconds(shape: ModelShape, ceilings: Ceilings) -> float:
    """Return the least seconds of a weight sync to an engine on the same GPU: weights read once and written once.

    Our weight sync reads them five times and writes them twice. It gathers them into a bucket, sums them on both sides,
    and copies them into place by way of a layer's own memory.
    """
    return 2.0 * weight_bytes(shape) / ceilings.copy_bytes
