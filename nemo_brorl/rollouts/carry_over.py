"""State of sampling that outlives a step: groups carried from one batch to the next, and what was learned of lengths.

`CarryOver` is the only owner of partial groups between steps, of prompts that are to be restarted, and of the chunks
that a cut step had sampled. Groups that are closed and kept belong to its `DynamicSampling`. While a batch is filled,
`BatchFill` takes from here what it begins with and puts back what it leaves. Forecasts change only between two steps,
by `learn`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from brorl_graders.environment_values import as_written, restored

from nemo_brorl.config.rollouts import DynamicSamplingConfig, RolloutsConfig
from nemo_brorl.generation.placement.lengths import LengthHistory
from nemo_brorl.ports import PromptSource
from nemo_brorl.rollouts.dynamic_sampling import DynamicSampling, judge
from nemo_brorl.rollouts.fate import is_resumed
from nemo_brorl.rollouts.ledger import OpenGroup
from nemo_brorl.rollouts.prompt_pool import find_pool
from nemo_brorl.rollouts.replay_cache import ReplayCache
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.rollouts.schedule import Stage
from nemo_brorl.rollouts.spent import Spent, outcomes
from nemo_brorl.types import Prompt, Sampling, ScoredChunk, ScoredGroup


@dataclass(frozen=True)
class CarriedGroups:
    """Groups between two steps."""

    kept: tuple[ScoredGroup, ...] = ()  # closed, informative, not learnt from yet
    partial: tuple[
        OpenGroup, ...
    ] = ()  # cut, to be sampled on; some are closed, learnt from without their partial ones
    completed: tuple[ScoredGroup, ...] = ()  # closed before; their partial rollouts have ended, not learnt from yet


@dataclass(frozen=True)
class SamplerState:
    """Where sampling stands between two steps: what a checkpoint holds of it."""

    prompts: dict[str, Any]  # state of the stream
    carry_over: dict[str, Any]  # JSON-able
    groups: CarriedGroups


class CarryOver:
    """Partial groups, prompts to restart, and forecasts of a run.

    A group that was cut goes on in the next step, by the number of its rollouts that had finished:

        train/7: 6 of 8, enough to close   the step learns from 6; partial (is_closed), resumed first in the next step:
                                           completed when its 2 have ended, a group of 8 with 2 to learn from
        train/8: 2 of 8                    partial (open); admitted first in the next step, where it closes
        train/9: 0 of 8, not a token       restarted; its prompt is handed out once more
    """

    def __init__(
        self,
        rollouts: RolloutsConfig,
        dynamic_sampling: DynamicSamplingConfig,
        num_engines: int,
        prompts: PromptSource,
        sampler: Sampler,
    ) -> None:
        self.settings = rollouts
        self.num_engines = num_engines
        self.prompts = prompts
        self.sampler = sampler
        self.dynamic_sampling = DynamicSampling(dynamic_sampling)
        self.sampling = Sampling(
            temperature=rollouts.temperature,
            top_p=rollouts.top_p,
            max_tokens=rollouts.max_response_tokens,
            max_turn_tokens=rollouts.max_turn_tokens,
        )
        self.partial: list[OpenGroup] = []
        self.completed: list[ScoredGroup] = []
        self.restarted: list[Prompt] = []
        self.cut_step: tuple[ScoredChunk, ...] = ()  # what a step that was cut had sampled, until it begins anew
        self.lengths = LengthHistory()
        self.spent = Spent()
        self.pool = find_pool(rollouts.prompt_pool)(prompts, sampler.seed)
        self.num_sampled = 0  # rollouts of the run when the last batch was taken
        self.is_batch_complete = False  # what is kept is the next step's batch; what was sampled for it is learnt
        self.may_mix_versions = rollouts.overlap or is_resumed(rollouts)

    def begin_step(self, stage: Stage, version: int) -> None:
        """A batch is to be filled under weights `version`. Groups that are too old are given up: kept and closed ones
        are dropped, open ones start anew."""
        self.pool.begin_step()
        self.dynamic_sampling.begin_step(version, stage.prompts_per_step, self.is_batch_complete)
        oldest = version - self.dynamic_sampling.config.max_staleness
        fresh: list[OpenGroup] = []
        for group in self.partial:
            if (group.oldest_version or 0) >= oldest:
                fresh.append(group)
            elif not group.is_closed:
                self.restart(group.prompt)
        self.partial = fresh

    def take_replay(self, version: int) -> ReplayCache:
        """Chunks of the step that was cut, as far as a step under weights `version` may use them."""
        usable: list[ScoredChunk] = []
        for scored in self.cut_step:
            chunk = scored.chunk
            if self.may_mix_versions or chunk.version == chunk.newest_version == version:
                usable.append(scored)
        self.cut_step = ()
        return ReplayCache(usable)

    def take_closed(self) -> list[OpenGroup]:
        """Partial groups that a step has learnt from already."""
        closed: list[OpenGroup] = []
        left: list[OpenGroup] = []
        for group in self.partial:
            if group.is_closed:
                closed.append(group)
            else:
                left.append(group)
        self.partial = left
        return closed

    def take_open(self, num: int) -> list[OpenGroup]:
        """At most `num` partial groups that are to be admitted again, the oldest first."""
        taken: list[OpenGroup] = []
        left: list[OpenGroup] = []
        for group in self.partial:
            if group.is_closed or len(taken) == num:
                left.append(group)
            else:
                taken.append(group)
        self.partial = left
        return taken

    def take_prompts(self, num: int) -> list[Prompt]:
        """Prompts of `num` new groups: those to be restarted first; each is handed out once more."""
        restarted = self.restarted[:num]
        self.restarted = self.restarted[num:]
        return restarted + self.pool.take(num - len(restarted))

    def take_completed(self) -> list[ScoredGroup]:
        """Completed groups in the order of their prompts' uids, as the batch is taken."""
        self.is_batch_complete = False
        self.num_sampled = self.spent.rollouts
        completed = sorted(self.completed, key=lambda group: group.prompt.uid)
        self.completed = []
        return completed

    def put_back(self, group: OpenGroup) -> None:
        """Keep a group that was cut for the next step; one without a token starts anew."""
        if group.oldest_version is None:
            self.restart(group.prompt)
        else:
            self.partial.append(group)

    def restart(self, prompt: Prompt) -> None:
        """Hand a prompt out once more."""
        self.restarted.append(prompt)

    def put_completed(self, group: ScoredGroup) -> None:
        """Keep a group that was closed before, now with more rollouts, until a step takes it."""
        self.completed.append(group)

    def learn(
        self,
        sampled: Sequence[ScoredGroup],
        cut: Sequence[OpenGroup],
        num_tokens: int,
    ) -> None:
        """Take in what a step has seen, once it is over: forecasts do not change while a batch is filled.
        A batch that the run was stopped with has been learnt.

        `sampled`: all groups that closed in it; `cut`: those of which rollouts were cut; `num_tokens`: sampled in it.
        """
        if self.is_batch_complete and not sampled:
            return
        self.is_batch_complete = True
        num_informative = 0
        num_rollouts = 0
        for scored in sampled:
            prompt = scored.prompt
            self.lengths.observe(prompt.task, prompt.uid, scored.group.lengths)
            decision = judge(scored, self.dynamic_sampling.config)
            num_informative += decision.reason == "informative"
            num_rollouts += len(scored.rewards)
        for group in cut:
            task = group.prompt.task
            for block in group.partial:
                is_cut = np.ones(len(block.lengths), bool)
                self.lengths.observe(task, group.uid, block.lengths, is_cut)
        self.pool.learn(sampled)
        changes = self.prompts.learn(outcomes(sampled))
        for change in changes:
            self.sampler.console.line(change)
        of_step = Spent(num_tokens, num_informative, num_rollouts)
        self.spent = self.spent.plus(of_step)

    def metrics(self) -> dict[str, float]:
        """What the run has spent so far, and prompts that were passed over."""
        return {**self.spent.metrics(), **self.pool.metrics()}

    def state(self) -> SamplerState:
        """A copy of all that a checkpoint needs, whatever is sampled afterwards."""
        groups = CarriedGroups(
            kept=tuple(self.dynamic_sampling.kept),
            partial=tuple(_copy(group) for group in self.partial),
            completed=tuple(self.completed),
        )
        carry_over = {
            "keep_rate": self.dynamic_sampling.keep_rate,
            "restarted": [as_written(asdict(prompt)) for prompt in self.restarted],
            "lengths": self.lengths.state_dict(),
            "pool": self.pool.state_dict(),
            "spent": self.spent.state_dict(),
            "is_batch_complete": self.is_batch_complete,
        }
        return SamplerState(
            prompts=deepcopy(self.prompts.state_dict()),
            carry_over=deepcopy(carry_over),
            groups=groups,
        )

    def load_state(
        self,
        state: SamplerState,
        cut_step: tuple[ScoredChunk, ...] = (),
    ) -> None:
        """Continue where `state` was taken; `cut_step`: what the step that was cut there had sampled."""
        own = state.carry_over
        groups = state.groups
        self.cut_step = cut_step
        self.dynamic_sampling.kept = list(groups.kept)
        self.partial = list(groups.partial)
        self.completed = list(groups.completed)
        self.prompts.load_state_dict(state.prompts)
        self.dynamic_sampling.keep_rate = own["keep_rate"]
        self.restarted = [_prompt(record) for record in own["restarted"]]
        self.lengths.load_state_dict(own["lengths"])
        self.pool.load_state_dict(own["pool"])
        self.spent = Spent.from_state(own["spent"])
        self.is_batch_complete = own.get("is_batch_complete", False)


def _copy(group: OpenGroup) -> OpenGroup:
    """An open group that does not change when the original is sampled on."""
    return replace(
        group,
        parts=list(group.parts),
        partial=list(group.partial),
    )


def _prompt(record: Mapping[str, Any]) -> Prompt:
    """A prompt from JSON, where a tuple has become a list and a value of the environment its name."""
    fields = restored(dict(record))
    fields["token_ids"] = tuple(record["token_ids"])
    fields["messages"] = tuple(record["messages"])
    return Prompt(**fields)
