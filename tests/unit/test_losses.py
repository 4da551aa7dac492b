"""Losses and KL estimators, with numbers worked by hand."""

import math

import pytest
import torch

from nemo_brorl.config.schema import AlgorithmConfig, ImportanceCorrectionConfig, KLConfig
from nemo_brorl.kl import kl_per_token
from nemo_brorl.losses import TokenBatch, cross_entropy, importance_weights, ppo_clip

OFF = ImportanceCorrectionConfig(enabled=False)


def batch(ratio: float, advantage: float, reference: float | None = None, sampled_ratio: float = 1.0, entropy: float = 0.0) -> TokenBatch:
    """One token: policy = ratio · old, old = sampled_ratio · vLLM."""
    old = torch.tensor([math.log(0.5)])
    return TokenBatch(
        log_probs=(old + math.log(ratio)).requires_grad_(),
        entropies=torch.tensor([entropy], requires_grad=True),
        old_log_probs=old,
        sampled_log_probs=old - math.log(sampled_ratio),
        reference_log_probs=None if reference is None else old + math.log(reference),
        advantages=torch.tensor([advantage]),
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 2.0, -2.56),  # clipped at 1.28
        (0.5, 2.0, -1.0),  # below 0.8, not clipped: min(0.5 * 2, 0.8 * 2)
        (0.5, -2.0, 1.6),  # clipped at 0.8
        (1.5, -2.0, 3.0),  # not clipped
        (20.0, -2.0, 20.0),  # dual clip at 10
    ],
)
def test_ppo_clip_by_hand(ratio: float, advantage: float, expected: float) -> None:
    result = ppo_clip(batch(ratio, advantage), AlgorithmConfig(importance_correction=OFF))
    assert result.loss.item() == pytest.approx(expected, rel=1e-5)


def test_a_clipped_token_has_no_gradient_and_is_counted() -> None:
    tokens = batch(1.5, 2.0)
    result = ppo_clip(tokens, AlgorithmConfig(importance_correction=OFF))
    result.loss.backward()
    assert tokens.log_probs.grad is not None
    assert tokens.log_probs.grad.item() == 0.0
    assert result.metrics["policy/clip_fraction"].item() == 1.0


def test_importance_weights_are_truncated_at_the_cap_and_carry_no_gradient() -> None:
    config = AlgorithmConfig(importance_correction=ImportanceCorrectionConfig(cap=2.0))
    assert importance_weights(batch(1.0, 1.0, sampled_ratio=1.5), config).item() == pytest.approx(1.5)
    weights = importance_weights(batch(1.0, 1.0, sampled_ratio=5.0), config)
    assert weights.item() == pytest.approx(2.0)
    assert not weights.requires_grad


def test_kl_enters_the_loss_with_its_coefficient() -> None:
    config = AlgorithmConfig(importance_correction=OFF, kl=KLConfig(coefficient=0.1, estimator="k2"))
    result = ppo_clip(batch(1.0, 1.0, reference=math.e), config)  # log-ratio 1: k2 = 1/2
    assert result.loss.item() == pytest.approx(-1.0 + 0.05, rel=1e-5)
    assert result.metrics["policy/kl_to_reference"].item() == pytest.approx(0.5, rel=1e-5)


def test_the_entropy_bonus_lowers_the_loss_by_its_coefficient() -> None:
    tokens = batch(1.0, 1.0, entropy=2.0)
    result = ppo_clip(tokens, AlgorithmConfig(importance_correction=OFF, entropy_coefficient=0.1))
    result.loss.backward()
    assert result.loss.item() == pytest.approx(-1.0 - 0.1 * 2.0, rel=1e-6)
    assert tokens.entropies.grad is not None
    assert tokens.entropies.grad.item() == pytest.approx(-0.1)


def test_the_gradient_of_the_whole_loss_is_that_of_finite_differences() -> None:
    config = AlgorithmConfig(entropy_coefficient=0.3, kl=KLConfig(coefficient=0.2))

    def loss(logits: torch.Tensor) -> torch.Tensor:
        """Two tokens, the second and the third of a vocabulary of three."""
        log_p = logits.log_softmax(-1)
        chosen = log_p.gather(1, torch.tensor([[1], [2]]))[:, 0]
        old = torch.tensor([-1.1, -0.9], dtype=torch.float64)
        advantages = torch.tensor([1.0, -2.0], dtype=torch.float64)
        return ppo_clip(TokenBatch(chosen, -(log_p.exp() * log_p).sum(-1), old, old - 0.1, old + 0.2, advantages), config).loss

    logits = torch.tensor([[0.1, 0.0, -0.2], [0.3, -0.1, 0.2]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, logits)


@pytest.mark.parametrize(("estimator", "expected"), [("k1", -0.5), ("k2", 0.125), ("k3", math.exp(0.5) - 1.5)])
def test_kl_estimators_at_a_log_ratio_of_one_half(estimator: str, expected: float) -> None:
    zero, half = torch.zeros(1), torch.full((1,), 0.5)
    assert kl_per_token(zero, half, estimator, 10.0).item() == pytest.approx(expected, rel=1e-6)


def test_the_log_ratio_is_clamped() -> None:
    assert kl_per_token(torch.zeros(1), torch.full((1,), 100.0), "k2", 10.0).item() == 50.0


def test_cross_entropy_is_the_negative_log_likelihood() -> None:
    assert cross_entropy(batch(1.0, 1.0), AlgorithmConfig()).loss.item() == pytest.approx(math.log(2), rel=1e-6)
