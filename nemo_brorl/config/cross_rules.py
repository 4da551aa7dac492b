"""Rules between sections, and the check of all rules: single values, sections, then what must fit together.

A rule is a function that yields messages: what is wrong, its value, what to write instead. Rules within one section are
its `violations`; those about devices are in `device_rules.py`, those that need the model's config.json in
`model_rules.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from nemo_brorl.config import device_rules, wrong_values
from nemo_brorl.config.algorithm import ADVANTAGES_BY_WAVE
from nemo_brorl.config.derived import (
    benchmark_limits,
    data_parallel_size,
    longest_response,
    max_model_len,
    parity_bound,
    stage_sizes,
)
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError

BF16_PARITY_BOUND = 0.02  # nats; bf16 alone makes log-probs differ by more than a tighter bound allows


def check_rules(config: BroRLConfig) -> None:
    """Raise one ConfigError with every violated rule. Single values come first: rules divide by what they guard."""
    _raise_all(list(wrong_values(config)))
    found: list[str] = []
    for field in dataclasses.fields(config):
        found.extend(getattr(config, field.name).violations())
    for rule in (*CROSS_RULES, *device_rules.DEVICE_RULES):
        found.extend(rule(config))
    _raise_all(found)


def check_sft_rules(config: BroRLConfig) -> None:
    """What only the warm-up needs: its model must hold a prompt and a response."""
    longest = config.data.max_prompt_tokens + config.rollouts.max_response_tokens
    if longest > config.sft.max_position_embeddings:
        raise ConfigError(
            f"sft.max_position_embeddings={config.sft.max_position_embeddings} is less than data.max_prompt_tokens + "
            f"rollouts.max_response_tokens = {longest}: write sft.max_position_embeddings={longest} or more"
        )


def check_demonstrations(config: BroRLConfig) -> None:
    """A demonstration that calls a calculator must be answered by one."""
    rate, environment = config.sft.calling_rate, config.data.environment
    if rate is not None and environment != "calculator":
        raise ConfigError(
            f"sft.calling_rate={rate} demonstrates calls of a calculator and data.environment={environment} has none: "
            "write data.environment=calculator, or sft.calling_rate=null"
        )


def _raise_all(found: list[str]) -> None:
    if len(found) == 1:
        raise ConfigError(found[0])
    if found:
        raise ConfigError(f"{len(found)} settings are wrong:\n" + "\n".join(f"  - {message}" for message in found))


def groups_fill_mini_batches(config: BroRLConfig) -> Iterator[str]:
    mini_batches, replicas = config.algorithm.num_mini_batches, data_parallel_size(config)
    trained = config.algorithm.train_rollouts
    for sampled, prompts in stage_sizes(config):
        num = sampled if trained is None else min(sampled, trained)
        name = "rollouts.num_per_prompt" if num == sampled else "algorithm.train_rollouts"
        samples = num * prompts
        shape = f"{name} × rollouts.prompts_per_step = {num} × {prompts} = {samples}"
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


def informative_groups_are_among_the_sampled(config: BroRLConfig) -> Iterator[str]:
    least = config.dynamic_sampling.min_groups
    prompts = [prompts for _, prompts in stage_sizes(config)]
    if prompts and least > min(prompts):
        yield (
            f"dynamic_sampling.min_groups={least} is more than the {min(prompts)} groups that a step samples: write "
            f"{min(prompts)} or less, or dynamic_sampling.fill=full"
        )


def algorithm_fits_its_rollouts(config: BroRLConfig) -> Iterator[str]:
    algorithm, rollouts = config.algorithm, config.rollouts
    sizes = [num for num, _ in stage_sizes(config)] or [rollouts.num_per_prompt]
    smallest = min([*sizes, algorithm.train_rollouts or sizes[0]])
    if algorithm.advantage == "pass_at_k" and algorithm.pass_at_k > smallest:
        yield (
            f"algorithm.pass_at_k={algorithm.pass_at_k} is more than N = {smallest} rollouts of a group: write "
            f"{smallest} or less"
        )
    if rollouts.top_p < 1 and algorithm.importance_correction.enabled:
        yield (
            f"rollouts.top_p={rollouts.top_p} cuts the sampling distribution, so importance correction would compare "
            "log-probs of two different distributions: write rollouts.top_p=1.0 or "
            "algorithm.importance_correction.enabled=false"
        )
    buffer, limit = config.rewards.shaping.overlong_buffer, rollouts.max_response_tokens
    if buffer >= limit:
        yield (
            f"rewards.shaping.overlong_buffer={buffer} is not shorter than rollouts.max_response_tokens={limit}: every "
            f"response would be punished; write for example {max(1, limit // 4)}, or 0 to turn it off"
        )
    if rollouts.schedule.kind == "on_plateau" and config.trainer.val_interval == 0:
        yield (
            "rollouts.schedule.kind=on_plateau looks at validations and trainer.val_interval=0 makes none: write "
            "trainer.val_interval=5"
        )


def older_rollouts_are_allowed(config: BroRLConfig) -> Iterator[str]:
    """Whatever lets a rollout be learnt from after an update it has not seen."""
    asked = {
        "rollouts.overlap=true": config.rollouts.overlap,
        "rollouts.unfinished=resume": config.rollouts.unfinished == "resume",
        "dynamic_sampling.in_flight=resume": config.dynamic_sampling.in_flight == "resume",
    }
    for name, is_asked in asked.items():
        if is_asked and config.dynamic_sampling.max_staleness == 0:
            yield (
                f"{name} learns from rollouts that are an update old and dynamic_sampling.max_staleness=0 throws them "
                "away: write dynamic_sampling.max_staleness=1"
            )
        if is_asked and not config.algorithm.importance_correction.enabled:
            yield (
                f"{name} learns from rollouts of older weights, which needs "
                f"algorithm.importance_correction.enabled=true: write that, or take {name.split('=')[0]} back"
            )


def quantised_rollouts_are_corrected(config: BroRLConfig) -> Iterator[str]:
    if config.generation.is_quantised and not config.algorithm.importance_correction.enabled:
        yield (
            "generation.engine_args quantises what samples (quantization, kv_cache_dtype), so rollouts are not of the "
            "policy that learns from them: write algorithm.importance_correction.enabled=true"
        )


def waves_do_not_bias_the_gradient(config: BroRLConfig) -> Iterator[str]:
    if config.rollouts.allocation != "waves":
        return
    algorithm, sampling = config.algorithm, config.dynamic_sampling
    if algorithm.advantage not in ADVANTAGES_BY_WAVE:
        yield (
            f"rollouts.allocation=waves compares each wave with its own mean and algorithm.advantage="
            f"{algorithm.advantage} means something else for every size of a group, which would bias the gradient: "
            f"write one of {', '.join(ADVANTAGES_BY_WAVE)}, or rollouts.allocation=fixed"
        )
    if algorithm.train_rollouts is not None:
        yield (
            f"algorithm.train_rollouts={algorithm.train_rollouts} chooses rollouts by their rewards and "
            "rollouts.allocation=waves weighs all of them by how they came to be sampled: write "
            "algorithm.train_rollouts=null or rollouts.allocation=fixed"
        )
    if algorithm.rare_success_exponent > 0:
        yield (
            f"algorithm.rare_success_exponent={algorithm.rare_success_exponent} weighs a group by its share of correct "
            "rollouts, which rollouts.allocation=waves makes depend on its size: write "
            "algorithm.rare_success_exponent=0 or rollouts.allocation=fixed"
        )
    if algorithm.credit == "turn":
        yield (
            "algorithm.credit=turn compares turns with those of the whole group, and rollouts.allocation=waves each "
            "wave with itself: write algorithm.credit=return or rollouts.allocation=fixed"
        )
    if sampling.in_flight in ("restart", "drop"):
        yield (
            f"dynamic_sampling.in_flight={sampling.in_flight} gives up groups that are still sampled, and under "
            "rollouts.allocation=waves those are the ones worth extending: write dynamic_sampling.in_flight=finish or "
            "resume"
        )
    if sampling.order == "completion" and not sampling.carry_over:
        yield (
            "dynamic_sampling.order=completion with dynamic_sampling.carry_over=false loses the groups that close "
            "last, and under rollouts.allocation=waves those are the ones worth extending: write order=prompt or "
            "carry_over=true"
        )


def first_wave_fits(config: BroRLConfig) -> Iterator[str]:
    first, sizes = config.rollouts.waves.first_wave, stage_sizes(config)
    if config.rollouts.allocation != "waves" or not sizes:
        return
    largest = max(num for num, _ in sizes)
    if largest - first < first / 2:
        yield (
            f"rollouts.waves.first_wave={first} leaves less than half a wave to decide about with N = {largest}: write "
            f"for example rollouts.waves.first_wave={max(2, largest // 8)}, or rollouts.allocation=fixed"
        )
    mini_batches, replicas = config.algorithm.num_mini_batches, data_parallel_size(config)
    fewest = min(min(first, num) * prompts for num, prompts in sizes)
    if fewest < mini_batches * replicas:
        yield (
            f"a step may sample no more than its first waves, {fewest} rollouts, which cannot fill "
            f"algorithm.num_mini_batches={mini_batches} on {replicas} data-parallel ranks: raise "
            "rollouts.waves.first_wave or rollouts.prompts_per_step"
        )


def questions_are_there(config: BroRLConfig) -> Iterator[str]:
    """With benchmarks, `evaluate` never opens data; training says what is missing when it opens its files."""
    if not config.evaluation.benchmarks:
        for where, source in config.data.sources():
            yield from source.missing_files(where)
    for where, benchmark in config.evaluation.selected():
        if benchmark.source == "reasoning_gym" and config.data.held_out_fraction == 0:
            yield (
                f"{where} asks questions held out of training, and data.held_out_fraction=0: write a share above 0, "
                "for example 0.1"
            )


def engines_hold_what_is_asked(config: BroRLConfig) -> Iterator[str]:
    room, prompt, response = max_model_len(config), config.data.max_prompt_tokens, longest_response(config)
    if prompt + response > room:
        yield (
            f"generation.max_model_len={room} is less than data.max_prompt_tokens + the longest response = {prompt} + "
            f"{response}: write generation.max_model_len={prompt + response} or shorten rollouts.max_response_tokens"
        )
    for where, benchmark in config.evaluation.selected():
        limits = benchmark_limits(config, benchmark)
        asked = limits.max_prompt_tokens + limits.max_response_tokens
        if asked > room:
            yield (
                f"generation.max_model_len={room} is less than what {where} ({benchmark.name}) asks for, "
                f"{limits.max_prompt_tokens} tokens for the prompt + {limits.max_response_tokens} for the response: "
                f"write generation.max_model_len={asked}, or shorten {where}.max_prompt_tokens or "
                f"{where}.max_response_tokens"
            )


def policy_holds_what_it_learns_from(config: BroRLConfig) -> Iterator[str]:
    policy, ranks = config.policy, config.policy.context_parallel_size
    trained = config.data.max_prompt_tokens + config.rollouts.max_response_tokens
    given = policy.tokens_per_micro_batch
    if given is not None and trained > given * ranks:
        on_ranks = f" on each of {ranks} context-parallel ranks" if ranks > 1 else ""
        yield (
            f"policy.tokens_per_micro_batch={given}{on_ranks} cannot hold one prompt and "
            f"response of {trained} tokens: write {-(-trained // ranks)} or more"
        )


def precision_allows_what_is_asked(config: BroRLConfig) -> Iterator[str]:
    policy, parity = config.policy, config.parity
    is_bf16 = "bf16" in (policy.precision, config.generation.precision)
    if parity.enabled and is_bf16 and parity_bound(config) < BF16_PARITY_BOUND:
        yield (
            f"parity.max_mean_abs_diff={parity.max_mean_abs_diff} is tighter than bf16 can meet: write "
            "parity.max_mean_abs_diff=auto, which is 0.05, or fp32 for policy.precision and generation.precision"
        )
    if policy.fp8 is not None and policy.fp8_params and config.algorithm.kl.coefficient > 0:
        yield (
            "policy.fp8_params=true keeps weights in FP8, which cannot be exchanged with a KL reference without "
            "rounding: write policy.fp8_params=false, or algorithm.kl.coefficient=0"
        )


CROSS_RULES: tuple[Callable[[BroRLConfig], Iterator[str]], ...] = (
    groups_fill_mini_batches,
    informative_groups_are_among_the_sampled,
    algorithm_fits_its_rollouts,
    older_rollouts_are_allowed,
    quantised_rollouts_are_corrected,
    waves_do_not_bias_the_gradient,
    first_wave_fits,
    questions_are_there,
    engines_hold_what_is_asked,
    policy_holds_what_it_learns_from,
    precision_allows_what_is_asked,
)
