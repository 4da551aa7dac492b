"""Dynamic sampling (DAPO, arXiv 2503.14476 section 3.2): train only on groups whose rollouts disagree.

A group where every rollout earned the same raw reward has zero advantage everywhere and only dilutes the batch. Whole
groups are kept or dropped, never single rollouts: at N = 512 a filter of rollouts would drop the only success of a hard
prompt. The test is max − min of the raw reward, because a standard deviation in floating point is not zero for 512
equal rewards of 0.3. Some tasks give 0.01 to a wrong answer and 0 to none. `min_reward_range` keeps such a difference
from making a group informative, because an advantage would scale it up to that between right and wrong.

**Fill.** Under `fill: full` a batch needs a fixed number of informative groups, as in DAPO: the harder the prompts, the
more is sampled for one update. Under `samples` a step samples a fixed number of groups and trains on the informative
ones, at least one. Under `at_least` it continues until it has `min_groups` informative groups. Batches then vary in
size, and their loss is scaled by their number over the number asked for (`share_of_step`). Groups that do not disagree
have no gradient, and an informative group counts the same in any step, also where more were sampled than asked for.
The mean over a batch of k groups would let a step of few groups move the weights as far as one of many. Over steps,
that lowers the squared signal-to-noise ratio by 1 / (E[k] E[1/k]), a quarter where k is 2 on average.

Groups are admitted one by one as others close: there are always as many in flight as the running keep rate says are
needed to fill the batch. A group is judged once all groups admitted before it have been. So the batch does not depend
on which engine was faster, and short answers are not preferred.

Life of a group: admitted → closed and offered (or withdrawn) → kept or dropped (with a reason, counted) → taken by a
step, oldest first. Surplus groups are carried to the next step until they are older than `max_staleness` updates, and
then dropped as stale.

`DynamicSampling` is the only owner of the order of admission, of the groups that closed in this step, and of those that
are kept for this step or the next.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nemo_brorl.algorithm.teaching import BY_REWARDS, Teaching, can_teach
from nemo_brorl.config.rollouts import DynamicSamplingConfig
from nemo_brorl.core.errors import StarvationError
from nemo_brorl.types import ScoredGroup, is_right

KEEP_RATE_DECAY = 0.95  # decay of the running keep rate for each group
MIN_KEEP_RATE = 0.25  # lower bound: at most 1 / 0.25 times the missing groups are in flight

KEPT = ("informative", "disabled")  # reasons to keep a group
WORTHLESS = ("all_correct", "all_wrong", "all_equal")  # reasons of `judge` to drop a group
WASTED = (*WORTHLESS, "stale", "surplus", "timed_out", "dropped", "failed")  # no step trains on these groups
POSTPONED = ("postponed",)  # a later step resumes these groups


@dataclass(frozen=True)
class Decision:
    """Decision whether a group enters the batch, with the reason."""

    keep: bool
    reason: str  # informative, all_correct, all_wrong, all_equal (or no advantage is left), disabled


def judge(group: ScoredGroup, config: DynamicSamplingConfig, teaching: Teaching = BY_REWARDS) -> Decision:
    """Decide whether a group of rollouts can teach, and so enters the training batch."""
    if not config.enabled:
        return Decision(True, "disabled")
    if can_teach(group, config.min_reward_range, teaching):
        return Decision(True, "informative")
    if is_right(group).all():
        return Decision(False, "all_correct")
    if group.rewards.max() <= 0.0:
        return Decision(False, "all_wrong")
    return Decision(False, "all_equal")


class DynamicSampling:
    """Selection of the informative groups for one batch after the other. Surplus groups are carried over.

    sampling.begin_step(version=7, wanted=2)  # keep rate 1: two groups in flight fill it
    sampling.admit(["a", "b"])                # in flight a b
    sampling.offer(b)                         # in flight a b(closed)    b waits, as `a` was admitted first
    sampling.offer(a)                         # kept b                   `a` was all wrong: dropped; keep rate 0.9525
    sampling.num_to_admit()                   # 2                        one is missing: ceil(1 / 0.9525) in flight
    """

    def __init__(self, config: DynamicSamplingConfig, teaching: Teaching = BY_REWARDS) -> None:
        self.config = config
        self.teaching = teaching
        self.kept: list[ScoredGroup] = []  # closed, informative, not trained on yet; oldest first
        self._fills_up = config.fill == "full"
        self.keep_rate = 1.0  # running estimate, saved in checkpoints because it decides how many groups are admitted
        self.wanted = 0
        self.is_complete = False
        self._reset()

    def _reset(self) -> None:
        self.counts: Counter[str] = Counter()  # groups of the current step, by outcome
        self.rollouts: Counter[str] = Counter()  # rollouts of the current step, by outcome of their group
        self.num_carried = 0
        self._closed: list[ScoredGroup] = []
        # Groups admitted and not judged, in order. The value is the group once it has closed.
        self._in_flight: dict[str, ScoredGroup | None] = {}
        self._admission_order: dict[str, int] = {}  # uid → number of groups admitted before
        self._num_admitted = 0
        self._num_done = 0  # groups judged or withdrawn
        self._target = 0  # number of groups to admit so far

    def begin_step(self, version: int, wanted: int, is_complete: bool = False) -> None:
        """Start to collect a training batch of `wanted` groups for an update of policy weights `version`.

        Groups carried over from earlier steps are dropped if they are too old. `is_complete`: the groups
        that are already kept are the complete batch with which the run was stopped.
        """
        self._reset()
        self.wanted = wanted
        self.is_complete = is_complete
        fresh: list[ScoredGroup] = []
        for group in self.kept:
            if version - group.group.version <= self.config.max_staleness:
                fresh.append(group)
            else:
                self._count("stale", group.group.num_rollouts)
        self.kept = fresh
        self.num_carried = len(fresh)
        self._raise_target()

    @property
    def is_full(self) -> bool:
        """Return True if enough groups were sampled and kept for a training batch."""
        return self._num_done >= self._least_sampled and len(self.kept) >= self._least_kept

    @property
    def _least_sampled(self) -> int:
        """Return the least number of groups that a step must sample, whatever their rewards."""
        return 0 if self._fills_up or self.is_complete else self.wanted

    @property
    def _least_kept(self) -> int:
        """Return the number of informative groups that a step needs for its training batch."""
        return self.wanted if self._fills_up else self.config.min_groups

    def sampled(self) -> list[ScoredGroup]:
        """Return the groups of which enough rollouts ended in this step, in the order of their start.

        Groups that are not informative are included. The order does not depend on which group ended first.
        """
        return sorted(self._closed, key=lambda group: self._admission_order[group.prompt.uid])

    def num_to_admit(self) -> int:
        """Return how many more groups of rollouts to start now.

        For a batch that is already full these are groups that would have been started earlier, had groups ended one at
        a time. So what is sampled and carried over does not depend on how many groups end at once. Raises
        StarvationError when the batch is not full after `max_sampled` times its size was sampled.
        """
        limit = math.ceil(self.wanted * self.config.max_sampled)
        is_exhausted = not self._in_flight and self._num_admitted >= limit
        if is_exhausted and not self.is_full:
            raise StarvationError(self._starvation_message())
        target = min(self._target, limit)
        return max(target - self._num_admitted, 0)

    def admit(self, uids: Iterable[str]) -> None:
        """Record the uids of groups whose sampling has started, in order."""
        for uid in uids:
            self._in_flight[uid] = None
            self._admission_order[uid] = self._num_admitted
            self._num_admitted += 1

    def offer(self, group: ScoredGroup) -> None:
        """Add a group of which enough rollouts have ended, and decide in the order of start which groups to keep.

        A group waits for this decision until it was made for all groups that were started before it.
        """
        self._closed.append(group)
        self._in_flight[group.prompt.uid] = group
        self._judge_in_order()

    def withdraw(self, uid: str, reason: str, num_rollouts: int) -> None:
        """Remove a started group that this step does not use, and count it under `reason`."""
        del self._in_flight[uid]
        self._count(reason, num_rollouts)
        self._num_done += 1
        self._raise_target()
        self._judge_in_order()

    def take_batch(self) -> list[ScoredGroup]:
        """Return the training batch of the `wanted` oldest informative groups.

        Further groups are carried over to the next step, or dropped if `max_staleness` is 0. Unless `fill` is full, all
        informative groups are returned.
        """
        if not self._fills_up:
            batch = self.kept
            self.kept = []
            return batch
        batch = self.kept[: self.wanted]
        surplus = self.kept[self.wanted :]
        if self.config.max_staleness > 0:
            self.kept = surplus
            return batch
        for group in surplus:
            self._count("surplus", group.group.num_rollouts)
        self.kept = []
        return batch

    def share_of_step(self, batch: Sequence[ScoredGroup]) -> float:
        """Return the factor of a batch's loss: its number of groups over the number of groups that a step samples.

        The factor is 1 if `fill` is full. A group of which earlier steps have trained on some rollouts counts with the
        share of its remaining rollouts.
        """
        if self._fills_up:
            return 1.0
        num_groups = 0.0
        for group in batch:
            if group.train_indices is None:
                num_groups += 1.0
            else:
                num_groups += len(group.train_indices) / len(group.rewards)
        return num_groups / self.wanted

    def metrics(self) -> dict[str, float]:
        """Return the `dynamic_sampling/…` metrics of the current step.

        `keep_rate` is the share of informative groups among the groups judged in this step, without groups carried
        over. Rollouts are wasted if no step trains on them.
        """
        num_kept = sum(self.counts[reason] for reason in KEPT)
        kept_rollouts = sum(self.rollouts[reason] for reason in KEPT)
        judged_rollouts = kept_rollouts + sum(self.rollouts[reason] for reason in WORTHLESS)
        num_judged = num_kept + sum(self.counts[reason] for reason in WORTHLESS)
        num_wasted = sum(self.rollouts[reason] for reason in WASTED)
        metrics = {
            "dynamic_sampling/keep_rate": num_kept / num_judged if num_judged else math.nan,
            "dynamic_sampling/num_groups": float(num_judged),
            "dynamic_sampling/sampled_rollouts": float(judged_rollouts),
            "dynamic_sampling/informative_rollouts": float(kept_rollouts),
            "dynamic_sampling/num_carried_in": float(self.num_carried),
            "dynamic_sampling/num_carried_out": float(len(self.kept)),
            "dynamic_sampling/wasted_rollouts": float(num_wasted),
        }
        for reason in (*WASTED, *POSTPONED):
            metrics[f"dynamic_sampling/{reason}"] = float(self.counts[reason])
        return metrics

    def judge(self, group: ScoredGroup) -> Decision:
        """Decide whether a group of rollouts can teach, under the run's settings."""
        return judge(group, self.config, self.teaching)

    def _judge_in_order(self) -> None:
        while self._in_flight:
            group = next(iter(self._in_flight.values()))
            if group is None:
                return
            self._judge(group)

    def _judge(self, group: ScoredGroup) -> None:
        del self._in_flight[group.prompt.uid]
        decision = self.judge(group)
        self._count(decision.reason, group.group.num_rollouts)
        if decision.keep:
            self.kept.append(group)
        self.keep_rate *= KEEP_RATE_DECAY
        self.keep_rate += (1 - KEEP_RATE_DECAY) * decision.keep
        self._num_done += 1
        self._raise_target()

    def _raise_target(self) -> None:
        """Raise the number of groups to start in this step, after one group was judged or withdrawn.

        It is called after every single group, which keeps the number independent of how many groups end at a time.
        """
        missing = self._least_kept - len(self.kept)
        if self._num_done < self._least_sampled:
            self._target = max(self._target, self._least_sampled)
        elif missing > 0:
            keep_rate = max(self.keep_rate, MIN_KEEP_RATE)
            needed = math.ceil(missing / keep_rate - 1e-9)
            self._target = max(self._target, self._num_done + needed)

    def _count(self, reason: str, num_rollouts: int) -> None:
        """Count one group and its rollouts under an outcome, such as all_wrong (no rollout is correct)."""
        self.counts[reason] += 1
        self.rollouts[reason] += num_rollouts

    def _starvation_message(self) -> str:
        counted: list[str] = []
        for reason in (*WORTHLESS, "timed_out", "postponed", "failed"):
            if self.counts[reason]:
                counted.append(f"{self.counts[reason]} {reason}")
        found = f"{len(self.kept)} of {self._least_kept} informative groups among {self._num_admitted}"
        return (
            f"dynamic sampling found {found} (dropped or postponed: {', '.join(counted) or 'none'}). All wrong: the"
            " tasks are too hard or the verifier never accepts; choose easier data.tasks or a larger"
            " rollouts.num_per_prompt. All correct: the tasks are solved; choose harder ones. Timed out, or postponed"
            " because rollouts were unfinished: raise rollouts.deadline_s or lower rollouts.min_fraction. Otherwise"
            " raise dynamic_sampling.max_sampled, lower rollouts.prompts_per_step, or set dynamic_sampling.fill=samples"
            " or dynamic_sampling.enabled=false"
        )
