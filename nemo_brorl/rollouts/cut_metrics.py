"""Metrics of groups of which rollouts were cut: what that does to lengths, rewards and the weights of prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_brorl.rollouts.ledger import OpenGroup


def cut_metrics(groups: Sequence[OpenGroup]) -> dict[str, float]:
    """All of them; nothing when nothing was cut."""
    metrics = length_bias(groups)
    metrics.update(straggler_bias(groups))
    return metrics


def length_bias(groups: Sequence[OpenGroup]) -> dict[str, float]:
    """How much shorter finished responses are than all that were begun, over groups that were cut; partial ones count
    with the tokens they had, so the true bias is larger. Empty when nothing was cut."""
    finished: list[int] = []
    partial: list[int] = []
    for group in groups:
        for part in group.parts:
            finished.extend(part.chunk.lengths.tolist())
        for block in group.partial:
            partial.extend(block.lengths.tolist())
    if not partial:
        return {}
    begun = finished + partial
    bias = 0.0
    if finished:
        bias = float(np.mean(finished) - np.mean(begun))
    return {
        "rollouts/cut_share": len(partial) / len(begun),
        "rollouts/cut_response_tokens": float(np.mean(partial)),
        "rollouts/length_bias": bias,
    }


def straggler_bias(groups: Sequence[OpenGroup]) -> dict[str, float]:
    """What cutting slow rollouts does to rewards and to the weights of prompts, at least: the missing rollouts of a
    group are taken to be worth what the longest of its finished ones are. Empty when nothing was cut.

    straggler_reward_bias   mean reward of finished rollouts less that of all
    straggler_weight_ratio  weight of the prompts of cut groups, p (1 − p), by their finished rollouts over that by all
    """
    biases: list[float] = []
    seen_weight = 0.0
    whole_weight = 0.0
    for group in groups:
        if group.num_finished == 0 or group.num_partial == 0:
            continue
        rewards = group.rewards
        slowest_last = np.argsort(group.lengths, kind="stable")
        num_missing = min(group.num_partial, len(rewards))
        slowest = slowest_last[len(rewards) - num_missing :]
        seen = float(rewards.mean())
        missing = float(rewards[slowest].mean())
        share_seen = group.num_finished / group.num_rollouts
        whole = share_seen * seen + (1 - share_seen) * missing
        biases.append(seen - whole)
        seen_weight += seen * (1 - seen)
        whole_weight += whole * (1 - whole)
    if not biases:
        return {}
    metrics = {"rollouts/straggler_reward_bias": float(np.mean(biases))}
    if whole_weight > 0:
        metrics["rollouts/straggler_weight_ratio"] = seen_weight / whole_weight
    return metrics
