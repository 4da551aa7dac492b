"""Preview a run before training, with a few responses and their rewards.

Estimates the share of informative groups and the time of a step. The run's own data is not used up. Prompts are looked
at without being taken, and rollouts have the seeds of their own group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from nemo_brorl.algorithm.keep_rate import expected_keep_rate
from nemo_brorl.algorithm.teaching import Teaching
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.core.step_time import rounded_seconds
from nemo_brorl.evaluation.reward_scale import scale_lines
from nemo_brorl.evaluation.shown_responses import Decode, response_ids, shown_responses
from nemo_brorl.ports import Policy
from nemo_brorl.rollouts.dynamic_sampling import judge
from nemo_brorl.rollouts.failures import FailureCount
from nemo_brorl.rollouts.ledger import OpenGroup, sampling_of
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.types import Prompt, ScoredGroup

NUM_PROMPTS = 8
NUM_ROLLOUTS = 8  # rollouts of each prompt, the first time
LIMIT_S = 40.0  # seconds of sampling after which unfinished responses are cut
SCORING_S = 20.0  # further seconds after which responses without a score are left out
FILLED_S = 20.0  # most seconds that a rehearsal with filled engines is expected to take
NUM_SCORED = 8  # responses that the policy scores, to measure its speed
SCORED_S = 4.0  # most seconds that the policy is expected to score copies of them on a CPU
SLOW_SCORING_S = 1.0  # seconds of scoring after the last sampled response from which a step's estimate names scoring
FORWARD_PASSES = 3.0  # cost of an update in forward passes: one forward, and a backward that counts twice


@dataclass(frozen=True)
class Rehearsed:
    """The sampled responses of a rehearsal."""

    groups: list[ScoredGroup]  # groups with the responses that ended in time
    num_asked: int
    num_tokens: int  # sampled tokens, including those of unfinished responses
    seconds: float  # of sampling
    num_sampled: int = 0  # responses that engines returned, scored or not
    scoring_s: float = 0.0  # seconds from the last sampled response to the last score, or to the end of the wait


def rehearse(
    config: BroRLConfig,
    prompts: Sequence[Prompt],
    sampler: Sampler,
    should_stop: Callable[[], bool],
    num_rollouts: int = NUM_ROLLOUTS,
    limit_s: float = LIMIT_S,
) -> Rehearsed:
    """Sample and score `num_rollouts` responses to each prompt with the settings of training.

    Takes at most `limit_s` + `SCORING_S` seconds. Stops as soon as `should_stop` returns True, and returns the
    responses scored by then.
    """
    sampling = sampling_of(config.rollouts)
    start = time.monotonic()
    settled: dict[str, OpenGroup] = {}
    stream = sampler.open_stream(chunk_size=NUM_ROLLOUTS)
    num_sampled = None  # None: nothing was cut
    with closing(stream), sampler.stage("rehearse"):
        for prompt in prompts:
            stream.open(prompt, num_rollouts, sampling)
        seconds = 0.0
        while not stream.is_idle and not should_stop() and seconds < limit_s + SCORING_S:
            for group in stream.advance():
                stream.release(group.uid)
                settled[group.uid] = group
            seconds = time.monotonic() - start
            if seconds > limit_s and num_sampled is None:
                num_sampled = stream.num_sampled
                stream.cut()
            sampler.console.progress("rehearse", stream.num_settled, stream.num_asked, "rollouts", seconds)
    sampler.console.clear()
    in_order = []
    for prompt in prompts:
        if prompt.uid in settled and settled[prompt.uid].num_finished + settled[prompt.uid].num_failed:
            in_order.append(settled[prompt.uid].close())
    sampling_s = stream.sampled_at - start
    num_asked = num_rollouts * len(prompts)
    num_sampled = stream.num_sampled if num_sampled is None else num_sampled
    return Rehearsed(in_order, num_asked, stream.num_tokens, sampling_s, num_sampled, seconds - sampling_s)


def sizes_that_fill(config: BroRLConfig, first: Rehearsed) -> tuple[int, int]:
    """Return the number of prompts, and of rollouts of each, that fill the engines or take about `FILLED_S` seconds.

    They are at most those of a step.
    """
    # Each reward of a service may cost something.
    if config.rewards.services.endpoints:
        return NUM_PROMPTS, NUM_ROLLOUTS
    num, prompts = config.rollouts.stage_sizes()[0]
    affordable = int(first.num_asked * FILLED_S / (first.seconds + first.scoring_s))
    total = min(_room(config), affordable)
    num_rollouts = max(NUM_ROLLOUTS, min(num, total // NUM_PROMPTS))
    return max(NUM_PROMPTS, min(prompts, total // num_rollouts)), num_rollouts


def _room(config: BroRLConfig) -> int:
    """Return how many sequences all engines sample at once."""
    sizes = RunSizes.from_config(config)
    return sizes.num_engines * sizes.max_num_seqs


def print_rehearsal(
    config: BroRLConfig,
    rehearsed: Rehearsed,
    decode: Decode,
    console: Console,
    policy: Policy | None = None,
) -> float | None:
    """Print sampled responses with their rewards, the expected share of informative groups and the step time.

    The responses were sampled before training. With a policy, the estimated step time includes training, and the
    seconds of a step are returned. Without a policy or a response they are None. Raises VerifierError if no response
    could be scored.
    """
    failures = FailureCount(rehearsed.groups)
    groups = [group for group in rehearsed.groups if len(group.rewards)]
    rehearsed = replace(rehearsed, groups=groups)
    finished = failures.num_responses.total()
    console.line(f"rehearsal: {finished} of {rehearsed.num_asked} responses ended in {rehearsed.seconds:.1f} s")
    for text in failures.lines():
        console.line(f"  reward  {text}")
    failures.check("Mend the reward function or its service first")
    if not groups:
        console.line(nothing_line(config, rehearsed))
        return None
    for line in shown_responses(groups, decode):
        console.line(line)
    for line in scale_lines(groups, config.data, config.algorithm.advantage):
        console.line(line)
    console.line(keep_rate_line(groups, config))
    line, seconds = step_line(config, rehearsed, policy)
    console.line(line)
    return seconds


def nothing_line(config: BroRLConfig, rehearsed: Rehearsed) -> str:
    """Return the line for a rehearsal without a scored response: the engines were slow, or the rewards are."""
    if rehearsed.num_sampled < rehearsed.num_asked:
        return (
            f"  none ended within {LIMIT_S:g} s: lower rollouts.max_response_tokens="
            f"{config.rollouts.max_response_tokens}, or use a smaller model"
        )
    workers = config.rewards.num_workers
    return (
        f"  all {rehearsed.num_sampled} responses were sampled in {rehearsed.seconds:.1f} s, and none was scored in "
        f"the {rehearsed.scoring_s:.0f} s after: the reward is slow, not the model. Make it faster, or set "
        f"rewards.num_workers={2 * workers}, now {workers}"
    )


def keep_rate_line(groups: Sequence[ScoredGroup], config: BroRLConfig) -> str:
    """Return the line with the share of groups at the run's N whose rewards are expected to differ.

    The estimate is made from the responses sampled before training.
    """
    successes = [_num_best(group, config) for group in groups]
    sizes = [len(group.rewards) for group in groups]
    num, _ = config.rollouts.stage_sizes()[0]
    kept = expected_keep_rate(successes, sizes, num)
    line = (
        f"  expected informative groups at N = {num}: {kept.mean:.0%} (80 % interval {kept.low:.0%} … {kept.high:.0%})"
    )
    if not any(successes) and any(len(set(group.rewards.tolist())) > 1 for group in groups):
        line += (
            "; rewards differ, but not after rewards.shaping: if right responses are cut, raise "
            f"rollouts.max_response_tokens={config.rollouts.max_response_tokens}"
        )
    elif not any(successes):
        line += "; no response was right: use easier questions, another data.answer_format, "
        line += "`brorl sft` first, or a larger N"
    elif successes == sizes:
        line += "; every response was right: use harder questions"
    return line


def _num_best(group: ScoredGroup, config: BroRLConfig) -> int:
    """Return how many rewards of a group are nearer to its best than to its worst.

    They are some but not all where dynamic sampling keeps the group, none where it drops it, and all where all are
    correct.
    """
    decision = judge(
        group,
        replace(config.dynamic_sampling, enabled=True),
        Teaching.from_config(config.algorithm, config.rewards.shaping),
    )
    if not decision.keep:
        return len(group.rewards) if decision.reason == "all_correct" else 0
    middle = (float(group.rewards.max()) + float(group.rewards.min())) / 2
    return int((group.rewards > middle).sum())


def step_line(config: BroRLConfig, rehearsed: Rehearsed, policy: Policy | None) -> tuple[str, float | None]:
    """Return the line with a training step's estimated rollouts and seconds, at the speed measured before training.

    The seconds are returned with it, or None without a policy.
    """
    groups = rehearsed.groups
    num, prompts = config.rollouts.stage_sizes()[0]
    successes = [_num_best(group, config) for group in groups]
    kept = 1.0
    if config.dynamic_sampling.enabled and config.dynamic_sampling.fill == "full":
        rate = expected_keep_rate(successes, [len(group.rewards) for group in groups], num).mean
        # A step ends the run beyond `max_sampled` times its batch, so it costs no more than that.
        kept = max(rate, 1 / config.dynamic_sampling.max_sampled)
    mean = float(np.concatenate([group.group.lengths for group in groups]).mean())
    sampled = num * prompts / kept
    sampling = sampled * _rollout_s(rehearsed, mean)
    line = f"  a step: about {sampled:,.0f} rollouts of {mean:.0f} tokens for a batch of {num} × {prompts}; "
    line += f"sampling about {rounded_seconds(sampling)} s at this speed"
    if rehearsed.scoring_s > SLOW_SCORING_S:
        num_scored = sum(len(group.rewards) for group in groups)
        scoring = sampled * (rehearsed.seconds + rehearsed.scoring_s) / num_scored
        line += f", scoring about {rounded_seconds(scoring)} s"
        sampling = max(sampling, scoring)  # responses are scored while others are sampled
    if rehearsed.num_asked < min(sampled, _room(config)):
        line += " (less where so few responses do not fill the engines: the first step tells)"
    if policy is None:
        return f"{line}; `brorl plan` estimates training" if config.trainer.num_gpus else line, None
    training = training_s(config, groups, policy, mean)
    return f"{line}, training about {rounded_seconds(training)} s", sampling + training


def _rollout_s(rehearsed: Rehearsed, mean_tokens: float) -> float:
    """Return the seconds of sampling for each rollout."""
    if rehearsed.num_sampled >= rehearsed.num_asked:
        return rehearsed.seconds / rehearsed.num_asked
    # Some were cut, and those that ended are the short ones.
    return mean_tokens * rehearsed.seconds / max(1, rehearsed.num_tokens)


def training_s(config: BroRLConfig, groups: Sequence[ScoredGroup], policy: Policy, mean_tokens: float) -> float:
    """Return the estimated seconds of a policy update, from the time of computing log-probs of a few responses.

    Each data-parallel replica computes all of them.
    """
    prompts, responses = [], []
    for group in groups[:NUM_SCORED]:
        prompts.append(list(group.prompt.token_ids))
        responses.append(response_ids(group, 0))
    per_token = _token_s(config, policy, prompts, responses)
    num, num_prompts = config.rollouts.stage_sizes()[0]
    mini_batches = config.algorithm.num_mini_batches
    passes = FORWARD_PASSES
    passes += (mini_batches - 1) / mini_batches if config.policy.old_log_probs == "policy" else 0.0
    passes += config.algorithm.kl.coefficient > 0
    passes += config.policy.recompute == "full"
    return passes * num * num_prompts * mean_tokens * per_token / RunSizes.from_config(config).data_parallel


def _token_s(config: BroRLConfig, policy: Policy, prompts: list[list[int]], responses: list[list[int]]) -> float:
    """Return the policy's seconds of scoring for each token of a micro-batch, on a CPU of what `SCORED_S` allows."""
    num_tokens = sum(map(len, prompts)) + sum(map(len, responses))
    # Few tokens take longer each than many.
    num_times = max(1, RunSizes.from_config(config).micro_batch_tokens // num_tokens)
    if not config.trainer.num_gpus:
        seconds = _scoring_s(policy, prompts, responses)
        num_times = min(num_times, int(SCORED_S / seconds))
        if num_times <= 1:
            return seconds / num_tokens
    return _scoring_s(policy, num_times * prompts, num_times * responses) / (num_tokens * num_times)


def _scoring_s(policy: Policy, prompts: list[list[int]], responses: list[list[int]]) -> float:
    """Return the seconds in which the policy computes the log-probs of responses.

    The first call is not timed, because it compiles kernels for this length, and reads the weights.
    """
    policy.log_probs(prompts, responses, with_fp8=False)
    start = time.monotonic()
    policy.log_probs(prompts, responses, with_fp8=False)
    return time.monotonic() - start
