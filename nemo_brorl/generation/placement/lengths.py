"""Forecast of response lengths, from how long they were and how far those under way have come. Pure: no clock, no
randomness."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nemo_brorl.types import Bool, Int32, RolloutRequest

# Of prompts, and of rollouts of a prompt, before anything was seen; a factor of 2 up or down.
_PRIOR_SPREAD = 0.7
# Of max_tokens.
_PRIOR_MEDIAN = 1 / 3
# Equal lengths are luck.
_MIN_SPREAD = 0.05
# Times its length: a response that was cut would not have become longer.
_CUT_FACTOR = 4

# Where a prompt may lie among its task's, in standard deviations.
_GRID = np.linspace(-5.0, 5.0, 41)
# There: Student's t with two degrees of freedom.
_LOG_PRIOR = -1.5 * np.log1p(_GRID**2 / 2)

# Standard deviations: beyond, a probability is 0 or 1 for our purpose.
_FAR = 8.0
_DEVIATIONS = np.linspace(-_FAR, _FAR, 1601)
_SURVIVAL = [0.5 * math.erfc(deviation / math.sqrt(2)) for deviation in _DEVIATIONS]
_LOG_SURVIVAL = np.log(_SURVIVAL)


def log_survival(deviations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ln P(Z > deviation) for Z ~ Normal(0, 1), from a table: 1e-5 off at most; beyond 8 standard deviations as
    at 8."""
    return np.interp(deviations, _DEVIATIONS, _LOG_SURVIVAL)


def survival(
    length: float,
    location: float,
    spread: float,
) -> float:
    """Return P(L > length) for ln L ~ Normal(location, spread²)."""
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
    """Return E[min(L, limit) − age | L > age] for ln L ~ Normal(location, spread²): tokens still to come for one that
    has `age` already. At least 1 below the limit."""
    if age >= limit:
        return 0.0
    alive = survival(age, location, spread)
    # Older than anything believed in: then as long again, as for a Pareto tail.
    if alive < _SURVIVAL[-1]:
        return min(age, limit - age)
    # E[L; age < L < limit] is the mean times the probability of that under a location higher by spread².
    variance = spread**2
    mean = math.exp(location + variance / 2)
    shifted = location + variance
    between = survival(age, shifted, spread) - survival(limit, shifted, spread)
    at_limit = survival(limit, location, spread)
    length = (mean * between + limit * at_limit) / alive
    return max(1.0, length - age)


class _LengthDistribution(NamedTuple):
    """How ln lengths of a task are distributed."""

    mean: float
    between: float  # spread of prompts
    within: float  # spread of a prompt's rollouts


@dataclass
class _Task:
    """Faded sums over the logarithms of lengths."""

    num: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    num_within: float = 0.0  # degrees of freedom of the squares below
    squares_within: float = 0.0  # around the mean of their prompt

    def add(self, logs: NDArray[np.float64], fading: float) -> None:
        """Take in the ln lengths of one prompt."""
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
        """Return the law that the sums show; the prior where nothing was seen."""
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
    """Knowledge about one prompt under way: sums over ln length of what ended, and by chunk (ended, running, age)
    of the rest."""

    num: float = 0.0
    total: float = 0.0
    num_at_limit: int = 0  # ended at max_tokens
    limit: int = 1
    running: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    location: float | None = None  # believed mean of ln length; None: to be worked out


class FullLength:
    """The forecast of someone who knows nothing: every response takes all tokens it may have."""

    def tokens(self, request: RolloutRequest, age: float = 0.0) -> float:
        """Return all that are left."""
        return max(0.0, request.sampling.max_tokens - age)

    def record_progress(
        self,
        request: RolloutRequest,
        num_ended: int,
        num_running: int,
        age: float,
    ) -> None:
        """Learn nothing."""

    def record_finished(self, request: RolloutRequest, lengths: Int32) -> None:
        """Learn nothing."""


class LengthHistory:
    """Lengths are taken for log-normal, with a mean of ln length for each prompt that is drawn from its task's. A task
    shows its mean, how far its prompts lie apart, and how far the rollouts of one prompt do. Old rollouts fade: each
    counts half after `half_life` more of its task. The `max_prompts` prompts seen last are kept.

    Where a prompt lies is the posterior mean over a grid, given the responses that ended and how far the others have
    come without ending; so a prompt shows that it is long while all of its responses are still running.
    """

    def __init__(self, half_life: float = 16_384, max_prompts: int = 4096) -> None:
        self._half_life = half_life
        self._max_prompts = max_prompts
        self._tasks: dict[str, _Task] = {}
        self._prompts: OrderedDict[str, _Prompt] = OrderedDict()  # last seen last

    def observe(
        self,
        task: str,
        prompt: str,
        lengths: Int32,
        is_cut: Bool | None = None,
    ) -> None:
        """Note that a group is closed: its task has these lengths, and its prompt is forgotten, which is never sampled
        again under this uid.

        is_cut: [n] the ones that ended before they had to. They count as long as they were expected to become.
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
        """Note that a chunk is done: [m] lengths of its responses that ended. Turns teach nothing before their group
        closes."""
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
        """Note that so many responses of a chunk under way have ended, and that so many have `age` tokens, on
        average."""
        prompt = self._touch(request.prompt.uid)
        prompt.running[request.first_index] = (num_ended, num_running, age)

    def tokens(self, request: RolloutRequest, age: float = 0.0) -> float:
        """Return the tokens still to be sampled for one rollout of a request that has `age` now, on average. Those to
        be resumed begin at their lengths."""
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
        """Return the tasks, JSON-able. What is known about prompts serves the step in which they are sampled."""
        tasks = {}
        for name, sums in self._tasks.items():
            tasks[name] = asdict(sums)
        return {"tasks": tasks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
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
        """Return (mean, spread) of a prompt's ln length, the uncertainty of the mean for one that was never seen
        included."""
        sums = self._tasks.get(task, _Task())
        distribution = sums.length_distribution(max_tokens)
        prompt = self._prompts.get(uid)
        if prompt is None:
            return distribution.mean, math.hypot(distribution.between, distribution.within)
        if prompt.location is None:
            prompt.location = _posterior_mean(prompt, distribution)
        return prompt.location, distribution.within


def _posterior_mean(prompt: _Prompt, distribution: _LengthDistribution) -> float:
    """Say where a prompt lies: what ended as Normal(location, within²), the rest by survival. The prior has heavy
    tails, so that a prompt unlike all before is believed in time."""
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
