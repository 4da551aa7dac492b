"""Forecast of response lengths, from finished responses and the progress of running ones.

This module has no clock and no randomness.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nemo_brorl.types import Bool, Int32, RolloutRequest

# Prior standard deviation of ln length, between prompts and within a prompt: a factor of 2 up or down.
_PRIOR_SPREAD = 0.7
# Prior median length, as a fraction of max_tokens.
_PRIOR_MEDIAN = 1 / 3
# Smallest standard deviation of ln length. Equal lengths are chance.
_MIN_SPREAD = 0.05
# A response that was cut is assumed to become at most this many times as long.
_CUT_FACTOR = 4

# Possible positions of a prompt's mean among those of its task, in standard deviations.
_GRID = np.linspace(-5.0, 5.0, 41)
# Log density at these positions: Student's t with two degrees of freedom, unnormalised.
_LOG_PRIOR = -1.5 * np.log1p(_GRID**2 / 2)

# Beyond this many standard deviations a probability is treated as 0 or 1.
_FAR = 8.0
_DEVIATIONS = np.linspace(-_FAR, _FAR, 1601)
_SURVIVAL = [0.5 * math.erfc(deviation / math.sqrt(2)) for deviation in _DEVIATIONS]
_LOG_SURVIVAL = np.log(_SURVIVAL)


def log_survival(deviations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln P(Z > deviation) for Z ~ Normal(0, 1), from a table with an error of at most 1e-5.

    Beyond 8 standard deviations it returns the value at 8.
    """
    return np.interp(deviations, _DEVIATIONS, _LOG_SURVIVAL)


def survival(
    length: float,
    location: float,
    spread: float,
) -> float:
    """Return P(L > length) of a log-normal length L, with ln L ~ Normal(location, spread²)."""
    if length <= 0:
        return 1.0
    deviation = (math.log(length) - location) / spread
    return 0.5 * math.erfc(deviation / math.sqrt(2))


def expected(
    location: float,
    spread: float,
    limit: float,
    age: float = 0.0,
) -> float:
    """Return the expected remaining tokens E[min(L, limit) − age | L > age] of a log-normal length L.

    ln L ~ Normal(location, spread²). `age` is the number of tokens so far. The result is at least 1 while `age` is
    below the limit.
    """
    if age >= limit:
        return 0.0
    alive = survival(age, location, spread)
    # Longer than the distribution explains: expect as many tokens again, as for a Pareto tail.
    if alive < _SURVIVAL[-1]:
        return min(age, limit - age)
    # E[L; age < L < limit] is the mean times P(age < L < limit) under a location that is higher by spread².
    variance = spread**2
    mean = math.exp(location + variance / 2)
    shifted = location + variance
    between = survival(age, shifted, spread) - survival(limit, shifted, spread)
    at_limit = survival(limit, location, spread)
    length = (mean * between + limit * at_limit) / alive
    return max(1.0, length - age)


class _LengthDistribution(NamedTuple):
    """Distribution of ln length in a task."""

    mean: float
    between: float  # standard deviation between prompts
    within: float  # standard deviation between rollouts of a prompt


@dataclass
class _Task:
    """Exponentially faded sums of ln length over the responses of one task."""

    num: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    num_within: float = 0.0  # degrees of freedom of `squares_within`
    squares_within: float = 0.0  # squared deviations from the mean of their prompt

    def add(self, logs: NDArray[np.float64], fading: float) -> None:
        """Add the ln lengths of one prompt's responses to a task's sums, after multiplying these by `fading`."""
        self.num *= fading
        self.total *= fading
        self.squares *= fading
        self.num_within *= fading
        self.squares_within *= fading
        deviations = logs - logs.mean()
        self.num += len(logs)
        self.total += float(logs.sum())
        self.squares += float(logs @ logs)
        self.num_within += len(logs) - 1
        self.squares_within += float(deviations @ deviations)

    def length_distribution(self, max_tokens: int) -> _LengthDistribution:
        """Return the distribution of ln response length in the task, or the prior if no response was seen."""
        if self.num == 0:
            median = max(1.0, _PRIOR_MEDIAN * max_tokens)
            return _LengthDistribution(math.log(median), _PRIOR_SPREAD, _PRIOR_SPREAD)
        mean = self.total / self.num
        squares_within = self.squares_within + _PRIOR_SPREAD**2
        variance_within = squares_within / (self.num_within + 1)
        variance = self.squares / self.num - mean**2
        variance_between = variance - variance_within
        least = _MIN_SPREAD**2
        between = math.sqrt(max(variance_between, least))
        within = math.sqrt(max(variance_within, least))
        return _LengthDistribution(mean, between, within)


@dataclass
class _Prompt:
    """Lengths seen so far of one prompt that is being sampled: sums of ln length, and progress by chunk.

    `running` maps the first index of a chunk to (ended, running, mean tokens of the running rollouts).
    """

    num: float = 0.0
    total: float = 0.0
    num_at_limit: int = 0  # responses that ended at max_tokens
    limit: int = 1
    running: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    location: float | None = None  # estimated mean of ln length; None: must be computed


class FullLength:
    """A forecast without knowledge: every response takes all tokens that it may have."""

    def tokens(self, request: RolloutRequest, age: float = 0.0) -> float:
        """Return the number of tokens that a rollout with `age` tokens may still sample up to its limit."""
        return max(0.0, request.sampling.max_tokens - age)

    def record_progress(
        self,
        request: RolloutRequest,
        num_ended: int,
        num_running: int,
        age: float,
    ) -> None:
        """Ignore how far rollouts have progressed, because this forecast does not learn from lengths."""

    def record_finished(self, request: RolloutRequest, lengths: Int32) -> None:
        """Ignore the lengths of finished rollouts, because this forecast does not learn from lengths."""


class LengthHistory:
    """A forecast of response lengths from the lengths seen in each task.

    Lengths are modelled as log-normal. The mean of ln length of each prompt is drawn from the distribution of its task.
    A task shows its mean, the spread between its prompts, and the spread between rollouts of one prompt. Old rollouts
    fade: each counts half after `half_life` more rollouts of its task. The `max_prompts` prompts seen last are kept.

    A prompt's mean is the posterior mean over a grid, given the responses that ended and the progress of those that
    have not. So a prompt is recognised as long while all of its responses are still running.
    """

    def __init__(self, half_life: float = 16_384, max_prompts: int = 4096) -> None:
        self._half_life = half_life
        self._max_prompts = max_prompts
        self._tasks: dict[str, _Task] = {}
        self._prompts: OrderedDict[str, _Prompt] = OrderedDict()  # most recently seen last

    def observe(
        self,
        task: str,
        prompt: str,
        lengths: Int32,
        is_cut: Bool | None = None,
    ) -> None:
        """Add the lengths of a prompt's responses to the length statistics of its task, and forget the prompt.

        A prompt is never sampled again under the same uid.

        is_cut: [n] responses that were cut off. They count with the length that they were expected to reach.
        """
        tokens = np.maximum(lengths, 1).astype(np.float64)
        if is_cut is not None and is_cut.any():
            longest = int(tokens.max())
            location, spread = self._length_distribution(task, prompt, longest * _CUT_FACTOR)
            for index in np.flatnonzero(is_cut):
                length = tokens[index]
                limit = length * _CUT_FACTOR
                tokens[index] += expected(location, spread, limit, length)
        self._prompts.pop(prompt, None)
        num = len(tokens)
        if num:
            fading = 0.5 ** (num / self._half_life)
            sums = self._tasks.setdefault(task, _Task())
            sums.add(np.log(tokens), fading)

    def record_finished(self, request: RolloutRequest, lengths: Int32) -> None:
        """Record the response lengths [m] of finished rollouts of one request.

        Trajectories with an environment are ignored here, because their lengths count when their whole group has
        finished.
        """
        if request.prompt.has_episodes:
            return
        prompt = self._touch(request.prompt.uid)
        prompt.running.pop(request.first_index, None)
        limit = request.sampling.max_tokens
        is_free = lengths < limit
        logs = np.log(np.maximum(lengths[is_free], 1))
        prompt.num += len(logs)
        prompt.total += float(logs.sum())
        prompt.num_at_limit += len(lengths) - len(logs)
        prompt.limit = limit

    def record_progress(
        self,
        request: RolloutRequest,
        num_ended: int,
        num_running: int,
        age: float,
    ) -> None:
        """Record the progress of the rollouts of one request.

        `num_ended` responses have ended and `num_running` responses have `age` tokens on average.
        """
        prompt = self._touch(request.prompt.uid)
        prompt.running[request.first_index] = (num_ended, num_running, age)

    def tokens(self, request: RolloutRequest, age: float = 0.0) -> float:
        """Return the expected remaining tokens of one rollout that has `age` tokens now.

        With `age` 0, rollouts that are resumed start at the lengths that they already have.
        """
        prompt = request.prompt
        limit = request.sampling.max_tokens
        location, spread = self._length_distribution(prompt.task, prompt.uid, limit)
        if request.partial is None or age:
            return expected(location, spread, limit, age)
        lengths = request.partial.lengths.tolist()
        total = 0.0
        for length in lengths:
            total += expected(location, spread, limit, length)
        return total / len(lengths)

    def state_dict(self) -> dict[str, Any]:
        """Return the response length statistics of all tasks, as a JSON-able dict.

        Lengths of single prompts are left out. They only serve the step in which the prompts are sampled.
        """
        tasks = {}
        for name, sums in self._tasks.items():
            tasks[name] = asdict(sums)
        return {"tasks": tasks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the response length statistics of all tasks from what `state_dict` returned."""
        self._tasks.clear()
        for name, sums in state["tasks"].items():
            self._tasks[name] = _Task(**sums)
        self._prompts.clear()

    def _touch(self, uid: str) -> _Prompt:
        prompt = self._prompts.setdefault(uid, _Prompt())
        self._prompts.move_to_end(uid)
        prompt.location = None
        while len(self._prompts) > self._max_prompts:
            self._prompts.popitem(last=False)
        return prompt

    def _length_distribution(
        self,
        task: str,
        uid: str,
        max_tokens: int,
    ) -> tuple[float, float]:
        """Return the mean and the standard deviation of the ln length of a prompt's responses.

        For a prompt that was never seen, the standard deviation includes the uncertainty of the mean.
        """
        sums = self._tasks.get(task, _Task())
        distribution = sums.length_distribution(max_tokens)
        prompt = self._prompts.get(uid)
        if prompt is None:
            return distribution.mean, math.hypot(distribution.between, distribution.within)
        if prompt.location is None:
            prompt.location = _posterior_mean(prompt, distribution)
        return prompt.location, distribution.within


def _posterior_mean(prompt: _Prompt, distribution: _LengthDistribution) -> float:
    """Return the posterior mean of the ln length of a prompt's responses.

    Ended responses count as Normal(location, within²), running responses by their survival probability. The prior has
    heavy tails, so that a prompt whose lengths are unlike those of all earlier prompts is recognised in time.
    """
    locations = distribution.mean + distribution.between * _GRID
    log_weights = _LOG_PRIOR.copy()
    if prompt.num:
        mean = prompt.total / prompt.num
        deviations = (mean - locations) / distribution.within
        log_weights -= prompt.num / 2 * deviations**2
    at_limit = (0, prompt.num_at_limit, prompt.limit)
    rows = [at_limit, *prompt.running.values()]
    ended, running, ages = np.array(rows, np.float64).T
    log_ages = np.log(np.maximum(ages, 1.0))
    deviations = (log_ages[:, None] - locations) / distribution.within
    log_weights += running @ log_survival(deviations)
    log_weights += ended @ log_survival(-deviations)
    weights = np.exp(log_weights - log_weights.max())
    return float(weights @ locations / weights.sum())
