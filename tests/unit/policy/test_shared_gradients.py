"""Sharing a prompt changes no gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.policy.model.log_probs import TokenScores
from nemo_brorl.policy.rank.pipeline import train_rows
from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response, Row
from tests.support.closeness import GRADIENT_BOUND, share_of_largest
from tests.support.model_factory import VOCAB_SIZE, make_config

pytestmark = pytest.mark.numbers

# Relative. A loss is a sum of hundreds of terms of either sign, which are rounded as terms and cancel: 4e-6 is seen.
LOSS_BOUND = 4e-5


def minus_log_prob(index: int, row: Row, scores: TokenScores) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Every token counts differently, by its advantage."""
    loss = -(scores.log_probs * row.advantages).sum()
    return loss, {"loss": loss.detach()}


def gradients_of(learner: Any, row: Row, loss: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of a row, and the gradient of every parameter."""
    value = float(train_rows(learner.state.chunks, [row], loss)[0]["loss"])
    gradients = {}
    for model in learner.state.models:
        for name, param in model.named_parameters():
            gradients[name] = param.main_grad.clone()
    return value, gradients


def with_entropy(index: int, row: Row, scores: TokenScores) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A ratio to the sampled log-prob, which differs between trajectories that share a token, and all three scores."""
    ratios = (scores.log_probs - row.sampled_log_probs).exp()
    loss = -(ratios * row.advantages + 0.1 * scores.entropies - row.advantages.square() * scores.collisions).sum()
    return loss, {"loss": loss.detach()}


def trajectories(rng: np.random.Generator) -> tuple[Response, ...]:
    """Four first turns, after each three second ones, then two third ones; what is observed follows each turn."""
    made: list[Response] = []
    texts = [np.empty(0, np.int32)]
    for num_branches in (4, 3, 2):
        texts = [
            np.concatenate([text, rng.integers(0, VOCAB_SIZE, rng.integers(3, 9), dtype=np.int32), [7, 8]])
            for text in texts
            for _ in range(num_branches)
        ]
    for index, text in enumerate(texts):
        token_ids = text.astype(np.int32)
        is_sampled = (token_ids != 7) & (token_ids != 8)
        log_probs = rng.normal(-4, 0.1, len(token_ids)).astype(np.float32)
        advantage = float(rng.normal())
        made.append(Response(0, index, token_ids, log_probs, advantage, True, is_sampled=is_sampled))
    return tuple(made)


def test_the_gradients_of_a_tree_of_trajectories_are_those_of_plain_packing(
    new_learner: Callable[[Path, BroRLConfig], Any], model_folder: Path
) -> None:
    rng = np.random.default_rng(1)
    config = make_config()
    config.policy.min_shared_tokens = 4
    learner = new_learner(model_folder, config)
    prompt = rng.integers(0, VOCAB_SIZE, 5, dtype=np.int32)
    responses = trajectories(rng)
    tree = learner.state.row([PackedGroup(prompt, responses)], 0.9)
    plain = learner.state.row([PackedGroup(prompt, (response,)) for response in responses], 0.9)
    assert tree.token_ids.size(1) < plain.token_ids.size(1) / 2
    assert tree.num_loss_tokens == plain.num_loss_tokens
    loss, gradients = gradients_of(learner, tree, with_entropy)
    plain_loss, expected = gradients_of(learner, plain, with_entropy)
    assert loss == pytest.approx(plain_loss, rel=LOSS_BOUND)
    for name, gradient in expected.items():
        assert share_of_largest(gradients[name], gradient) <= GRADIENT_BOUND, name


def test_loss_and_every_gradient_are_those_of_plain_packing(
    new_learner: Callable[[Path, BroRLConfig], Any], model_folder: Path
) -> None:
    rng = np.random.default_rng(0)
    learner = new_learner(model_folder, make_config())
    prompt = rng.integers(0, VOCAB_SIZE, 17, dtype=np.int32)
    responses = tuple(
        Response(
            0,
            index,
            rng.integers(0, VOCAB_SIZE, length, dtype=np.int32),
            np.zeros(length, np.float32),
            float(rng.normal()),
            True,
        )
        for index, length in enumerate(rng.integers(1, 20, 24))
    )
    shared = [PackedGroup(prompt, responses)]
    plain = [PackedGroup(prompt, (response,)) for response in responses]
    losses, gradients = [], []
    for packed_groups in (shared, plain):
        loss, of_parameters = gradients_of(learner, learner.state.row(packed_groups, 0.9), minus_log_prob)
        losses.append(loss)
        gradients.append(of_parameters)
    assert learner.state.row(shared, 1.0).token_ids.size(1) < learner.state.row(plain, 1.0).token_ids.size(1) / 2
    assert losses[0] == pytest.approx(losses[1], rel=LOSS_BOUND)
    for name, expected in gradients[1].items():
        assert share_of_largest(gradients[0][name], expected) <= GRADIENT_BOUND, name
