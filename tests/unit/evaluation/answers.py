"""Answers and benchmarks made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.evaluation.answers import PromptAnswers
from nemo_brorl.evaluation.benchmarks import Benchmark
from nemo_brorl.evaluation.identity import identity_of
from nemo_brorl.types import Sampling, ScoredGroup
from tests.support.fakes import make_group, make_prompt


def made(
    uid: str,
    right: str,
    *,
    answers: Sequence[str | None] | None = None,
    task: str = "toy",
    domain: str = "math",
    reference: str | None = None,
    tokens: int = 10,
) -> PromptAnswers:
    """`right` is a digit for each sample: 1 for a right one. A wrong one was cut off."""
    is_right = [digit == "1" for digit in right]
    return PromptAnswers(
        uid=uid,
        task=task,
        domain=domain,
        rewards=tuple(map(float, is_right)),
        tokens=(tokens,) * len(right),
        is_stopped=tuple(is_right),
        answers=None if answers is None else tuple(answers),
        num_failed=0,
        reference=reference,
    )


def identity(benchmark: Benchmark, weights: str = "w", rewards: RewardsConfig | None = None) -> dict[str, Any]:
    """What decides the answers, at defaults."""
    return identity_of(benchmark, rewards or RewardsConfig(), weights, precision="fp32", seed=1)


def make_benchmark(
    name: str = "toy", num_prompts: int = 3, num_samples: int = 4, temperature: float = 1.0, verifier: str = "toy"
) -> Benchmark:
    prompts = tuple(replace(make_prompt(f"{name}/{index}"), verifier=verifier) for index in range(num_prompts))
    return Benchmark(name, prompts, num_samples, Sampling(temperature, 1.0, 8), None)


def group_of(rewards: Sequence[float], verifier: str = "exact_match", **payload: Any) -> ScoredGroup:
    group = make_group(rewards)
    prompt = replace(group.prompt, verifier=verifier, payload={"answer": "7", **payload})
    return replace(group, group=replace(group.group, prompt=prompt))
