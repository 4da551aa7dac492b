"""Check the algorithm's settings against those of other sections."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nemo_brorl.config.algorithm import ADVANTAGES, NOT_BY_TURN, REINFORCEMENT_LOSSES
from nemo_brorl.config.declare import FUNCTION
from nemo_brorl.config.needs import needs
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig

AGGREGATIONS_OF_RESPONSES = "sequence_mean or constant or turn_mean or sequence_turn_mean"
ADVANTAGES_BY_TURN = " or ".join(name for name in (*ADVANTAGES, FUNCTION) if name not in NOT_BY_TURN)
REFERENCE = "algorithm.kl.coefficient above 0"


def parts_go_together(run: BroRLConfig) -> Iterator[str]:
    algorithm = run.algorithm
    if algorithm.loss in ("gspo", "gmpo") and algorithm.aggregation == "token_mean":
        why = "takes a ratio of whole responses, not to be weighed by length"
        yield needs(run, "algorithm.loss", why, f"algorithm.aggregation={AGGREGATIONS_OF_RESPONSES}")
    if algorithm.credit == "turn" and algorithm.advantage in NOT_BY_TURN:
        why = "compares returns of turns, not of whole responses"
        yield needs(run, "algorithm.credit", why, f"algorithm.advantage={ADVANTAGES_BY_TURN}")
    if algorithm.turn_discount != 1 and algorithm.credit == "outcome":
        why = "discounts rewards of turns"
        yield needs(run, "algorithm.turn_discount", why, "algorithm.credit=return or turn")
    if algorithm.covariance.kind == "kl_cov" and algorithm.num_mini_batches == 1:
        yield (
            "algorithm.loss_params.covariance.kind=kl_cov holds tokens near the policy before the update, where its "
            "first step starts, and needs algorithm.num_mini_batches above 1 (now 1): set that, or leave it out"
        )


def ratios_are_counted_once(run: BroRLConfig) -> Iterator[str]:
    if run.policy.old_log_probs == "sampler" and run.algorithm.importance_correction.enabled:
        why = "puts the sampler into the ratio of the loss, so that a correction would always be 1"
        yield needs(run, "policy.old_log_probs", why, "algorithm.importance_correction.enabled=false")


def reference_is_there(run: BroRLConfig) -> Iterator[str]:
    kl, reset = run.algorithm.kl, run.algorithm.reference_reset
    if kl.placement == "reward" and kl.estimator != "k1":
        why = "has the gradient of the KL with one estimator alone"
        yield needs(run, "algorithm.kl.placement", why, "algorithm.kl.estimator=k1")
    if kl.coefficient > 0:
        return
    if kl.placement == "reward":
        yield needs(run, "algorithm.kl.placement", "takes the KL off the advantage", REFERENCE)
    if reset.kl_above is not None:
        yield needs(run, "algorithm.reference_reset.kl_above", "looks at the KL to a reference", REFERENCE)
    if reset.clear_optimizer:
        return
    wanted = (REFERENCE, "algorithm.reference_reset.clear_optimizer=true")
    if reset.interval > 0:
        yield needs(run, "algorithm.reference_reset.interval", "resets a reference", *wanted)
    if reset.patience > 0:
        yield needs(run, "algorithm.reference_reset.patience", "resets a reference", *wanted)


def teachers_stay(run: BroRLConfig) -> Iterator[str]:
    algorithm, kl, reset = run.algorithm, run.algorithm.kl, run.algorithm.reference_reset
    if algorithm.advantage == "none" and run.dynamic_sampling.enabled:
        yield needs(run, "algorithm.advantage", "trains on every group", "dynamic_sampling.enabled=false")
    if algorithm.advantage == "none" and not kl.has_teacher and algorithm.loss in REINFORCEMENT_LOSSES:
        yield needs(run, "algorithm.advantage", "trains on a teacher alone", "algorithm.kl.teacher=MODEL")
    missing = {
        REFERENCE: kl.coefficient == 0,
        "algorithm.kl.teacher=null": kl.teachers and kl.teacher,
        "algorithm.reference_reset.interval=0": reset.interval,
        "algorithm.reference_reset.kl_above=null": reset.kl_above,
        "algorithm.reference_reset.patience=0": reset.patience,
        "policy.fp8_params=false": run.policy.fp8_params,
    }
    for wanted, is_missing in missing.items():
        if kl.has_teacher and is_missing:
            teacher = "algorithm.kl.teachers" if kl.teachers else "algorithm.kl.teacher"
            yield needs(run, teacher, "is the reference from the first step to the last", wanted)


def groups_fill_mini_batches(run: BroRLConfig) -> Iterator[str]:
    mini_batches, replicas = run.algorithm.num_mini_batches, RunSizes.from_config(run).data_parallel
    trained = run.algorithm.train_rollouts
    for sampled, prompts in run.rollouts.stage_sizes():
        num = sampled if trained is None else min(sampled, trained)
        name = "rollouts.num_per_prompt" if num == sampled else "algorithm.advantage_params.train_rollouts"
        samples = num * prompts
        shape = f"{name} × rollouts.prompts_per_step = {num} × {prompts} = {samples}"
        if samples % mini_batches:
            fitting = max(divisor for divisor in range(1, mini_batches + 1) if samples % divisor == 0)
            yield (
                f"algorithm.num_mini_batches={mini_batches} does not divide {shape}: set "
                f"algorithm.num_mini_batches={fitting}"
            )
        elif samples // mini_batches < replicas:
            yield (
                f"{shape} in {mini_batches} mini-batches leaves {samples // mini_batches} rollouts for {replicas} "
                "data-parallel ranks: lower algorithm.num_mini_batches or raise rollouts.prompts_per_step"
            )


def groups_are_large_enough(run: BroRLConfig) -> Iterator[str]:
    algorithm = run.algorithm
    sizes = [num for num, _ in run.rollouts.stage_sizes()] or [run.rollouts.num_per_prompt]
    smallest = min(sizes)
    if algorithm.train_rollouts_compared == "subset":
        smallest = min(smallest, algorithm.train_rollouts or smallest)
    smallest = max(2, math.ceil(smallest * run.rollouts.min_fraction))
    if algorithm.advantage == "pass_at_k" and algorithm.pass_at_k > smallest // 2:
        yield (
            f"algorithm.pass_at_k={algorithm.pass_at_k} is more than half of the {smallest} rollouts that a group may "
            "have. A group with fewer wrong rollouts than that teaches nothing, and one of as many never does: set "
            f"algorithm.pass_at_k={smallest // 2} or less"
        )
    if algorithm.advantage == "reinforce_plus_plus" and run.dynamic_sampling.enabled:
        why = "takes one baseline of all groups, and groups that are left out for their rewards shift it"
        wanted = ("algorithm.advantage=reinforce_plus_plus_baseline", "dynamic_sampling.enabled=false")
        yield needs(run, "algorithm.advantage", why, *wanted)


RULES = (
    parts_go_together,
    ratios_are_counted_once,
    reference_is_there,
    teachers_stay,
    groups_fill_mini_batches,
    groups_are_large_enough,
)
