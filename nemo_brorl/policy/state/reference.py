"""Hold the reference policy of the KL term: a second set of weights in host memory, swapped into the model to score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.torch_device import host_like, wait_for_copies
from nemo_brorl.policy.model.model import PolicyModel


class ReferenceWeights:
    """Reference parameters of one rank by name. `chunk<i>.` precedes the name of model chunk i's parameters.

    They are in host memory (pinned on GPUs). While they are in the model, the current weights are in their place. So a
    device never holds more than one set of weights and one temporary tensor.
    """

    def __init__(self, models: Sequence[PolicyModel]) -> None:
        """Copy the current weights as the reference of the KL term.

        Raises ConfigError for parameters that are kept in FP8.
        """
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
        """Make the current weights the reference of the KL term."""
        for name, param in self.params.items():
            self.copies[name].copy_(param, non_blocking=True)
        wait_for_copies()

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Put the reference weights into the model while this context is open.

        Afterwards, also after an error, the model has its former weights, bit for bit.
        """
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
    # Transformer Engine's FP8 parameters are a subclass. Copying into one quantises again, which may give other bits.
    if type(param.data) is not Tensor:
        raise ConfigError(
            "policy.fp8_params=true keeps weights in FP8, which cannot be exchanged with a reference without rounding. "
            "Set policy.fp8_params=false, or algorithm.kl.coefficient=0 to train without a reference."
        )
