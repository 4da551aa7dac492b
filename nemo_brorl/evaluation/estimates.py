"""Estimate pass@1, pass@k and majority@k with their errors, lengths and truncation, for any set of prompts.

Samples of one prompt are correlated, so the unit is the prompt. A prompt's value is the mean over its samples, and the
standard error is that of these values. With equally many samples each this is the clustered standard error (Miller,
arXiv 2411.00640). A mean over several benchmarks with equal weights is a mean over strata.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np

from nemo_brorl.algorithm.pass_at_k import constant_pass_at_1, pass_at_k
from nemo_brorl.config.evaluation import EvaluationConfig
from nemo_brorl.core.statistics import Estimate, estimate, estimate_json, mean_of_means
from nemo_brorl.evaluation.answers import PromptAnswers
from nemo_brorl.evaluation.majority import majority_at_k

BOOTSTRAP_SEED = 0
Group = Sequence[PromptAnswers]
Value = Callable[[PromptAnswers], float]


@dataclass(frozen=True)
class Scores:
    """Results of a benchmark, a domain, a task, or all prompts.

    Means are over prompts, and the value of a prompt is the mean over its samples.
    """

    num_prompts: int
    num_samples: int | None  # samples of each prompt; None: they differ
    pass_at_1: Estimate
    pass_at: dict[int, Estimate]  # pass@k by k > 1
    majority_at: dict[int, Estimate]  # majority@k by k; empty if a verifier extracts no answers
    reward: float  # mean raw reward, above pass@1 if a verifier gives partial credit
    response_tokens: float  # mean tokens of a response
    truncated: float  # share of samples cut at the length limit
    no_answer: float | None  # share of samples without an extracted answer; None: no verifier extracts answers
    constant_answer: float | None  # pass@1 of always giving each task's most frequent reference; None: there are none
    num_failed: int  # samples whose verifier failed; they are left out
    turns: float | None = None  # mean turns of a trajectory; None: no environment
    tool_errors: float | None = None  # mean turns of a trajectory that called a tool wrongly

    def as_json(self) -> dict[str, Any]:
        """Return the results of an evaluation, such as pass@k with intervals, as a JSON object."""
        pass_at_1 = estimate_json(self.pass_at_1)
        return {
            "num_prompts": self.num_prompts,
            "num_samples": self.num_samples,
            "pass_at_1": pass_at_1.pop("value"),
            **pass_at_1,
            "pass_at_k": _estimates_json(self.pass_at),
            "majority_at_k": _estimates_json(self.majority_at),
            "reward": self.reward,
            "response_tokens": self.response_tokens,
            "truncated": self.truncated,
            "no_answer": self.no_answer,
            "constant_answer": self.constant_answer,
            "num_failed": self.num_failed,
            "turns": self.turns,
            "tool_errors": self.tool_errors,
        }


def scores_of(strata: Sequence[Group], config: EvaluationConfig) -> Scores:
    """Return mean results and confidence intervals of the prompts in one or several groups, such as benchmarks.

    The means of the groups get equal weight.
    """
    every = list(chain.from_iterable(strata))
    sizes = [len(prompt.rewards) for prompt in every]
    fewest = min(sizes)
    most = max(sizes)
    num_samples = most if fewest == most else None

    def estimated(value: Value) -> Estimate:
        values = _values(strata, value)
        return estimate(values, config.confidence, config.bootstrap_samples, BOOTSTRAP_SEED, most)

    pass_at = {}
    for k in _reported(config.pass_at_k, num_samples, fewest):
        if k > 1:
            pass_at[k] = estimated(partial(_pass, k=k))
    majority_at = {}
    # Without extracted answers there are no votes to count.
    if most > 1 and all(prompt.answers for prompt in every):
        for k in _reported(config.majority_at_k, num_samples, fewest):
            majority_at[k] = estimated(partial(_majority, k=k))
    return Scores(
        num_prompts=len(every),
        num_samples=num_samples,
        pass_at_1=estimated(success),
        pass_at=pass_at,
        majority_at=majority_at,
        reward=mean_of_means(_values(strata, _reward)),
        response_tokens=mean_of_means(_values(strata, _tokens)),
        truncated=mean_of_means(_values(strata, _truncated)),
        no_answer=_no_answer(strata),
        constant_answer=_constant_answer(strata),
        num_failed=sum(prompt.num_failed for prompt in every),
        turns=_mean_count([prompt.turns for prompt in every]),
        tool_errors=_mean_count([prompt.tool_errors for prompt in every]),
    )


def _mean_count(counts: Sequence[tuple[int, ...] | None]) -> float | None:
    """Return the mean of a count per trajectory, such as the number of turns, over prompts and their trajectories.

    Prompts without recorded trajectories are left out.
    """
    means: list[float] = []
    for of_prompt in counts:
        if of_prompt is not None:
            means.append(float(np.mean(of_prompt)))
    return float(np.mean(means)) if means else None


def success(prompt: PromptAnswers) -> float:
    """Return the share of a prompt's samples that are correct."""
    return float(np.mean(prompt.is_correct))


def group_by(group: Iterable[PromptAnswers], key: Callable[[PromptAnswers], str]) -> dict[str, list[PromptAnswers]]:
    """Group prompts by domain or by task, in alphabetical order."""
    parts: defaultdict[str, list[PromptAnswers]] = defaultdict(list)
    for prompt in group:
        parts[key(prompt)].append(prompt)
    return dict(sorted(parts.items()))


def _reported(wanted: Sequence[int], num_samples: int | None, limit: int) -> list[int]:
    """Return the values of k for which pass@k is reported, in ascending order.

    They are those requested and the number of samples per prompt, up to `limit`.
    """
    ks = set(wanted)
    if num_samples is not None:
        ks.add(num_samples)
    return [k for k in sorted(ks) if k <= limit]


def _values(strata: Sequence[Group], value: Value) -> list[list[float]]:
    values = []
    for group in strata:
        values.append([value(prompt) for prompt in group])
    return values


def _pass(prompt: PromptAnswers, k: int) -> float:
    num_correct = sum(prompt.is_correct)
    return pass_at_k(len(prompt.rewards), num_correct, k)


# Cached, because a prompt counts in its benchmark, its task, its domain and overall, with equal subsets.
@lru_cache(maxsize=1 << 17)
def _majority(prompt: PromptAnswers, k: int) -> float:
    assert prompt.answers is not None, "votes are counted where answers are known"
    # Each prompt has its own seed, so that its value does not depend on the other prompts.
    seed = zlib.crc32(f"{prompt.uid}/{k}".encode())
    return majority_at_k(prompt.answers, prompt.is_correct, k, seed)


def _reward(prompt: PromptAnswers) -> float:
    return float(np.mean(prompt.rewards))


def _tokens(prompt: PromptAnswers) -> float:
    return float(np.mean(prompt.tokens))


def _truncated(prompt: PromptAnswers) -> float:
    stopped = float(np.mean(prompt.is_stopped))
    return 1.0 - stopped


def _no_answer(strata: Sequence[Group]) -> float | None:
    """Return the share of sampled responses without an answer, over prompts whose verifier extracts answers."""
    shares: list[list[float]] = []  # shares of the prompts, by stratum
    for group in strata:
        known = []
        for prompt in group:
            if prompt.answers is not None:
                num_missing = prompt.answers.count(None)
                known.append(num_missing / len(prompt.answers))
        if known:
            shares.append(known)
    if not shares:
        return None
    return mean_of_means(shares)


def _constant_answer(strata: Sequence[Group]) -> float | None:
    """Return the pass@1 of always giving each task's most frequent reference answer.

    Prompts without a reference answer are left out.
    """
    values = []  # pass@1 of the constant answers, by stratum
    for group in strata:
        references = [(prompt.task, prompt.reference) for prompt in group if prompt.reference is not None]
        if references:
            values.append(constant_pass_at_1(references))
    if not values:
        return None
    return float(np.mean(values))


def _estimates_json(estimates: Mapping[int, Estimate]) -> dict[str, Any]:
    record = {}
    for k, found in estimates.items():
        record[str(k)] = estimate_json(found)
    return record
