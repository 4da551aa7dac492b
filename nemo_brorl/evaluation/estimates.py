"""From answers to numbers: pass@1, pass@k and majority@k with their errors, lengths, truncation; of any set of
prompts."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from nemo_brorl.config.schema import EvaluationConfig
from nemo_brorl.evaluation.answers import PromptAnswers
from nemo_brorl.evaluation.confidence import Estimate, estimate
from nemo_brorl.evaluation.majority import majority_at_k
from nemo_brorl.evaluation.pass_at_k import pass_at_k

BOOTSTRAP_SEED = 0
Group = Sequence[PromptAnswers]


@dataclass(frozen=True)
class Scores:
    """Of a benchmark, a domain, a task, or all. Means are over prompts, each prompt's value over its samples."""

    num_prompts: int
    num_samples: int | None  # of each prompt; None: they differ
    pass_at_1: Estimate
    pass_at: dict[int, Estimate]  # by k > 1
    majority_at: dict[int, Estimate]  # by k; none where a verifier knows of no answers
    reward: float  # raw; more than pass@1 where a verifier grants parts
    response_tokens: float
    truncated: float  # share of samples
    no_answer: (
        float | None
    )  # share of samples that give no answer, of prompts whose verifier knows of answers; None: no such prompt
    constant_answer: (
        float | None
    )  # pass@1 of always giving each task's most frequent reference answer; None: there are none
    num_failed: int  # samples whose verifier timed out or crashed; they count as wrong

    def as_json(self) -> dict[str, Any]:
        """With numbers under plain names."""
        return {
            "num_prompts": self.num_prompts,
            "num_samples": self.num_samples,
            "pass_at_1": self.pass_at_1.value,
            **{key: value for key, value in estimate_json(self.pass_at_1).items() if key != "value"},
            "pass_at_k": {str(k): estimate_json(found) for k, found in self.pass_at.items()},
            "majority_at_k": {str(k): estimate_json(found) for k, found in self.majority_at.items()},
            "reward": self.reward,
            "response_tokens": self.response_tokens,
            "truncated": self.truncated,
            "no_answer": self.no_answer,
            "constant_answer": self.constant_answer,
            "num_failed": self.num_failed,
        }


def estimate_json(found: Estimate) -> dict[str, Any]:
    """JSON has no NaN: null in its place."""
    return {
        "value": found.value,
        "standard_error": number_or_null(found.standard_error),
        "interval": [number_or_null(end) for end in found.interval],
        "bootstrap_interval": [number_or_null(end) for end in found.bootstrap],
    }


def number_or_null(value: float) -> float | None:
    """What JSON can hold."""
    return float(value) if np.isfinite(value) else None


def scores_of(strata: Sequence[Group], config: EvaluationConfig) -> Scores:
    """Of one group of prompts; of several the mean of their means, each counting the same."""
    every = [prompt for group in strata for prompt in group]
    sizes = {len(prompt.rewards) for prompt in every}
    same = {max(sizes)} if len(sizes) == 1 else set()
    ks = [k for k in sorted({*config.pass_at_k, *same}) if 1 < k <= min(sizes)]
    votes = [k for k in sorted({*config.majority_at_k, *same}) if k <= min(sizes) and max(sizes) > 1]

    def estimated(value: Callable[[PromptAnswers], float]) -> Estimate:
        values = [[value(prompt) for prompt in group] for group in strata]
        return estimate(values, config.confidence, config.bootstrap_samples, BOOTSTRAP_SEED)

    return Scores(
        num_prompts=len(every),
        num_samples=next(iter(same), None),
        pass_at_1=estimated(success),
        pass_at={k: estimated(partial(_pass, k=k)) for k in ks},
        majority_at={k: estimated(partial(_majority, k=k)) for k in votes if all(prompt.answers for prompt in every)},
        reward=_mean(strata, lambda prompt: float(np.mean(prompt.rewards))),
        response_tokens=_mean(strata, lambda prompt: float(np.mean(prompt.tokens))),
        truncated=_mean(strata, lambda prompt: 1.0 - float(np.mean(prompt.is_stopped))),
        no_answer=_mean_of_known(
            strata, lambda group: [prompt for prompt in group if prompt.answers is not None], _unanswered
        ),
        constant_answer=_mean_of_known(
            strata, lambda group: [prompt for prompt in group if prompt.reference is not None], _constant
        ),
        num_failed=sum(prompt.num_failed for prompt in every),
    )


def success(prompt: PromptAnswers) -> float:
    """Share of a prompt's samples that are right."""
    return float(np.mean(prompt.is_correct))


def by(group: Group, key: Callable[[PromptAnswers], str]) -> dict[str, list[PromptAnswers]]:
    """Prompts by domain or task, names in order."""
    return {
        name: [prompt for prompt in group if key(prompt) == name] for name in sorted({key(prompt) for prompt in group})
    }


def _pass(prompt: PromptAnswers, k: int) -> float:
    return pass_at_k(len(prompt.rewards), sum(prompt.is_correct), k)


@lru_cache(maxsize=1 << 17)  # a prompt counts in its benchmark, its task, its domain and in all
def _majority(prompt: PromptAnswers, k: int) -> float:
    assert prompt.answers is not None, "votes are counted where answers are known"
    return majority_at_k(prompt.answers, prompt.is_correct, k, seed=zlib.crc32(f"{prompt.uid}/{k}".encode()))


def _unanswered(group: Group) -> float:
    return float(np.mean([np.mean([answer is None for answer in prompt.answers or ()]) for prompt in group]))


def _constant(group: Group) -> float:
    references = {
        task: Counter(prompt.reference for prompt in prompts)
        for task, prompts in by(group, lambda prompt: prompt.task).items()
    }
    return sum(counts.most_common(1)[0][1] for counts in references.values()) / len(group)


def _mean(strata: Sequence[Group], value: Callable[[PromptAnswers], float]) -> float:
    return float(np.mean([np.mean([value(prompt) for prompt in group]) for group in strata]))


def _mean_of_known(
    strata: Sequence[Group], known: Callable[[Group], Group], value: Callable[[Group], float]
) -> float | None:
    values = [value(part) for group in strata if (part := known(group))]
    return float(np.mean(values)) if values else None
