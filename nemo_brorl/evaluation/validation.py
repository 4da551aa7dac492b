"""Measure pass@1 and pass@k on held-out prompts, with the engines and verifiers of training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from brorl_graders import reference_text

from nemo_brorl.algorithm.pass_at_k import constant_pass_at_1, mean_pass_at_k, standard_error
from nemo_brorl.config.evaluation import EvaluationConfig
from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.core.statistics import UNKNOWN, Ends, share_interval
from nemo_brorl.rollouts.failures import FailureCount
from nemo_brorl.rollouts.metrics import trajectory_metrics
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.types import Prompt, Sampling, ScoredGroup, is_right

CONFIDENCE = 0.95  # confidence of the interval of pass@1


@dataclass(frozen=True)
class TaskResult:
    """Validation result of one task, or of all tasks together."""

    num_prompts: int
    num_samples: int  # samples of each prompt
    pass_at_1: float
    standard_error: float  # standard error of pass@1, over prompts
    pass_at_n: float  # pass@n with n = num_samples
    constant_answer: float | None  # see best_constant_answer
    response_tokens: float
    truncated: float
    trajectories: Mapping[str, float]  # metrics from `trajectory_metrics`
    reward: float = math.nan  # mean raw reward
    reward_error: float = math.nan  # standard error of it, over prompts
    interval: Ends = UNKNOWN  # 95 % interval of pass@1

    @property
    def error_text(self) -> str:
        """Standard error of pass@1 as text in per cent; a dash for a single prompt."""
        if math.isnan(self.standard_error):
            return "–"
        return f"{self.standard_error:.1%}"


@dataclass(frozen=True)
class EvaluationResult:
    """Validation results of each task, and of all prompts."""

    overall: TaskResult
    tasks: dict[str, TaskResult]
    groups: Sequence[ScoredGroup] = ()

    def metrics(self, prefix: str = "validation") -> dict[str, float]:
        """Return the validation results as flat metrics, named prefix/name."""
        overall = self.overall
        metrics = {
            f"{prefix}/pass_at_1": overall.pass_at_1,
            f"{prefix}/pass_at_1_standard_error": overall.standard_error,
            f"{prefix}/pass_at_{overall.num_samples}": overall.pass_at_n,
            f"{prefix}/reward": overall.reward,
            f"{prefix}/reward_standard_error": overall.reward_error,
            f"{prefix}/response_tokens": overall.response_tokens,
            f"{prefix}/truncated": overall.truncated,
        }
        low, high = overall.interval
        if not math.isnan(low):
            metrics[f"{prefix}/pass_at_1_low"] = low
            metrics[f"{prefix}/pass_at_1_high"] = high
        if overall.constant_answer is not None:
            metrics[f"{prefix}/constant_answer"] = overall.constant_answer
        for name in ("turns", "tool_errors"):
            value = overall.trajectories.get(f"trajectories/{name}")
            if value is not None:
                metrics[f"{prefix}/{name}"] = value
        for task, result in self.tasks.items():
            metrics[f"{prefix}/pass_at_1/{task}"] = result.pass_at_1
            if result.constant_answer is not None:
                metrics[f"{prefix}/constant_answer/{task}"] = result.constant_answer
        return metrics


class Evaluator:
    """Evaluator with fixed held-out prompts, so that two evaluations differ by the weights alone."""

    def __init__(
        self,
        settings: EvaluationConfig,
        rollouts: RolloutsConfig,
        prompts: Sequence[Prompt],
        sampler: Sampler,
    ) -> None:
        """Fix prompts and sampling parameters of the validations during training.

        Length limits that the evaluation settings leave open come from the rollout settings.
        """
        self.prompts = list(prompts)
        self.num_samples = settings.samples_per_prompt
        max_tokens = settings.max_response_tokens or rollouts.max_response_tokens
        self.sampling = Sampling(
            settings.temperature, settings.top_p, max_tokens, rollouts.max_turn_tokens, *rollouts.stops
        )
        self.sampler = sampler

    def evaluate(self, stage: str = "validate") -> EvaluationResult:
        """Sample every prompt `samples_per_prompt` times with the engines' current weights, and return the results.

        Responses whose verifier failed are left out. Raises VerifierError if it failed on all.
        """
        sampled = self.sampler.sample(self.prompts, self.num_samples, self.sampling, stage)
        failures = FailureCount(sampled)
        for line in failures.lines():
            self.sampler.console.line(f"{stage}: reward  {line}")
        failures.check("Mend the reward function or its service, then run the same command")
        groups = [group for group in sampled if len(group.rewards)]
        by_task = _by_task(groups)
        tasks = {task: summarise(by_task[task]) for task in sorted(by_task)}
        return EvaluationResult(summarise(groups), tasks, groups)


def _by_task(groups: Sequence[ScoredGroup]) -> dict[str, list[ScoredGroup]]:
    by_task: dict[str, list[ScoredGroup]] = {}
    for group in groups:
        by_task.setdefault(group.prompt.task, []).append(group)
    return by_task


def summarise(groups: Sequence[ScoredGroup]) -> TaskResult:
    """Return the validation result of scored groups, which lack rollouts only where their verifier failed."""
    sizes = [group.group.num_rollouts for group in groups]
    num_samples = max(sizes)
    correct = []  # number of right samples in each group
    shares = []  # pass@1 of each group
    rewards = []  # mean reward of each group
    for group in groups:
        num_right = int(is_right(group).sum())
        correct.append(num_right)
        shares.append(num_right / len(group.rewards))
        rewards.append(float(group.rewards.mean(dtype=np.float64)))
    lengths = np.concatenate([group.group.lengths for group in groups])
    is_stopped = np.concatenate([group.group.is_stopped for group in groups])
    return TaskResult(
        num_prompts=len(groups),
        num_samples=num_samples,
        pass_at_1=mean_pass_at_k(correct, sizes, 1),
        standard_error=standard_error(shares),
        pass_at_n=mean_pass_at_k(correct, sizes, num_samples),
        constant_answer=best_constant_answer(groups),
        response_tokens=float(lengths.mean()),
        truncated=float(1.0 - is_stopped.mean()),
        trajectories=trajectory_metrics(groups),
        reward=float(np.mean(rewards)),
        reward_error=standard_error(rewards),
        interval=share_interval([shares], CONFIDENCE, num_samples),
    )


def best_constant_answer(groups: Sequence[ScoredGroup]) -> float | None:
    """Return the pass@1 of always giving each task's most frequent reference answer.

    Returns None if no prompt has a reference answer. A gain of the policy up to this value may be due to more certainty
    alone.
    """
    references = []
    for group in groups:
        answer = reference_text(group.prompt.payload)
        if answer is not None:
            references.append((group.prompt.task, answer))
    if not references:
        return None
    return constant_pass_at_1(references)
