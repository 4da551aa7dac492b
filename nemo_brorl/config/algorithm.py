"""Declare settings of the algorithm, which turns rewards into an update."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nemo_brorl.config.declare import FUNCTION, path_setting, section, setting, wrong_params

ADVANTAGES = (
    "reinforce_plus_plus_baseline",
    "reinforce_plus_plus",
    "grpo",
    "dr_grpo",
    "rloo",
    "opo",
    "maxrl",
    "pass_at_k",
    "none",
)
# advantages of whole responses, which algorithm.credit=turn cannot use
NOT_BY_TURN = ("opo", "maxrl", "pass_at_k", "none")
REINFORCEMENT_LOSSES = ("ppo_clip", "gspo", "gmpo", "cispo")  # losses that train on advantages
KL_ESTIMATORS = ("k1", "k2", "k3")


# Parameters that all advantages have.
SHARED_PARAMS = ("train_rollouts", "train_rollouts_compared", "rare_success_exponent", "whiten_over", "whiten_memory")


@dataclass
class KLConfig:
    """KL divergence to the reference policy."""

    coefficient: float = setting(
        1e-4, "weight of the KL divergence to the reference policy; 0: no reference policy", at_least=0
    )
    estimator: str = setting(
        "k2",
        "estimator of the KL per token",
        choices=KL_ESTIMATORS,
    )
    placement: str = setting(
        "loss",
        "loss: a term of the loss with its own gradient; reward: subtracted from the advantage",
        choices=("loss", "reward"),
    )
    log_ratio_clamp: float = setting(10.0, "largest absolute log-ratio of a token in the KL, in nats", above=0)
    teacher: str | None = path_setting(None, "model of the policy's shape to be the reference; null: the policy itself")
    teachers: dict[str, str] = setting({}, "teachers by task, in place of one for all; other tasks have no KL")

    @property
    def has_teacher(self) -> bool:
        """Whether the KL compares the policy with teachers, and not with its own first weights."""
        return self.teacher is not None or bool(self.teachers)

    @property
    def references(self) -> tuple[str | None, ...]:
        """Names or folders of the models that the KL is to, each once; None: the policy at its start."""
        if self.coefficient == 0:
            return ()
        # Checkpoints number them, so the order must not depend on how the mapping is written.
        return tuple(sorted(set(self.teachers.values()))) or (self.teacher,)

    def reference_of(self, task: str) -> int | None:
        """Return the index in `references` of the model that a task's prompts have their KL to; None: no KL."""
        name = self.teachers.get(task, self.teacher)
        return self.references.index(name) if name in self.references else None


@dataclass
class ReferenceResetConfig:
    """Conditions under which the current weights become the reference (ProRL, arXiv 2505.24864, section 3.3)."""

    interval: int = setting(0, "steps between resets of the reference; 0: never", at_least=0)
    kl_above: float | None = setting(
        None, "mean KL to the reference in a step above which it is reset, nats per token; null: never", above=0
    )
    patience: int = setting(0, "validations in a row without a new best pass@1 before a reset; 0: never", at_least=0)
    clear_optimizer: bool = setting(False, "also reset Adam's moments. ProRL v1 did, v2 keeps them")


@dataclass
class ImportanceCorrectionConfig:
    """Importance weights w = p_Megatron / p_vLLM, for the difference between the two token probabilities."""

    enabled: bool = setting(True, "multiply the loss of each token by an importance weight")
    kind: str = setting(
        "tis",
        "tis: min(w, cap); icepop: w within [low, high], else 0; sequence_mask: tis, and 0 for responses "
        "whose weight is outside [low, high]; sequence_tis: min(product of w over the response, cap)",
        choices=("tis", "icepop", "sequence_mask", "sequence_tis"),
    )
    cap: float = setting(2.0, "largest weight under tis, sequence_mask and sequence_tis", above=0)
    low: float = setting(0.5, "lower bound of icepop and sequence_mask", within=(0, 1))
    high: float = setting(5.0, "upper bound of icepop and sequence_mask", at_least=1)


@dataclass
class AdvantageParams:
    """Parameters that every advantage has, including one of your own."""

    train_rollouts: int | None = setting(
        None,
        "rollouts of a group that are trained on, those with the largest variance of rewards; null: all N",
        at_least=2,
    )
    train_rollouts_compared: str = setting(
        "group",
        "rollouts that those trained on are compared with. group: all N, where trained ones stand for those left out "
        "with the same reward, one of every reward at least; subset: the trained ones alone, as in PODS, which is also "
        "done where a group has more rewards than are trained on",
        choices=("group", "subset"),
    )
    rare_success_exponent: float = setting(
        0.0, "exponent of a group's weight, 1 - share of correct rollouts", at_least=0
    )
    whiten_over: str = setting(
        "rollouts",
        "what the deviation of reinforce_plus_plus and reinforce_plus_plus_baseline is over. tokens: their mean over "
        "tokens is also subtracted",
        choices=("rollouts", "tokens"),
    )
    whiten_memory: int = setting(
        20, "steps over which that deviation is carried, unless fill=full; 0: each step by itself", at_least=0
    )


@dataclass
class CovarianceConfig:
    """Parameter `covariance` of every loss: limits updates of tokens that reduce entropy (arXiv 2505.22617).

    Clip-Cov and KL-Cov select tokens by the covariance of log-prob and advantage: both lie far from their means
    together.
    """

    kind: str = setting(
        "none",
        "clip_cov: no gradient for some tokens with a covariance within [low, high]; kl_cov: a KL penalty "
        "for the tokens with the largest covariance",
        choices=("none", "clip_cov", "kl_cov"),
    )
    share: float = setting(
        2e-4, "share of a mini-batch's tokens that are selected; at least one token", above=0, at_most=1
    )
    low: float = setting(1.0, "lower bound of the covariance for clip_cov", within=(-1000, 1000))
    high: float = setting(5.0, "upper bound of the covariance for clip_cov", within=(-1000, 1000))
    coefficient: float = setting(
        1.0, "weight of kl_cov's penalty, the absolute log-ratio to the policy before the update", above=0
    )


@dataclass
class AlgorithmConfig:
    """The algorithm that turns rewards into an update."""

    advantage: str = setting("reinforce_plus_plus_baseline", "advantage estimator", choices=(*ADVANTAGES, FUNCTION))
    advantage_params: dict[str, Any] = setting(
        {},
        "parameters of the advantage. All have train_rollouts: rollouts of a group that are trained on, "
        "those with the largest variance of rewards (PODS), default all N; train_rollouts_compared: group or subset; "
        "and rare_success_exponent: a group's weight is (1 - share of correct rollouts) ** this. reinforce_plus_plus "
        "and reinforce_plus_plus_baseline have whiten_over: rollouts or tokens, and whiten_memory: steps over which "
        "their deviation is carried unless dynamic_sampling.fill=full, default 20. An advantage of your own may have "
        "more (docs/howto/extend.md)",
    )
    pass_at_k: int = setting(8, "k of the advantage pass_at_k", at_least=1)
    loss: str = setting("ppo_clip", "policy loss", choices=(*REINFORCEMENT_LOSSES, FUNCTION))
    loss_params: dict[str, Any] = setting(
        {},
        "parameters of the loss. All losses have covariance: Clip-Cov or KL-Cov, which limit updates of tokens that "
        "reduce entropy (docs/configuration.md lists its parameters). A loss of your own may have more "
        "(docs/howto/extend.md)",
    )
    aggregation: str = setting(
        "token_mean",
        "how token losses are averaged. token_mean: over all tokens; sequence_mean: over responses; "
        "turn_mean: over turns; sequence_turn_mean: over responses, each the mean of its turns; constant: "
        "sum over rollouts.max_response_tokens",
        choices=("token_mean", "sequence_mean", "constant", "turn_mean", "sequence_turn_mean"),
    )
    credit: str = setting(
        "outcome",
        "reward that the turns of a trajectory are trained on. outcome: the trajectory's reward; return: "
        "the discounted sum of its turns' rewards; turn: each turn's own return, compared with the "
        "group's at that turn",
        choices=("outcome", "return", "turn"),
    )
    turn_discount: float = setting(1.0, "weight of the next turn's return in a turn's return", within=(0, 1))
    clip_low: float = setting(
        0.2, "the ratio to the policy before the update is clipped below 1 - this", above=0, at_most=1
    )
    clip_high: float = setting(0.28, "the ratio to the policy before the update is clipped above 1 + this", above=0)
    dual_clip: float = setting(10.0, "upper bound of the ratio for negative advantages (dual clip); 0: off", at_least=0)
    entropy_coefficient: float = setting(0.0, "weight of the entropy bonus", at_least=0)
    num_mini_batches: int = setting(4, "optimizer steps per training step", at_least=1)
    kl: KLConfig = section(KLConfig)
    reference_reset: ReferenceResetConfig = section(ReferenceResetConfig)
    importance_correction: ImportanceCorrectionConfig = section(ImportanceCorrectionConfig)

    @property
    def train_rollouts(self) -> int | None:
        """Number of rollouts in a group of N that are trained on. None: all N."""
        chosen: int | None = self.advantage_params.get("train_rollouts")
        return chosen

    @property
    def shared_params(self) -> AdvantageParams:
        """Parameters that all advantage estimators share."""
        return AdvantageParams(
            **{name: value for name, value in self.advantage_params.items() if name in SHARED_PARAMS}
        )

    @property
    def train_rollouts_compared(self) -> str:
        """Rollouts of a group with which those trained on are compared: group or subset."""
        return self.shared_params.train_rollouts_compared

    @property
    def rare_success_exponent(self) -> float:
        """Exponent of a group's weight (1 - share of correct rollouts); 0: all groups have equal weight."""
        return float(self.advantage_params.get("rare_success_exponent", 0.0))

    @property
    def covariance(self) -> CovarianceConfig:
        """Settings that choose the tokens whose update Clip-Cov or KL-Cov limits."""
        return CovarianceConfig(**self.loss_params.get("covariance", {}))

    @property
    def own_advantage_params(self) -> dict[str, Any]:
        """Parameters of the chosen advantage estimator alone, without those that all estimators share."""
        return {name: value for name, value in self.advantage_params.items() if name not in SHARED_PARAMS}

    @property
    def own_loss_params(self) -> dict[str, Any]:
        """Parameters of the chosen policy loss alone, without those that all losses share."""
        return {name: value for name, value in self.loss_params.items() if name != "covariance"}

    def wrong_params(self) -> Iterator[str]:
        """Yield a message for every wrong parameter among those that all advantage estimators or losses share."""
        shared = {name: value for name, value in self.advantage_params.items() if name in SHARED_PARAMS}
        yield from wrong_params("algorithm.advantage_params", AdvantageParams, shared)
        covariance = self.loss_params.get("covariance", {})
        yield from wrong_params("algorithm.loss_params.covariance", CovarianceConfig, covariance)

    def violations(self) -> Iterator[str]:
        bound = 1 + self.clip_high
        if 0 < self.dual_clip <= bound:
            yield (
                f"algorithm.dual_clip={self.dual_clip} must be above 1 + algorithm.clip_high = {bound:g}: set 10.0, "
                "or 0 to turn it off"
            )
        if self.loss == "gspo" and self.clip_high > 0.05:
            yield (
                f"algorithm.clip_high={self.clip_high} is a bound for single tokens; ratios of whole responses "
                "(algorithm.loss=gspo) stay much closer to 1: set for example algorithm.clip_low=3e-4 "
                "algorithm.clip_high=4e-4"
            )
        if self.covariance.low >= self.covariance.high:
            yield (
                f"algorithm.loss_params.covariance.low={self.covariance.low} is not below high={self.covariance.high}: "
                "set for example low=1.0 high=5.0"
            )
