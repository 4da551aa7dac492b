"""Fill a batch with informative groups: prompts are admitted one by one as groups close, slow rollouts are cut, nothing
is lost.

A collection is *filling* until the batch is full or the step's deadline has passed, then *draining* until nothing is
under way.

A group whose slow rollouts were cut closes without them if at least `min_fraction` of it has ended. With
`rollouts.unfinished: drop` the rest is gone; with `resume` it is the group's *tail*: sampled on in the next step and
learnt from then, judged within the whole group. A group with less is dropped as timed out, or with `resume` *held*: it
goes on as a whole in the next step.

Surplus groups in flight when the batch is full are finished, held, restarted (their prompts come first in the next
step) or dropped, as `dynamic_sampling.in_flight` says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from nemo_brorl.config.derived import num_engines
from nemo_brorl.core.clock import StepCut
from nemo_brorl.core.errors import GenerationError
from nemo_brorl.core.logs import get_logger
from nemo_brorl.rollouts.carry_over import Collector
from nemo_brorl.rollouts.dynamic_sampling import judge
from nemo_brorl.rollouts.group_size.allocation import allocation_metrics
from nemo_brorl.rollouts.group_size.waves import make_allocation
from nemo_brorl.rollouts.ledger import OpenGroup, length_bias
from nemo_brorl.rollouts.metrics import generation_metrics
from nemo_brorl.rollouts.requests import fitting_chunk_size
from nemo_brorl.rollouts.sampler import TURN_S, RolloutStream
from nemo_brorl.rollouts.schedule import Stage
from nemo_brorl.types import ScoredGroup

log = get_logger(__name__)

MIN_GROUP = 2  # rollouts: fewer cannot disagree


@dataclass(frozen=True)
class Collected:
    """What a step's sampling came to."""

    batch: tuple[ScoredGroup, ...]  # to learn from, tails of earlier groups last
    sampled: tuple[ScoredGroup, ...]  # every group that closed, informative or not
    metrics: Mapping[str, float]
    generate_s: float  # until the last rollout was sampled
    reward_s: float  # after that, until the last one was scored


class Collection:
    """One batch being filled. Call `advance` until `is_done`, then `finish`."""

    def __init__(self, collector: Collector, stage: Stage, version: int) -> None:
        """Starts at once, under weights `version`."""
        collector.begin_step(stage, version)
        self.collector = collector
        self.stage = stage
        self.version = version
        self.settings = collector.config.rollouts
        self.dynamic_sampling = collector.dynamic_sampling
        num_rollouts, chunk_size = stage.num_per_prompt * stage.prompts_per_step, self.settings.chunk_size
        fitting = fitting_chunk_size(num_rollouts, num_engines(collector.config), chunk_size)
        self.salvage = collector.take_salvage(version)
        self.stream: RolloutStream = collector.sampler.open_stream(collector.lengths, fitting, self.salvage)
        self.allocation = make_allocation(
            self.settings, stage.num_per_prompt, collector.beliefs, collector.config.trainer.seed
        )
        self.sampled: list[ScoredGroup] = []
        self.cut_groups: list[OpenGroup] = []
        self.admitted: dict[str, int] = {}  # uid to place
        self.cuts_surplus = False
        self.is_filling = True
        self.is_overdue = False
        self.is_learnt = False
        self.before = self.after = collector.sampler.generator.stats()
        collector.console.begin()
        self.start = self.filled_since = time.monotonic()
        self.done_at = self.start
        tails, collector.tails = collector.tails, []
        for group in tails:
            self.stream.resume(group)

    @property
    def is_done(self) -> bool:
        """Whether the batch can be taken and nothing is under way."""
        return not self.is_filling and self.stream.is_idle

    def advance(self, timeout_s: float = TURN_S) -> None:
        """Admit what is missing, wait for news at most `timeout_s`, and act on it. Raises StarvationError,
        GenerationError."""
        if self.is_filling:
            self._admit()
        for group in self.stream.advance(timeout_s):
            self._settle(group)
        if self.is_filling:
            self._look_at_clock()
            if self.dynamic_sampling.is_full:
                self._admit()  # what faster groups would have made room for
            if self.is_overdue or self.dynamic_sampling.is_full:
                self._drain()
        if self.is_done and not self.dynamic_sampling.kept:
            log.warning(
                "no informative group within rollouts.step_deadline_s=%s: sampling goes on",
                self.settings.step_deadline_s,
            )
            self.is_filling, self.is_overdue, self.filled_since = True, False, time.monotonic()
        self.done_at = time.monotonic()
        self.collector.console.progress(
            "generate", self.stream.num_settled, self.stream.num_asked, "rollouts", self.done_at - self.start
        )

    def complete(self, check: Callable[[], None] = lambda: None) -> Collection:
        """Advance until it is done. Raises as `advance`, or what `check`, called at every turn, raises; nothing is
        under way then. After StepCut the collector has what was sampled."""
        try:
            with self.collector.sampler.stage("generate"):
                while not self.is_done:
                    self.advance()
                    check()
        except BaseException as cause:  # whatever ended it, Ctrl-C too: no engine samples on
            self.close()
            if isinstance(cause, StepCut):
                self.collector.salvaged = self.salvage.chunks
            raise
        return self

    def finish(self) -> Collected:
        """Take the batch; the engines are idle then."""
        self.close()
        late, self.collector.late = sorted(self.collector.late, key=lambda group: group.prompt.uid), []
        batch = (*self.dynamic_sampling.take(), *late)
        sampled_at = max(self.stream.sampled_at, self.start)
        generate_s = sampled_at - self.start
        metrics = {
            **generation_metrics(self.before, self.after, max(generate_s, 1e-9)),
            **self.dynamic_sampling.metrics(),
            **length_bias(self.cut_groups),
            **(allocation_metrics(self.sampled, self.stage.num_per_prompt) if self.sampled else {}),
            **self.collector.spent.metrics(),
            "rollouts/late_groups": float(len(late)),
            "rollouts/salvaged": float(self.salvage.num_taken),
        }
        return Collected(batch, tuple(self.sampled), metrics, generate_s, max(self.done_at - sampled_at, 0.0))

    def close(self) -> None:
        """Drop what is under way. What was seen is learnt from if the collection is done."""
        self.stream.close()
        if self.is_done and not self.is_learnt:
            self.sampled.sort(
                key=lambda group: self.admitted[group.prompt.uid]
            )  # nothing depends on which closed first
            self.collector.learn(self.sampled, self.cut_groups, self.stream.num_tokens)
            self.is_learnt = True
            self.after = self.collector.sampler.generator.stats()
        self.collector.console.clear()

    def _admit(self) -> None:
        num = self.dynamic_sampling.num_to_admit()
        held, self.collector.held = self.collector.held[:num], self.collector.held[num:]
        prompts = self.collector.next_prompts(num - len(held))
        uids = [group.uid for group in held] + [prompt.uid for prompt in prompts]
        self.dynamic_sampling.admit(uids)
        self.admitted |= {uid: len(self.admitted) + place for place, uid in enumerate(uids)}
        for group in held:
            self.stream.resume(group)
        for prompt in prompts:
            self.stream.open(prompt, self.allocation.first(prompt), self.collector.sampling, self.settings.deadline_s)

    def _settle(self, group: OpenGroup) -> None:
        self._check_versions(group)
        if group.unfinished:
            self.cut_groups.append(group)
        if group.num_learnt:
            self._settle_tail(group)
        elif not group.unfinished:
            self._extend_or_close(group)
        elif self.cuts_surplus:
            self._settle_surplus(group)
        else:
            self._settle_late(group)

    def _settle_late(self, group: OpenGroup) -> None:
        """Some of its rollouts missed a deadline."""
        goes_on = self.settings.unfinished == "resume"
        if group.num_finished >= max(MIN_GROUP, math.ceil(self.settings.min_fraction * group.num_rollouts)):
            self._close(group, is_cut=True)
            group.num_learnt = len(group.parts)
            if goes_on:
                self.collector.tails.append(group)
        elif goes_on:
            self._withdraw(group, "held")
            self.collector.hold(group)
        else:
            self._withdraw(group, "timed_out")

    def _settle_surplus(self, group: OpenGroup) -> None:
        """It was cut because the batch is full."""
        fate = self.collector.config.dynamic_sampling.in_flight
        self._withdraw(group, {"resume": "held", "restart": "restarted", "drop": "dropped"}[fate])
        if fate == "resume":
            self.collector.hold(group)
        elif fate == "restart":
            self.collector.restarted.append(group.prompt)

    def _settle_tail(self, group: OpenGroup) -> None:
        self.stream.release(group.uid)
        if len(group.parts) > group.num_learnt:
            scored = replace(
                group.close(), waves=self.allocation.close(group.draws, is_cut=True), learn_from=group.tail()
            )
            if judge(scored, self.collector.config.dynamic_sampling).keep:
                self.collector.late.append(scored)
            group.num_learnt = len(group.parts)
        if group.unfinished and self.settings.unfinished == "resume":
            self.collector.tails.append(group)

    def _extend_or_close(self, group: OpenGroup) -> None:
        """All it was asked for is there. Once the collection is cut short, nothing is asked for any more."""
        is_cut = self.is_overdue or self.cuts_surplus
        draw = None if is_cut else self.allocation.extend(group.prompt, group.draws, group.rewards, group.lengths)
        if draw is None:
            self._close(group, is_cut)
        else:
            self.stream.extend(group.uid, draw)

    def _close(self, group: OpenGroup, is_cut: bool) -> None:
        self.stream.release(group.uid)
        scored = replace(group.close(), waves=self.allocation.close(group.draws, is_cut))
        self.sampled.append(scored)
        self.dynamic_sampling.offer(scored)

    def _withdraw(self, group: OpenGroup, reason: str) -> None:
        self.stream.release(group.uid)
        self.dynamic_sampling.withdraw(group.uid, reason, group.num_finished)

    def _look_at_clock(self) -> None:
        limit = self.settings.step_deadline_s
        self.is_overdue = limit is not None and time.monotonic() - self.filled_since > limit

    def _drain(self) -> None:
        self.is_filling = False
        self.cuts_surplus = not self.is_overdue and self.collector.config.dynamic_sampling.in_flight != "finish"
        if self.is_overdue or self.cuts_surplus:
            self.stream.cut([uid for uid, group in self.stream.ledger.groups.items() if not group.is_settled])

    def _check_versions(self, group: OpenGroup) -> None:
        if self.collector.may_mix_versions:
            return
        for part in group.parts:
            if part.chunk.version != self.version or part.chunk.newest_version != self.version:
                raise GenerationError(
                    f"engine {part.chunk.engine} sampled {group.uid} under version {part.chunk.version} to "
                    f"{part.chunk.newest_version}, "
                    f"the step is of version {self.version}"
                )
