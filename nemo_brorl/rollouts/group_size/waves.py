"""How many rollouts a group gets: N at once (`fixed`, the paper), or wave after wave while that is worth its tokens
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

**Unbiased.** How large a group is depends on its rewards, so a plain mean over its rollouts is biased. With r, s the
reward and score function of a rollout, let ĝ_k = Σ (r − r̄_k) s / (n_k − 1) over wave k alone (its own mean as
baseline, RLOO's factor); S_k = n_1 + … + n_k; M_k the mean of ĝ_1 … ĝ_k weighed by size; P_k the probability of wave k
once k − 1 was there; and α_k, with sum 1, the part of the estimate that wave k is for, fixed in advance. The estimate
is

    Ĝ = α_1 ĝ_1 + R_2
    R_k = b_k + (α_k ĝ_k + R_{k+1} − b_k) / P_k  if wave k was drawn, else b_k
    b_k = β_k (α_k + … + α_K) M_{k−1}            known before wave k, stands in for all that may not be drawn

Given all N rollouts, drawn or not, the coin of wave k has the known mean P_k: E R_k = E[α_k ĝ_k + R_{k+1}] whatever b_k
is, and so, from the last wave back, E Ĝ = Σ α_k E ĝ_k = g, since every ĝ_k is unbiased whatever its size. That needs
decisions that look at earlier waves only, and waves that are not coupled through a common baseline.

Any α and β are unbiased; the variance depends on them. With α_k = n_k / N a group that is sure to get all waves is
averaged plainly, but a wave that few groups get weighs 1 / (P_2 ⋯ P_k) times its size where it was drawn. With α_k in
proportion to n_k `reach`^(k − 1), `reach` being the share of groups that go on, all rollouts weigh about the same. With
α = n / N and β = 1 the estimate is the sum ĝ_1 + Σ (n_k / S_k) (ĝ_k − M_{k−1}) / (P_2 ⋯ P_k) (Rhee & Glynn 2015), with
β = 0 it is inverse probability weighting. The best β makes β M_{k−1} the best prediction and is the share of signal in
M_{k−1}: β_k = S_{k−1} / (S_{k−1} + h).

All of it is linear in the waves: Ĝ = Σ w_k ĝ_k. `Wave.weight` is w_k, and goes into the advantages
(`algorithm/advantages/per_wave.py`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

from nemo_brorl.algorithm.theory.rollout_size import SuccessPrior
from nemo_brorl.config.schema import RolloutsConfig, WavesConfig
from nemo_brorl.rollouts.group_size.success_posterior import SuccessPosterior
from nemo_brorl.types import SUCCESS_REWARD, Float32, Int32, Prompt, Wave


@dataclass(frozen=True)
class Draw:
    """A wave of a group that is still open."""

    num_rollouts: int
    probability: float  # given the earlier waves


class Allocation(Protocol):
    """Decides on the size of groups. Holds nothing of a group: what it needs is handed in, so there is no state to
    save."""

    def first(self, prompt: Prompt) -> Draw:
        """What to ask for when a prompt is begun."""

    def extend(self, prompt: Prompt, draws: Sequence[Draw], rewards: Float32, lengths: Int32) -> Draw | None:
        """What to ask for next, once all waves so far are scored, from the raw rewards and lengths of all their
        rollouts. None: the group is complete."""

    def close(self, draws: Sequence[Draw], is_cut: bool = False) -> tuple[Wave, ...]:
        """The waves of a complete group with their weights. `is_cut`: no decision ended it, but a deadline or the end
        of the step; then the group counts as if it had been meant to be this large."""


class FixedAllocation:
    """N rollouts at once."""

    def __init__(self, num_per_prompt: int) -> None:
        self.num_per_prompt = num_per_prompt

    def first(self, prompt: Prompt) -> Draw:
        return Draw(self.num_per_prompt, 1.0)

    def extend(self, prompt: Prompt, draws: Sequence[Draw], rewards: Float32, lengths: Int32) -> Draw | None:
        return None

    def close(self, draws: Sequence[Draw], is_cut: bool = False) -> tuple[Wave, ...]:
        return ()


class WaveAllocation:
    """Wave after wave up to N. The beliefs must not change between a group's waves, or a restart might decide
    otherwise."""

    def __init__(self, config: WavesConfig, num_per_prompt: int, beliefs: SuccessPosterior, seed: int) -> None:
        self.config = config
        self.num_per_prompt = num_per_prompt
        self.beliefs = beliefs
        self.seed = seed
        self.sizes = wave_sizes(num_per_prompt, config.first_wave, config.growth)

    def first(self, prompt: Prompt) -> Draw:
        return Draw(self.sizes[0], 1.0)

    def extend(self, prompt: Prompt, draws: Sequence[Draw], rewards: Float32, lengths: Int32) -> Draw | None:
        more = self.sizes_after(draws)
        probability = self.probability(prompt, draws, rewards, lengths)
        return Draw(more[0], probability) if coin(self.seed, prompt.uid, len(draws)) < probability else None

    def probability(self, prompt: Prompt, draws: Sequence[Draw], rewards: Float32, lengths: Int32) -> float:
        """Of another wave, given all there is; 0 when the group has N."""
        more = self.sizes_after(draws)
        if not more:
            return 0.0
        successes, tokens = int((rewards >= SUCCESS_REWARD).sum()), float(lengths.mean())
        belief = self.beliefs.posterior(prompt).after(successes, len(rewards) - successes)
        worth = self.worth(belief, sum(draw.num_rollouts for draw in draws), more[0], tokens)
        return max(self.config.min_probability, min(1.0, math.sqrt(worth / self.price(prompt, tokens))))

    def close(self, draws: Sequence[Draw], is_cut: bool = False) -> tuple[Wave, ...]:
        sizes = [draw.num_rollouts for draw in draws] + ([] if is_cut else self.sizes_after(draws))
        weights = wave_weights(draws, shares(sizes, self.config.reach), self.config.half_signal)
        return tuple(
            Wave(draw.num_rollouts, draw.probability, weight) for draw, weight in zip(draws, weights, strict=True)
        )

    def sizes_after(self, draws: Sequence[Draw]) -> list[int]:
        """Of the waves that a group may still get. One that was held while the schedule changed N goes on under the new
        plan."""
        total = sum(draw.num_rollouts for draw in draws)
        totals = [total, *(planned for planned in accumulate(self.sizes) if planned > total)]
        return [after - before for before, after in pairwise(totals)]

    def worth(self, belief: SuccessPrior, num_so_far: int, num_more: int, response_tokens: float) -> float:
        """Per token, of more rollouts of a group."""
        half = self.config.half_signal
        gain = share_of_signal(num_so_far + num_more, half) - share_of_signal(num_so_far, half)
        return belief.reward_variance * gain / (num_more * max(response_tokens, 1.0))

    def price(self, prompt: Prompt, response_tokens: float) -> float:
        """Worth per token of a fresh prompt's first wave; while no group was seen, one of this prompt's and these
        responses' length."""
        seen, num = self.beliefs.seen(), self.sizes[0]
        prompt_tokens = seen.prompt_tokens / seen.groups if seen.groups else float(len(prompt.token_ids))
        response_tokens = seen.response_tokens / seen.groups if seen.groups else response_tokens
        gain = share_of_signal(num, self.config.half_signal)
        return self.beliefs.mixture_variance() * gain / (prompt_tokens + num * max(response_tokens, 1.0))


def make_allocation(config: RolloutsConfig, num_per_prompt: int, beliefs: SuccessPosterior, seed: int) -> Allocation:
    """What `rollouts.allocation` asks for."""
    if config.allocation == "fixed":
        return FixedAllocation(num_per_prompt)
    return WaveAllocation(config.waves, num_per_prompt, beliefs, seed)


def wave_sizes(num_per_prompt: int, first: int, growth: float) -> list[int]:
    """Sizes that add up to N: after each wave a group is `growth` times as large as before, N at most. 512, 64, 2: 64,
    64, 128, 256.

    A last wave below half the first is joined to the one before.
    """
    least = max(first / 2, 2)
    totals: list[int] = []
    grown = first
    while not totals or totals[-1] < num_per_prompt:
        totals.append(num_per_prompt if num_per_prompt - grown < least else grown)
        grown = max(math.ceil(totals[-1] * growth), totals[-1] + 2)
    return [total - before for total, before in zip(totals, [0, *totals], strict=False)]


def shares(sizes: Sequence[int], reach: float) -> list[float]:
    """α_k of all waves that a group may get: as sizes, each wave `reach` times less than the one before."""
    parts = [size * reach**wave for wave, size in enumerate(sizes)]
    return [part / sum(parts) for part in parts]


def wave_weights(draws: Sequence[Draw], alphas: Sequence[float], half_signal: float) -> list[float]:
    """w_k of every drawn wave from the shares of all waves that there might have been: the formula of this module,
    multiplied out."""
    weights = [0.0] * len(draws)

    def add_mean_so_far(num_waves: int, factor: float) -> None:
        """`factor` times M, the mean of the first waves weighed by size."""
        size = sum(draw.num_rollouts for draw in draws[:num_waves])
        stand_in = share_of_signal(size, half_signal) * sum(alphas[num_waves:])
        for wave in range(num_waves):
            weights[wave] += factor * stand_in * draws[wave].num_rollouts / size

    reach = 1.0  # q
    for wave, draw in enumerate(draws):
        if wave > 0:
            add_mean_so_far(wave, (1 - 1 / draw.probability) / reach)
            reach *= draw.probability
        weights[wave] += alphas[wave] / reach
    add_mean_so_far(len(draws), 1 / reach)
    return weights


def share_of_signal(num_rollouts: int, half_signal: float) -> float:
    """n / (n + h)."""
    return num_rollouts / (num_rollouts + half_signal)


def coin(seed: int, uid: str, wave: int) -> float:
    """Uniform in [0, 1), the same for the same arguments."""
    digest = hashlib.blake2b(f"{seed}/{uid}/wave {wave}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
