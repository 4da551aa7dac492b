"""Estimators of KL(policy ‖ reference) from sampled tokens (J. Schulman, "Approximating KL Divergence", 2020).

With r = log p_reference − log p_policy: k1 = −r, k2 = r²/2, k3 = exp(r) − 1 − r. The gradient of k2 as a loss is the
gradient of the KL divergence itself on on-policy samples; those of k1 and k3 are not, which is why k2 is the default in
the loss.
"""

from collections.abc import Callable

from torch import Tensor

ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda r: -r,
    "k2": lambda r: 0.5 * r.square(),
    "k3": lambda r: r.exp() - 1 - r,
}


def kl_per_token(log_probs: Tensor, reference_log_probs: Tensor, estimator: str, log_ratio_clamp: float) -> Tensor:
    """The estimate for each token [T] in nats; the log-ratio is clamped to ± log_ratio_clamp first."""
    log_ratio = (reference_log_probs - log_probs).clamp(-log_ratio_clamp, log_ratio_clamp)
    return ESTIMATORS[estimator](log_ratio)
