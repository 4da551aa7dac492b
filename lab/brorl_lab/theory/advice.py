"""Predict informative groups, updates, signal and time of a run with another N or another way to fill batches.

The predictions follow from the run's success rates and measured costs.

**Signal.** A prompt with success rate p and q = p (1 − p) has the gradient q μ. μ is the mean score function of its
right answers less that of its wrong ones, and differs from prompt to prompt. Score functions scatter about their means
with `score_noise` = v times the variance of μ. The mean of N rollouts against their own mean, K of them right, then has
the second moment, in units of the variance of μ,

    T(N) = E[(K (N − K) / (N (N − 1)))²] + v E[q] / (N − 1)
         = ((N − 2) (N − 3) E[q²] + (N − 1) E[q]) / (N (N − 1)) + v E[q] / (N − 1)

So the squared signal-to-noise of all samples is proportional to 1 / (N T(N)) per sample. The first part of T is due to
sampling one prompt many times, the second is the noise that more rollouts reduce. This holds for estimators that are
linear in the reward (group mean, RLOO). It does not cover what a division by the deviation or MaxRL moves to hard
prompts, nor the effect of training. A run does not measure v. 3 (few prompts say all) to 30 is a wide guess.

**Fill.** With as many rollouts in a batch as before, G = batch / N groups: `full` samples G / keep rate of them for one
update, `samples` G. The samples, the informative groups among them and the time are the same: only the number of
updates differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaln

from brorl_lab.theory.rollout_size import Float64
from brorl_lab.theory.success_prior import SuccessPrior

_LARGEST_LOG_SHAPE = np.log(1e3)  # largest log of a and b: beyond, nothing changes
_LEAST_ERROR = 1e-3  # smallest error of a measured probability, so that one without spread does not decide alone


@dataclass(frozen=True)
class MeasuredSteps:
    """Means of what a run measured in some of its steps."""

    num_per_prompt: int  # N
    batch_rollouts: float  # rollouts of an update
    pass_at: Mapping[int, float]  # pass@k by k
    all_right: float  # share of groups with only right rollouts
    prompt_tokens: float
    response_tokens: float
    mini_batches: float
    generate_s: float  # seconds of one sampled rollout
    train_s: float  # seconds of one trained rollout
    publish_s: float  # seconds of one update's weight sync


@dataclass(frozen=True)
class Outlook:
    """A prediction of what a number of samples would bring with another N."""

    num_per_prompt: int
    keep_rate: float
    informative_groups: float
    updates_full: float
    updates_samples: float
    signal: float  # squared signal-to-noise over that with the run's N
    seconds: float  # seconds with dynamic_sampling.fill=samples

    @property
    def signal_per_second(self) -> float:
        return self.signal / self.seconds


def second_moment(prior: SuccessPrior, num: int, score_noise: float) -> float:
    """Return T(N), the second moment of a prompt's gradient estimate from N rollouts.

    `num` is N and at least 2. The unit is the variance of the mean score difference between right and wrong answers.
    The formula is in the docstring of `brorl_lab.theory.advice`.
    """
    q = prior.reward_variance
    log_of_q_squared = betaln(prior.a + 2, prior.b + 2) - betaln(prior.a, prior.b)
    q_squared = float(np.exp(log_of_q_squared))
    signal = ((num - 2) * (num - 3) * q_squared + (num - 1) * q) / (num * (num - 1))
    noise = score_noise * q / (num - 1)
    return signal + noise


def signal_per_sample(
    prior: SuccessPrior,
    num: int,
    reference: int,
    score_noise: float,
) -> float:
    """Return the gradient's squared signal-to-noise with N = `num` rollouts per prompt, over that with N = `reference`.

    Both are at equally many samples in all.
    """
    own = num * second_moment(prior, num, score_noise)
    other = reference * second_moment(prior, reference, score_noise)
    return other / own


def fit_prior(
    pass_at: Mapping[int, float],
    all_right: float,
    num: int,
) -> SuccessPrior:
    """Return the Beta prior of success rates that comes closest to the measured pass@k and share of all-right groups.

    `all_right` is the share of groups of `num` rollouts that are all right. Each distance counts in units of the
    binomial standard error.
    """
    ks = np.array(sorted(pass_at))
    measured = np.array([*(pass_at[int(k)] for k in ks), all_right])
    errors = np.sqrt(measured * (1 - measured)) + _LEAST_ERROR

    def misfit(log_shape: Float64) -> float:
        a, b = np.exp(log_shape)
        log_norm = betaln(a, b)
        expected = 1 - np.exp(betaln(a, b + ks) - log_norm)
        expected_all = np.exp(betaln(a + num, b) - log_norm)
        distance = np.append(expected, expected_all) - measured
        return float(((distance / errors) ** 2).sum())

    mean = min(max(pass_at[1], _LEAST_ERROR), 1 - _LEAST_ERROR)
    start = np.log([mean, 1 - mean])
    bounds = [(-_LARGEST_LOG_SHAPE, _LARGEST_LOG_SHAPE)] * 2
    best = minimize(misfit, start, method="Nelder-Mead", bounds=bounds)
    a, b = np.exp(best.x)
    return SuccessPrior(float(a), float(b))


def predict_outlook(
    measured: MeasuredSteps,
    prior: SuccessPrior,
    num: int,
    num_samples: float,
    score_noise: float,
    prefill_cost: float,
) -> Outlook:
    """Return the predicted updates, signal and time of training with `num_samples` rollouts and N = `num` per prompt.

    Costs change with the share of the prompt that a rollout pays. When sampled it pays 1 / N of the prompt, each token
    at `prefill_cost` of a response token. When trained on it pays 1 / N of one copy for every mini-batch.
    """
    keep_rate = prior.keep_rate(num)
    num_groups = max(1.0, measured.batch_rollouts / num)
    updates = num_samples / (num_groups * num)
    generate_s = measured.generate_s * _work_ratio(measured, num, prefill_cost)
    train_s = measured.train_s * _work_ratio(measured, num, measured.mini_batches)
    seconds = num_samples * (generate_s + keep_rate * train_s) + updates * measured.publish_s
    return Outlook(
        num_per_prompt=num,
        keep_rate=keep_rate,
        informative_groups=keep_rate * num_samples / num,
        updates_full=keep_rate * updates,
        updates_samples=updates,
        signal=signal_per_sample(prior, num, measured.num_per_prompt, score_noise),
        seconds=seconds,
    )


def _work_ratio(measured: MeasuredSteps, num: int, prompt_cost: float) -> float:
    """Return the cost of a rollout in a group of `num` rollouts, over its cost at the run's own group size.

    `prompt_cost` is the cost of a prompt token in response tokens.
    """
    prompt_work = prompt_cost * measured.prompt_tokens
    own = measured.response_tokens + prompt_work / num
    run = measured.response_tokens + prompt_work / measured.num_per_prompt
    return own / run


def resample_steps(steps: Sequence[MeasuredSteps], random: np.random.Generator) -> list[MeasuredSteps]:
    """Return a bootstrap resample of measured training steps: equally many steps, drawn with replacement.

    The spread of a result over such resamples is its uncertainty.
    """
    chosen = random.integers(0, len(steps), len(steps))
    return [steps[index] for index in chosen]


def mean_of_steps(steps: Sequence[MeasuredSteps]) -> MeasuredSteps:
    """Return the mean measurements of training steps with the same N, with pass@k for each k that all steps have."""
    shared = set(steps[0].pass_at)
    for step in steps:
        shared &= set(step.pass_at)
    pass_at: dict[int, float] = {}
    for k in sorted(shared):
        pass_at[k] = float(np.mean([step.pass_at[k] for step in steps]))

    def mean(name: str) -> float:
        return float(np.mean([getattr(step, name) for step in steps]))

    return MeasuredSteps(
        num_per_prompt=steps[0].num_per_prompt,
        batch_rollouts=mean("batch_rollouts"),
        pass_at=pass_at,
        all_right=mean("all_right"),
        prompt_tokens=mean("prompt_tokens"),
        response_tokens=mean("response_tokens"),
        mini_batches=mean("mini_batches"),
        generate_s=mean("generate_s"),
        train_s=mean("train_s"),
        publish_s=mean("publish_s"),
    )
