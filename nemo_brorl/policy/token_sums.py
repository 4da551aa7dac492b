"""Sums over the tokens of an update, on the device until they are read; tokens that Clip-Cov and KL-Cov hold, chosen
over all data-parallel ranks; and the measured gain of an update.

The gain is what an update did to the chance of good responses, measured and not predicted. Every mini-batch holds an
equal, seeded share of every group, drawn from the policy the update starts from. No step has trained on the last one
when its turn comes. Its log-probs then and before the first step are both there already, and mean A (π_now / π_old − 1)
over its responses estimates how much the steps so far have raised the expected advantage. With REINFORCE++-baseline an
advantage is in standard deviations of the batch's rewards.

The last mini-batch is a fresh sample only of groups that its own rollouts did not bring into the batch. Dynamic
sampling keeps a group because it disagrees: of a prompt with success rate p the rollouts of kept groups succeed with p
/ (1 − (1 − p)^N), 3.6 p for p = 0.02 and N = 16. So only groups count whose other rollouts disagree by themselves
(`algorithm/packing.py`, `fresh_in_the_last`); given these, the last ones are drawn from the policy and the estimate is
unbiased for these groups. None count with `algorithm.train_rollouts`, whose rollouts are chosen by reward. What
remains: an advantage is taken against a mean that the rollout itself is part of, a factor 1 − 1/N; under waves the
rollouts of a group also decided on its size; rollouts of older weights count as if they were of those that the update
starts from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from nemo_brorl.algorithm.losses import TokenBatch, choose_held
from nemo_brorl.config.schema import CovarianceConfig
from nemo_brorl.policy.rows.packed_rows import Row

Counted = TypeVar("Counted")
Metrics = dict[str, float]


@dataclass
class TokenSums:
    """Sums over tokens; divided by their number at the end. Until then they stay on the device: reading one waits for
    all that the GPU was told to do before."""

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
        """The same as numbers."""
        values = {name: float(value) for name, value in self.values.items()}
        return TokenSums(self.num_tokens, values, float(self.largest))

    def over_data_ranks(self) -> TokenSums:
        """Summed in the order of the data-parallel ranks, so that repeats are bit-identical. Collective."""
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        merged = TokenSums()
        for sums in of_all_ranks(self.on_host(), group):
            merged.add(sums.values, sums.num_tokens)
            merged.largest = max(merged.largest, sums.largest)
        return merged

    def means(self) -> Metrics:
        """Means over tokens; empty without tokens."""
        if self.num_tokens == 0:
            return {}
        return {name: value / self.num_tokens for name, value in self.values.items()}


def of_all_ranks(mine: Counted, group: dist.ProcessGroup) -> list[Counted]:
    """What every rank of a group has counted, in their order. Collective."""
    gathered = [mine] * group.size()
    dist.all_gather_object(gathered, mine, group=group)
    return gathered


RowTokens = list[Tensor | None]  # [n] bool per row of a mini-batch; None: no token of it


def held_tokens(
    rows: Sequence[Row],
    settings: CovarianceConfig,
    seed: int,
    device: torch.device,
) -> RowTokens:
    """Those of this rank's rows of a mini-batch. Collective over the data-parallel and context-parallel ranks."""
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)

    def gather(own: Any) -> list[Any]:
        return of_all_ranks(own, group)

    log_probs = [torch.empty(0, device=device)]
    advantages = [torch.empty(0, device=device)]
    draws = [torch.empty(0, device=device)]
    for row in rows:
        log_probs.append(row.sampled_log_probs)
        advantages.append(row.advantages)
        if settings.kind == "clip_cov":
            drawn = torch.from_numpy(row.draws(seed))
            draws.append(drawn.to(device))
    is_held = choose_held(
        torch.cat(log_probs),
        torch.cat(advantages),
        torch.cat(draws),
        settings,
        gather,
    )
    sizes = [row.num_loss_tokens for row in rows]
    return list(is_held.split(sizes))


_MAX_LOG = 20.0  # keeps the ratio of a response finite


class MeasuredGain:
    """Sums over responses; one for an update on a rank."""

    def __init__(self) -> None:
        self.num = 0
        self.total = 0.0
        self.squares = 0.0

    def add(self, batch: TokenBatch, is_measured: Sequence[bool]) -> None:
        """Count those responses [R] of a row of the last mini-batch that are measured. Collective over the ranks that
        share its responses' tokens."""
        sequences = batch.sequences
        lengths = sequences.lengths.clamp(min=1)  # one without tokens has gained nothing
        advantages = (sequences.sums(batch.advantages) / lengths).double()
        log_ratios = sequences.sums(batch.log_probs - batch.old_log_probs).double()
        ratios = log_ratios.clamp(-_MAX_LOG, _MAX_LOG).exp()
        is_counted = torch.tensor(is_measured, dtype=torch.bool, device=ratios.device)
        gains = (advantages * (ratios - 1))[is_counted]
        self.num += len(gains)
        self.total += float(gains.sum())
        self.squares += float(gains.square().sum())

    def merge(self, other: MeasuredGain) -> None:
        """Add another rank's responses."""
        self.num += other.num
        self.total += other.total
        self.squares += other.squares

    def metrics(self) -> dict[str, float]:
        """The gain, its standard error over responses, and one over the other; nothing for less than two responses."""
        if self.num < 2:
            return {}
        mean = self.total / self.num
        variance = max(self.squares / self.num - mean**2, 0.0)
        error = math.sqrt(variance / (self.num - 1))
        ratio = mean / error if error > 0 else 0.0
        return {
            "mass_balance/measured_gain": mean,
            "mass_balance/measured_gain_error": error,
            "mass_balance/signal_to_noise": ratio,
        }
