"""Check settings of rollouts and of dynamic sampling against those of other sections."""

from __future__ import annotations

from collections.abc import Iterator

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
    if rollouts.top_p < 1 and run.policy.old_log_probs == "sampler":
        why = "cuts the distribution that the ratio of the loss would compare"
        yield needs(run, "rollouts.top_p", why, "policy.old_log_probs=policy")
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


def batches_can_be_filled(run: BroRLConfig) -> Iterator[str]:
    sampling = run.dynamic_sampling
    if sampling.fill != "full" and not sampling.enabled:
        why = "asks for groups, informative or not"
        yield needs(run, "dynamic_sampling.fill", why, "dynamic_sampling.enabled=true")
    if sampling.min_groups > 1 and sampling.fill != "at_least":
        why = "is how many a step samples on for"
        yield needs(run, "dynamic_sampling.min_groups", why, "dynamic_sampling.fill=at_least")


def steps_sample_the_least_groups(run: BroRLConfig) -> Iterator[str]:
    least = run.dynamic_sampling.min_groups
    fewest = min((prompts for _, prompts in run.rollouts.stage_sizes()), default=least)
    if least > fewest:
        yield (
            f"dynamic_sampling.min_groups={least} is more than the {fewest} groups that a step samples: set {fewest} "
            "or less, or dynamic_sampling.fill=full"
        )


RULES = (
    rollouts_are_of_a_policy_that_may_learn,
    batches_can_be_filled,
    steps_sample_the_least_groups,
)
