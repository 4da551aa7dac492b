"""Check all rules of a run, and define the rules between sections that belong to no single one.

A rule is a function that yields messages: what is wrong, its value, what to set instead. Rules within one section are
its `violations`. Rules between a section and others are in modules like `policy_rules.py`. Rules that need the model's
config.json are in `model_rules.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from brorl_graders.base.environment_values import hidden

from nemo_brorl.config import algorithm_rules, generation_rules, policy_rules, records_rules, sampling_rules
from nemo_brorl.config.declare import wrong_values
from nemo_brorl.config.generation import CPU_HEAD_SIZES
from nemo_brorl.config.lengths import benchmark_limits, longest_response, max_model_len
from nemo_brorl.config.named_verifiers import services_are_set_as_endpoints
from nemo_brorl.config.needs import needs
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError

BF16_PARITY_BOUND = 0.02  # nats; tightest bound on log-prob differences that bf16 can meet


def check_rules(config: BroRLConfig) -> None:
    """Raise one ConfigError with every rule that the settings of a run violate.

    Single values are checked first, because rules divide by numbers that those checks guard.
    """
    raise_all([*wrong_values(config), *config.algorithm.wrong_params()], config)
    raise_all(violations(config), config)


def violations(config: BroRLConfig) -> Iterator[str]:
    """Yield one message for every violated rule of a run's settings."""
    for field in dataclasses.fields(config):
        section = getattr(config, field.name)
        if hasattr(section, "violations"):
            yield from section.violations()
    for rule in RULES:
        yield from rule(config)


def check_demonstrations(config: BroRLConfig) -> None:
    """Raise ConfigError if `sft.demonstrations.calling_rate` is set without `data.environment=calculator`."""
    if config.sft.demonstrations.calling_rate is not None and config.data.environment != "calculator":
        why = "demonstrates calls of a calculator"
        raise_all([needs(config, "sft.demonstrations.calling_rate", why, "data.environment=calculator")], config)


def raise_all(messages: Iterable[str], config: BroRLConfig) -> None:
    """Raise one ConfigError with all messages about wrong settings, if there are any.

    The messages show environment variables by name, never their values.
    """
    texts = [hidden(message, config) for message in messages]
    if len(texts) == 1:
        raise ConfigError(texts[0])
    if texts:
        raise ConfigError(f"{len(texts)} settings are wrong:\n" + "\n".join(f"  - {message}" for message in texts))


def questions_are_there(config: BroRLConfig) -> Iterator[str]:
    """Yield a message for missing data files, and for benchmarks on held-out questions if none are held out.

    With benchmarks, `evaluate` never opens the training data. Training checks its files when it opens them.
    """
    if not config.evaluation.benchmarks:
        for where, source in config.data.sources():
            yield from source.missing(where)
    for where, benchmark in config.evaluation.selected():
        if benchmark.source == "reasoning_gym" and config.data.held_out_fraction == 0:
            yield (
                f"{where} asks questions held out of training, and data.held_out_fraction=0: set a share above 0, "
                "for example 0.1"
            )


def lengths_fit(config: BroRLConfig) -> Iterator[str]:
    room, prompt, response = max_model_len(config), config.data.max_prompt_tokens, longest_response(config)
    if prompt + response > room:
        yield (
            f"generation.max_model_len={room} is less than data.max_prompt_tokens + the longest response = {prompt} + "
            f"{response}: set generation.max_model_len={prompt + response} or shorten rollouts.max_response_tokens"
        )
    for where, benchmark in config.evaluation.selected():
        limits = benchmark_limits(config.evaluation, config.data, config.rollouts, benchmark)
        needed = limits.max_prompt_tokens + limits.max_response_tokens
        if needed > room:
            yield (
                f"generation.max_model_len={room} is less than what {where} ({benchmark.name}) asks for, "
                f"{limits.max_prompt_tokens} tokens for the prompt + {limits.max_response_tokens} for the response: "
                f"set generation.max_model_len={needed}, or shorten {where}.max_prompt_tokens or "
                f"{where}.max_response_tokens"
            )
    trained, ranks = prompt + config.rollouts.max_response_tokens, config.policy.context_parallel_size
    budget = config.policy.tokens_per_micro_batch
    if budget is not None and trained > budget * ranks:
        yield (
            f"policy.tokens_per_micro_batch={budget} × policy.context_parallel_size={ranks} cannot hold one prompt and "
            f"response of {trained} tokens: set {-(-trained // ranks)} or more"
        )
    buffer, limit = config.rewards.shaping.overlong_buffer, config.rollouts.max_response_tokens
    if buffer >= limit:
        yield (
            f"rewards.shaping.overlong_buffer={buffer} is not shorter than rollouts.max_response_tokens={limit}, so "
            f"every response would be punished: set for example {max(1, limit // 4)}, or 0 to turn it off"
        )


def heads_have_kernels(config: BroRLConfig) -> Iterator[str]:
    hidden, heads = config.sft.new.hidden_size, config.sft.new.num_attention_heads
    head_dim, rest = divmod(hidden, heads)
    if rest == 0 and head_dim not in CPU_HEAD_SIZES and config.trainer.num_gpus == 0:
        yield (
            f"sft.new.hidden_size={hidden} over sft.new.num_attention_heads={heads} gives "
            f"heads of {head_dim}, and vLLM's CPU build needs {', '.join(map(str, CPU_HEAD_SIZES))}: set another "
            "sft.new.num_attention_heads"
        )


def parity_can_be_met(config: BroRLConfig) -> Iterator[str]:
    parity, is_bf16 = config.parity, "bf16" in (config.policy.precision, config.generation.precision)
    if parity.enabled and is_bf16 and RunSizes.from_config(config).parity_bound < BF16_PARITY_BOUND:
        yield (
            f"parity.max_mean_abs_diff={parity.max_mean_abs_diff} is tighter than bf16 can meet: set "
            "parity.max_mean_abs_diff=auto, which is 0.05, or fp32 for policy.precision and generation.precision"
        )


RULES: tuple[Callable[[BroRLConfig], Iterator[str]], ...] = (
    *records_rules.RULES,
    *policy_rules.RULES,
    *generation_rules.RULES,
    *sampling_rules.RULES,
    *algorithm_rules.RULES,
    questions_are_there,
    services_are_set_as_endpoints,
    lengths_fit,
    heads_have_kernels,
    parity_can_be_met,
)
