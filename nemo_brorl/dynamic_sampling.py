"""Dynamic sampling (DAPO, arXiv 2503.14476 section 3.2): train only on groups whose rollouts disagree.

A group where every rollout earned the same raw reward has zero advantage everywhere and only dilutes the batch. Whole groups
are kept or dropped, never single rollouts: at N = 512 a row filter would throw away the only success of a hard prompt. The
test is max − min of the raw reward, because a standard deviation in floating point is not zero for 512 equal rewards of 0.3.

Life of a group: offered → kept or dropped (with a reason, counted) → taken by a step, oldest first → or, as surplus, carried to
the next step until it is older than `max_staleness` updates, then dropped as stale.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from nemo_brorl.config.schema import DynamicSamplingConfig
from nemo_brorl.errors import StarvationError
from nemo_brorl.types import ScoredGroup

MIN_REWARD_RANGE = 1e-6
KEEP_RATE_DECAY = 0.8  # of the running keep rate that sizes refill rounds, per round
MIN_KEEP_RATE = 0.25  # a refill asks for at most 1 / this times what is missing


@dataclass(frozen=True)
class Decision:
    """Whether a group enters the batch, and why."""

    keep: bool
    reason: str  # informative, all_correct, all_wrong, all_equal, disabled


def judge(group: ScoredGroup, config: DynamicSamplingConfig) -> Decision:
    """Decide on one group by its raw rewards."""
    if not config.enabled:
        return Decision(True, "disabled")
    low, high = float(group.rewards.min()), float(group.rewards.max())
    if high - low > MIN_REWARD_RANGE:
        return Decision(True, "informative")
    if low >= 1.0:
        return Decision(False, "all_correct")
    return Decision(False, "all_wrong" if high <= 0.0 else "all_equal")


class DynamicSampling:
    """Fills one batch after the other with informative groups and carries the surplus."""

    def __init__(self, config: DynamicSamplingConfig) -> None:
        self.config = config
        self.kept: list[ScoredGroup] = []
        self.keep_rate = 1.0  # running estimate; part of the run state, since it sizes the refill rounds
        self.counts: Counter[str] = Counter()  # decisions of the current step, by reason
        self.num_carried = 0
        self.num_rounds = 0

    def begin_step(self, version: int) -> None:
        """Drop carried groups that are too old for an update of `version`; start counting afresh."""
        self.counts, self.num_rounds = Counter(), 0
        fresh = [group for group in self.kept if version - group.group.version <= self.config.max_staleness]
        self.counts["stale"] = len(self.kept) - len(fresh)
        self.kept = fresh
        self.num_carried = len(fresh)

    def num_to_request(self, wanted: int) -> int:
        """Prompts to ask for next, 0 when `wanted` groups are there. A refill asks for more than is missing when the keep
        rate says that some will be dropped.

        Raises StarvationError after max_rounds rounds without a full batch.
        """
        missing = wanted - len(self.kept)
        if missing <= 0:
            return 0
        if self.num_rounds == self.config.max_rounds:
            raise StarvationError(self._starvation_message(wanted))
        self.num_rounds += 1
        return math.ceil(missing / max(self.keep_rate, MIN_KEEP_RATE) - 1e-9)

    def offer(self, groups: list[ScoredGroup]) -> list[Decision]:
        """Judge the groups of one round, in order; the kept ones wait to be taken."""
        decisions = [judge(group, self.config) for group in groups]
        self.kept += [group for group, decision in zip(groups, decisions, strict=True) if decision.keep]
        self.counts.update(decision.reason for decision in decisions)
        rate = sum(decision.keep for decision in decisions) / max(len(decisions), 1)
        self.keep_rate = KEEP_RATE_DECAY * self.keep_rate + (1 - KEEP_RATE_DECAY) * rate
        return decisions

    def take(self, wanted: int) -> list[ScoredGroup]:
        """The oldest `wanted` kept groups; the rest is carried over, or dropped as surplus when carrying is off."""
        batch, rest = self.kept[:wanted], self.kept[wanted:]
        self.kept = rest if self.config.carry_over else []
        self.counts["surplus"] = len(rest) - len(self.kept)
        return batch

    def metrics(self) -> dict[str, float]:
        """Of the current step. `keep_rate` counts the groups sampled in this step, not the carried ones."""
        judged = {reason: self.counts[reason] for reason in ("informative", "disabled", "all_correct", "all_wrong", "all_equal")}
        total = sum(judged.values())
        kept = judged["informative"] + judged["disabled"]
        return {
            "dynamic_sampling/keep_rate": kept / total if total else math.nan,
            "dynamic_sampling/num_groups": float(total),
            "dynamic_sampling/num_rounds": float(self.num_rounds),
            "dynamic_sampling/num_carried_in": float(self.num_carried),
            "dynamic_sampling/num_carried_out": float(len(self.kept)),
            **{f"dynamic_sampling/{reason}": float(self.counts[reason]) for reason in ("all_correct", "all_wrong", "all_equal", "stale")},
        }

    def _starvation_message(self, wanted: int) -> str:
        dropped = ", ".join(
            f"{self.counts[reason]} {reason}" for reason in ("all_correct", "all_wrong", "all_equal") if self.counts[reason]
        )
        return (
            f"dynamic sampling found {len(self.kept)} of {wanted} informative groups in {self.config.max_rounds} rounds"
            f" (dropped: {dropped or 'none'}). All wrong: the tasks are too hard or the verifier never accepts; choose easier data.tasks or"
            " a larger rollouts.num_per_prompt. All correct: the tasks are solved; choose harder ones. Otherwise raise"
            " dynamic_sampling.max_rounds, lower rollouts.prompts_per_step, or set dynamic_sampling.enabled=false"
        )
