"""Sharing a prompt changes no gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.policy.model.log_probs import TokenScores
from nemo_brorl.policy.pipeline import train_rows
from nemo_brorl.policy.rows.packed_rows import PackedSegment, Response, Row
from tests.support.model_factory import VOCAB_SIZE, make_config


def minus_log_prob(index: int, row: Row, scores: TokenScores) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Every token counts differently, by its advantage."""
    loss = -(scores.log_probs * row.advantages).sum()
    return loss, {"loss": loss.detach()}


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
    shared = [PackedSegment(prompt, responses)]
    plain = [PackedSegment(prompt, (response,)) for response in responses]
    losses, gradients = [], []
    for segments in (shared, plain):
        row = learner.state.row(segments, 0.9)
        losses.append(float(train_rows(learner.state.chunks, [row], minus_log_prob)[0]["loss"]))
        gradients.append(
            {
                name: param.main_grad.clone()
                for model in learner.state.models
                for name, param in model.named_parameters()
            }
        )
    assert learner.state.row(shared, 1.0).token_ids.size(1) < learner.state.row(plain, 1.0).token_ids.size(1) / 2
    assert abs(losses[0] - losses[1]) <= 1e-5 * abs(losses[1])
    for name, expected in gradients[1].items():
        assert (gradients[0][name] - expected).abs().max() <= 1e-5 * expected.abs().max(), name
