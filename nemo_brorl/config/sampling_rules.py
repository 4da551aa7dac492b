"""Check settings of rollouts and of dynamic sampling against those of other sections."""

from __future__ import annotations

from collections.abc import Iterator

from nemo_brorl.config.algorithm import ADVANTAGES_BY_WAVE
from nemo_brorl.config.derived import data_parallel_size, stage_sizes
from nemo_brorl.config.needs import needs, needs_older_weights
from nemo_brorl.config.schema import BroRLConfig


def rollouts_are_of_a_policy_that_may_learn(run: BroRLConfig) -> Iterator[str]:
    rollouts = run.rollouts
    if rollouts.schedule.kind == "on_plateau" and run.trainer.val_interval == 0:
        yield needs(run, "rollouts.schedule.kind", "looks at validations", "trainer.val_interval above 0")
    if rollouts.min_fraction < 1 and rollouts.deadline_s is None and rollouts.step_deadline_s is None:
        wanted = ("rollouts.deadline_s other than null", "rollouts.step_deadline_s other than null")
        yield needs(run, "rollouts.min_fraction", "acts where a deadline cuts rollouts", *wanted)
    if rollouts.top_p < 1 and run.algorithm.importance_correction.enabled:
        why = "cuts the distribution that a correction would compare"
        yield needs(run, "rollouts.top_p", why, "algorithm.importance_correction.enabled=false")
    if rollouts.unfinished == "resume":
        yield from needs_older_weights(run, "rollouts.unfinished")
    if rollouts.overlap:
        yield from _sampling_overlaps(run)


def _sampling_overlaps(run: BroRLConfig) -> Iterator[str]:
    given, why = "rollouts.overlap", "lets no role wait for another's turn"
    yield from needs_older_weights(run, given)
    if run.policy.offload != "none":
        yield needs(run, given, why, "policy.offload=none")
    if run.generation.sleep != "off":
        yield needs(run, given, why, "generation.sleep='off'")
    if run.trainer.gpus_per_node > 0 and run.generation.placement != "disaggregated":
        given, why = "rollouts.overlap with trainer.gpus_per_node", "samples while the policy learns"
        yield needs(run, given, why, "generation.placement=disaggregated")


def waves_are_possible(run: BroRLConfig) -> Iterator[str]:
    given, algorithm, sampling = "rollouts.allocation", run.algorithm, run.dynamic_sampling
    if run.rollouts.allocation != "waves":
        return
    if algorithm.advantage not in ADVANTAGES_BY_WAVE:
        why = "compares each wave with its own mean, and others mean something else for every size of a group"
        yield needs(run, given, why, f"algorithm.advantage={' or '.join(ADVANTAGES_BY_WAVE)}")
    if algorithm.train_rollouts is not None:
        why = "weighs all rollouts by how they came to be sampled"
        yield needs(run, given, why, "algorithm.train_rollouts=null")
    if algorithm.rare_success_exponent > 0:
        why = "makes the share of correct rollouts depend on a group's size"
        yield needs(run, given, why, "algorithm.rare_success_exponent=0")
    if algorithm.credit == "turn":
        why = "compares each wave with itself, not turns with those of the whole group"
        yield needs(run, given, why, "algorithm.credit=outcome or return")
    if sampling.in_flight in ("restart", "drop"):
        why = "extends the groups that are still sampled when a batch is full"
        yield needs(run, given, why, "dynamic_sampling.in_flight=finish or resume")
    if sampling.order != "prompt" and not sampling.carry_over:
        wanted = ("dynamic_sampling.order=prompt", "dynamic_sampling.carry_over=true")
        yield needs(run, given, "extends the groups that close last", *wanted)


def batches_can_be_filled(run: BroRLConfig) -> Iterator[str]:
    sampling = run.dynamic_sampling
    if sampling.in_flight == "resume":
        yield from needs_older_weights(run, "dynamic_sampling.in_flight")
    if sampling.fill != "full" and not sampling.enabled:
        why = "asks for groups, informative or not"
        yield needs(run, "dynamic_sampling.fill", why, "dynamic_sampling.enabled=true")
    if sampling.min_groups > 1 and sampling.fill != "at_least":
        why = "is how many a step samples on for"
        yield needs(run, "dynamic_sampling.min_groups", why, "dynamic_sampling.fill=at_least")
    if sampling.carry_over and sampling.max_staleness == 0:
        why = "keeps groups for a later update"
        yield needs(run, "dynamic_sampling.carry_over", why, "dynamic_sampling.max_staleness above 0")


def steps_sample_the_least_groups(run: BroRLConfig) -> Iterator[str]:
    least = run.dynamic_sampling.min_groups
    fewest = min((prompts for _, prompts in stage_sizes(run)), default=least)
    if least > fewest:
        yield (
            f"dynamic_sampling.min_groups={least} is more than the {fewest} groups that a step samples: write {fewest} "
            "or less, or dynamic_sampling.fill=full"
        )


def first_wave_fits(run: BroRLConfig) -> Iterator[str]:
    first, sizes = run.rollouts.waves.first_wave, stage_sizes(run)
    if run.rollouts.allocation != "waves" or not sizes:
        return
    largest = max(num for num, _ in sizes)
    if largest - first < first / 2:
        yield (
            f"rollouts.waves.first_wave={first} leaves less than half a wave to decide about with N = {largest}: write "
            f"for example rollouts.waves.first_wave={max(2, largest // 8)}, or rollouts.allocation=fixed"
        )
    mini_batches, replicas = run.algorithm.num_mini_batches, data_parallel_size(run)
    fewest = min(min(first, num) * prompts for num, prompts in sizes)
    if fewest < mini_batches * replicas:
        yield (
            f"a step may sample no more than its first waves, {fewest} rollouts, which cannot fill "
            f"algorithm.num_mini_batches={mini_batches} on {replicas} data-parallel ranks: raise "
            "rollouts.waves.first_wave or rollouts.prompts_per_step"
        )


RULES = (
    rollouts_are_of_a_policy_that_may_learn,
    waves_are_possible,
    batches_can_be_filled,
    steps_sample_the_least_groups,
    first_wave_fits,
)
