"""The batches of a run: the one that is being filled, and what is carried over to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nemo_brorl.algorithm.teaching import BY_REWARDS, Teaching
from nemo_brorl.config.policy import OptimConfig
from nemo_brorl.config.rollouts import DynamicSamplingConfig, RolloutsConfig
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.ports import Policy, PromptSource
from nemo_brorl.rollouts.batch_fill import BatchFill
from nemo_brorl.rollouts.carry_over import CarryOver, SamplerState
from nemo_brorl.rollouts.failures import FailureCount
from nemo_brorl.rollouts.ledger import fitting_chunk_size
from nemo_brorl.rollouts.metrics import group_metrics
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.rollouts.schedule import RolloutSchedule
from nemo_brorl.rollouts.stream import TURN_S
from nemo_brorl.types import FilledBatch, ScoredChunk, ScoredGroup, UpdatePlan, UpdateReport

OVERLAP_TURN_S = 0.1  # longest delay until the end of an overlapped policy update is noticed


class Batches:
    """Owner of the batch that no step has taken yet."""

    def __init__(
        self,
        rollouts: RolloutsConfig,
        dynamic_sampling: DynamicSamplingConfig,
        optim: OptimConfig,
        sizes: RunSizes,
        prompts: PromptSource,
        sampler: Sampler,
        teaching: Teaching = BY_REWARDS,
    ) -> None:
        self.settings = rollouts
        self.num_engines = sizes.num_engines
        self.sampler = sampler
        self.schedule = RolloutSchedule(rollouts, optim)
        self.carry_over = CarryOver(rollouts, dynamic_sampling, prompts, sampler.seed, teaching)
        self.fill: BatchFill | None = None

    def begin(self, version: int) -> BatchFill:
        """Start to sample the next training batch under policy weights `version`."""
        stage = self.schedule.stage
        num_rollouts = stage.num_per_prompt * stage.prompts_per_step
        chunk_size = fitting_chunk_size(num_rollouts, self.num_engines, self.settings.chunk_size)
        self.fill = BatchFill(self.carry_over, self.sampler, self.settings, chunk_size, stage, version)
        return self.fill

    def take_batch(
        self,
        version: int,
        check: Callable[[], None],
        check_update: Callable[[], None],
    ) -> FilledBatch:
        """Return the next complete training batch, and sample it if needed.

        `check` is called repeatedly while the batch is sampled, and `check_update` once it is complete. Both may raise.
        Raises StarvationError when sampling finds too few informative groups. An unfinished batch is kept until
        `complete`, `drop` or `cut`.
        """
        fill = self.fill or self.begin(version)
        fill.complete(check)
        check_update()
        filled = fill.finish()
        self.fill = None
        return filled

    def of_groups(self, groups: Sequence[ScoredGroup], version: int, seconds: float) -> FilledBatch:
        """Return the informative ones of groups that a loop of the user's own has sampled, for weights `version`.

        `seconds`: the time of sampling and scoring.
        """
        carry_over, sampling = self.carry_over, self.carry_over.dynamic_sampling
        sampling.begin_step(version, max(len(groups), 1))
        sampling.admit(group.prompt.uid for group in groups)
        for group in groups:
            sampling.offer(group)
        batch = tuple(sampling.kept)
        sampling.kept = []
        num_tokens = sum(int(group.group.lengths.sum()) for group in groups)
        for change in carry_over.record_step(groups, (), num_tokens):
            self.sampler.console.line(change)
        carry_over.take_completed()
        metrics = group_metrics(groups, self.schedule.stage.num_per_prompt, sampling.teaching)
        metrics |= {**sampling.metrics(), **carry_over.metrics()}
        failures = tuple(FailureCount(groups).lines())
        return FilledBatch(batch, tuple(groups), (), sampling.share_of_step(batch), metrics, seconds, 0.0, failures)

    def fill_during_update(self, policy: Policy, plan: UpdatePlan, version: int) -> UpdateReport:
        """Run the policy update while rollouts for the next training batch are sampled.

        They are sampled under `version`, the weights before the update. Returns when the update has ended. The next
        batch may still be incomplete.
        """
        fill = self.begin(version)
        policy.begin_update(plan)
        with self.sampler.stage("generate and update", policy.stalled):
            update = policy.finish_update(timeout_s=0.0)
            while update is None:
                if fill.is_done:
                    update = policy.finish_update(timeout_s=TURN_S)
                else:
                    # A short wait, so that the end of the update is noticed while rollouts still come in.
                    fill.advance(OVERLAP_TURN_S)
                    update = policy.finish_update(timeout_s=0.0)
        return update

    def complete(self) -> None:
        """Finish sampling the current training batch, before a validation or a checkpoint.

        The next step takes the batch.
        """
        if self.fill is not None:
            self.fill.complete()

    def drop(self) -> list[ScoredGroup]:
        """Drop the training batch that is being sampled, and return its groups of which enough rollouts had ended."""
        assert self.fill is not None, "no batch is being filled"
        sampled = self.fill.dynamic_sampling.sampled()
        self.fill = None
        return sampled

    def cut(self) -> tuple[SamplerState, tuple[ScoredChunk, ...]]:
        """Drop the training batch that is being sampled, and return what a resumed run needs to sample it again.

        This is the sampling state at the batch's start, and the chunks of rollouts that the resumed run may reuse.
        """
        assert self.fill is not None, "no batch is being filled"
        fill = self.fill
        self.fill = None
        return fill.state_before, fill.replay_cache.chunks
