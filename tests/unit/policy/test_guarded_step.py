"""The optimizer step of a mini-batch: what is computed once, and clipped by which norm."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nemo_brorl.config.policy import OptimConfig
from nemo_brorl.policy.state import optimizer as module


class CountingOptimizer:
    """As much of Megatron's chained optimizer as a step uses, with one part. It writes down what is computed."""

    def __init__(self, norm: float) -> None:
        self.norm = norm
        self.calls: list[str] = []
        self.param_groups = [{"lr_mult": 1.0, "wd_mult": 1.0}]
        self.chained_optimizers = [self]

    def get_parameters(self) -> list[str]:
        return ["parameter"]

    def prepare_grads(self) -> bool:
        self.calls.append("prepare")
        return False

    def get_grad_norm(self) -> float:
        self.calls.append("norm")
        return self.norm

    def step_with_ready_grads(self) -> bool:
        self.calls.append("step")
        return True

    def step(self) -> None:
        self.prepare_grads()
        self.get_grad_norm()
        self.step_with_ready_grads()


def stepped(norm: float, monkeypatch: pytest.MonkeyPatch, clip_grad: float = 1.0) -> tuple[float | None, list[str]]:
    optimizer: Any = CountingOptimizer(norm)

    def clip(parameters: list[str], max_norm: float, total_norm: float) -> None:
        optimizer.calls.append(f"clip {total_norm:g} to {max_norm:g}")

    monkeypatch.setattr(module, "clip_grad_by_total_norm_fp32", clip)
    monkeypatch.setattr(module.dist, "all_reduce", lambda *_: None)
    config = OptimConfig(clip_grad=clip_grad)
    loss = torch.tensor(1.0)
    device: Any = type("Cpu", (), {"torch_device": torch.device("cpu")})()
    return module.guarded_step(optimizer, 1e-6, config, loss, device), optimizer.calls


def test_the_norm_of_a_mini_batch_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stepped(5.0, monkeypatch) == (5.0, ["prepare", "norm", "clip 5 to 1", "step"])


def test_without_a_limit_nothing_is_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stepped(5.0, monkeypatch, clip_grad=0.0) == (5.0, ["prepare", "norm", "step"])


def test_no_step_is_taken_with_a_norm_that_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stepped(float("nan"), monkeypatch) == (None, ["prepare", "norm"])
