"""Shape rewards by length, truncation and repetition, after dynamic sampling has judged the raw rewards.

Raw rewards decide which groups are informative, and metrics called reward are raw. Only advantages use shaped rewards.
A shaping function takes and returns the rewards of one group [N]. Lengths are numbers of sampled tokens.
`rewards.shaping.function` adds one of your own, as `package.module:function` (docs/howto/extend.md).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from brorl_graders.base.components import find_function, with_params
from numpy.typing import NDArray

from nemo_brorl.config.rewards import CosineLengthConfig, ShapingConfig
from nemo_brorl.core.errors import TrainingError
from nemo_brorl.types import Bool, Float32, Int32, ScoredGroup

Float64 = NDArray[np.float64]

# Takes rewards [N], the group, max_tokens and the step. Returns rewards [N].
Shaping = Callable[[Float64, ScoredGroup, int, int], Float64]


def shaped_rewards(
    scored: ScoredGroup,
    config: ShapingConfig,
    max_tokens: int,
    step: int,
    own: Shaping | None = None,
) -> Float32:
    """Return a group's rewards [N] after all shaping that the settings turn on.

    The order is cosine length, overlong penalty, repetition penalty, truncation, and last a user's own function.
    `max_tokens` is the longest that a response may be. `step` counts from 1. `own` is `find_shaping(config)`, which the
    caller looks up once for all groups. Raises TrainingError unless `own` returns N finite numbers.
    """
    assert (own is None) == (config.function is None), "rewards.shaping.function was not looked up"
    rewards = scored.rewards.astype(np.float64)
    lengths = scored.group.num_sampled
    if config.cosine.enabled and is_on(config.cosine, step):
        rewards = cosine_length(rewards, lengths, max_tokens, config.cosine)
    if config.overlong_buffer > 0:
        rewards = rewards + config.overlong_penalty * overlong(lengths, max_tokens, config.overlong_buffer)
    if config.repetition_penalty > 0:
        rewards = rewards - config.repetition_penalty * scored.repetition
    if config.truncated_factor != 1.0:
        rewards = stop_properly(rewards, scored.group.is_stopped, config.truncated_factor)
    if own is not None:
        rewards = np.asarray(own(rewards, scored, max_tokens, step))
        if rewards.shape != scored.rewards.shape or not np.isfinite(rewards).all():
            raise TrainingError(
                f"rewards.shaping.function={config.function} returned shape {rewards.shape} for prompt "
                f"{scored.prompt.uid}: return {len(scored.rewards)} finite numbers, one per rollout"
            )
    return rewards.astype(np.float32)


def find_shaping(config: ShapingConfig) -> Shaping | None:
    """Return the user's reward shaping function that `rewards.shaping.function` names, or None where none is set.

    Its parameters are filled in. Raises ConfigError for a function that cannot be imported or a parameter that the
    function does not have.
    """
    if config.function is None:
        return None
    function = find_function("rewards.shaping.function", config.function, {})
    return with_params("rewards.shaping.function_params", config.function, function, config.function_params)


def is_on(config: CosineLengthConfig, step: int) -> bool:
    """Return whether the cosine length reward is on in training step `step`, counted from 1.

    It is on for `on_steps` steps, then off for `off_steps` steps, and so on. With `off_steps=0` it is always on.
    """
    if config.off_steps == 0:
        return True
    return (step - 1) % (config.on_steps + config.off_steps) < config.on_steps


def cosine_length(
    rewards: Float64,
    lengths: Int32,
    max_tokens: int,
    config: CosineLengthConfig,
) -> Float64:
    """Return rewards [N] scaled by half a cosine over the response length (arXiv 2502.03373 section 4.1).

    Correct and wrong responses have a curve each, from one value at 0 tokens to another at `max_tokens`. A reward r
    between 0 and 1 mixes r of the correct curve with 1 − r of the wrong one.
    """
    # 1 at no tokens, 0 at the limit
    fall = 0.5 * (1 + np.cos(np.pi * np.minimum(lengths / max_tokens, 1.0)))
    correct = config.correct_long + (config.correct_short - config.correct_long) * fall
    wrong = config.wrong_long + (config.wrong_short - config.wrong_long) * fall
    return rewards * correct + (1 - rewards) * wrong


def overlong(lengths: Int32, max_tokens: int, buffer: int) -> Float64:
    """Return a penalty per response [N]: 0 up to max_tokens − buffer tokens, then falling linearly to −1 at max_tokens.

    This is DAPO's soft overlong punishment (arXiv 2503.14476 equation 13).
    """
    excess = lengths - (max_tokens - buffer)
    return -np.clip(excess / buffer, 0.0, 1.0)


def stop_properly(rewards: Float64, is_stopped: Bool, factor: float) -> Float64:
    """Return rewards [N] with those of truncated responses multiplied by `factor`.

    ProRLv2 and BroRL use 0 to 0.1. Negative rewards stay as they are: shrinking them would reward running out of
    tokens.
    """
    return np.where(is_stopped | (rewards < 0), rewards, rewards * factor)
