"""Compute times that no dispatch of a load can beat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lab.studies.cluster_model.load import ClusterShape, Load

_BISECTIONS = 40

Float64 = NDArray[np.float64]


def lower_bound_s(load: Load, shape: ClusterShape) -> float:
    """Return the seconds that sampling all rollouts takes at least: max(total work / engines, longest rollout alone).

    The work counts every prompt once, and the fixed cost of a decoding step at a full batch.
    """
    curve = shape.curve
    lengths, work, prefill_s = _work(load, shape)
    total = prefill_s + work.sum() + curve.step_s * lengths.sum() / shape.max_batch
    longest = max(
        num / curve.prefill_tokens_per_s + curve.decode_s(1, num, max(responses))
        for num, responses in zip(load.prompt_tokens, load.lengths, strict=True)
    )
    return max(float(total) / shape.num_engines, longest)


def unmoved_bound_s(load: Load, shape: ClusterShape) -> float:
    """Return a lower bound in seconds for schedules that leave each rollout on the engine where it started.

    All dispatchers of this simulation are such schedules. An engine makes at least as many steps as its longest rollout
    has tokens, l, however small its batch is by then. In T seconds it has T − l · step_s for all else. Rollouts of l
    tokens or more, of work W(l) together, therefore need k(l) = W(l) / (T − l · step_s) engines or more. All engines
    together make at least ∫ k(l) dl steps. T is the shortest time in which that and all work fit.
    """
    lengths, work, prefill_s = _work(load, shape)
    order = np.argsort(-lengths, kind="stable")
    longest_first, work_above = lengths[order], np.cumsum(work[order])
    fewest_steps, total = lengths.sum() / shape.max_batch, prefill_s + work_above[-1]
    widths = longest_first - np.append(
        longest_first[1:], 0.0
    )  # width of the interval of l in which W(l) counts just these rollouts

    def fits(seconds: float) -> bool:
        left = seconds - shape.curve.step_s * longest_first
        if left[0] <= 0:
            return False
        engines = np.maximum(work_above / left, 1.0)
        steps = max(float(engines @ widths), fewest_steps)
        return bool(
            engines.max() <= shape.num_engines and total + shape.curve.step_s * steps <= shape.num_engines * seconds
        )

    low = lower_bound_s(load, shape)
    high = 2 * low + shape.curve.step_s * float(longest_first[0])
    while not fits(high):
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _work(load: Load, shape: ClusterShape) -> tuple[Float64, Float64, float]:
    """Return each rollout's tokens and decoding seconds, and the seconds that all prompts of a load take.

    Decoding seconds leave out the fixed cost of steps. Every prompt is computed once.
    """
    curve = shape.curve
    lengths = np.concatenate([np.asarray(responses, np.float64) for responses in load.lengths])
    prompts = np.repeat(np.asarray(load.prompt_tokens, np.float64), [len(responses) for responses in load.lengths])
    work = curve.rollout_s * lengths + curve.context_s * (lengths * prompts + lengths * (lengths - 1) / 2)
    return lengths, work, sum(load.prompt_tokens) / curve.prefill_tokens_per_s
