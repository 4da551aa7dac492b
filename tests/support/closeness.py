"""Says how close two learners are that did the same sums in float32, in whatever order a processor adds them up.

Adam's first step moves a weight by the learning rate in the direction of its gradient, however small that is: where a
gradient is nothing but rounding, so is the direction. So gradients are compared as they are, and steps where the
gradient says where to go.

In float64 the bound could be far smaller, but there is no float64 here: Megatron's distributed optimizer takes float32
and half formats only, its gradient buffers are float32, and so are our kernels' sums.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

Tensors = dict[str, Tensor]

# Of the largest gradient. A gradient is a sum over some hundred tokens through four layers, each term rounded to 2^-24
# of itself: some dozens of roundings, 3e-6, are seen. A response of 32 that counts one percent more moves it by 1e-3.
GRADIENT_BOUND = 2e-5

# Relative. Metrics are means of rounded numbers, whose roundings cancel: 4e-7, six roundings, are seen.
METRIC_BOUND = 4e-6

# Of the learning rate, 1e-3 here. A weight of 1 is stored in steps of 2^-23, which is 1.2e-4 of that.
STEP_BOUND = 1e-3

# Nats, between two ways through a model of float32 whose logits go up to 6. Each may be some 4e-6 from float64 in every
# logit, and a log-prob has the error of two.
LOG_PROB_BOUND = 5e-5

# Of the largest gradient, fifty times the bound above: there no rounding turns a step.
CLEAR_GRADIENT = 1e-3


def params_of(learner: Any) -> Tensors:
    """Copy the weights by Megatron's names."""
    return {name: param.detach().clone() for name, param in _named(learner)}


def gradients_of(learner: Any) -> Tensors:
    """Copy the gradients of the last mini-batch, as they were clipped for the optimizer."""
    return {name: param.main_grad.clone() for name, param in _named(learner)}


def _named(learner: Any) -> list[tuple[str, Any]]:
    (model,) = learner.state.models
    return list(model.named_parameters())


def share_of_largest(found: Tensor, expected: Tensor, at_least: float = 1e-30) -> float:
    """Return the largest difference of an entry, as a share of the largest expected one, or of `at_least`."""
    difference = float((found - expected).abs().max())
    return difference / max(float(expected.abs().max()), at_least)


def largest(tensors: Tensors) -> float:
    return max(float(tensor.abs().max()) for tensor in tensors.values())


def largest_difference(first: Tensors, second: Tensors) -> float:
    return max(float((tensor - second[name]).abs().max()) for name, tensor in first.items())


def gradient_difference(first: Tensors, second: Tensors) -> float:
    """Return the largest difference of an entry, as a share of the largest entry."""
    return largest_difference(first, second) / largest(first)


def clear_steps(gradients: Tensors, before: Tensors, after: Tensors, rate: float) -> Tensor:
    """Return what weights with a clear gradient moved by, in learning rates, one after the other."""
    bound = CLEAR_GRADIENT * largest(gradients)
    steps = []
    for name, gradient in gradients.items():
        moved = (after[name] - before[name]) / rate
        steps.append(moved[gradient.abs() > bound])
    return torch.cat(steps)


def check_same_update(one: Any, other: Any, plan: Any, same_plan: Any) -> None:
    """Teach two learners of the same weights a mini-batch each, the same one in two ways.

    Metrics, gradients and clear steps must agree.
    """
    before = params_of(one)
    first, second = one.update(plan), other.update(same_plan)
    assert second.metrics == pytest.approx(first.metrics, rel=METRIC_BOUND)
    gradients = gradients_of(one)
    assert gradient_difference(gradients, gradients_of(other)) < GRADIENT_BOUND
    mine, theirs = (clear_steps(gradients, before, params_of(each), plan.learning_rate) for each in (one, other))
    num_weights = sum(tensor.numel() for tensor in before.values())
    assert len(mine) > num_weights / 2, "most gradients are clear"
    assert float((mine - theirs).abs().max()) < STEP_BOUND
