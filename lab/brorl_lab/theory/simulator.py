"""Simulate BroRL at one token position, without a model (arXiv 2510.01180, section 4.1, Figure 3).

A vocabulary of V tokens, some correct. Each step draws N tokens from p = softmax(z), centres their rewards, and takes
one AdamW step on z. All rollout sizes run side by side as rows of one array. The paper's surrogate is −(1/N) Σ_draws
r̃_j p_j (`rule = "counted"`); `rule="reinforce"` is the policy gradient −(1/N) Σ_draws r̃_j log p_j, which has no
factor p in its gradient.

Legend: R rows, one per rollout size; V tokens; the first `num_correct` tokens are the correct ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

PAPER_SIZES = (4, 8, 16, 512, 51200)
SEEDED_LOGIT = 3.0  # logit of every correct token at the start; wrong ones have 0
ANCHOR_LOGIT = 5.0  # logit of one correct token that starts out likely


@dataclass(frozen=True)
class Simulation:
    """Settings of the simulator. The defaults are the paper's, and AdamW's are those of its libraries."""

    sizes: tuple[int, ...] = PAPER_SIZES  # N of each row
    num_tokens: int = 128_000
    num_correct: int = 10_000
    num_steps: int = 1000
    learning_rates: tuple[float, ...] | None = None  # learning rate of each row; None: 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    is_seeded: bool = True  # False: all logits start at 0
    rule: str = "counted"  # counted or reinforce
    precision: str = "float32"  # float32 or float64
    seed: int = 0

    def check(self) -> None:
        """Raise ValueError for settings of the simulator that are not possible.

        The message says what to set instead.
        """
        if self.rule not in ("counted", "reinforce"):
            raise ValueError(f"rule={self.rule!r} is unknown: set counted or reinforce")
        if self.precision not in ("float32", "float64"):
            raise ValueError(f"precision={self.precision!r} is unknown: set float32 or float64")
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"sizes={list(self.sizes)}: set at least one rollout size, each at least 1")
        if not 0 < self.num_correct < self.num_tokens:
            raise ValueError(
                f"num_correct={self.num_correct} must be between 1 and num_tokens − 1 = {self.num_tokens - 1}"
            )
        if self.num_steps < 1:
            raise ValueError(f"num_steps={self.num_steps}: set at least 1")
        if self.learning_rates is not None and len(self.learning_rates) != len(self.sizes):
            raise ValueError(
                f"{len(self.learning_rates)} learning rates for {len(self.sizes)} rollout sizes: set one for each"
            )


@dataclass(frozen=True)
class Measurement:
    """The measurements of all rows after one step. Step 0 is before the first one."""

    step: int
    q_pos: Floats  # probability of all correct tokens [R]
    share_improved: Floats  # share of correct tokens that are likelier than at step 0 [R]
    worst_change: Floats  # smallest p − p₀ among correct tokens [R]


def simulate(simulation: Simulation) -> Iterator[Measurement]:
    """Run BroRL's simulator and yield the measurement of every step, beginning with step 0 before any update.

    Raises ValueError for settings that are not possible.
    """
    simulation.check()
    state = _State(simulation)
    start = state.probabilities()
    yield _measure(0, start, start, simulation.num_correct)
    p = start
    for step in range(1, simulation.num_steps + 1):
        state.update(p, step)
        p = state.probabilities()
        yield _measure(step, p, start, simulation.num_correct)


def _measure(
    step: int,
    p: Floats,
    start: Floats,
    num_correct: int,
) -> Measurement:
    change = p[:, :num_correct] - start[:, :num_correct]
    return Measurement(step, p[:, :num_correct].sum(1, dtype=np.float64), (change > 0).mean(1), change.min(1))


class _State:
    """Logits and Adam's moments of all rows [R, V]."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        rows, dtype = len(simulation.sizes), np.dtype(simulation.precision)
        self.z = np.zeros((rows, simulation.num_tokens), dtype)
        if simulation.is_seeded:
            self.z[:, : simulation.num_correct] = SEEDED_LOGIT
            self.z[:, 0] = ANCHOR_LOGIT
        self.first_moment, self.second_moment = np.zeros_like(self.z), np.zeros_like(self.z)
        rates = simulation.learning_rates or (1e-3,) * rows
        self.rates = np.asarray(rates, dtype)[:, None]
        # One random stream for each row, so that a row's draws do not depend on the other sizes.
        self.streams = [np.random.default_rng([simulation.seed, size]) for size in simulation.sizes]

    def probabilities(self) -> Floats:
        p = np.exp(self.z - self.z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        return p

    def update(self, p: Floats, step: int) -> None:
        """Draw tokens, centre their rewards, and take one AdamW step (decoupled decay, arXiv 1711.05101)."""
        gradient = np.stack([self._gradient(p[row], row) for row in range(len(p))])
        settings, (beta1, beta2) = self.simulation, self.simulation.betas
        self.z *= 1 - self.rates * settings.weight_decay
        self.first_moment += (1 - beta1) * (gradient - self.first_moment)
        gradient *= gradient
        self.second_moment += (1 - beta2) * (gradient - self.second_moment)
        scale = np.sqrt(self.second_moment)
        scale /= np.sqrt(1 - beta2**step)
        scale += settings.eps
        self.z -= self.rates / (1 - beta1**step) * self.first_moment / scale

    def _gradient(self, p: Floats, row: int) -> Floats:
        """Return the gradient of the surrogate loss with respect to the logits z [V] at one rollout size.

        For token weights w and probabilities p it is −p (w − Σ w p), or −(w − p Σ w) for the policy gradient.
        """
        weights = self._centred_weights(p, row)
        if self.simulation.rule == "counted":
            return p * (weights @ p - weights)
        return p * weights.sum() - weights

    def _centred_weights(self, p: Floats, row: int) -> Floats:
        """Draw N tokens and return the weights r̃_j n_j / N [V]: centred reward times share of the draws.

        Rewards are ±1 minus their mean over the draws.
        """
        size = self.simulation.sizes[row]
        counts = _draw(p, size, self.streams[row])
        num_right = counts[: self.simulation.num_correct].sum()
        mean = (2.0 * num_right - size) / size
        weights = counts.astype(p.dtype) / p.dtype.type(size)
        weights[: self.simulation.num_correct] *= 1 - mean
        weights[self.simulation.num_correct :] *= -1 - mean
        return weights


def _draw(p: Floats, size: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return how often each token [V] comes up in `size` independent draws from the probabilities `p`.

    The counts come from inverting the cumulative distribution at sorted uniforms.
    """
    edges = np.cumsum(p.astype(np.float64))
    uniforms = np.sort(random.random(size)) * edges[-1]
    return np.bincount(np.searchsorted(edges, uniforms, side="right"), minlength=len(p))


def ablations(base: Simulation) -> dict[str, Simulation]:
    """Return the simulation of the BroRL paper and variants of it, by name.

    The variants tell what in the paper's Figure 3 is due to the method, to the optimizer and to the initial logits.
    """
    return {
        "paper": base,
        "no weight decay, tiny epsilon": replace(base, weight_decay=0.0, eps=1e-15),
        "not seeded": replace(base, is_seeded=False),
        "policy gradient": replace(base, rule="reinforce"),
    }


def equal_draws(base: Simulation, small: int, large: int) -> dict[str, Simulation]:
    """Return simulations that spend equally many draws on many small or few large steps, by name.

    The simulations with large steps have a learning rate that is constant, or scaled by the square root or linearly.
    """
    draws = base.num_steps * small
    if draws % large:
        raise ValueError(
            f"{base.num_steps} steps of {small} draws are not a whole number of steps of {large}: change num_steps"
        )
    factor = large / small
    few = replace(base, sizes=(large,), num_steps=draws // large)
    return {
        f"N={small}": replace(base, sizes=(small,)),
        f"N={large}, constant": few,
        f"N={large}, sqrt": replace(few, learning_rates=(1e-3 * factor**0.5,)),
        f"N={large}, linear": replace(few, learning_rates=(1e-3 * factor,)),
    }
