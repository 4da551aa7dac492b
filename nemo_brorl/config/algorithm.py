"""Settings of the algorithm: how rewards become an update."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nemo_brorl.config.declare import FUNCTION, section, setting, wrong_params

ADVANTAGES = (
    "reinforce_plus_plus_baseline",
    "reinforce_plus_plus",
    "grpo",
    "dr_grpo",
    "rloo",
    "opo",
    "maxrl",
    "pass_at_k",
)
NOT_BY_TURN = ("opo", "maxrl", "pass_at_k")  # advantages of whole responses, which algorithm.credit=turn has none of
REINFORCEMENT_LOSSES = ("ppo_clip", "gspo", "gmpo", "cispo")  # those that learn from advantages
KL_ESTIMATORS = ("k1", "k2", "k3")


SHARED_PARAMS = ("train_rollouts", "rare_success_exponent")  # of all advantages


@dataclass
class KLConfig:
    """KL to the reference policy."""

    coefficient: float = setting(1e-4, "weight of the KL; 0: no reference policy", at_least=0)
    estimator: str = setting("k2", "estimator of a token's KL", choices=KL_ESTIMATORS)
    placement: str = setting(
        "loss", "loss: a term with its own gradient; reward: taken off the advantage", choices=("loss", "reward")
    )
    log_ratio_clamp: float = setting(10.0, "nats that a token's log-ratio is clamped to", above=0)


@dataclass
class ReferenceResetConfig:
    """When the current weights become the reference (ProRL, arXiv 2505.24864, section 3.3)."""

    interval: int = setting(0, "steps; 0: never", at_least=0)
    kl_above: float | None = setting(None, "mean KL to the reference in a step, nats per token; null: never", above=0)
    patience: int = setting(0, "validations in a row without a new best pass@1; 0: never", at_least=0)
    clear_optimizer: bool = setting(False, "ProRL v1 cleared Adam's moments, v2 keeps them")


@dataclass
class ImportanceCorrectionConfig:
    """Weights for the difference between vLLM's and Megatron's probabilities w = p_Megatron / p_vLLM of a token."""

    enabled: bool = setting(True)
    kind: str = setting(
        "tis",
        "tis: min(w, cap); icepop: w within [low, high], else 0; sequence_mask: tis, and 0 for responses outside; "
        "sequence_tis: min(product of w over the response, cap)",
        choices=("tis", "icepop", "sequence_mask", "sequence_tis"),
    )
    cap: float = setting(2.0, "largest weight under tis, sequence_mask and sequence_tis", above=0)
    low: float = setting(0.5, "lower bound of icepop and sequence_mask", within=(0, 1))
    high: float = setting(5.0, "upper bound of icepop and sequence_mask", at_least=1)


@dataclass
class AdvantageParams:
    """Parameters that every advantage has, a function of your own too."""

    train_rollouts: int | None = setting(None, at_least=2)
    rare_success_exponent: float = setting(0.0, at_least=0)


@dataclass
class CovarianceConfig:
    """Parameter `covariance` of every loss: tokens that are held because they take entropy away, as their log-prob and
    advantage lie far from their means together (Clip-Cov, KL-Cov, arXiv 2505.22617)."""

    kind: str = setting(
        "none",
        "clip_cov: no gradient for some tokens with a covariance within [low, high]; kl_cov: a penalty for those with "
        "the largest",
        choices=("none", "clip_cov", "kl_cov"),
    )
    share: float = setting(2e-4, "share of a mini-batch's tokens; at least one", above=0, at_most=1)
    low: float = setting(1.0, "lower bound of clip_cov", within=(-1000, 1000))
    high: float = setting(5.0, "upper bound of clip_cov", within=(-1000, 1000))
    coefficient: float = setting(1.0, "weight of kl_cov's |log-ratio to the older policy|", above=0)


@dataclass
class AlgorithmConfig:
    """How rewards become an update."""

    advantage: str = setting("reinforce_plus_plus_baseline", "advantage estimator", choices=(*ADVANTAGES, FUNCTION))
    advantage_params: dict[str, Any] = setting(
        {},
        "of every advantage: train_rollouts: rollouts of a group, those with the largest variance of rewards (PODS), "
        "else all N; rare_success_exponent: weight of a group, (1 - share of correct rollouts) ** this; and those of "
        "an advantage of your own (docs/extending.md)",
    )
    pass_at_k: int = setting(8, "k of the advantage pass_at_k", at_least=1)
    loss: str = setting("ppo_clip", "loss of the policy", choices=(*REINFORCEMENT_LOSSES, FUNCTION))
    loss_params: dict[str, Any] = setting(
        {},
        "of every loss: covariance: tokens that are held because they take entropy away (docs/explanation/theory.md); "
        "and those of a loss of your own (docs/extending.md)",
    )
    aggregation: str = setting(
        "token_mean",
        "mean over tokens, over responses, over turns, or over responses of the mean over their turns; constant: sum "
        "over rollouts.max_response_tokens",
        choices=("token_mean", "sequence_mean", "constant", "turn_mean", "sequence_turn_mean"),
    )
    credit: str = setting(
        "outcome",
        "what turns of a trajectory learn by. outcome: its reward; return: the discounted sum of its turns' rewards; "
        "turn: each its own return, against the group's at the same turn",
        choices=("outcome", "return", "turn"),
    )
    turn_discount: float = setting(1.0, "weight of the next turn's return in a turn's", within=(0, 1))
    clip_low: float = setting(0.2, "ratio to the older policy is clipped below 1 - this", above=0, at_most=1)
    clip_high: float = setting(0.28, "ratio to the older policy is clipped above 1 + this", above=0)
    dual_clip: float = setting(10.0, "bound of the ratio where the advantage is negative; 0: off", at_least=0)
    entropy_coefficient: float = setting(0.0, "weight of the entropy bonus", at_least=0)
    num_mini_batches: int = setting(4, "optimizer steps per training step", at_least=1)
    kl: KLConfig = section(KLConfig)
    reference_reset: ReferenceResetConfig = section(ReferenceResetConfig)
    importance_correction: ImportanceCorrectionConfig = section(ImportanceCorrectionConfig)

    @property
    def train_rollouts(self) -> int | None:
        """Rollouts of a group that are learnt from; None: all N."""
        chosen: int | None = self.advantage_params.get("train_rollouts")
        return chosen

    @property
    def rare_success_exponent(self) -> float:
        """Exponent of a group's weight; 0: all weigh the same."""
        return float(self.advantage_params.get("rare_success_exponent", 0.0))

    @property
    def covariance(self) -> CovarianceConfig:
        """Tokens that are held."""
        return CovarianceConfig(**self.loss_params.get("covariance", {}))

    @property
    def own_advantage_params(self) -> dict[str, Any]:
        """Parameters that are the advantage's alone."""
        return {name: value for name, value in self.advantage_params.items() if name not in SHARED_PARAMS}

    @property
    def own_loss_params(self) -> dict[str, Any]:
        """Parameters that are the loss's alone."""
        return {name: value for name, value in self.loss_params.items() if name != "covariance"}

    def wrong_params(self) -> Iterator[str]:
        """Yield a message for every parameter that all advantages or losses have and that is wrong."""
        shared = {name: value for name, value in self.advantage_params.items() if name in SHARED_PARAMS}
        yield from wrong_params("algorithm.advantage_params", AdvantageParams, shared)
        covariance = self.loss_params.get("covariance", {})
        yield from wrong_params("algorithm.loss_params.covariance", CovarianceConfig, covariance)

    def violations(self) -> Iterator[str]:
        bound = 1 + self.clip_high
        if 0 < self.dual_clip <= bound:
            yield (
                f"algorithm.dual_clip={self.dual_clip} must be above 1 + algorithm.clip_high = {bound:g}: write 10.0, "
                "or 0 to turn it off"
            )
        if self.loss == "gspo" and self.clip_high > 0.05:
            yield (
                f"algorithm.clip_high={self.clip_high} is a bound for single tokens; ratios of whole responses "
                "(algorithm.loss=gspo) stay much closer to 1: write for example algorithm.clip_low=3e-4 "
                "algorithm.clip_high=4e-4"
            )
        if self.covariance.low >= self.covariance.high:
            yield (
                f"algorithm.loss_params.covariance.low={self.covariance.low} is not below high={self.covariance.high}: "
                "write for example low=1.0 high=5.0"
            )
