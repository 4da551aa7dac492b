"""What ranks do in tests of FP8: one emulated linear layer, or a policy whose amax histories are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from nemo_brorl.config.parallel_layout import layout_of
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.types import Float32, UpdatePlan
from tests.support.policy_ranks import new_learner  # makes this process ready for megatron

Scored = Sequence[Sequence[int]]


def emulated_linear(config: BroRLConfig, kind: str, x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y, dx, dw of this rank's share of a column- or row-parallel layer, given whole x [T, in], w [out, in] and g [T,
    out]."""
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_config import TransformerConfig

    from nemo_brorl.policy.cpu.fp8_emulation import (
        ChunkEmulation,
        EmulatedColumnParallelLinear,
        EmulatedRowParallelLinear,
    )
    from nemo_brorl.policy.model.precision import param_dtype

    layout, group = layout_of(config), parallel_state.get_tensor_model_parallel_group()

    def mine(tensor: Tensor, axis: int) -> Tensor:
        return tensor.chunk(group.size(), axis)[group.rank()].contiguous()

    settings = TransformerConfig(
        num_layers=1, hidden_size=w.size(1), num_attention_heads=2, use_cpu_initialization=True,
        params_dtype=param_dtype(config.policy),
        tensor_model_parallel_size=layout.tensor, sequence_parallel=layout.sequence_parallel,
    )  # fmt: skip
    common = {
        "config": settings,
        "init_method": torch.nn.init.normal_,
        "policy": config.policy,
        "chunk": ChunkEmulation(),
    }
    common |= {"bias": False, "skip_bias_add": True}
    if kind == "column":
        linear = EmulatedColumnParallelLinear(w.size(1), w.size(0), **common)
        w, g = mine(w, 0), mine(g, 1)
        x = mine(x, 0) if layout.sequence_parallel else x
    else:
        linear = EmulatedRowParallelLinear(w.size(1), w.size(0), input_is_parallel=True, **common)
        w, x = mine(w, 1), mine(x, 1)
        g = mine(g, 0) if layout.sequence_parallel else g
    linear.weight.data.copy_(w)
    x = x.clone().requires_grad_()
    y = linear(x)[0]
    y.backward(g)
    return y.detach(), x.grad, linear.weight.grad


def histories(
    model_folder: Path, config: BroRLConfig, plans: tuple[UpdatePlan, ...], off: bool = False
) -> list[Tensor]:
    """The state of every delayed recipe of this rank after some updates, [3, 1 + history] each; `off` scores without
    FP8 after them."""
    from nemo_brorl.policy.cpu.fp8_emulation import chunks_of

    learner = new_learner(config, model_folder)
    for plan in plans:
        learner.update(plan)
    if off:
        learner.log_probs([[1, 2, 3]], [[4, 5]], with_fp8=False)
    recipes = [
        linear.recipe for model in learner.state.models for chunk in chunks_of(model) for linear in chunk.linears
    ]
    return [state for recipe in recipes if (state := recipe.extra_state()) is not None]


def score_twice(
    config: BroRLConfig, model_folder: Path, prompts: Scored, responses: Scored
) -> tuple[list[Float32], list[Float32]]:
    """Log-probs with FP8 and without, under the same weights."""
    learner = new_learner(config, model_folder)
    return learner.log_probs(prompts, responses), learner.log_probs(prompts, responses, with_fp8=False)
