"""Long-tailed response lengths: drawn, or as a run recorded them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nemo_brorl.cluster_model.cluster import Load
from nemo_brorl.types import Float32


@dataclass(frozen=True)
class LengthLaw:
    """A log-normal body with a Pareto tail, cut at `max_tokens`; prompts differ in their median.

    length = median · exp(spread_of_prompts · z_prompt + spread_of_rollouts · z_rollout), and a share of `tail` of all rollouts is
    longer by a Pareto factor with exponent `tail_exponent`.
    """

    median: float = 2000.0
    spread_of_prompts: float = 0.6
    spread_of_rollouts: float = 0.6
    tail: float = 0.03
    tail_exponent: float = 1.1
    max_tokens: int = 16_384


def draw(law: LengthLaw, num_prompts: int, num_per_prompt: int, prompt_tokens: int, seed: int) -> Load:
    """A load under a law: all of one task, prompts of `prompt_tokens`."""
    random = np.random.default_rng(seed)
    medians = law.median * np.exp(law.spread_of_prompts * random.standard_normal((num_prompts, 1)))
    lengths = medians * np.exp(law.spread_of_rollouts * random.standard_normal((num_prompts, num_per_prompt)))
    is_tail = random.random(lengths.shape) < law.tail
    lengths[is_tail] *= 1 + random.pareto(law.tail_exponent, int(is_tail.sum()))
    whole = np.clip(np.rint(lengths), 1, law.max_tokens).astype(int)
    return Load([prompt_tokens] * num_prompts, whole.tolist(), ["task"] * num_prompts)


def resample(recorded: list[Float32], num_prompts: int, num_per_prompt: int, prompt_tokens: int, seed: int) -> Load:
    """A load whose groups are recorded ones drawn at random, and their rollouts drawn from the group's lengths."""
    random = np.random.default_rng(seed)
    groups = [recorded[index] for index in random.integers(0, len(recorded), num_prompts)]
    lengths = [random.choice(group, num_per_prompt).astype(int).tolist() for group in groups]
    return Load([prompt_tokens] * num_prompts, lengths, ["task"] * num_prompts)
