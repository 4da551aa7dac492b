"""FP8 on Hopper: Transformer Engine's recipes train, differ little from bf16, and round as the CPU emulation does.

Run as `pytest tests/gpu`; megatron and Transformer Engine are imported late, as CPU tests of the same run prepare
megatron for the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nemo_brorl.config.policy import PolicyConfig
from tests.support.learners import weight_buckets
from tests.support.model_factory import make_config, make_model, make_plan, scale_matrices

pytestmark = pytest.mark.gpu

RECIPES = {
    "tensorwise": {"fp8": "hybrid"},
    "tensorwise e4m3": {"fp8": "e4m3"},
    "blockwise": {"fp8": "e4m3", "fp8_recipe": "blockwise"},
    "delayed": {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_amax_history": 4},
}
CHANGES = {
    "one layer in bf16": {**RECIPES["tensorwise"], "fp8_bf16_first_layers": 1},
    "recomputed": {**RECIPES["delayed"], "recompute": "full"},
    "FP8 weights": {**RECIPES["tensorwise"], "fp8_params": True},
    "FP8 weights, blockwise": {**RECIPES["blockwise"], "fp8_params": True},
}
T, IN, OUT = 256, 384, 256


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
    }
    return scale_matrices(make_model(tmp_path_factory.mktemp("model"), **sizes), 0.2)


@pytest.mark.parametrize("policy", [*RECIPES.values(), *CHANGES.values()], ids=[*RECIPES, *CHANGES])
def test_a_recipe_trains_and_its_log_probs_stay_near_those_of_bf16(
    policy: dict[str, Any], model_folder: Path, new_gpu_learner: Callable[..., Any]
) -> None:
    config = make_config(precision="bf16", **policy)
    if config.policy.fp8_params:
        config.algorithm.kl.coefficient = 0.0
    learner = new_gpu_learner(model_folder, config)
    before = next(iter(weight_buckets(learner))).data.copy()
    reports = [learner.update(make_plan(seed=seed)) for seed in range(2)]
    for report in reports:
        assert np.isfinite(report.metrics["policy/loss"])
        assert report.metrics["policy/grad_norm"] > 0
        assert 0 < report.metrics["policy/fp8_mismatch"] < 0.05  # emulated 0.02 to 0.04
        assert report.num_skipped == 0
    assert (next(iter(weight_buckets(learner))).data != before).any()


def test_switching_fp8_off_gives_the_log_probs_of_bf16(model_folder: Path, new_gpu_learner: Callable[..., Any]) -> None:
    prompts, responses = [[3, 1, 4], [1, 5]], [[9, 2, 6, 5], [3, 5, 8]]
    plain = new_gpu_learner(model_folder, make_config(precision="bf16")).log_probs(prompts, responses)
    for name, policy in RECIPES.items():
        learner = new_gpu_learner(model_folder, make_config(precision="bf16", **policy))
        off = learner.log_probs(prompts, responses, with_fp8=False)
        for own, expected in zip(off, plain, strict=True):
            np.testing.assert_allclose(own, expected, atol=2e-2, err_msg=name)  # another row length, other bf16 sums


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    """x [T, in], w [out, in], g [T, out] in bf16 with a few outliers."""
    generator = torch.Generator().manual_seed(0)
    x, w, g = (torch.randn(shape, generator=generator) for shape in ((T, IN), (OUT, IN), (T, OUT)))
    x[::50] *= 20
    return tuple(tensor.bfloat16().cuda() for tensor in (x, 0.05 * w, 1e-4 * g))  # type: ignore[return-value]


def te_recipe(policy: PolicyConfig) -> Any:
    """What Megatron makes of the settings."""
    from transformer_engine.common import recipe

    form = recipe.Format.HYBRID if policy.fp8 == "hybrid" else recipe.Format.E4M3
    if policy.fp8_recipe == "delayed":
        return recipe.DelayedScaling(fp8_format=form, amax_history_len=policy.fp8_amax_history, amax_compute_algo="max")
    return {"tensorwise": recipe.Float8CurrentScaling, "blockwise": recipe.Float8BlockScaling}[policy.fp8_recipe](
        fp8_format=form
    )


@pytest.mark.parametrize("settings", RECIPES.values(), ids=RECIPES.keys())
def test_transformer_engine_and_the_emulation_compute_the_same_linear_layer(
    settings: dict[str, Any], gpu_device: Any
) -> None:
    """Three steps, so that the delayed recipe has scales of its own. Left are the order of sums and a faster
    accumulator."""
    import transformer_engine.pytorch as te

    from nemo_brorl.policy.cpu.fp8_recipes import Delayed, ProductPhase, make_recipe, product

    policy = make_config(precision="bf16", **settings).policy
    x, w, g = tensors()
    linear = te.Linear(IN, OUT, bias=False, params_dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        linear.weight.copy_(w)
    emulation = make_recipe(policy)
    for factor in (1.0, 2.0, 0.5):
        mine = (factor * x).requires_grad_()
        linear.weight.grad = None
        with te.fp8_autocast(enabled=True, fp8_recipe=te_recipe(policy)):
            y = linear(mine)
        y.backward(g)
        operands, weight = emulation.inputs(mine.detach(), w, ProductPhase.FORWARD)
        gradient = emulation.gradient(g)
        if isinstance(emulation, Delayed):
            for history in (emulation.x, emulation.w, emulation.g):
                history.end_step(history.amaxes[0])
        expected = (
            product(operands.by_row, weight.transposed(), torch.bfloat16),
            product(gradient.by_row, weight, torch.bfloat16),
            product(gradient.by_column.transposed(), operands.by_column, torch.bfloat16),
        )
        for name, own, other in zip(("y", "dx", "dw"), expected, (y, mine.grad, linear.weight.grad), strict=True):
            difference = (own.float() - other.float()).abs().max() / other.float().abs().max()
            assert difference < 2**-7, f"{name} differs by {difference:.1e} of its largest"


def test_both_quantise_a_tensor_to_the_same_bits(gpu_device: Any) -> None:
    import transformer_engine_torch as tex
    from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
    from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer

    from nemo_brorl.policy.cpu.fp8_recipes import (
        E4M3,
        E5M2,
        TILE,
        largest_absolute,
        per_tensor,
        per_tile,
        scale_for,
    )

    x = tensors()[0]
    for to, te_type in ((E4M3, tex.DType.kFloat8E4M3), (E5M2, tex.DType.kFloat8E5M2)):
        theirs = Float8CurrentScalingQuantizer(te_type, torch.device("cuda"))(x).dequantize(dtype=torch.float32)
        mine = per_tensor(x, to, scale_for(largest_absolute(x), to.largest, power_of_two=False)).dequantised
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=0)
        for rows, dimensions in ((1, 1), (TILE, 2)):
            quantizer = Float8BlockQuantizer(te_type, rowwise=True, columnwise=False, block_scaling_dim=dimensions)
            theirs = quantizer(x).dequantize(dtype=torch.float32)
            assert torch.equal(per_tile(x, to, rows, TILE).dequantised, theirs)
