"""Filling of one batch with informative groups: admit prompts as groups close, and cut slow rollouts.

A fill is *filling* until the batch is full or the step's deadline has passed. It is then *draining* until nothing is
being sampled, and then *done*. Forecasts and prompt pools are updated once, when the fill becomes done
(`CarryOver.record_step`).

`fate.py` decides what happens to a group once none of its rollouts is being sampled. Rollouts are cut by a deadline, or
because the batch is full. Then `rollouts.unfinished` decides whether groups in flight are finished and serve the next
step, are resumed there, or are dropped.

Each fact about a batch has one owner:

    GroupLedger (in RolloutStream)  groups being sampled, and their rollouts that are out, finished or partial
    DynamicSampling                 order of admission, groups that closed in this step, groups kept
    Leftovers (in CarryOver)        partial groups and prompts for the next step, completed groups
    BatchFill                       the state, and which groups were cut

A fill of 2 groups of 8 with `rollouts.unfinished: resume`, `min_fraction` ½ and a step deadline:

    admit a, b, c        ledger a b c   kept –    partial –        keep rate 0.7: 3 in flight for 2
    a settles: 8 of 8    ledger b c     kept a    partial –
    deadline: cut b, c   draining
    b settles: 6 of 8    ledger c       kept a b  partial b        closed; the next step resumes its other 2
    c settles: 1 of 8    ledger –       kept a b  partial b c      open; admitted first in the next step
    done                 the batch is a b
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.generation.metrics import generation_metrics
from nemo_brorl.rollouts.carry_over import CarryOver
from nemo_brorl.rollouts.dynamic_sampling import POSTPONED
from nemo_brorl.rollouts.failures import FailureCount
from nemo_brorl.rollouts.fate import Fate, fate_of, is_resumed
from nemo_brorl.rollouts.ledger import OpenGroup, check_version, sampling_of
from nemo_brorl.rollouts.metrics import cut_metrics, group_metrics
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.rollouts.schedule import Stage
from nemo_brorl.rollouts.stream import TURN_S
from nemo_brorl.types import FilledBatch, WithdrawnGroup

log = get_logger(__name__)

# Names of the `dynamic_sampling/…` metrics that count groups which do not close in this step.
WITHDRAWN = {Fate.POSTPONE: "postponed", Fate.DROP: "dropped", Fate.TIME_OUT: "timed_out", Fate.FAIL: "failed"}
REMEDY = (
    "Mend the reward function or its service. The same command goes on from the last checkpoint, with "
    "data.changed_rows=accept after a change of code"
)


class FillState(Enum):
    """State of a batch that is being filled."""

    FILLING = "filling"
    DRAINING = "draining"
    DONE = "done"


class BatchFill:
    """One batch that is being filled. Call `advance` until `is_done`, then `finish`."""

    def __init__(
        self,
        carry_over: CarryOver,
        sampler: Sampler,
        settings: RolloutsConfig,
        chunk_size: int,
        stage: Stage,
        version: int,
    ) -> None:
        """Start to sample a training batch under policy weights `version`.

        A request to an engine has at most `chunk_size` rollouts.
        """
        self.state_before = carry_over.state()  # state for the checkpoint if this step is cut
        carry_over.begin_step(stage, version)
        self.carry_over = carry_over
        self.dynamic_sampling = carry_over.dynamic_sampling
        self.leftovers = carry_over.leftovers
        self.sampler = sampler
        self.settings = settings
        self.sampling = sampling_of(settings)
        self.stage = stage
        self.version = version
        self.replay_cache = carry_over.take_replay(version)
        self.stream = sampler.open_stream(carry_over.lengths, chunk_size, self.replay_cache)
        self.state = FillState.FILLING
        self.cuts_surplus = False  # True: groups in flight were cut because the batch was full
        self.cut_groups: list[OpenGroup] = []
        self.withdrawn: list[WithdrawnGroup] = []
        self.failures = FailureCount()
        self.num_settled = 0  # groups
        self.num_unscored = 0  # rollouts of withdrawn groups whose verifier failed
        self.stats_before = sampler.generator.stats()
        self.stats_after = self.stats_before
        sampler.console.begin()
        self.start = time.monotonic()
        self.filling_since = self.start
        self.done_at = self.start
        for group in self.leftovers.take_closed():
            self.stream.resume(group)

    @property
    def is_done(self) -> bool:
        """Return True if the training batch is complete and no rollout is being sampled."""
        return self.state is FillState.DONE

    def advance(self, timeout_s: float = TURN_S) -> None:
        """Start missing groups of rollouts, wait at most `timeout_s` seconds for results, and handle them.

        Raises StarvationError when sampling finds too few informative groups, VerifierError when no response of a step
        can be scored, and GenerationError when engines fail too often.
        """
        if self.state is FillState.FILLING:
            self._admit()
        for group in self.stream.advance(timeout_s):
            self._settle(group)
        if self.num_settled >= self.stage.prompts_per_step:
            self.failures.check(REMEDY)
        if self.state is FillState.FILLING:
            self._drain_if_due()
        self.done_at = time.monotonic()
        if self.state is FillState.DRAINING and self.stream.is_idle:
            self._end()
        if not self.is_done:
            stream = self.stream
            seconds = self.done_at - self.start
            self.sampler.console.progress("generate", stream.num_settled, stream.num_asked, "rollouts", seconds)

    def complete(self, check: Callable[[], None] = lambda: None) -> None:
        """Call `advance` until the training batch is complete, and `check` after each call.

        Raises what `advance` or `check` raises, after the sampling of all rollouts was stopped.
        """
        try:
            with self.sampler.stage("generate"):
                while not self.is_done:
                    self.advance()
                    check()
        except BaseException:  # also Ctrl-C: no engine may continue to sample
            self._close()
            raise

    def finish(self) -> FilledBatch:
        """Return the complete training batch of groups, with its metrics."""
        assert self.is_done, f"the batch was taken while it was {self.state.value}"
        completed = self.carry_over.take_completed()
        batch = (*self.dynamic_sampling.take_batch(), *completed)
        sampled = self.dynamic_sampling.sampled()
        sampled_at = max(self.stream.sampled_at, self.start)
        generate_s = sampled_at - self.start
        metrics = group_metrics(sampled, self.stage.num_per_prompt, self.dynamic_sampling.teaching)
        seconds = max(generate_s, 1e-9)
        metrics.update(generation_metrics(self.stats_before, self.stats_after, seconds))
        metrics.update(self.dynamic_sampling.metrics())
        metrics.update(cut_metrics(self.cut_groups))
        metrics.update(self.carry_over.metrics())
        if self.num_unscored:
            metrics["reward/num_failed"] = metrics.get("reward/num_failed", 0.0) + self.num_unscored
        loss_scale = self.dynamic_sampling.share_of_step(batch)
        metrics["dynamic_sampling/loss_scale"] = loss_scale
        metrics["rollouts/late_groups"] = float(len(completed))
        metrics["rollouts/salvaged"] = float(self.replay_cache.num_taken)
        return FilledBatch(
            batch=batch,
            sampled=tuple(sampled),
            withdrawn=tuple(self.withdrawn),
            loss_scale=loss_scale,
            metrics=metrics,
            generate_s=generate_s,
            reward_s=max(self.done_at - sampled_at, 0.0),
            failures=tuple(self.failures.lines()),
        )

    def _admit(self) -> None:
        """Start as many groups of rollouts as dynamic sampling needs.

        Groups that the previous step left unfinished come first.
        """
        num = self.dynamic_sampling.num_to_admit()
        groups = self.leftovers.take_open(num)
        prompts = self.carry_over.take_prompts(num - len(groups))
        self.dynamic_sampling.admit(group.uid for group in groups)
        self.dynamic_sampling.admit(prompt.uid for prompt in prompts)
        for group in groups:
            self.stream.resume(group)
        for prompt in prompts:
            self.stream.open(prompt, self.stage.num_per_prompt, self.sampling, self.settings.deadline_s)

    def _settle(self, group: OpenGroup) -> None:
        """Decide what happens to a group whose rollouts have all ended or were cut off.

        The group is offered to dynamic sampling, is postponed to the next step, or is dropped. If a step has trained
        on the group already, the rollouts that have ended since are kept for the next step.
        """
        if not self.carry_over.may_mix_versions:
            check_version(group, self.version)
        if group.partial:
            self.cut_groups.append(group)
        if group.scored_chunks or group.unscored:
            self.num_settled += 1
            self.failures.add(group.close())
        fate = fate_of(group, self.cuts_surplus, self.settings)
        self.stream.release(group.uid)
        if fate is Fate.COMPLETE:
            self._complete_group(group)
        elif fate in WITHDRAWN:
            self.num_unscored += group.num_failed
            self._withdraw(group, WITHDRAWN[fate])
        else:
            self.dynamic_sampling.offer(group.close())
            group.num_trained_chunks = len(group.scored_chunks) if group.partial else 0
        # The next step resumes postponed groups, and the cut rollouts of groups that a step trains on.
        if group.partial and is_resumed(self.settings):
            self.leftovers.put_back(group)

    def _complete_group(self, group: OpenGroup) -> None:
        """Keep a group's late rollouts for the next step if dynamic sampling keeps the group.

        Late rollouts ended after an earlier step had trained on the rest of the group.
        """
        if len(group.scored_chunks) == group.num_trained_chunks:
            return
        scored = replace(group.close(), train_indices=group.untrained_indices())
        if self.dynamic_sampling.judge(scored).keep:
            self.leftovers.put_completed(scored)
        group.num_trained_chunks = len(group.scored_chunks)

    def _withdraw(self, group: OpenGroup, reason: str) -> None:
        if group.scored_chunks and reason not in POSTPONED:  # a later step records postponed groups whole
            self.withdrawn.append(WithdrawnGroup(group.close(), reason))
        self.dynamic_sampling.withdraw(group.uid, reason, group.num_finished)

    def _drain_if_due(self) -> None:
        """Stop starting groups when the training batch is full or the step's deadline has passed."""
        limit_s = self.settings.step_deadline_s
        seconds = time.monotonic() - self.filling_since
        is_overdue = limit_s is not None and seconds > limit_s
        if self.dynamic_sampling.is_full:
            self._admit()  # groups that would have been admitted if groups had closed one at a time
        elif not is_overdue:
            return
        self.state = FillState.DRAINING
        self.cuts_surplus = not is_overdue and self.settings.unfinished != "finish"
        if is_overdue or self.cuts_surplus:
            self.stream.cut()

    def _end(self) -> None:
        """End the sampling of a training batch, because no rollout is being sampled any more.

        If the batch would be empty, sampling continues.
        """
        if not self.dynamic_sampling.kept:
            limit_s = self.settings.step_deadline_s
            log.warning("rollouts.step_deadline_s=%s: no informative group so far, so sampling continues", limit_s)
            self.state = FillState.FILLING
            self.filling_since = time.monotonic()
            return
        self.state = FillState.DONE
        self._close()
        self.stats_after = self.sampler.generator.stats()
        sampled = self.dynamic_sampling.sampled()
        for change in self.carry_over.record_step(sampled, self.cut_groups, self.stream.num_tokens):
            self.sampler.console.line(change)

    def _close(self) -> None:
        self.stream.close()
        self.sampler.console.clear()
