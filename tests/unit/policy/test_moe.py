"""Mixture-of-experts layers: gradients of transformers, a balancing loss worked by hand, routers that stay as they
are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.weights.shares import unpack
from tests.support.closeness import GRADIENT_BOUND, share_of_largest
from tests.support.model_factory import VOCAB_SIZE, make_config, make_model, make_plan

pytestmark = pytest.mark.numbers

TOKENS = np.random.default_rng(2).integers(0, VOCAB_SIZE, 20).astype(np.int32)
NUM_PROMPT = 8


@pytest.fixture(scope="module", params=[True, False], ids=["renormalised", "not renormalised"])
def moe_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"norm_topk_prob": request.param, "mlp_only_layers": [1], "tie_word_embeddings": False}
    return make_model(tmp_path_factory.mktemp("moe"), "qwen3_moe", **sizes)


def gradients(learner: Any, weight: float) -> dict[str, Tensor]:
    """Of the mean of -weight * log-prob over the response tokens, by Hugging Face name."""
    from nemo_brorl.policy.process.process_groups import weight_groups
    from nemo_brorl.policy.rank.pipeline import train_rows
    from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response
    from nemo_brorl.weights.names import local_slots

    response = Response(0, 0, TOKENS[NUM_PROMPT:], np.zeros(len(TOKENS) - NUM_PROMPT, np.float32), 0.0, is_fresh=True)
    row = learner.state.row([PackedGroup(TOKENS[:NUM_PROMPT], (response,))], 1.0)
    train_rows(learner.state.chunks, [row], lambda index, row, scores: (-weight * scores.log_probs.sum(), {}))
    found: dict[str, Tensor] = {}
    for slot, param in local_slots(learner.state.models, learner.state.shape, weight_groups().experts):
        if param.requires_grad:
            found |= zip(slot.names, unpack(slot.kind, [param.main_grad.clone()], learner.state.shape), strict=True)
    return found


def hf_gradients(folder: Path) -> dict[str, Tensor]:
    """The same from transformers, whose experts are stacked: gate and up rows [E, 2f, h], down [E, h, f]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    token_ids = torch.tensor(TOKENS[None].astype(np.int64))
    log_probs = (
        model(token_ids).logits[0, NUM_PROMPT - 1 : -1].log_softmax(-1).gather(1, token_ids[0, NUM_PROMPT:, None])
    )
    (-log_probs.mean()).backward()
    found: dict[str, Tensor] = {}
    for name, param in model.named_parameters():
        assert param.grad is not None, name
        stem, _, part = name.rpartition(".")
        if not stem.endswith("experts"):
            found[name] = param.grad
            continue
        for expert, grad in enumerate(param.grad):
            parts = (
                {"gate_proj": grad.chunk(2)[0], "up_proj": grad.chunk(2)[1]}
                if part == "gate_up_proj"
                else {"down_proj": grad}
            )
            found |= {f"{stem}.{expert}.{key}.weight": value for key, value in parts.items()}
    return found


def test_gradients_are_those_of_transformers(moe_folder: Path, new_learner: Callable[[Path, BroRLConfig], Any]) -> None:
    mine, theirs = gradients(new_learner(moe_folder, make_config()), 1.0), hf_gradients(moe_folder)
    assert mine.keys() == theirs.keys()
    for name, grad in theirs.items():
        assert share_of_largest(mine[name], grad, at_least=1.0) <= GRADIENT_BOUND, name


def router_gradient_of_balancing(folder: Path, coefficient: float) -> Tensor:
    """Of the last layer's router: coefficient · E · Σ f_e P_e, times the row's tokens over the response tokens.

    Switch Transformer (arXiv 2101.03961), equation 4: f the share of (token, choice) pairs that went to an expert, P
    its mean probability. Nothing after the last router depends on its weights but the balancing loss itself.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    gate = model.model.layers[-1].mlp.gate
    inputs: list[Tensor] = []
    gate.register_forward_hook(lambda module, arguments, output: inputs.append(arguments[0].detach()))
    with torch.no_grad():
        model(torch.tensor(TOKENS[None].astype(np.int64)))
    weight = gate.weight.detach().clone().requires_grad_()
    probabilities = (inputs[0].reshape(len(TOKENS), -1) @ weight.T).softmax(-1)
    chosen = probabilities.topk(gate.top_k).indices
    share = torch.bincount(chosen.flatten(), minlength=gate.num_experts) / chosen.numel()
    loss = coefficient * gate.num_experts * (share * probabilities.mean(0)).sum()
    (loss * len(TOKENS) / (len(TOKENS) - NUM_PROMPT)).backward()
    assert weight.grad is not None
    return weight.grad


def test_the_balancing_loss_pulls_the_router_towards_equal_shares(
    moe_folder: Path, new_learner: Callable[[Path, BroRLConfig], Any]
) -> None:
    config = make_config()
    config.policy.moe.aux_loss_coefficient = 0.01
    found = gradients(new_learner(moe_folder, config), 0.0)["model.layers.3.mlp.gate.weight"]
    expected = router_gradient_of_balancing(moe_folder, 0.01)
    assert share_of_largest(found, expected) <= GRADIENT_BOUND


@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "trained"])
def test_a_frozen_router_is_exported_as_it_was_while_experts_learn(
    is_frozen: bool, moe_folder: Path, new_learner: Callable[[Path, BroRLConfig], Any]
) -> None:
    config = make_config()
    config.policy.moe.freeze_router = is_frozen
    learner = new_learner(moe_folder, config)
    before = {name: tensor.clone() for name, tensor in learner.hf_export.stream()}
    learner.update(make_plan())
    after = dict(learner.hf_export.stream())
    assert torch.equal(before["model.layers.0.mlp.gate.weight"], after["model.layers.0.mlp.gate.weight"]) == is_frozen
    assert not torch.equal(
        before["model.layers.0.mlp.experts.0.down_proj.weight"], after["model.layers.0.mlp.experts.0.down_proj.weight"]
    )


def test_logits_of_a_bf16_router_are_rounded_as_the_samplers(
    moe_folder: Path, new_learner: Callable[[Path, BroRLConfig], Any]
) -> None:
    """transformers' own router on the same hidden states: the same numbers, and the same experts."""
    model = AutoModelForCausalLM.from_pretrained(moe_folder, dtype=torch.bfloat16)
    gate = model.model.layers[0].mlp.gate
    state = new_learner(moe_folder, make_config(precision="bf16")).state
    router = state.models[0].decoder.layers[0].mlp.router
    hidden = torch.randn(500, gate.weight.size(1), generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.no_grad():
        logits = router.gating(hidden)
        expected = torch.nn.functional.linear(hidden, gate.weight)
        _, _, theirs = gate(hidden)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, expected.float())
    with torch.no_grad():
        _, routes = router(hidden[:, None])
    chosen = torch.zeros_like(routes).scatter(1, theirs, True)
    is_clear = logits.sort(1, descending=True).values.diff(dim=1)[:, gate.top_k - 1] < 0
    assert torch.equal(routes[is_clear], chosen[is_clear])
    assert is_clear.sum() > 400


@pytest.mark.parametrize("recompute", [None, "selective", "full"])
def test_a_layer_keeps_nothing_of_a_row_after_it(
    recompute: str | None, moe_folder: Path, new_learner: Callable[[Path, BroRLConfig], Any]
) -> None:
    """Probabilities would keep the graph that they come from."""
    from megatron.core.transformer.moe.moe_layer import MoELayer

    learner = new_learner(moe_folder, make_config(recompute=recompute))
    gradients(learner, 1.0)
    layers = [module for module in learner.state.models[0].modules() if isinstance(module, MoELayer)]
    assert len(layers) == 3
    for layer in layers:
        assert layer.token_dispatcher.probs is None
        assert layer.token_dispatcher.routing_map is None
