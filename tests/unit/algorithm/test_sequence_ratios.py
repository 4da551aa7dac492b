"""Ratios of whole responses, and what one wild token does to any loss."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from nemo_brorl.algorithm.importance import importance_weights
from nemo_brorl.algorithm.losses import Loss, cispo, gmpo, gspo, ppo_clip
from nemo_brorl.config.algorithm import AlgorithmConfig, ImportanceCorrectionConfig
from tests.support.token_batches import tokens

pytestmark = pytest.mark.numbers

OFF = ImportanceCorrectionConfig(enabled=False)


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("loss", [ppo_clip, gspo, gmpo, cispo])
def test_one_wild_token_leaves_loss_gradient_and_metrics_finite(loss: Loss, advantage: float) -> None:
    wild = tokens([100.0, 0.1], [advantage, 1.0], [1, 1])
    result = loss(wild, AlgorithmConfig(importance_correction=OFF))
    result.loss.backward()
    assert wild.log_probs.grad is not None
    assert wild.log_probs.grad.isfinite().all()
    assert result.loss.isfinite()
    assert all(value.isfinite() for value in result.metrics.values())


def test_gmpo_takes_the_geometric_mean_of_ratios_clipped_on_the_side_of_the_advantage() -> None:
    """Ratios 2 and 1/2 of a response, bounds 1/2 … 5/4. Advantage +1: 5/4 and 1/2 make √(5/8). Advantage −1: 2 and 1/2
    make 1. The gradient of the geometric mean s with respect to an unclipped token's log-prob is s / 2."""
    config = AlgorithmConfig(clip_low=0.5, clip_high=0.25, importance_correction=OFF)
    log_ratios = [math.log(2), math.log(0.5)]
    positive = tokens(log_ratios, [1.0, 1.0], [2])
    result = gmpo(replace(positive, weights=torch.full((2,), 0.5)), config)
    result.loss.backward()
    mean = math.sqrt(5 / 8)
    assert float(result.loss.detach()) == pytest.approx(-mean)
    assert positive.log_probs.grad is not None
    assert positive.log_probs.grad.tolist() == pytest.approx([0.0, -mean / 2])
    assert float(result.metrics["policy/clip_fraction"]) == 1.0
    negative = tokens(log_ratios, [-1.0, -1.0], [2])
    assert float(gmpo(replace(negative, weights=torch.full((2,), 0.5)), config).loss) == pytest.approx(1.0)


def test_gmpo_clips_below_only_where_the_advantage_is_negative() -> None:
    config = AlgorithmConfig(clip_low=0.5, clip_high=0.25, importance_correction=OFF)
    assert float(gmpo(tokens([math.log(0.1)], [-1.0], [1]), config).loss) == pytest.approx(0.5)
    assert float(gmpo(tokens([math.log(0.1)], [1.0], [1]), config).loss) == pytest.approx(-0.1)


def test_a_truncated_weight_of_a_whole_response_is_a_product_for_each_of_its_tokens() -> None:
    # responses of w = (2, 3) and (1/2, 1/2, 1): min(6, 4) and 1/4
    mismatch = [math.log(2), math.log(3), math.log(0.5), math.log(0.5), 0.0]
    settings = ImportanceCorrectionConfig(kind="sequence_tis", cap=4.0)
    of = tokens([0.0] * 5, [1.0] * 5, [2, 3], mismatch=mismatch)
    weights = importance_weights(of, AlgorithmConfig(importance_correction=settings))
    assert weights.tolist() == pytest.approx([4.0, 4.0, 0.25, 0.25, 0.25])
