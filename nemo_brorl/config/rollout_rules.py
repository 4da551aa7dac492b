"""Cross-field rules about rollouts, their schedule, and the algorithm that learns from them (`rules.py` says how rules
work)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nemo_brorl.config.collection_rules import COLLECTION_RULES
from nemo_brorl.config.derived import data_parallel_size, stage_sizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.wave_rules import WAVE_RULES


def group_fills_mini_batches(config: BroRLConfig) -> Iterator[str]:
    mini_batches, replicas = config.algorithm.num_mini_batches, data_parallel_size(config)
    trained = config.algorithm.train_rollouts
    for sampled, prompts in stage_sizes(config):
        num = sampled if trained is None else min(sampled, trained)
        name = "rollouts.num_per_prompt" if num == sampled else "algorithm.train_rollouts"
        samples, shape = num * prompts, f"{name} × rollouts.prompts_per_step = {num} × {prompts} = {num * prompts}"
        if samples % mini_batches:
            fitting = max(divisor for divisor in range(1, mini_batches + 1) if samples % divisor == 0)
            yield (
                f"algorithm.num_mini_batches={mini_batches} does not divide {shape}: write "
                f"algorithm.num_mini_batches={fitting}"
            )
        elif samples // mini_batches < replicas:
            yield (
                f"{shape} in {mini_batches} mini-batches leaves {samples // mini_batches} rollouts for {replicas} "
                "data-parallel ranks: lower algorithm.num_mini_batches or raise rollouts.prompts_per_step"
            )


def schedule_stages(config: BroRLConfig) -> Iterator[str]:
    schedule = config.rollouts.schedule
    if schedule.kind == "constant":
        if schedule.stages:
            yield (
                f"rollouts.schedule.stages has {len(schedule.stages)} stages and rollouts.schedule.kind=constant "
                f"uses none: "
                "write kind=staged or on_plateau, or leave stages empty"
            )
        return
    if not schedule.stages:
        yield (
            f"rollouts.schedule.kind={schedule.kind} has no stages: write for example "
            "rollouts.schedule.stages=[{num_per_prompt: 16, num_steps: 100}, {num_per_prompt: 512}]"
        )
    if schedule.kind == "on_plateau" and config.trainer.val_interval == 0:
        yield (
            "rollouts.schedule.kind=on_plateau looks at validations and trainer.val_interval=0 makes none: write "
            "trainer.val_interval=5"
        )
    for index, stage in enumerate(schedule.stages):
        is_last = index == len(schedule.stages) - 1
        if schedule.kind == "staged" and stage.num_steps is None and not is_last:
            yield (
                f"rollouts.schedule.stages.{index}.num_steps is missing: only the last stage may go on to the "
                f"end; write its steps"
            )
        if schedule.kind == "on_plateau" and stage.num_steps is not None:
            yield (
                f"rollouts.schedule.stages.{index}.num_steps={stage.num_steps}: under kind=on_plateau stages have "
                f"no length; write null"
            )
    if (
        schedule.kind == "staged"
        and schedule.stages
        and schedule.stages[0].num_per_prompt != config.rollouts.num_per_prompt
    ):
        yield (
            f"rollouts.num_per_prompt={config.rollouts.num_per_prompt} and the first stage's num_per_prompt="
            f"{schedule.stages[0].num_per_prompt} differ: write the same number in both"
        )


def sampled_as_trained(config: BroRLConfig) -> Iterator[str]:
    if config.rollouts.top_p < 1 and config.algorithm.importance_correction.enabled:
        yield (
            f"rollouts.top_p={config.rollouts.top_p} cuts the sampling distribution, so importance correction would "
            f"compare "
            "log-probs of two different distributions: write rollouts.top_p=1.0 or "
            "algorithm.importance_correction.enabled=false"
        )


def carried_groups_are_used(config: BroRLConfig) -> Iterator[str]:
    sampling = config.dynamic_sampling
    if sampling.carry_over and sampling.max_staleness == 0:
        yield (
            "dynamic_sampling.carry_over=true with dynamic_sampling.max_staleness=0 throws every carried group away: "
            "write "
            "max_staleness=1 or carry_over=false"
        )


def dual_clip(config: BroRLConfig) -> Iterator[str]:
    bound, high = config.algorithm.dual_clip, 1 + config.algorithm.clip_high
    if 0 < bound <= high:
        yield (
            f"algorithm.dual_clip={bound} must be above 1 + algorithm.clip_high = {high:g}: write 10.0, or 0 to "
            f"turn it off"
        )


def pass_at_k_fits_the_group(config: BroRLConfig) -> Iterator[str]:
    k, trained = config.algorithm.pass_at_k, config.algorithm.train_rollouts
    num = min(
        [num for num, _ in stage_sizes(config)] + ([] if trained is None else [trained]),
        default=config.rollouts.num_per_prompt,
    )
    if config.algorithm.advantage == "pass_at_k" and k > num:
        yield f"algorithm.pass_at_k={k} is more than N = {num} rollouts of a group: write {num} or less"


def loss_fits_its_settings(config: BroRLConfig) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.loss == "gspo" and algorithm.aggregation == "token_mean":
        yield (
            "algorithm.loss=gspo clips whole responses and algorithm.aggregation=token_mean weighs them by length: "
            "write "
            "algorithm.aggregation=sequence_mean"
        )
    if algorithm.loss == "gspo" and algorithm.clip_high > 0.05:
        yield (
            f"algorithm.clip_high={algorithm.clip_high} is a bound for single tokens; ratios of whole responses "
            f"(algorithm.loss=gspo) "
            "stay much closer to 1: write for example algorithm.clip_low=3e-4 algorithm.clip_high=4e-4"
        )
    if algorithm.kl.placement == "reward" and algorithm.kl.coefficient == 0:
        yield (
            "algorithm.kl.placement=reward with algorithm.kl.coefficient=0 takes nothing off: write a "
            "coefficient, or placement=loss"
        )


def overlong_buffer_fits(config: BroRLConfig) -> Iterator[str]:
    buffer, limit = config.rewards.shaping.overlong_buffer, config.rollouts.max_response_tokens
    if buffer >= limit:
        yield (
            f"rewards.shaping.overlong_buffer={buffer} is not shorter than rollouts.max_response_tokens={limit}: "
            f"every response would "
            f"be punished; write for example {max(1, limit // 4)}, or 0 to turn it off"
        )


ROLLOUT_RULES: tuple[Callable[[BroRLConfig], Iterator[str]], ...] = (
    group_fills_mini_batches,
    schedule_stages,
    sampled_as_trained,
    carried_groups_are_used,
    dual_clip,
    pass_at_k_fits_the_group,
    loss_fits_its_settings,
    overlong_buffer_fits,
    *WAVE_RULES,
    *COLLECTION_RULES,
)
