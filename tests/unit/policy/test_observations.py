"""Tokens that an environment put into a response are read, and learnt from by nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.policy.model.log_probs import TokenScores
from nemo_brorl.policy.rank.pipeline import train_rows
from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response, Row
from tests.support.closeness import GRADIENT_BOUND, gradient_difference
from tests.support.model_factory import make_config

pytestmark = pytest.mark.numbers

PROMPT = [5, 6, 7]
TRAJECTORIES = ([11, 12, 90, 91, 13], [14, 92, 15, 16, 93], [17])  # 90 and above: said by the environment
ADVANTAGES = (1.5, -0.5, 2.0)
PLACES = {  # in the policy's names, and in those of transformers
    "decoder.final_layernorm.weight": "model.norm.weight",
    "decoder.layers.0.mlp.linear_fc2.weight": "model.layers.0.mlp.down_proj.weight",
    "decoder.layers.0.self_attention.linear_proj.weight": "model.layers.0.self_attn.o_proj.weight",
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
}


def packed_group() -> PackedGroup:
    responses = []
    for index, tokens in enumerate(TRAJECTORIES):
        token_ids = np.array(tokens, np.int32)
        is_sampled = token_ids < 90
        zeros = np.zeros(len(tokens), np.float32)
        responses.append(Response(0, index, token_ids, zeros, ADVANTAGES[index], True, is_sampled=is_sampled))
    return PackedGroup(np.array(PROMPT, np.int32), tuple(responses))


def minus_log_prob(index: int, row: Row, scores: TokenScores) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Every token counts by the advantage of its trajectory."""
    loss = -(scores.log_probs * row.advantages).sum()
    return loss, {"loss": loss.detach()}


def test_loss_and_gradients_are_those_of_transformers_with_the_observations_masked(
    new_learner: Callable[[Path, BroRLConfig], Any], model_folder: Path
) -> None:
    learner = new_learner(model_folder, make_config())
    row = learner.state.row([packed_group()], 0.8)
    assert row.num_loss_tokens == 3 + 3 + 1
    values = train_rows(learner.state.chunks, [row], minus_log_prob)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    total = torch.zeros(())
    for tokens, advantage in zip(TRAJECTORIES, ADVANTAGES, strict=True):
        sequence = torch.tensor([PROMPT + tokens])
        labels = torch.tensor([token if token < 90 else -100 for token in tokens])
        logits = model(sequence).logits[0, len(PROMPT) - 1 : -1] / 0.8
        total = total + advantage * torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    total.backward()
    np.testing.assert_allclose(float(values[0]["loss"]), float(total.detach()), rtol=1e-5)
    expected = dict(model.named_parameters())
    found = dict(learner.state.models[0].named_parameters())
    mine, gradients = {}, {}
    for ours, theirs in PLACES.items():
        # The mean over sampled tokens.
        gradients[ours] = expected[theirs].grad / 7
        mine[ours] = found[ours].main_grad[: len(gradients[ours])]
    assert gradient_difference(gradients, mine) < GRADIENT_BOUND


def test_what_was_observed_last_has_no_gradient(
    new_learner: Callable[[Path, BroRLConfig], Any], model_folder: Path
) -> None:
    """Token 93 is read after everything that was sampled, 90 before; each stands in the row once."""
    learner = new_learner(model_folder, make_config())
    row = learner.state.row([packed_group()], 1.0)
    embedding = learner.state.models[0].embedding.word_embeddings
    kept: list[torch.Tensor] = []
    hook = embedding.register_forward_hook(lambda module, inputs, output: kept.append(output) or output.retain_grad())
    train_rows(learner.state.chunks, [row], minus_log_prob)
    hook.remove()
    ids = row.token_ids[0].tolist()
    gradients = kept[0].grad.flatten(0, 1)
    assert gradients[ids.index(93)].abs().max() == 0
    assert gradients[ids.index(90)].abs().max() > 0
