"""Rotation by position, worked by hand and against the textbook formula."""

from __future__ import annotations

import math

import pytest
import torch

from nemo_brorl.policy.model.rotary import rotate


def test_a_quarter_turn_swaps_the_halves_of_a_head() -> None:
    heads = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    angle = torch.full((1, 1, 2), math.pi / 2)
    assert rotate(heads, (angle.cos(), angle.sin())).flatten().tolist() == pytest.approx(
        [-3.0, -4.0, 1.0, 2.0], abs=1e-6
    )


def test_it_is_x_cos_plus_rotated_half_x_sin_with_its_gradient() -> None:
    torch.manual_seed(0)
    angles = torch.randn(5, 1, 3, dtype=torch.float64)
    rotation = (angles.cos(), angles.sin())
    heads = torch.randn(5, 2, 6, dtype=torch.float64, requires_grad=True)
    twice = torch.cat([angles, angles], -1)
    first, second = heads.chunk(2, -1)
    expected = heads * twice.cos() + torch.cat([-second, first], -1) * twice.sin()
    torch.testing.assert_close(rotate(heads, rotation), expected)
    assert torch.autograd.gradcheck(lambda tensor: rotate(tensor, rotation), heads)
