"""What outlives a step of sampling: surplus, held groups, tails, prompts to restart, and what was learnt about lengths
and success."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.generation.placement.lengths import LengthHistory
from nemo_brorl.ports import PromptSource
from nemo_brorl.rollouts.dynamic_sampling import DynamicSampling, judge
from nemo_brorl.rollouts.group_size.allocation import Spent
from nemo_brorl.rollouts.group_size.success_posterior import SuccessPosterior
from nemo_brorl.rollouts.ledger import OpenGroup, UnderWay
from nemo_brorl.rollouts.salvage import Salvage
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.rollouts.schedule import Stage
from nemo_brorl.types import Prompt, Sampling, ScoredChunk, ScoredGroup


@dataclass(frozen=True)
class Standpoint:
    """Where sampling stands between two steps: what a checkpoint holds of it."""

    prompts: dict[str, Any]  # state of the stream
    collector: dict[str, Any]
    under_way: UnderWay


class Collector:
    """Owns what outlives a step: dynamic sampling's surplus, held groups, tails, prompts to restart."""

    def __init__(self, config: BroRLConfig, prompts: PromptSource, sampler: Sampler, console: Console) -> None:
        self.config = config
        self.prompts = prompts
        self.sampler = sampler
        self.console = console
        self.dynamic_sampling = DynamicSampling(config.dynamic_sampling)
        self.sampling = Sampling(
            config.rollouts.temperature, config.rollouts.top_p, config.rollouts.max_response_tokens
        )
        self.held: list[OpenGroup] = []
        self.tails: list[OpenGroup] = []
        self.late: list[ScoredGroup] = []  # tails that have ended
        self.restarted: list[Prompt] = []
        self.salvaged: tuple[ScoredChunk, ...] = ()  # of a step that was cut, until it begins anew
        self.lengths = LengthHistory()
        self.beliefs = SuccessPosterior(config.rollouts.posterior)
        self.spent = Spent()
        settings = (config.rollouts.unfinished, config.dynamic_sampling.in_flight)
        self.may_mix_versions = config.rollouts.overlap or "resume" in settings

    def begin_step(self, stage: Stage, version: int) -> None:
        """A batch is to be filled under weights `version`."""
        self.dynamic_sampling.begin_step(version, stage.prompts_per_step)
        self._retire(version)

    def take_salvage(self, version: int) -> Salvage:
        """For a step under weights `version`: what the step that was cut had sampled, as far as this one may use it."""
        chunks, self.salvaged = self.salvaged, ()
        usable = [s for s in chunks if self.may_mix_versions or s.chunk.version == s.chunk.newest_version == version]
        return Salvage(usable)

    def next_prompts(self, num: int) -> list[Prompt]:
        """Restarted ones first; each is handed out once more."""
        again, self.restarted = self.restarted[:num], self.restarted[num:]
        return again + self.prompts.take(num - len(again))

    def hold(self, group: OpenGroup) -> None:
        """Keep a group for the next step; one without a token starts anew."""
        if group.oldest_version is None:
            self.restarted.append(group.prompt)
        else:
            self.held.append(group)

    def under_way(self) -> UnderWay:
        """The groups between two steps, for a checkpoint. Open ones are copied: they change when they are sampled
        on."""
        held, tails = ([_copy(group) for group in groups] for groups in (self.held, self.tails))
        return UnderWay(tuple(self.dynamic_sampling.kept), tuple(held), tuple(tails), tuple(self.late))

    def standpoint(self) -> Standpoint:
        """As of now, whatever is sampled afterwards."""
        return Standpoint(deepcopy(self.prompts.state_dict()), deepcopy(self.state_dict()), self.under_way())

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; the groups are in `under_way`."""
        return {
            "keep_rate": self.dynamic_sampling.keep_rate,
            "restarted": [asdict(prompt) for prompt in self.restarted],
            "lengths": self.lengths.state_dict(),
            "beliefs": self.beliefs.state_dict(),
            "spent": self.spent.state_dict(),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], under_way: UnderWay, salvaged: tuple[ScoredChunk, ...] = ()
    ) -> None:
        """Continue where `state` was taken; `salvaged` is of a step that was cut there."""
        self.salvaged = salvaged
        self.dynamic_sampling.kept, self.held, self.tails = (
            list(under_way.kept),
            list(under_way.held),
            list(under_way.tails),
        )
        self.late = list(under_way.late)
        self.dynamic_sampling.keep_rate = state["keep_rate"]
        self.restarted = [
            Prompt(**{**prompt, "token_ids": tuple(prompt["token_ids"])}) for prompt in state["restarted"]
        ]
        self.lengths.load_state_dict(state["lengths"])
        self.beliefs.load_state_dict(state["beliefs"])
        self.spent = Spent.from_state(state["spent"])

    def learn(self, sampled: Sequence[ScoredGroup], cut: Sequence[OpenGroup], num_tokens: int) -> None:
        """Take in what a collection has seen, once it is over: forecasts and beliefs do not change while one is under
        way."""
        for scored in sampled:
            self.lengths.observe(scored.prompt.task, scored.prompt.uid, scored.group.lengths)
        for group in cut:
            for partial in group.unfinished:
                self.lengths.observe(group.prompt.task, group.uid, partial.lengths, np.ones(len(partial.lengths), bool))
        self.beliefs.learn(sampled)
        informative = sum(judge(group, self.config.dynamic_sampling).reason == "informative" for group in sampled)
        self.spent = self.spent.plus(num_tokens, informative)

    def _retire(self, version: int) -> None:
        """Held groups that are too old start anew, tails that are too old are dropped."""
        oldest = version - self.config.dynamic_sampling.max_staleness
        for group in [group for group in self.held if (group.oldest_version or 0) < oldest]:
            self.held.remove(group)
            self.restarted.append(group.prompt)
        self.tails = [group for group in self.tails if (group.oldest_version or 0) >= oldest]


def _copy(group: OpenGroup) -> OpenGroup:
    return replace(group, parts=list(group.parts), unfinished=list(group.unfinished), draws=list(group.draws))
