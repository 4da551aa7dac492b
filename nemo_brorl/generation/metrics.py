"""Metrics of generation: what the engines did in a step."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_brorl.types import EngineStats

# Counters of EngineStats that the driver keeps, not the engine.
FAULTS = ("num_restarts", "num_garbage", "num_resampled")
COUNTS = (
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "generated_tokens",
    "generated_samples",
    "resumed_tokens",
    "resumed_hits",
)


def generation_metrics(
    before: Sequence[EngineStats],
    after: Sequence[EngineStats],
    seconds: float,
) -> dict[str, float]:
    """Return the `generation/…` metrics of a step's rollouts, from the engines' counters before and after it.

    `seconds` is the time between these two. An engine that was restarted meanwhile counts from zero. Faults (restarts,
    garbage, resampled rollouts) are counted on the driver, across restarts.
    """
    totals = dict.fromkeys(COUNTS, 0.0)
    faults = dict.fromkeys(FAULTS, 0.0)
    for old, new in zip(before, after, strict=True):
        is_restarted = new.generated_samples < old.generated_samples
        for name in COUNTS:
            totals[name] += getattr(new, name)
            if not is_restarted:
                totals[name] -= getattr(old, name)
        for name in FAULTS:
            faults[name] += getattr(new, name)
            faults[name] -= getattr(old, name)
    hit_rate = 0.0
    if totals["prefix_cache_queries"]:
        hit_rate = totals["prefix_cache_hits"] / totals["prefix_cache_queries"]
    metrics = {
        "generation/samples_per_s": totals["generated_samples"] / seconds,
        "generation/tokens_per_s": totals["generated_tokens"] / seconds,
        "generation/prefix_cache_hit_rate": hit_rate,
        "generation/num_preemptions": totals["num_preemptions"],
        "generation/num_samples": totals["generated_samples"],
    }
    if totals["resumed_tokens"]:
        metrics["generation/resumed_hit_rate"] = totals["resumed_hits"] / totals["resumed_tokens"]
    for name, count in faults.items():
        metrics[f"generation/{name}"] = count
    return metrics
