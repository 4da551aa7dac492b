"""Transformer Engine's layers, fused kernels and grouped products against `transformers` and plain torch, in fp32 with
the same weights.

Megatron is imported late, as CPU tests of the same run prepare it for the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nemo_brorl.config.policy import MoeConfig
from tests.support.model_factory import make_config, make_model
from tests.support.te_families import FAMILIES

pytestmark = pytest.mark.gpu

LAYERS = [(family, False) for family in FAMILIES] + [("mixture", True)]  # with its permutation fused
PROMPT, RESPONSES = [3, 1, 4, 1, 5], [[9, 2, 6], [5, 3, 5, 8, 9, 7], [9]]


def family_folder(folder: Path, family: str) -> Path:
    sizes = dict(FAMILIES[family])
    return make_model(folder, sizes.pop("architecture"), **sizes)


def hugging_face(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).cuda()


def log_probs_of(model: Any, response: list[int]) -> torch.Tensor:
    token_ids = torch.tensor([[*PROMPT, *response]], device="cuda")
    logits = model(token_ids).logits[0, len(PROMPT) - 1 : -1]
    return logits.log_softmax(-1).gather(1, token_ids[0, len(PROMPT) :, None])[:, 0]


@pytest.mark.parametrize(("family", "is_fused"), LAYERS)
def test_log_probs_are_those_of_transformers(
    family: str, is_fused: bool, new_gpu_learner: Callable[..., Any], tmp_path: Path
) -> None:
    folder = family_folder(tmp_path / "model", family)
    learner = new_gpu_learner(folder, make_config(moe=MoeConfig(fused_permutation=is_fused)))
    mine = learner.log_probs([PROMPT] * len(RESPONSES), RESPONSES)
    with torch.no_grad():
        model = hugging_face(folder)
        for own, response in zip(mine, RESPONSES, strict=True):
            np.testing.assert_allclose(
                own, log_probs_of(model, response).cpu().numpy(), atol=5e-3
            )  # products may be in TF32


@pytest.mark.parametrize(("family", "is_fused"), LAYERS)
def test_gradients_of_a_shared_prompt_are_those_of_separate_sequences(
    family: str, is_fused: bool, new_gpu_learner: Callable[..., Any], tmp_path: Path
) -> None:
    from nemo_brorl.policy.rank.pipeline import train_rows
    from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response

    folder = family_folder(tmp_path / "model", family)
    learner = new_gpu_learner(folder, make_config(moe=MoeConfig(fused_permutation=is_fused)))
    made = [
        Response(0, i, np.array(tokens, np.int32), np.zeros(len(tokens), np.float32), 0.0, True)
        for i, tokens in enumerate(RESPONSES)
    ]
    row = learner.state.row([PackedGroup(np.array(PROMPT, np.int32), tuple(made))], 1.0)
    train_rows(learner.state.chunks, [row], lambda index, row, scores: (-scores.log_probs.sum(), {}))
    num_tokens = sum(map(len, RESPONSES))
    with torch.no_grad():
        for model in learner.state.models:
            for param in model.parameters():
                param.copy_(param.main_grad)
        mine = {name: tensor.clone() for name, tensor in learner.hf_export.stream()}
    model = hugging_face(folder)
    for response in RESPONSES:
        (-log_probs_of(model, response).sum() / num_tokens).backward()
    theirs = {name: param.grad for name, param in model.named_parameters() if param.grad is not None}
    assert theirs.keys() & mine.keys()
    for name in theirs.keys() & mine.keys():
        assert (mine[name] - theirs[name]).abs().max() <= 1e-2 * theirs[name].abs().max(), name


def test_the_fused_swiglu_is_silu_times_up(gpu_device: Any) -> None:
    from megatron.core.fusions.fused_bias_swiglu import bias_swiglu_impl

    x = torch.randn(64, 1, 512, device="cuda", requires_grad=True)
    gate, up = x.chunk(2, -1)
    expected = F.silu(gate) * up
    grad = torch.randn_like(expected)
    (expected_grad,) = torch.autograd.grad(expected, x, grad)
    fused = bias_swiglu_impl(x, None)
    (fused_grad,) = torch.autograd.grad(fused, x, grad)
    torch.testing.assert_close(fused, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fused_grad, expected_grad, rtol=1e-4, atol=1e-5)


def test_the_norm_fused_into_a_product_is_ours_before_it(gpu_device: Any) -> None:
    import transformer_engine.pytorch as te

    from nemo_brorl.policy.cpu.rms_norm import rms_norm

    layer = te.LayerNormLinear(
        128, 256, eps=1e-6, normalization="RMSNorm", bias=False, params_dtype=torch.bfloat16, device="cuda"
    )
    with torch.no_grad():
        layer.layer_norm_weight.uniform_(0.5, 1.5)
    x = torch.randn(96, 128, device="cuda", dtype=torch.bfloat16)
    expected = rms_norm(x, layer.layer_norm_weight, 1e-6) @ layer.weight.T
    assert (layer(x) - expected).abs().max() <= 2e-2 * expected.abs().max()


def test_a_grouped_product_is_one_product_per_expert(gpu_device: Any) -> None:
    """Experts without a token among them."""
    import transformer_engine.pytorch as te

    sizes = [17, 0, 40, 7]
    layer = te.GroupedLinear(len(sizes), 64, 96, bias=False, params_dtype=torch.bfloat16, device="cuda")
    x = torch.randn(sum(sizes), 64, device="cuda", dtype=torch.bfloat16)
    weights = [getattr(layer, f"weight{expert}") for expert in range(len(sizes))]
    expected = torch.cat([part @ weight.T for part, weight in zip(x.split(sizes), weights, strict=True)])
    assert (layer(x, sizes) - expected).abs().max() <= 2e-2 * expected.abs().max()


def test_scores_of_a_large_vocabulary_are_those_of_log_softmax(gpu_device: Any) -> None:
    """Several tiles on the GPU, forward and backward."""
    from nemo_brorl.policy.model.log_probs import TokenScores, token_scores, vocab_slice

    generator = torch.Generator("cuda").manual_seed(0)
    hidden = torch.randn(600, 64, device="cuda", generator=generator).requires_grad_()
    weight = (0.3 * torch.randn(50_000, 64, device="cuda", generator=generator)).requires_grad_()
    targets = torch.arange(600, device="cuda") * 7919 % 49_990
    expected = (hidden @ weight[:49_990].T / 0.7).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    expected_grads = torch.autograd.grad(expected.sum(), (hidden, weight))
    scores = TokenScores(*token_scores(hidden, weight, targets, vocab_slice(49_990, 50_000, None), 0.7, 256))
    grads = torch.autograd.grad(scores.log_probs.sum(), (hidden, weight))
    torch.testing.assert_close(scores.log_probs, expected, rtol=0, atol=2e-3)
    for own, other in zip(grads, expected_grads, strict=True):
        assert (own - other).abs().max() <= 5e-3 * other.abs().max()
