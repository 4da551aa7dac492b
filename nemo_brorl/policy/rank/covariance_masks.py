"""Select the tokens of a mini-batch that Clip-Cov or KL-Cov limits, over all ranks that share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from nemo_brorl.algorithm.covariance import select_by_covariance
from nemo_brorl.config.algorithm import CovarianceConfig
from nemo_brorl.policy.rank.token_sums import of_all_ranks
from nemo_brorl.policy.rows.packed_rows import Row


def compute_covariance_masks(
    rows: Sequence[Row],
    settings: CovarianceConfig,
    seed: int,
    device: torch.device,
) -> list[Tensor | None]:
    """Return for each of this rank's rows of a mini-batch the mask [n] of tokens that Clip-Cov or KL-Cov selects.

    Collective over the data-parallel and context-parallel ranks. `seed` decides the random draws.
    """
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)

    def gather(own: Any) -> list[Any]:
        return of_all_ranks(own, group)

    log_probs = [torch.empty(0, device=device)]
    advantages = [torch.empty(0, device=device)]
    draws = [torch.empty(0, device=device)]
    for row in rows:
        log_probs.append(row.sampled_log_probs)
        advantages.append(row.advantages)
        drawn = torch.from_numpy(row.draws(seed))
        draws.append(drawn.to(device))
    covariance_mask = select_by_covariance(
        torch.cat(log_probs),
        torch.cat(advantages),
        torch.cat(draws),
        settings,
        gather,
    )
    sizes = [row.num_loss_tokens for row in rows]
    return list(covariance_mask.split(sizes))
