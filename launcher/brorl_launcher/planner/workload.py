"""Describe the workload of a step from settings and assumptions: rollouts, their lengths, micro-batches, engines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig


@dataclass(frozen=True)
class Lengths:
    """Known token counts of prompts and responses before a run. None: assumed, see `workload_of`."""

    prompt: float | None = None  # mean tokens
    response: float | None = None  # mean tokens
    spread: float = 0.7  # standard deviation over mean of a response's length, log-normal and cut at the limit
    keep_rate: float | None = None  # share of informative groups


ASSUMED = Lengths()


@dataclass(frozen=True)
class Workload:
    """The rollouts of one step: their numbers and lengths."""

    num_per_prompt: int  # N
    prompts: int  # groups in a training batch
    keep_rate: float
    prompt_tokens: float  # mean tokens
    response_tokens: float  # mean tokens
    response_limit: int
    response_spread: float

    @property
    def trained(self) -> int:
        """Return the number of rollouts that one training step trains on."""
        return self.num_per_prompt * self.prompts

    @property
    def sampled_groups(self) -> float:
        """Return the number of groups of rollouts that are sampled to fill a batch with informative groups.

        Surplus groups are carried over, so on average none is wasted.
        """
        return self.prompts / self.keep_rate

    @property
    def sampled(self) -> float:
        """Return the number of rollouts that are sampled to fill a batch with informative groups."""
        return self.num_per_prompt * self.sampled_groups

    @property
    def attended_tokens(self) -> float:
        """Return the mean number of tokens that a response token attends to.

        These are the prompt, and E[R²] / 2 E[R] tokens of its own response of length R.
        """
        return self.prompt_tokens + self.response_tokens * (1 + self.response_spread**2) / 2

    def response_quantiles(self, num: int) -> list[int]:
        """Return the lengths of `num` typical responses, shortest first.

        They are quantiles of the log-normal distribution of response lengths, cut at the length limit and scaled to its
        mean.
        """
        if self.response_spread == 0:
            return [max(1, round(self.response_tokens))] * num
        sigma = math.sqrt(math.log(1 + self.response_spread**2))
        normal = NormalDist(0.0, sigma)
        shape = [math.exp(normal.inv_cdf((index + 0.5) / num)) for index in range(num)]
        mean = min(self.response_tokens, 0.98 * self.response_limit)
        scale = _scale_to_mean(shape, mean, self.response_limit)
        lengths = []
        for value in shape:
            lengths.append(max(1, min(self.response_limit, round(scale * value))))
        return lengths


def _scale_to_mean(shape: list[float], mean: float, limit: float) -> float:
    """Return the factor for response lengths that gives them the mean `mean` after they are cut at the limit."""
    low, high = 0.0, 1e6 * mean
    for _ in range(100):
        middle = (low + high) / 2
        if sum(min(limit, middle * value) for value in shape) < mean * len(shape):
            low = middle
        else:
            high = middle
    return high


def workload_of(config: BroRLConfig, lengths: Lengths) -> Workload:
    """Return the workload of a training step: numbers of prompts and rollouts, and their lengths.

    If the number of rollouts per prompt grows in stages, the stage with the most rollouts counts. What `lengths` leaves
    open is assumed: prompts an eighth of the longest, responses 0.45 of the longest, and the BroRL paper's rates of
    informative groups (0.41 at N = 16, 0.62 at N = 512, arXiv 2510.01180) with a straight line over log N.
    """
    num, prompts = max(config.rollouts.stage_sizes(), key=lambda size: (size[0] * size[1], size[0]))
    limit = config.rollouts.max_response_tokens
    rate = 1.0
    if config.dynamic_sampling.enabled:
        between = (math.log2(num) - 4) / 5
        rate = min(0.9, max(0.2, 0.41 + 0.21 * between))
        if lengths.keep_rate is not None:
            rate = lengths.keep_rate
    if config.dynamic_sampling.fill != "full":
        prompts = max(1, round(rate * prompts))
    prompt_tokens = max(1.0, config.data.max_prompt_tokens / 8)
    if lengths.prompt is not None:
        prompt_tokens = lengths.prompt
    response_tokens = max(1.0, 0.45 * limit)
    if lengths.response is not None:
        response_tokens = lengths.response
    return Workload(
        num_per_prompt=num,
        prompts=prompts,
        keep_rate=rate,
        prompt_tokens=prompt_tokens,
        response_tokens=response_tokens,
        response_limit=limit,
        response_spread=lengths.spread,
    )


@dataclass(frozen=True)
class Engines:
    """The layout of generation: number of engines, their tensor parallelism, and their placement."""

    num: int
    tensor: int
    is_colocated: bool


def engines_of(config: BroRLConfig) -> Engines:
    """Return the number of vLLM engines in the settings, their tensor parallelism and their placement."""
    is_colocated = config.trainer.num_gpus > 0 and config.generation.placement == "colocated"
    return Engines(RunSizes.from_config(config).num_engines, config.generation.tensor_parallel_size, is_colocated)


@dataclass(frozen=True)
class MicroBatches:
    """The micro-batches of one data-parallel rank in one mini-batch."""

    num: int
    tokens: float  # tokens of each, over its context-parallel ranks, with copies of prompts
    response_tokens: float  # response tokens of each
    budget: int  # most tokens of one


def micro_batches(config: BroRLConfig, work: Workload, layout: ParallelLayout) -> MicroBatches:
    """Return the number and size of the micro-batches that the policy update cuts a step's rollouts into.

    They are cut as `packing.py` does. There are as few as hold the responses, each with a copy of every prompt of whose
    group it has a part.
    """
    budget = RunSizes.from_config(config).micro_batch_tokens * layout.context
    rollouts = work.trained / config.algorithm.num_mini_batches / layout.data
    if config.algorithm.train_rollouts is not None:
        rollouts *= min(1.0, config.algorithm.train_rollouts / work.num_per_prompt)
    responses = rollouts * work.response_tokens
    num = max(1, math.ceil(responses / budget))
    while num < rollouts and _tokens(config, work, rollouts / num) > budget:
        num += max(1, num // 50)
    return MicroBatches(num, _tokens(config, work, rollouts / num), responses / num, budget)


def _tokens(config: BroRLConfig, work: Workload, rollouts: float) -> float:
    """Return the estimated number of tokens in a micro-batch of `rollouts` rollouts, prompts included.

    With `policy.shared_prompt`, rollouts are in the order of their groups, and those of one prompt share a copy of it.
    Every mini-batch has an equal share of the rollouts of every prompt.
    """
    if not config.policy.shared_prompt:
        return rollouts * (work.prompt_tokens + work.response_tokens)
    per_group = max(1.0, work.num_per_prompt / config.algorithm.num_mini_batches)
    copies = min(rollouts, 1.0)
    if rollouts > 1:
        copies = min(rollouts, 1 + (rollouts - 1) / per_group)
    return rollouts * work.response_tokens + copies * work.prompt_tokens
