"""Sum values over the tokens of an update on one rank, and add the sums of all ranks at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

Counted = TypeVar("Counted")


@dataclass
class TokenSums:
    """Sums over tokens, to be divided by the number of tokens at the end.

    Until then the values stay on the device, because reading one waits for all queued work of the GPU.
    """

    num_tokens: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    largest: Any = 0.0

    def add(self, values: Mapping[str, Any], num_tokens: int) -> None:
        self.num_tokens += num_tokens
        for name, value in values.items():
            if isinstance(value, Tensor):
                value = value.detach().double()
            self.values[name] = self.values.get(name, 0.0) + value

    def on_host(self) -> TokenSums:
        """Return the sums of metrics over tokens as Python numbers instead of tensors."""
        values = {name: float(value) for name, value in self.values.items()}
        return TokenSums(self.num_tokens, values, float(self.largest))

    def over_data_ranks(self) -> TokenSums:
        """Return the sums of metrics over the tokens of all data-parallel ranks.

        Collective. The sums of the ranks are added in rank order, so that repeated runs are bit-identical.
        """
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        merged = TokenSums()
        for sums in of_all_ranks(self.on_host(), group):
            merged.add(sums.values, sums.num_tokens)
            merged.largest = max(merged.largest, sums.largest)
        return merged

    def means(self) -> dict[str, float]:
        """Return the mean of each metric over the counted tokens, or an empty dict without tokens."""
        if self.num_tokens == 0:
            return {}
        return {name: value / self.num_tokens for name, value in self.values.items()}


def of_all_ranks(mine: Counted, group: dist.ProcessGroup) -> list[Counted]:
    """Return the values that all ranks of a process group pass to this collective, in rank order."""
    gathered = [mine] * group.size()
    dist.all_gather_object(gathered, mine, group=group)
    return gathered
