"""Draw long-tailed response lengths, or take them from a run's record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from lab.studies.cluster_model.load import Load
from nemo_brorl.core.errors import DataError
from nemo_brorl.generation.placement.lengths import expected

_RARE = 1e-4  # smallest share at the limit that counts
_SPREADS = (0.01, 3.0)  # range of the spread of ln length
_BISECTIONS = 40


@dataclass(frozen=True)
class LengthDistribution:
    """A log-normal body with a Pareto tail, cut at `max_tokens`. Prompts differ in their median.

    length = median · exp(spread_of_prompts · z_prompt + spread_of_rollouts · z_rollout), and a share of `tail` of all
    rollouts is longer by a Pareto factor with exponent `tail_exponent`.
    """

    median: float = 3000.0
    spread_of_prompts: float = 0.5
    spread_of_rollouts: float = 0.5
    tail: float = 0.03
    tail_exponent: float = 1.1
    max_tokens: int = 8192


HEAVY = LengthDistribution(
    median=2000.0, spread_of_prompts=0.6, spread_of_rollouts=0.6, max_tokens=16_384
)  # the longest is 5 times the mean


def draw_load(law: LengthDistribution, num_prompts: int, num_per_prompt: int, prompt_tokens: int, seed: int) -> Load:
    """Draw the response lengths of a simulated step's rollouts from a distribution.

    All prompts have one task and `prompt_tokens` tokens.
    """
    random = np.random.default_rng(seed)
    medians = law.median * np.exp(law.spread_of_prompts * random.standard_normal((num_prompts, 1)))
    lengths = medians * np.exp(law.spread_of_rollouts * random.standard_normal((num_prompts, num_per_prompt)))
    is_tail = random.random(lengths.shape) < law.tail
    lengths[is_tail] *= 1 + random.pareto(law.tail_exponent, int(is_tail.sum()))
    whole = np.clip(np.rint(lengths), 1, law.max_tokens).astype(int)
    return Load([prompt_tokens] * num_prompts, whole.tolist(), ["task"] * num_prompts)


def recorded_distribution(rows: Sequence[Mapping[str, float]]) -> LengthDistribution:
    """Return the log-normal distribution of response lengths with the mean and truncated share of a run's metrics.

    Half of its variance lies between prompts, which metrics do not tell. Raises DataError when no row has response
    lengths.
    """
    seen = [row for row in rows if "rollouts/response_tokens" in row]
    if not seen:
        raise DataError("no row has 'rollouts/response_tokens': give the metrics.jsonl of a training run")
    limit = max(row["rollouts/response_tokens_max"] for row in seen)
    mean = sum(row["rollouts/response_tokens"] for row in seen) / len(seen)
    at_limit = min(0.5, max(_RARE, sum(row["rollouts/truncated"] for row in seen) / len(seen)))
    deviations = NormalDist().inv_cdf(1 - at_limit)
    low, high = _SPREADS
    for _ in range(_BISECTIONS):  # a wider spread has a smaller mean at one share beyond the limit
        spread = (low + high) / 2
        location = math.log(limit) - deviations * spread
        low, high = (spread, high) if expected(location, spread, limit) > mean else (low, spread)
    return LengthDistribution(
        math.exp(location), spread / math.sqrt(2), spread / math.sqrt(2), tail=0.0, max_tokens=int(limit)
    )
