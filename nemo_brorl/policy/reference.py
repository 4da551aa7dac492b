"""The reference policy of the KL term: a copy of the parameters in host memory, swapped in to score and out again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from nemo_brorl.policy.model import PolicyModel


class ReferenceWeights:
    """One rank's reference parameters by name; `chunk<i>.` in front of the name of model chunk i's parameters."""

    def __init__(self, models: Sequence[PolicyModel]) -> None:
        self.params = {f"chunk{i}.{name}": param for i, model in enumerate(models) for name, param in model.named_parameters()}
        self.copies: dict[str, Tensor] = {}
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Make the current weights the reference."""
        self.copies = {name: param.detach().to("cpu", copy=True) for name, param in self.params.items()}

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the model has the reference weights; afterwards exactly the weights from before."""
        current = {name: param.detach().clone() for name, param in self.params.items()}
        self._fill(self.copies)
        try:
            yield
        finally:
            self._fill(current)

    @torch.no_grad()
    def _fill(self, values: dict[str, Tensor]) -> None:
        for name, param in self.params.items():
            param.copy_(values[name])
