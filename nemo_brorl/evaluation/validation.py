"""pass@1 and pass@k on held-out prompts, through the same generator and verifiers as training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.evaluation.pass_at_k import mean_pass_at_k, standard_error
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.types import SUCCESS_REWARD, Prompt, Sampling, ScoredGroup


@dataclass(frozen=True)
class TaskResult:
    """One task's, or all tasks', result."""

    num_prompts: int
    num_samples: int  # per prompt
    pass_at_1: float
    standard_error: float  # of pass@1, over prompts
    pass_at_n: float  # with n = num_samples
    constant_answer: float  # see best_constant_answer
    response_tokens: float
    truncated: float


@dataclass(frozen=True)
class EvaluationResult:
    """By task, with `overall` over all prompts."""

    overall: TaskResult
    tasks: dict[str, TaskResult]

    def metrics(self, prefix: str = "validation") -> dict[str, float]:
        """Flat metrics."""
        return {
            f"{prefix}/pass_at_1": self.overall.pass_at_1,
            f"{prefix}/pass_at_1_standard_error": self.overall.standard_error,
            f"{prefix}/pass_at_{self.overall.num_samples}": self.overall.pass_at_n,
            f"{prefix}/response_tokens": self.overall.response_tokens,
            f"{prefix}/truncated": self.overall.truncated,
            f"{prefix}/constant_answer": self.overall.constant_answer,
            **{f"{prefix}/pass_at_1/{task}": result.pass_at_1 for task, result in self.tasks.items()},
            **{f"{prefix}/constant_answer/{task}": result.constant_answer for task, result in self.tasks.items()},
        }


class Evaluator:
    """Holds the prompts fixed, so that two evaluations differ by the weights alone."""

    def __init__(self, config: BroRLConfig, prompts: Sequence[Prompt], sampler: Sampler) -> None:
        settings = config.evaluation
        self.prompts = list(prompts)
        self.num_samples = settings.samples_per_prompt
        self.sampling = Sampling(
            settings.temperature, settings.top_p, settings.max_response_tokens or config.rollouts.max_response_tokens
        )
        self.sampler = sampler

    def evaluate(self, stage: str = "validate") -> EvaluationResult:
        """Sample every prompt `samples_per_prompt` times with the weights the engines hold."""
        groups = self.sampler.sample(self.prompts, self.num_samples, self.sampling, stage).groups
        tasks = sorted({group.prompt.task for group in groups})
        return EvaluationResult(
            overall=summarise(groups),
            tasks={task: summarise([group for group in groups if group.prompt.task == task]) for task in tasks},
        )


def summarise(groups: Sequence[ScoredGroup]) -> TaskResult:
    """Result of groups of equal size."""
    num_samples = groups[0].group.num_rollouts
    correct = [int((group.rewards >= SUCCESS_REWARD).sum()) for group in groups]
    lengths = np.concatenate([group.group.lengths for group in groups])
    is_stopped = np.concatenate([group.group.is_stopped for group in groups])
    return TaskResult(
        num_prompts=len(groups),
        num_samples=num_samples,
        pass_at_1=mean_pass_at_k(correct, num_samples, 1),
        standard_error=standard_error([count / num_samples for count in correct]),
        pass_at_n=mean_pass_at_k(correct, num_samples, num_samples),
        constant_answer=best_constant_answer(groups),
        response_tokens=float(lengths.mean()),
        truncated=float(1.0 - is_stopped.mean()),
    )


def best_constant_answer(groups: Sequence[ScoredGroup]) -> float:
    """pass@1 of always giving each task's most frequent written answer: a gain up to here need not be more than
    certainty."""
    tasks = {group.prompt.task for group in groups}
    answers = {
        task: Counter(str(group.prompt.payload.get("answer")) for group in groups if group.prompt.task == task)
        for task in tasks
    }
    return sum(counts.most_common(1)[0][1] for counts in answers.values()) / len(groups)


def result_rows(result: EvaluationResult) -> list[list[str]]:
    """Rows of a table, one per task and one for all."""
    rows = [*result.tasks.items(), ("all tasks", result.overall)]
    return [
        [name, str(row.num_prompts), *(f"{share:.1%}" for share in (row.pass_at_1, row.standard_error, row.pass_at_n,
         row.constant_answer)),
         f"{row.response_tokens:.1f}", f"{row.truncated:.1%}"]
        for name, row in rows
    ]  # fmt: skip


def result_header(result: EvaluationResult) -> list[str]:
    """Header for `result_rows`."""
    return [
        "task",
        "prompts",
        "pass@1",
        "s.e.",
        f"pass@{result.overall.num_samples}",
        "constant",
        "tokens",
        "truncated",
    ]
