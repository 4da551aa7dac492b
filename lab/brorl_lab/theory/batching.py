"""Model what a large group saves its engine: prompt tokens, computed once instead of often, and fuller batches.

Prompts have P tokens, N rollouts of each run on one engine, and a response has R tokens. A prefix cache of blocks of B
tokens holds C = ⌊(P − 1) / B⌋ · B tokens of a prompt (its last token is always computed, for its logits). So the first
rollout computes P tokens and every further one P − C. An engine spends c_p on a prompt token, c_d on a response token,
and c_s on every step, whatever is in it. A step makes one token for each of the b rollouts in flight:

    seconds per rollout = p(N) c_p + R (c_d + c_s / b),    p(N) = (P − C) + C / N.

At equal b the gain of a larger group is bounded by p(n) / p(N), reached for R → 0, and falls to 1 as R grows.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineCosts:
    """The costs of one engine in seconds."""

    prompt_token: float  # c_p of a token that is not in the cache
    response_token: float  # c_d
    step: float = 0.0  # c_s: reading weights, scheduling


@dataclass(frozen=True)
class GroupLoad:
    """The rollouts that one engine samples: their lengths and numbers."""

    prompt_tokens: int  # P
    response_tokens: float  # R, mean
    num_per_prompt: int  # N on this engine
    in_flight: int  # b, rollouts that are decoded together


def cached_tokens(prompt_tokens: int, block_size: int) -> int:
    """Return C, the tokens of a prompt that its second rollout finds in the prefix cache."""
    return (prompt_tokens - 1) // block_size * block_size


def prompt_tokens_computed(prompt_tokens: int, num_per_prompt: int, block_size: int) -> float:
    """Return p(N), the prompt tokens that an engine computes per rollout, as a mean over the N rollouts of a prompt."""
    cached = cached_tokens(prompt_tokens, block_size)
    return prompt_tokens - cached + cached / num_per_prompt


def seconds_per_rollout(load: GroupLoad, costs: EngineCosts, block_size: int) -> float:
    """Return the seconds that one engine takes per rollout, by costs of prompt tokens, response tokens and steps."""
    prompt = prompt_tokens_computed(load.prompt_tokens, load.num_per_prompt, block_size) * costs.prompt_token
    return prompt + load.response_tokens * (costs.response_token + costs.step / load.in_flight)


def longest_response_for(
    gain: float,
    prompt_tokens: int,
    small: int,
    large: int,
    cost_ratio: float,
    block_size: int,
) -> float:
    """Return the longest response R for which groups of `large` are at least `gain` times as fast as groups of `small`.

    Only the cost of their prompts differs, at equal rollouts in flight. `cost_ratio` is the cost of a prompt token over
    the whole cost of a response token. A negative result means that no response is short enough.
    """
    few, many = (prompt_tokens_computed(prompt_tokens, num, block_size) for num in (small, large))
    return cost_ratio * (few - gain * many) / (gain - 1)


def in_flight_for(gain: float, large: int, costs: EngineCosts) -> float:
    """Return the rollouts in flight of a run that is `gain` times slower than one with `large` in flight.

    The result shows how empty the slow run's batches must have been, if responses and prompts play no role. A result
    below 1 means that no batch explains the gain, because the gain is above `largest_gain_of_batching`.
    """
    slow = gain * (costs.response_token + costs.step / large) - costs.response_token
    return costs.step / slow


def largest_gain_of_batching(large: int, costs: EngineCosts) -> float:
    """Return how many times as fast an engine samples with `large` rollouts in flight as with one."""
    return (costs.response_token + costs.step) / (costs.response_token + costs.step / large)
