"""Allocation of rollouts to groups: N at once (`fixed`, the paper), or wave after wave while that is worth its tokens
(`waves`).

**Worth.** Of the squared estimate of a group's gradient from n rollouts, |g|² is signal and v / n noise. So n / (n + h)
of it is signal, h = v / |g|² (`half_signal`: the n at which half is; the noise scale of arXiv 1812.06162, for one
prompt). What there is to learn is the variance of the reward, p (1 − p), of which a Beta belief has the expectation V.
Hence n rollouts are worth V n / (n + h), and the next wave what it adds to that, per predicted token. The price is what
the alternative is worth: the first wave of a fresh prompt of the task mixture, its prompt's tokens included.

**Decision.** A group whose next wave is worth its price is extended. Any other still is with the probability √(worth /
price), at least `min_probability`. What is kept with probability P and then counted 1 / P-fold adds (its second moment)
/ P to the variance and (its cost) P to the tokens: P in proportion to the root of their ratio makes any variance
cheapest (Neyman 1934). The coin is a hash of seed, prompt uid and wave, so a restart tosses the same.

How waves are weighed so that the estimate stays unbiased: `wave_weights.py`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from nemo_brorl.algorithm.rollout_size import SuccessPrior
from nemo_brorl.config.rollouts import RolloutsConfig, WavesConfig
from nemo_brorl.rollouts.group_size.success_posterior import SuccessPosterior
from nemo_brorl.rollouts.group_size.wave_weights import (
    Draw,
    share_of_signal,
    shares,
    shares_when_cut,
    total_size,
    wave_weights,
)
from nemo_brorl.types import SUCCESS_REWARD, Float32, Int32, Prompt, Wave


class Allocation(Protocol):
    """Decides on the size of groups. Holds nothing of a group: what it needs is handed in, so there is no state to
    save."""

    def first(self, prompt: Prompt) -> Draw:
        """What to ask for when a prompt is begun."""

    def extend(
        self,
        prompt: Prompt,
        draws: Sequence[Draw],
        rewards: Float32,
        lengths: Int32,
    ) -> Draw | None:
        """What to ask for next, once all waves so far are scored, from the raw rewards and lengths of all their
        rollouts. None: the group is complete."""

    def close(
        self,
        draws: Sequence[Draw],
        is_cut: bool = False,
        is_last_lost: bool = False,
    ) -> tuple[Wave, ...]:
        """The waves of a complete group with their weights. `is_cut`: no decision ended it, but a deadline or the end
        of the step; then its last wave counts for those that can no longer come. `is_last_lost`: that wave did not end
        in time and is not in the group; the waves before it count for it."""


class FixedAllocation:
    """N rollouts at once."""

    def __init__(self, num_per_prompt: int) -> None:
        self.num_per_prompt = num_per_prompt

    def first(self, prompt: Prompt) -> Draw:
        return Draw(self.num_per_prompt, 1.0)

    def extend(
        self,
        prompt: Prompt,
        draws: Sequence[Draw],
        rewards: Float32,
        lengths: Int32,
    ) -> Draw | None:
        return None

    def close(
        self,
        draws: Sequence[Draw],
        is_cut: bool = False,
        is_last_lost: bool = False,
    ) -> tuple[Wave, ...]:
        assert not is_last_lost, "a group of one wave is lost with it"
        return ()


class WaveAllocation:
    """Wave after wave up to N. It owns nothing: draws belong to the group, beliefs to the run. The beliefs must not
    change between a group's waves, or a restart might decide otherwise.

    A prompt whose reward varies as that of the task mixture does, N = 512, first wave 64, growth 2, h = 64:

        first   → Draw(64, 1.0)
        extend  → Draw(64, 0.58)    worth 1/3 of its price: probability √(1/3), and the coin says yes
        extend  → Draw(128, 0.37)   worth 2/15
        extend  → None              worth 2/45: probability 0.21, and the coin says no
        close   → three waves; what was drawn with 0.58 and then 0.37 counts so much more
    """

    def __init__(
        self,
        config: WavesConfig,
        num_per_prompt: int,
        beliefs: SuccessPosterior,
        seed: int,
    ) -> None:
        self.config = config
        self.num_per_prompt = num_per_prompt
        self.beliefs = beliefs
        self.seed = seed
        self.sizes = wave_sizes(num_per_prompt, config.first_wave, config.growth)

    def first(self, prompt: Prompt) -> Draw:
        return Draw(self.sizes[0], 1.0)

    def extend(
        self,
        prompt: Prompt,
        draws: Sequence[Draw],
        rewards: Float32,
        lengths: Int32,
    ) -> Draw | None:
        sizes = self.sizes_after(draws)
        probability = self.probability(prompt, draws, rewards, lengths)
        is_drawn = coin(self.seed, prompt.uid, len(draws)) < probability
        if not is_drawn:
            return None
        return Draw(sizes[0], probability)

    def probability(
        self,
        prompt: Prompt,
        draws: Sequence[Draw],
        rewards: Float32,
        lengths: Int32,
    ) -> float:
        """Probability of another wave, given all there is; 0 when the group has N."""
        sizes = self.sizes_after(draws)
        if not sizes:
            return 0.0
        successes = int((rewards >= SUCCESS_REWARD).sum())
        failures = len(rewards) - successes
        tokens = float(lengths.mean())
        belief = self.beliefs.posterior(prompt)
        belief = belief.after(successes, failures)
        worth = self.worth(belief, total_size(draws), sizes[0], tokens)
        price = self.price(prompt, tokens)
        probability = min(1.0, math.sqrt(worth / price))
        return max(self.config.min_probability, probability)

    def close(
        self,
        draws: Sequence[Draw],
        is_cut: bool = False,
        is_last_lost: bool = False,
    ) -> tuple[Wave, ...]:
        sizes = [draw.num_rollouts for draw in draws]
        sizes += self.sizes_after(draws)
        alphas = shares(sizes, self.config.reach)
        if is_cut:
            alphas = shares_when_cut(alphas, len(draws))
        weights = wave_weights(draws, alphas, self.config.half_signal, is_last_lost)
        waves: list[Wave] = []
        for draw, weight in zip(draws, weights, strict=True):
            waves.append(Wave(draw.num_rollouts, draw.probability, weight))
        return tuple(waves[:-1]) if is_last_lost else tuple(waves)

    def sizes_after(self, draws: Sequence[Draw]) -> list[int]:
        """Sizes of the waves that a group may still get. A group that was carried over while the schedule changed N
        goes on under the new plan."""
        sizes: list[int] = []
        total = total_size(draws)
        for planned in accumulate(self.sizes):
            if planned > total:
                sizes.append(planned - total)
                total = planned
        return sizes

    def worth(
        self,
        belief: SuccessPrior,
        num_so_far: int,
        num_more: int,
        response_tokens: float,
    ) -> float:
        """Worth of more rollouts of a group, per token."""
        half = self.config.half_signal
        signal_before = share_of_signal(num_so_far, half)
        signal_after = share_of_signal(num_so_far + num_more, half)
        num_tokens = num_more * max(response_tokens, 1.0)
        return belief.reward_variance * (signal_after - signal_before) / num_tokens

    def price(self, prompt: Prompt, response_tokens: float) -> float:
        """Worth per token of a fresh prompt's first wave; while no group was seen, one of this prompt's and these
        responses' length."""
        seen = self.beliefs.seen()
        prompt_tokens = float(len(prompt.token_ids))
        if seen.groups:
            prompt_tokens = seen.prompt_tokens / seen.groups
            response_tokens = seen.response_tokens / seen.groups
        num_rollouts = self.sizes[0]
        num_tokens = prompt_tokens + num_rollouts * max(response_tokens, 1.0)
        signal = share_of_signal(num_rollouts, self.config.half_signal)
        return self.beliefs.mixture_variance() * signal / num_tokens


def make_allocation(
    config: RolloutsConfig,
    num_per_prompt: int,
    beliefs: SuccessPosterior,
    seed: int,
) -> Allocation:
    """The allocation that `rollouts.allocation` asks for."""
    if config.allocation == "fixed":
        return FixedAllocation(num_per_prompt)
    return WaveAllocation(config.waves, num_per_prompt, beliefs, seed)


def wave_sizes(num_per_prompt: int, first: int, growth: float) -> list[int]:
    """Sizes that add up to N: after each wave a group is `growth` times as large as before, N at most. 512, 64, 2: 64,
    64, 128, 256.

    A last wave below half the first is joined to the one before.
    """
    least = max(first / 2, 2)
    sizes: list[int] = []
    total = 0
    grown = first
    while total < num_per_prompt:
        if num_per_prompt - grown < least:
            grown = num_per_prompt
        sizes.append(grown - total)
        total = grown
        grown = max(math.ceil(total * growth), total + 2)
    return sizes


def coin(seed: int, uid: str, wave: int) -> float:
    """Uniform in [0, 1), the same for the same arguments."""
    text = f"{seed}/{uid}/wave {wave}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
