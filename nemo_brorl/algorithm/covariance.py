"""Limit the tokens that take the policy's entropy away, by Clip-Cov or KL-Cov (arXiv 2505.22617, section 4).

To first order a policy gradient step changes the entropy by minus the covariance of log-prob and advantage. A token's
contribution, with means over the n tokens of a mini-batch, is

    Cov(y) = (log π(y) − mean log π) (A(y) − mean A)

and a few tokens have nearly all of it. `share` · n of them are selected, at least one:

    clip_cov  drawn uniformly among those with `low` ≤ Cov ≤ `high`; they get no gradient from their advantage
    kl_cov    those with the largest Cov; `coefficient` · |log π/π_old| is added to their loss

Equal covariances are ordered by a draw: at large N many responses are the same tokens. The authors' code has no PPO
clip under KL-Cov, ours has. Both agree where the clip is so wide that no ratio reaches it.

The paper uses the current π. Here π is the policy that sampled a token, because it is known for every token before the
first forward pass. Means, ranks and draws are over the whole mini-batch on all ranks, however it is cut into
micro-batches, and need no pass of their own. In the first mini-batch the two policies agree up to rounding. In later
mini-batches a clipped ratio has moved by some 0.2 nats, where a selected token stands out by several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nemo_brorl.algorithm.token_batch import TokenBatch
from nemo_brorl.config.algorithm import CovarianceConfig

Gather = Callable[[Any], list[Any]]  # collective call that returns the values of all ranks, in the order of ranks


def select_by_covariance(
    log_probs: Tensor,
    advantages: Tensor,
    draws: Tensor,
    config: CovarianceConfig,
    gather: Gather,
) -> Tensor:
    """Return which of this rank's tokens of a mini-batch Clip-Cov or KL-Cov selects, as a mask [T] bool.

    `log_probs`, `advantages` and `draws` are [T]. `draws` are uniform in [0, 1]. They decide which tokens clip_cov
    selects, and which of several with equal covariance kl_cov does. `gather` is a collective call: all ranks that share
    the mini-batch must call this function together.
    """
    own_sums = [
        len(log_probs),
        float(log_probs.double().sum()),
        float(advantages.double().sum()),
    ]
    num_tokens, log_prob, advantage = np.sum(gather(own_sums), axis=0)
    mean_log_prob = log_prob / num_tokens
    mean_advantage = advantage / num_tokens
    order = (log_probs - mean_log_prob) * (advantages - mean_advantage)
    if config.kind == "clip_cov":
        is_above = order >= config.low
        is_below = order <= config.high
        order = torch.where(is_above & is_below, draws, -torch.inf)
    num_selected = max(1, int(config.share * num_tokens))
    values = order.double().cpu().numpy()
    ties = draws.double().cpu().numpy()
    ascending = np.lexsort((ties, values))[-num_selected:]
    highest = np.concatenate(gather(np.stack([values[ascending], ties[ascending]], axis=1)))
    least, least_draw = highest[np.lexsort((highest[:, 1], highest[:, 0]))][-num_selected:][0]
    selected = (values > least) | ((values == least) & (ties >= least_draw))
    return torch.from_numpy(selected & (values > -np.inf)).to(order.device)


def apply_covariance(loss: Tensor, batch: TokenBatch, config: CovarianceConfig) -> Tensor:
    """Return the loss of each token [T] after Clip-Cov or KL-Cov has limited the tokens of `batch.covariance_mask`.

    Selected tokens keep their loss without its gradient (clip_cov), or pay `coefficient` · |log π/π_old| (kl_cov).
    """
    if batch.covariance_mask is None:
        return loss
    if config.kind == "clip_cov":
        return torch.where(batch.covariance_mask, loss.detach(), loss)
    distance = (batch.log_probs - batch.old_log_probs).abs()
    return loss + config.coefficient * distance * batch.covariance_mask
