"""Metrics of sampled and scored groups, and of the engines that sampled them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_brorl.types import SUCCESS_REWARD, EngineStats, ScoredGroup

FAULTS = ("num_restarts", "num_garbage", "num_resampled")  # of EngineStats
SUCCESS_BUCKETS = ((0, 0), (1, 1), (2, 5))  # then "more" and "all"; at large N the first ones hold the hard prompts


def reward_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Of all groups sampled in a step, informative or not."""
    rewards = np.concatenate([group.rewards for group in groups])
    lengths = np.concatenate([group.group.lengths for group in groups])
    is_stopped = np.concatenate([group.group.is_stopped for group in groups])
    tasks = sorted({group.prompt.task for group in groups})
    return {
        "reward/mean": float(rewards.mean()),
        "reward/num_failed": float(sum(group.num_failed for group in groups)),
        **{
            f"reward/{task}": float(
                np.mean(np.concatenate([group.rewards for group in groups if group.prompt.task == task]))
            )
            for task in tasks
        },
        "rollouts/response_tokens": float(lengths.mean()),
        "rollouts/response_tokens_max": float(lengths.max()),
        "rollouts/truncated": float(1.0 - is_stopped.mean()),
        **success_histogram(groups),
        **domain_metrics(groups),
    }


def domain_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Of the groups of each domain of a mixture, whose tasks may be many; nothing without one."""
    found: dict[str, float] = {}
    for name in sorted({domain for group in groups if (domain := group.prompt.domain)}):
        own = [group for group in groups if group.prompt.domain == name]
        rewards = [group.rewards for group in own]
        found |= {
            f"domain/{name}/groups": float(len(own)),
            f"domain/{name}/reward": float(np.concatenate(rewards).mean()),
            f"domain/{name}/informative": sum(bool(np.ptp(row) > 0) for row in rewards) / len(own),
            f"domain/{name}/response_tokens": float(np.concatenate([group.group.lengths for group in own]).mean()),
            f"domain/{name}/truncated": float(1.0 - np.concatenate([group.group.is_stopped for group in own]).mean()),
        }
    return found


def success_histogram(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Share of groups by their number of correct rollouts: 0, 1, 2–5, more, all."""
    names = {f"{low}" if low == high else f"{low}_to_{high}": 0 for low, high in SUCCESS_BUCKETS} | {
        "more": 0,
        "all": 0,
    }
    for group in groups:
        names[_bucket(int((group.rewards >= SUCCESS_REWARD).sum()), len(group.rewards))] += 1
    return {f"rollouts/successes_{name}": count / len(groups) for name, count in names.items()}


def _bucket(successes: int, num_rollouts: int) -> str:
    if successes == num_rollouts:
        return "all"
    for low, high in SUCCESS_BUCKETS:
        if low <= successes <= high:
            return f"{low}" if low == high else f"{low}_to_{high}"
    return "more"


def generation_metrics(before: Sequence[EngineStats], after: Sequence[EngineStats], seconds: float) -> dict[str, float]:
    """What the engines did between two snapshots, `seconds` apart. A restarted engine counts from zero. Faults are the
    pool's: it goes on counting when an engine is replaced."""
    pairs = list(zip(before, after, strict=True))
    deltas = [_delta(old, new) for old, new in pairs]
    queries, hits, preemptions, tokens, samples = (float(sum(column)) for column in zip(*deltas, strict=True))
    return {
        "generation/samples_per_s": samples / seconds,
        "generation/tokens_per_s": tokens / seconds,
        "generation/prefix_cache_hit_rate": hits / queries if queries else 0.0,
        "generation/num_preemptions": preemptions,
        "generation/num_samples": samples,
        **{
            f"generation/{name}": float(sum(getattr(new, name) - getattr(old, name) for old, new in pairs))
            for name in FAULTS
        },
    }


def _delta(old: EngineStats, new: EngineStats) -> tuple[int, int, int, int, int]:
    fields = ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "generated_tokens", "generated_samples")
    restarted = new.generated_samples < old.generated_samples
    first, second, third, fourth, fifth = (
        getattr(new, name) - (0 if restarted else getattr(old, name)) for name in fields
    )
    return first, second, third, fourth, fifth
