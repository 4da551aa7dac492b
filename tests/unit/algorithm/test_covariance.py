"""Clip-Cov and KL-Cov: which tokens are held, over all ranks, and what is left of their gradients; numbers by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nemo_brorl.algorithm.covariance import select_by_covariance
from nemo_brorl.algorithm.losses import ppo_clip
from nemo_brorl.config.algorithm import AlgorithmConfig, CovarianceConfig, ImportanceCorrectionConfig
from nemo_brorl.config.algorithm_rules import parts_go_together
from nemo_brorl.config.schema import BroRLConfig
from tests.support.token_batches import tokens

pytestmark = pytest.mark.numbers

# means −3 and 0, so the covariances are 2 · 1, 0 · −1, 1 · 1, −3 · −1
LOG_PROBS = [-1.0, -3.0, -2.0, -6.0]
ADVANTAGES = [1.0, -1.0, 1.0, -1.0]
DRAWS = [0.1, 0.9, 0.4, 0.95]
OFF = ImportanceCorrectionConfig(enabled=False)


def beside(*others: Any) -> Callable[[Any], list[Any]]:
    """Gathers what this rank has and what another one has, call by call."""
    answers = iter(others)
    return lambda own: [own, next(answers)]


def choose(config: CovarianceConfig, gather: Callable[[Any], list[Any]], part: slice = slice(None)) -> list[bool]:
    values = (torch.tensor(of_all[part]) for of_all in (LOG_PROBS, ADVANTAGES, DRAWS))
    return select_by_covariance(*values, config, gather).tolist()


def alone(own: Any) -> list[Any]:
    return [own]


def test_kl_cov_holds_the_largest_covariances() -> None:
    half = CovarianceConfig(kind="kl_cov", share=0.5)
    assert choose(half, alone) == [True, False, False, True]  # 2 and 3
    assert choose(CovarianceConfig(kind="kl_cov", share=1e-6), alone) == [False, False, False, True]  # at least one


def test_clip_cov_draws_among_covariances_within_its_bounds() -> None:
    config = CovarianceConfig(kind="clip_cov", share=0.25, low=0.5, high=2.5)
    assert choose(config, alone) == [False, False, True, False]  # of 2 and 1, with draws of 0.1 and 0.4
    assert choose(replace(config, share=1.0), alone) == [True, False, True, False]  # no more than there are
    assert choose(replace(config, low=4.0, high=5.0), alone) == [False] * 4


def test_ranks_choose_as_one_rank_with_all_tokens_does() -> None:
    half = CovarianceConfig(kind="kl_cov", share=0.5)
    first = choose(half, beside([2, -8.0, 0.0], np.array([[3.0, 0.95], [1.0, 0.4]])), slice(0, 2))
    second = choose(half, beside([2, -4.0, 0.0], np.array([[2.0, 0.1], [0.0, 0.9]])), slice(2, 4))
    assert first + second == [True, False, False, True]
    nothing = choose(half, beside([4, -12.0, 0.0], np.array([[3.0, 0.95], [2.0, 0.1]])), slice(0, 0))
    assert nothing == []  # a rank without tokens takes part


@pytest.mark.parametrize("share", [2e-4, 2e-3, 2e-2])
def test_of_equal_covariances_no_more_are_held_than_wanted(share: float) -> None:
    random = np.random.default_rng(1)
    values = [torch.from_numpy(random.choice([-0.1, -2.3], 4096)), torch.from_numpy(random.choice([-1.0, 1.0], 4096))]
    draws = torch.from_numpy(random.random(4096))
    held = select_by_covariance(*values, draws, CovarianceConfig(kind="kl_cov", share=share), alone)
    assert int(held.sum()) == max(1, int(share * 4096))


def test_two_ranks_break_ties_as_one_does() -> None:
    log_probs, advantages = torch.tensor([-1.0, -1.0, -1.0, -5.0]), torch.tensor([1.0, 1.0, 1.0, -3.0])
    draws, config = torch.tensor([0.2, 0.9, 0.5, 0.1]), CovarianceConfig(kind="kl_cov", share=0.5)
    # means -2 and 0: covariances 1, 1, 1, 9; the largest is held, and of the others the one with the draw of 0.9
    assert select_by_covariance(log_probs, advantages, draws, config, alone).tolist() == [False, True, False, True]
    other = beside([2, -6.0, -2.0], np.array([[9.0, 0.1], [1.0, 0.5]]))
    first = select_by_covariance(log_probs[:2], advantages[:2], draws[:2], config, other)
    assert first.tolist() == [False, True]


def gradients(kind: str, log_ratio: float) -> tuple[Tensor, float]:
    """Of two tokens with advantage 1, of which the first is held; and the loss."""
    used = replace(tokens([log_ratio] * 2, [1.0, 1.0], [2]), covariance_mask=torch.tensor([True, False]))
    config = AlgorithmConfig(importance_correction=OFF, loss_params={"covariance": {"kind": kind, "coefficient": 2.0}})
    result = ppo_clip(used, config)
    assert result.metrics["policy/covariance_tokens"].item() == 1.0
    result.loss.backward()
    assert used.log_probs.grad is not None
    return used.log_probs.grad, result.loss.item()


def test_a_token_that_clip_cov_holds_keeps_its_loss_and_has_no_gradient() -> None:
    gradient, loss = gradients("clip_cov", 0.1)
    assert loss == pytest.approx(-2 * math.exp(0.1), rel=1e-5)
    torch.testing.assert_close(gradient, torch.tensor([0.0, -math.exp(0.1)]))


def test_a_token_that_kl_cov_holds_is_drawn_back_to_the_older_policy() -> None:
    gradient, loss = gradients("kl_cov", 0.1)
    assert loss == pytest.approx(-2 * math.exp(0.1) + 2.0 * 0.1, rel=1e-5)
    torch.testing.assert_close(gradient, torch.tensor([-math.exp(0.1) + 2.0, -math.exp(0.1)]))
    gradient, _ = gradients("kl_cov", -0.1)
    torch.testing.assert_close(gradient, torch.tensor([-math.exp(-0.1) - 2.0, -math.exp(-0.1)]))


def test_a_policy_some_of_whose_covariant_tokens_are_held_keeps_more_entropy() -> None:
    """A softmax of four answers, one of them right and likely: ten steps."""
    assert entropy_after("clip_cov") > entropy_after("none")


def entropy_after(kind: str) -> float:
    logits = torch.tensor([2.0, 0.0, 0.0, 0.0], requires_grad=True)
    answers = torch.tensor([0] * 7 + [1, 2, 3])
    advantages = (answers == 0).float() - 0.7
    config = AlgorithmConfig(
        importance_correction=OFF, loss_params={"covariance": {"kind": kind, "share": 0.5, "low": 0.1, "high": 5.0}}
    )
    for _ in range(10):
        log_probs = logits.log_softmax(0)[answers]
        used = replace(
            tokens([0.0] * 10, advantages.tolist(), [10]), log_probs=log_probs, old_log_probs=log_probs.detach()
        )
        if kind != "none":
            draws = torch.linspace(0, 1, 10)
            mask = select_by_covariance(log_probs.detach(), advantages, draws, config.covariance, alone)
            used = replace(used, covariance_mask=mask)
        (gradient,) = torch.autograd.grad(ppo_clip(used, config).loss, logits)
        logits = (logits - 0.1 * gradient).detach().requires_grad_()
    distribution = torch.distributions.Categorical(logits=logits)
    return float(distribution.entropy().detach())


def test_settings_that_hold_nothing_are_refused() -> None:
    wrong = BroRLConfig()
    wrong.algorithm = AlgorithmConfig(
        loss_params={"covariance": {"kind": "kl_cov", "low": 5.0, "high": 1.0}}, num_mini_batches=1
    )
    (bounds,) = wrong.algorithm.violations()
    assert "low=5.0 is not below high=1.0" in bounds
    (only_step,) = parts_go_together(wrong)
    assert "needs algorithm.num_mini_batches above 1 (now 1)" in only_step
