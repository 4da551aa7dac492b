"""From answers to numbers: pass@1, pass@k and majority@k with their errors, lengths, truncation; of any set of
prompts, with how sure a mean over them is, and whether two models differ on the same ones.

Samples of one prompt resemble each other, so the unit is the prompt: a prompt's value is the mean over its samples, and
the standard error is that of these values, which for equally many samples of each is the clustered one (Miller, arXiv
2411.00640). A mean over several benchmarks, each counting the same, is a mean over strata: their errors add up as
independent ones.

Interval and test are Student's, and beside them come those of a bootstrap over prompts (within strata), which assume no
shape.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, combinations
from math import comb
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from nemo_brorl.algorithm.pass_at_k import constant_pass_at_1, pass_at_k
from nemo_brorl.config.evaluation import EvaluationConfig
from nemo_brorl.evaluation.answers import PromptAnswers
from nemo_brorl.types import Int64

Float64 = NDArray[np.float64]
Strata = Sequence[Sequence[float] | Float64]  # per stratum the values of its prompts

MAX_CELLS = 4_000_000  # numbers drawn at a time


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts. NaN where one prompt alone says nothing of the spread."""

    value: float
    standard_error: float
    interval: tuple[float, float]  # Student's t
    bootstrap: tuple[float, float]  # percentiles


@dataclass(frozen=True)
class PairedTest:
    """Differences of two models on the same prompts."""

    difference: Estimate
    t: float
    degrees_of_freedom: float
    p_value: float  # two-sided, Student's t
    bootstrap_p_value: float  # two-sided: how often a resampling of the centred differences is as far from 0


def mean_of_means(strata: Strata) -> float:
    """The mean over strata of the mean over a stratum's values: every stratum counts the same."""
    means = [np.mean(values) for values in strata]
    return float(np.mean(means))


def estimate(
    strata: Strata,
    confidence: float,
    num_resamples: int,
    seed: int,
) -> Estimate:
    """The mean of the strata's means with its error; one stratum: the plain mean over prompts."""
    means = bootstrap_means(strata, num_resamples, seed)
    return _estimate(_moments(strata), means, confidence)


def paired_test(
    strata: Strata,
    confidence: float,
    num_resamples: int,
    seed: int,
) -> PairedTest:
    """Test whether differences (one for each prompt, by stratum) are 0 on average.

    Differences that are all 0 give p = 1, differences that are all the same number p = 0, as the limits are.
    """
    moments = _moments(strata)
    means = bootstrap_means(strata, num_resamples, seed)
    difference = _estimate(moments, means, confidence)
    if np.isnan(moments.error):
        t = p_value = bootstrap_p_value = float("nan")
    else:
        distance = np.abs(means - moments.mean)
        num_as_far = (distance >= abs(moments.mean) - 1e-12).sum()
        bootstrap_p_value = float((1 + num_as_far) / (1 + num_resamples))
        t, p_value = _student_test(moments)
    return PairedTest(
        difference=difference,
        t=t,
        degrees_of_freedom=moments.freedom,
        p_value=p_value,
        bootstrap_p_value=bootstrap_p_value,
    )


def bootstrap_means(strata: Strata, num_resamples: int, seed: int) -> Float64:
    """[num_resamples] the mean of the strata's means, prompts drawn anew within each stratum."""
    generator = np.random.default_rng(seed)
    total = np.zeros(num_resamples)
    for stratum in strata:
        values = np.asarray(stratum, np.float64)
        num_values = len(values)
        block = max(1, MAX_CELLS // num_values)
        for start in range(0, num_resamples, block):
            stop = min(start + block, num_resamples)
            drawn = generator.integers(0, num_values, (stop - start, num_values))
            total[start:stop] += values[drawn].mean(axis=1)
    return total / len(strata)


class _Moments(NamedTuple):
    mean: float
    error: float  # standard; NaN where a stratum has one value
    freedom: float  # degrees of freedom


def _moments(strata: Strata) -> _Moments:
    """Of the mean of the strata's means; several strata as Welch and Satterthwaite have it."""
    mean = mean_of_means(strata)
    variances = []  # of each stratum's mean
    freedoms = []
    for stratum in strata:
        if len(stratum) < 2:
            return _Moments(mean, float("nan"), 0.0)
        values = np.asarray(stratum, np.float64)
        variance = values.var(ddof=1)
        variances.append(variance / len(stratum))
        freedoms.append(len(stratum) - 1)
    shares = np.array(variances) / len(strata) ** 2
    total = float(shares.sum())
    if total == 0:
        return _Moments(mean, 0.0, float(sum(freedoms)))
    weights = []
    for share, of_stratum in zip(shares, freedoms, strict=True):
        weights.append(share**2 / of_stratum)
    error = float(np.sqrt(total))
    freedom = float(total**2 / np.sum(weights))
    return _Moments(mean, error, freedom)


def _estimate(moments: _Moments, means: Float64, confidence: float) -> Estimate:
    """`means`: those of the bootstrap."""
    tail = 0.5 + confidence / 2
    low, high = np.quantile(means, [0.5 - confidence / 2, tail])
    if np.isnan(moments.error):
        interval = (float("nan"), float("nan"))
    else:
        reach = float(stdtrit(moments.freedom, tail)) * moments.error
        interval = (moments.mean - reach, moments.mean + reach)
    return Estimate(
        value=moments.mean,
        standard_error=moments.error,
        interval=interval,
        bootstrap=(float(low), float(high)),
    )


def _student_test(moments: _Moments) -> tuple[float, float]:
    """(t, two-sided p)."""
    if moments.error != 0:
        t = moments.mean / moments.error
        return t, float(2 * stdtr(moments.freedom, -abs(t)))
    if moments.mean == 0:
        return 0.0, 1.0
    return float(np.copysign(np.inf, moments.mean)), 0.0


BOOTSTRAP_SEED = 0
Group = Sequence[PromptAnswers]
Value = Callable[[PromptAnswers], float]
NUM_DRAWS = 1000  # subsets of k of n samples; where there are no more of them, each counts once


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
    no_answer: float | None  # share of samples, where the verifier knows of answers; None: no such prompt
    constant_answer: float | None  # pass@1 of always giving each task's most frequent reference; None: there are none
    num_failed: int  # samples whose verifier timed out or crashed; they count as wrong
    turns: float | None = None  # of a trajectory; None: there is no environment
    tool_errors: float | None = None  # of a trajectory: turns that called a tool wrongly

    def as_json(self) -> dict[str, Any]:
        """With numbers under plain names."""
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


def estimate_json(found: Estimate) -> dict[str, Any]:
    """JSON has no NaN: null in its place."""
    return {
        "value": found.value,
        "standard_error": number_or_null(found.standard_error),
        "interval": _ends_json(found.interval),
        "bootstrap_interval": _ends_json(found.bootstrap),
    }


def number_or_null(value: float) -> float | None:
    """What JSON can hold."""
    if not np.isfinite(value):
        return None
    return float(value)


def scores_of(strata: Sequence[Group], config: EvaluationConfig) -> Scores:
    """Of one group of prompts; of several the mean of their means, each counting the same."""
    every = list(chain.from_iterable(strata))
    sizes = [len(prompt.rewards) for prompt in every]
    fewest = min(sizes)
    most = max(sizes)
    num_samples = most if fewest == most else None

    def estimated(value: Value) -> Estimate:
        values = _values(strata, value)
        return estimate(values, config.confidence, config.bootstrap_samples, BOOTSTRAP_SEED)

    pass_at = {}
    for k in _reported(config.pass_at_k, num_samples, fewest):
        if k > 1:
            pass_at[k] = estimated(partial(_pass, k=k))
    majority_at = {}
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
    """Mean over prompts of the mean over their trajectories, of those that have some."""
    means: list[float] = []
    for of_prompt in counts:
        if of_prompt is not None:
            means.append(float(np.mean(of_prompt)))
    return float(np.mean(means)) if means else None


def success(prompt: PromptAnswers) -> float:
    """Share of a prompt's samples that are right."""
    return float(np.mean(prompt.is_correct))


def by(group: Iterable[PromptAnswers], key: Callable[[PromptAnswers], str]) -> dict[str, list[PromptAnswers]]:
    """Prompts by domain or task, names in order."""
    parts: defaultdict[str, list[PromptAnswers]] = defaultdict(list)
    for prompt in group:
        parts[key(prompt)].append(prompt)
    return dict(sorted(parts.items()))


def _reported(wanted: Sequence[int], num_samples: int | None, limit: int) -> list[int]:
    """The k to report, ascending: those wanted and the number of samples, up to `limit`."""
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


@lru_cache(maxsize=1 << 17)  # a prompt counts in its benchmark, its task, its domain and in all
def _majority(prompt: PromptAnswers, k: int) -> float:
    assert prompt.answers is not None, "votes are counted where answers are known"
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
    """Share of samples without an answer, of the prompts where answers are known."""
    shares: list[list[float]] = []  # by stratum, of each prompt
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
    """pass@1 of always giving each task's most frequent reference, of the prompts that have one."""
    values = []  # by stratum
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


def _ends_json(interval: tuple[float, float]) -> list[float | None]:
    low, high = interval
    return [number_or_null(low), number_or_null(high)]


def majority_at_k(
    answers: Sequence[str | None],
    is_correct: Sequence[bool],
    k: int,
    seed: int = 0,
) -> float:
    """Chance that the most frequent answer of k of the n samples is right, k ≤ n.

    `answers` are normalised; None did not give one and does not vote. Ties are broken evenly: a tie of two answers, one
    of them right, is half a success. Without a single vote nothing is right. For k = n this is exact, and where few
    subsets exist; else a mean over `NUM_DRAWS` subsets drawn with `seed`.
    """
    num = len(answers)
    assert 1 <= k <= num, f"majority@{k} needs at least {k} samples, got {num}"
    names = {answer for answer in answers if answer is not None}
    num_names = len(names)
    if num_names == 0:
        return 0.0
    columns: dict[str | None, int] = {None: num_names}  # of the counts: one for each answer, the last without a vote
    for column, name in enumerate(sorted(names)):
        columns[name] = column
    votes = np.array([columns[answer] for answer in answers])
    is_right = np.array(is_correct)
    value = np.zeros(num_names)
    for column in range(num_names):
        value[column] = is_right[votes == column].mean()  # a share: the verifier may judge one spelling both ways
    drawn = votes[_subsets(num, k, seed)]
    num_subsets = len(drawn)
    counts = np.zeros((num_subsets, num_names + 1), np.int64)
    subsets = np.arange(num_subsets)[:, None]
    np.add.at(counts, (subsets, drawn), 1)
    counts = counts[:, :num_names]
    most = counts.max(axis=1, keepdims=True)
    is_first = (counts == most) & (most > 0)
    num_first = is_first.sum(axis=1)
    total = (is_first * value).sum(axis=1)
    successes = total / np.maximum(num_first, 1)
    return float(np.mean(successes))


def _subsets(num: int, k: int, seed: int) -> Int64:
    """[subsets, k] places of samples."""
    if comb(num, k) <= NUM_DRAWS:
        every = list(combinations(range(num), k))
        return np.array(every, np.int64)
    generator = np.random.default_rng(seed)
    keys = generator.random((NUM_DRAWS, num))
    order = np.argsort(keys, axis=1)
    return order[:, :k].astype(np.int64)
