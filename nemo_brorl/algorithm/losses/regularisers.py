"""Terms beside the policy gradient: KL to the reference, in the loss or in the reward, and the entropy bonus."""

from __future__ import annotations

from torch import Tensor

from nemo_brorl.algorithm.kl import kl_per_token
from nemo_brorl.algorithm.losses.base import LossSums, TokenBatch
from nemo_brorl.algorithm.losses.importance import importance_weights
from nemo_brorl.config.schema import AlgorithmConfig


def advantages(batch: TokenBatch, config: AlgorithmConfig) -> Tensor:
    """The batch's advantages [T]; with `kl.placement=reward` less coefficient × the response's summed KL estimate under
    the old policy, without gradient (as a penalty in the reward does, after the baseline)."""
    if config.kl.placement != "reward" or batch.reference_log_probs is None:
        return batch.advantages
    kl = kl_per_token(batch.old_log_probs, batch.reference_log_probs, config.kl.estimator, config.kl.log_ratio_clamp)
    return batch.advantages - config.kl.coefficient * batch.sequences.sum_of(kl)


def finish(batch: TokenBatch, config: AlgorithmConfig, objective: Tensor, metrics: dict[str, Tensor]) -> LossSums:
    """From an objective per token [T] to the loss: importance weights, KL (ProRL, arXiv 2505.24864), entropy, weighted
    sum."""
    correction = importance_weights(batch, config)
    loss = -(correction * objective)
    metrics = {**metrics, "policy/importance_weight": correction.sum()}
    if config.importance_correction.enabled and config.importance_correction.kind != "tis":
        metrics["policy/importance_masked"] = (correction == 0).float().sum()
    if batch.reference_log_probs is not None:
        kl = kl_per_token(batch.log_probs, batch.reference_log_probs, config.kl.estimator, config.kl.log_ratio_clamp)
        metrics["policy/kl_to_reference"] = kl.sum()
        if config.kl.placement == "loss":
            loss = loss + config.kl.coefficient * kl
    if config.entropy_coefficient > 0:
        loss = loss - config.entropy_coefficient * batch.entropies
    return LossSums((batch.weights * loss).sum(), {name: value.detach() for name, value in metrics.items()})
