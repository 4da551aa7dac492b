"""Metrics of a step's sampling: rewards, lengths, pass@k, mass balance, and the bias of cutting slow rollouts.

In pass@k every whole group sampled in a step counts, informative or not, because kept groups alone would never be all
wrong. Groups that a deadline cut are left out and counted. Those that timed out are not in it either.
A step with `fill: full` ends with an informative group, so these means are biased towards informative groups by about
one group in all that were sampled. The prompts are training prompts. Memorised answers raise these metrics, but not
those on held-out prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_brorl.algorithm.pass_at_k import pass_at_k
from nemo_brorl.algorithm.teaching import BY_REWARDS, Teaching, can_teach
from nemo_brorl.rollouts.ledger import OpenGroup
from nemo_brorl.types import Float32, Int32, ScoredGroup, is_right

SUCCESS_BUCKETS = (
    "0",
    "1",
    "2_to_5",
    "more",
    "all",
)  # numbers of correct rollouts; at large N, hard prompts are in the first
MASS_BALANCE = (
    "unsampled_mass",
    "unsampled_mass_good_turing",
    "distinct_responses",
    "sampled_gain",
    "unsampled_coupling_bound",
)


def cut_metrics(groups: Sequence[OpenGroup]) -> dict[str, float]:
    """Return the metrics of the bias that comes from cutting off rollouts.

    They are empty when no rollout was cut off.
    """
    metrics = length_bias(groups)
    metrics.update(straggler_bias(groups))
    return metrics


def length_bias(groups: Sequence[OpenGroup]) -> dict[str, float]:
    """Return metrics of how much shorter finished responses are than all started ones, in groups with cut rollouts.

    Unfinished rollouts count with the tokens that they had, so the true bias is larger. The metrics are empty when no
    rollout was cut off.
    """
    finished: list[int] = []
    partial: list[int] = []
    for group in groups:
        for scored in group.scored_chunks:
            finished.extend(scored.chunk.lengths.tolist())
        for cut in group.partial:
            partial.extend(cut.lengths.tolist())
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
    """Return lower bounds of the bias that cutting slow rollouts causes in rewards and in weights of prompts.

    The missing rollouts of a group are assumed to have the rewards of its longest finished ones. Empty when nothing was
    cut.

    straggler_reward_bias   mean reward of finished rollouts minus that of all
    straggler_weight_ratio  weight p (1 − p) of the prompts of cut groups, by finished rollouts over that by all
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


def coverage_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return pass@k for k = 1, 2, 4, … up to the largest group, each over the groups of at least k rollouts."""
    return {f"rollouts/pass_at_{k}": value for k, value in mean_pass_at(groups).items()}


def mean_pass_at(groups: Sequence[ScoredGroup]) -> dict[int, float]:
    """Return the unbiased pass@k averaged over groups, by k, for k that are powers of two."""
    values: dict[int, list[float]] = {}
    for group in groups:
        is_correct = is_right(group)
        num = len(is_correct)
        num_correct = int(is_correct.sum())
        k = 1
        while k <= num:
            values.setdefault(k, []).append(pass_at_k(num, num_correct, k))
            k *= 2
    return {k: float(np.average(values[k])) for k in sorted(values)}


def group_metrics(
    groups: Sequence[ScoredGroup], num_per_prompt: int, teaching: Teaching = BY_REWARDS
) -> dict[str, float]:
    """Return all metrics of the groups of rollouts sampled in a step, or none if there is no group."""
    if not groups:
        return {}
    metrics = reward_metrics(groups, teaching)
    metrics.update(trajectory_metrics(groups))
    sizes = [len(group.rewards) for group in groups]
    metrics["rollouts/group_size"] = float(np.mean(sizes))
    metrics["rollouts/full"] = sum(size >= num_per_prompt for size in sizes) / len(groups)
    # Rollouts that a deadline cut are the slow ones, and more often wrong.
    whole = [group for group, size in zip(groups, sizes, strict=True) if size + group.num_failed >= num_per_prompt]
    metrics.update(coverage_metrics(whole))
    if len(whole) < len(groups):
        metrics["rollouts/pass_at_groups_left_out"] = float(len(groups) - len(whole))
    return metrics


def reward_metrics(groups: Sequence[ScoredGroup], teaching: Teaching = BY_REWARDS) -> dict[str, float]:
    """Return metrics of rewards, response lengths and successes of all groups sampled in a step, informative or not."""
    rewards = _rewards(groups)
    lengths = _lengths(groups)
    num_failed = sum(group.num_failed for group in groups)
    metrics = {
        "reward/mean": float(rewards.mean()),
        "reward/num_failed": float(num_failed),
        "rollouts/prompt_tokens": float(np.mean([len(group.prompt.token_ids) for group in groups])),
        "rollouts/response_tokens": float(lengths.mean()),
        "rollouts/response_tokens_max": float(lengths.max()),
        "rollouts/truncated": _share_truncated(groups),
    }
    tasks = [group.prompt.task for group in groups]
    for task, of_task in _grouped(tasks, groups).items():
        metrics[f"reward/{task}"] = float(_rewards(of_task).mean())
    metrics.update(success_histogram(groups))
    metrics.update(domain_metrics(groups, teaching))
    return metrics


def trajectory_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return metrics of the turns, tool errors and observations in trajectories with an environment.

    They are empty when no group has an environment.
    """
    num_turns = 0
    num_errors = 0
    num_observed = 0
    turns: list[Int32] = []
    for group in groups:
        if not group.records:
            continue
        turns.append(group.num_turns)
        observed = group.group.lengths - group.group.num_sampled
        num_observed += int(observed.sum())
        for record in group.records:
            if record is not None:
                num_turns += record.is_tool_error.size
                num_errors += int(record.is_tool_error.sum())
    if not turns:
        return {}
    of_each = np.concatenate(turns)
    return {
        "trajectories/turns": float(of_each.mean()),
        "trajectories/turns_max": float(of_each.max()),
        "trajectories/tool_errors": num_errors / num_turns,
        "trajectories/observation_tokens": num_observed / len(of_each),
    }


def domain_metrics(groups: Sequence[ScoredGroup], teaching: Teaching = BY_REWARDS) -> dict[str, float]:
    """Return metrics of the groups of rollouts of each domain in a mixture of prompt sources.

    They are empty when there is no mixture.
    """
    metrics: dict[str, float] = {}
    domains = [group.prompt.domain for group in groups]
    for domain, of_domain in _grouped(domains, groups).items():
        if not domain:
            continue
        num_informative = 0
        for group in of_domain:
            if can_teach(group, 0.0, teaching):
                num_informative += 1
        metrics[f"domain/{domain}/groups"] = float(len(of_domain))
        metrics[f"domain/{domain}/reward"] = float(_rewards(of_domain).mean())
        metrics[f"domain/{domain}/informative"] = num_informative / len(of_domain)
        metrics[f"domain/{domain}/response_tokens"] = float(_lengths(of_domain).mean())
        metrics[f"domain/{domain}/truncated"] = _share_truncated(of_domain)
    return metrics


def success_histogram(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return the shares of groups with 0, 1, 2–5, more, and only correct rollouts."""
    counts = dict.fromkeys(SUCCESS_BUCKETS, 0)
    for group in groups:
        num_successes = int(is_right(group).sum())
        bucket = _bucket(num_successes, len(group.rewards))
        counts[bucket] += 1
    metrics: dict[str, float] = {}
    for bucket, count in counts.items():
        metrics[f"rollouts/successes_{bucket}"] = count / len(groups)
    return metrics


def _bucket(successes: int, num_rollouts: int) -> str:
    if successes == num_rollouts:
        return "all"
    if successes <= 1:
        return str(successes)
    return "2_to_5" if successes <= 5 else "more"


def mass_balance_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return the terms of BroRL's mass balance (arXiv 2510.01180, Theorem 1), averaged over groups.

    A whole response is one token of the theorem. All groups sampled in a step count, informative or not. Rewards are
    taken as ±1, and η = 1.

    unsampled_mass              1 − probability of the sampled responses
    unsampled_mass_good_turing  estimate from counts: share of rollouts whose response was sampled once (Good 1953)
    distinct_responses          number of different responses over rollouts
    sampled_gain                first two terms of Theorem 1, never negative
    unsampled_coupling_bound    bound of the third term: its Σ p² over unsampled responses is below unsampled_mass²

    For short answers a group of 512 sees most of the distribution, and the terms mean what the theory says. For long
    ones every response is new and the unsampled mass is about 1. Then only the trend with N is of use.
    `policy/update.py` measures the counterpart, the change of the expected advantage after an update.
    """
    totals = dict.fromkeys(MASS_BALANCE, 0.0)
    for group in groups:
        for name, term in _mass_balance_terms(group).items():
            totals[name] += term
    metrics: dict[str, float] = {}
    for name, total in totals.items():
        metrics[f"mass_balance/{name}"] = total / len(groups)
    return metrics


def _mass_balance_terms(group: ScoredGroup) -> dict[str, float]:
    """Return the terms of BroRL's mass balance (arXiv 2510.01180, Theorem 1) for one group of rollouts, by name."""
    mass = group.mass
    num = len(group.rewards)
    success_rate = float(is_right(group).mean())
    failure_rate = 1 - success_rate
    mood = mass.correct - mass.wrong
    unsampled = 1.0 - mass.correct - mass.wrong
    unsampled = min(max(unsampled, 0.0), 1.0)  # rounding may leave [0, 1]
    gain_of_correct = (1 - mood) * failure_rate * mass.correct_squares
    gain_of_wrong = (1 + mood) * success_rate * mass.wrong_squares
    bound = abs(mood) * max(success_rate, failure_rate) * unsampled**2
    return {
        "unsampled_mass": unsampled,
        "unsampled_mass_good_turing": mass.num_singletons / num,
        "distinct_responses": mass.num_distinct / num,
        "sampled_gain": (gain_of_correct + gain_of_wrong) / num,
        "unsampled_coupling_bound": bound / num,
    }


def _grouped(names: Sequence[str], groups: Sequence[ScoredGroup]) -> dict[str, list[ScoredGroup]]:
    """Collect groups of rollouts in a dict by name, in the order in which names first occur."""
    found: dict[str, list[ScoredGroup]] = {}
    for name, group in zip(names, groups, strict=True):
        found.setdefault(name, []).append(group)
    return found


def _rewards(groups: Sequence[ScoredGroup]) -> Float32:
    rewards = [group.rewards for group in groups]
    return np.concatenate(rewards)


def _lengths(groups: Sequence[ScoredGroup]) -> Int32:
    lengths = [group.group.lengths for group in groups]
    return np.concatenate(lengths)


def _share_truncated(groups: Sequence[ScoredGroup]) -> float:
    is_stopped = [group.group.is_stopped for group in groups]
    return float(1.0 - np.concatenate(is_stopped).mean())
