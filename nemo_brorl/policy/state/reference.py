"""The reference policy of the KL term: a second set of weights in host memory, exchanged with the model's to score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.torch_device import host_like, wait_for_copies
from nemo_brorl.policy.model.model import PolicyModel


class ReferenceWeights:
    """One rank's reference parameters by name; `chunk<i>.` in front of the name of model chunk i's parameters.

    They lie in host memory (pinned on GPUs). While they are in the model, the current weights lie in their place, so a
    device never holds more than one set of weights and one tensor of scratch.
    """

    def __init__(self, models: Sequence[PolicyModel]) -> None:
        """Raises ConfigError for parameters that are kept in FP8."""
        self.params: dict[str, Tensor] = {}
        for index, model in enumerate(models):
            for name, param in model.named_parameters():
                _check_is_plain(param)
                self.params[f"chunk{index}.{name}"] = param
        self.copies: dict[str, Tensor] = {}
        for name, param in self.params.items():
            self.copies[name] = host_like(param)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Make the current weights the reference."""
        for name, param in self.params.items():
            self.copies[name].copy_(param, non_blocking=True)
        wait_for_copies()

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the model has the reference weights; afterwards, whatever happened, bit for bit the weights from
        before."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, param in self.params.items():
            copy = self.copies[name]
            scratch = param.detach().clone()
            param.copy_(copy, non_blocking=True)
            copy.copy_(scratch, non_blocking=True)
        wait_for_copies()


def _check_is_plain(param: Tensor) -> None:
    # Transformer Engine's FP8 parameters are a subclass: copying into one quantises anew, which need not give the same
    # bits.
    if type(param.data) is not Tensor:
        raise ConfigError(
            "policy.fp8_params=true keeps weights in FP8, which cannot be exchanged with a reference without rounding: "
            "write policy.fp8_params=false, or algorithm.kl.coefficient=0 to train without a reference"
        )
