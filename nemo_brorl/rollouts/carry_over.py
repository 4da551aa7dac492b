"""State of sampling that outlives a step: carried groups, and estimates of lengths, prompts and costs.

`Leftovers` owns partial groups and prompts to restart, `DynamicSampling` closed groups that are kept. Forecasts change
only between two steps, by `record_step`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from brorl_graders.base.environment_values import as_written, restored

from nemo_brorl.algorithm.teaching import BY_REWARDS, Teaching
from nemo_brorl.config.rollouts import DynamicSamplingConfig, RolloutsConfig
from nemo_brorl.generation.placement.lengths import LengthHistory
from nemo_brorl.ports import PromptSource
from nemo_brorl.rollouts.carried_groups import CarriedGroups, Leftovers
from nemo_brorl.rollouts.dynamic_sampling import DynamicSampling
from nemo_brorl.rollouts.fate import is_resumed
from nemo_brorl.rollouts.ledger import OpenGroup
from nemo_brorl.rollouts.prompt_pool import find_pool
from nemo_brorl.rollouts.replay_cache import ReplayCache
from nemo_brorl.rollouts.schedule import Stage
from nemo_brorl.rollouts.spent import Spent, outcomes
from nemo_brorl.types import Prompt, ScoredChunk, ScoredGroup


@dataclass(frozen=True)
class SamplerState:
    """State of sampling between two steps, as a checkpoint stores it."""

    prompts: dict[str, Any]  # state of the prompt stream
    carry_over: dict[str, Any]  # JSON-able
    groups: CarriedGroups


class CarryOver:
    """Everything that sampling carries from one step to the next."""

    def __init__(
        self,
        rollouts: RolloutsConfig,
        dynamic_sampling: DynamicSamplingConfig,
        prompts: PromptSource,
        seed: int,
        teaching: Teaching = BY_REWARDS,
    ) -> None:
        self.prompts = prompts
        self.pool = find_pool(rollouts.prompt_pool)(prompts, seed)
        self.dynamic_sampling = DynamicSampling(dynamic_sampling, teaching)
        self.leftovers = Leftovers()
        self.lengths = LengthHistory()
        self.spent = Spent()
        self.num_sampled = 0  # rollouts of the run when the last batch was taken
        self.is_batch_complete = False  # the kept groups are the next step's batch, and already recorded
        self.cut_step: tuple[ScoredChunk, ...] = ()  # chunks of a step that was cut, until it restarts
        self.may_mix_versions = rollouts.overlap or is_resumed(rollouts)

    def begin_step(self, stage: Stage, version: int) -> None:
        """Prepare for sampling a training batch under policy weights `version`.

        Groups left by earlier steps whose tokens were sampled under too old weights are dropped.
        """
        self.pool.begin_step()
        self.dynamic_sampling.begin_step(version, stage.prompts_per_step, self.is_batch_complete)
        self.leftovers.drop_older(version - self.dynamic_sampling.config.max_staleness)

    def take_replay(self, version: int) -> ReplayCache:
        """Return the chunks of rollouts of an interrupted step that a resumed run need not sample again.

        A step under weights `version` may use only some of them, unless weight versions may be mixed.
        """
        usable: list[ScoredChunk] = []
        for scored in self.cut_step:
            chunk = scored.chunk
            if self.may_mix_versions or chunk.version == chunk.newest_version == version:
                usable.append(scored)
        self.cut_step = ()
        return ReplayCache(usable)

    def take_prompts(self, num: int) -> list[Prompt]:
        """Return prompts for `num` new groups of rollouts.

        Prompts whose rollouts must be sampled again come first, each once.
        """
        restarted = self.leftovers.take_restarted(num)
        return restarted + self.pool.take_prompts(num - len(restarted))

    def take_completed(self) -> list[ScoredGroup]:
        """Return the groups whose cut rollouts have ended since a step trained on their other rollouts."""
        self.is_batch_complete = False
        self.num_sampled = self.spent.rollouts
        return self.leftovers.take_completed()

    def record_step(
        self,
        sampled: Sequence[ScoredGroup],
        cut: Sequence[OpenGroup],
        num_tokens: int,
    ) -> list[str]:
        """Update length forecasts, totals and prompt statistics with the groups of a step whose sampling has ended.

        Forecasts do not change while a batch is sampled. A batch with which the run was stopped has been recorded
        already. Returns a log line for each change of difficulty.

        `sampled`: all groups of which enough rollouts ended in the step. `cut`: groups with rollouts that were cut.
        `num_tokens`: tokens sampled in the step.
        """
        if self.is_batch_complete and not sampled:
            return []
        self.is_batch_complete = True
        self._observe_lengths(sampled, cut)
        self.spent = self.spent.plus(Spent.of_step(sampled, num_tokens, self.dynamic_sampling))
        self.pool.record_groups(sampled)
        return self.prompts.record_outcomes(outcomes(sampled))

    def _observe_lengths(self, sampled: Sequence[ScoredGroup], cut: Sequence[OpenGroup]) -> None:
        for scored in sampled:
            prompt = scored.prompt
            self.lengths.observe(prompt.task, prompt.uid, scored.group.lengths)
        for group in cut:
            for partial in group.partial:
                is_cut = np.ones(len(partial.lengths), bool)
                self.lengths.observe(group.prompt.task, group.uid, partial.lengths, is_cut)

    def metrics(self) -> dict[str, float]:
        """Return metrics of the tokens and rollouts that the run has sampled so far, and of the prompt pool."""
        return {**self.spent.metrics(), **self.pool.metrics()}

    def state(self) -> SamplerState:
        """Return a copy of the state of rollout sampling that a checkpoint needs."""
        groups = CarriedGroups(
            kept=tuple(self.dynamic_sampling.kept),
            partial=self.leftovers.copy_partial(),
            completed=tuple(self.leftovers.completed),
        )
        carry_over = {
            "keep_rate": self.dynamic_sampling.keep_rate,
            "restarted": [as_written(asdict(prompt)) for prompt in self.leftovers.restarted],
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
        """Restore the sampling state of a checkpoint.

        `cut_step` holds the scored chunks of rollouts of the step that was interrupted by this checkpoint.
        """
        values = state.carry_over
        groups = state.groups
        self.cut_step = cut_step
        self.dynamic_sampling.kept = list(groups.kept)
        self.leftovers.partial = list(groups.partial)
        self.leftovers.completed = list(groups.completed)
        self.prompts.load_state_dict(state.prompts)
        self.dynamic_sampling.keep_rate = values["keep_rate"]
        self.leftovers.restarted = [_prompt(record) for record in values["restarted"]]
        self.lengths.load_state_dict(values["lengths"])
        self.pool.load_state_dict(values["pool"])
        self.spent = Spent.from_state(values["spent"])
        self.is_batch_complete = values.get("is_batch_complete", False)


def _prompt(record: Mapping[str, Any]) -> Prompt:
    """Rebuild a Prompt from its JSON record, in which tuples are lists and environment variables appear by name."""
    fields = restored(dict(record))
    fields["token_ids"] = tuple(record["token_ids"])
    fields["messages"] = tuple(record["messages"])
    return Prompt(**fields)
