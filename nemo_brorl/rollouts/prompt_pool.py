"""Which prompts of the stream are asked: all of them, or those that a pool of the user's chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from brorl_graders.base.components import find_function, with_params

from nemo_brorl.config.rollouts import PromptPoolConfig
from nemo_brorl.ports import PromptPool, PromptSource
from nemo_brorl.types import Prompt, ScoredGroup

NAME = "rollouts.prompt_pool.name"
PARAMS = "rollouts.prompt_pool.params"

MakePool = Callable[[PromptSource, int], PromptPool]  # of a stream, with the run's seed


class EveryPrompt:
    """The pool that asks every prompt."""

    def __init__(self, prompts: PromptSource, seed: int) -> None:
        self.prompts = prompts

    def begin_step(self) -> None:
        """See `PromptPool.begin_step`."""

    def take_prompts(self, num: int) -> list[Prompt]:
        """See `PromptPool.take_prompts`."""
        return self.prompts.take_prompts(num)

    def record_groups(self, sampled: Sequence[ScoredGroup]) -> None:
        """See `PromptPool.record_groups`."""

    def metrics(self) -> dict[str, float]:
        """See `PromptPool.metrics`."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """See `PromptPool.state_dict`."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `PromptPool.load_state_dict`."""


def find_pool(config: PromptPoolConfig) -> MakePool:
    """Return what makes the pool that the settings name. Raises ConfigError."""
    if config.name is None:
        return EveryPrompt
    function = find_function(NAME, config.name, {})
    return with_params(PARAMS, config.name, function, config.params)
