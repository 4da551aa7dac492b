"""Implement Adam for the CPU, with the interface and state layout of Transformer Engine's and Apex's FusedAdam.

Megatron-core 0.16.1 cannot save and load its distributed optimizer around torch's own Adam. `state_dict()` asserts
before the first step, and loading looks for a `step` per group. The loaded step becomes one tensor that all parameters
share and advance once each, which silently makes the bias correction wrong. Here `step` is a number of the parameter
group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from nemo_brorl.policy.adapters.torch_adapter import fused_adam, fused_adamw


class FusedAdam(torch.optim.Optimizer):
    """Adam (arXiv 1412.6980), or AdamW (arXiv 1711.05101) with `adam_w_mode`, on torch's fused kernel."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self.kernel = fused_adamw if adam_w_mode else fused_adam

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Take one Adam step on every parameter that has a gradient."""
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if params:
                group["step"] = group.get("step", 0) + 1
                self._update(group, params)

    def _update(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        gradients = []
        means = []
        squares = []
        for param in params:
            state = self.state[param]
            if not state:
                state["exp_avg"] = torch.zeros_like(param)
                state["exp_avg_sq"] = torch.zeros_like(param)
            gradients.append(param.grad)
            means.append(state["exp_avg"])
            squares.append(state["exp_avg_sq"])
        step = torch.tensor(float(group["step"]))
        beta1, beta2 = group["betas"]
        self.kernel(
            params,
            gradients,
            means,
            squares,
            [],
            [step] * len(params),
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            amsgrad=False,
            maximize=False,
        )
