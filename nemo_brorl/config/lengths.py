"""Derive the limits of prompts, responses and benchmarks from several sections."""

from __future__ import annotations

from typing import NamedTuple

from nemo_brorl.config.data import DataConfig
from nemo_brorl.config.evaluation import BenchmarkConfig, EvaluationConfig
from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.config.schema import BroRLConfig

HELD_OUT = "held_out"  # name of the held-out prompts of `data` among benchmarks


def longest_response(config: BroRLConfig) -> int:
    """Return the number of tokens of the longest response that training or evaluation requests."""
    return max(config.rollouts.max_response_tokens, config.evaluation.max_response_tokens or 0)


def max_model_len(config: BroRLConfig) -> int:
    """Return the number of tokens that an engine has room for, of a prompt and its response together."""
    if config.generation.max_model_len is not None:
        return config.generation.max_model_len
    room = config.data.max_prompt_tokens + longest_response(config)
    for _, benchmark in config.evaluation.selected():
        limits = benchmark_limits(config.evaluation, config.data, config.rollouts, benchmark)
        room = max(room, limits.max_prompt_tokens + limits.max_response_tokens)
    return room


class BenchmarkLimits(NamedTuple):
    """Samples and token limits of a benchmark, with defaults filled in."""

    num_samples: int  # responses of each prompt
    max_prompt_tokens: int
    max_response_tokens: int


def benchmark_limits(
    evaluation: EvaluationConfig, data: DataConfig, rollouts: RolloutsConfig, benchmark: BenchmarkConfig | None
) -> BenchmarkLimits:
    """Return samples per prompt and the token limits of prompts and responses of a benchmark.

    None means the held-out prompts.
    """
    config = benchmark or BenchmarkConfig(name=HELD_OUT)
    return BenchmarkLimits(
        config.samples_per_prompt or evaluation.samples_per_prompt,
        config.max_prompt_tokens or data.max_prompt_tokens,
        config.max_response_tokens or evaluation.max_response_tokens or rollouts.max_response_tokens,
    )
