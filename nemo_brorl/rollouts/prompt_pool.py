"""The pool that chooses which prompts of the stream are sampled: all of them, or those of the user's pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from brorl_graders.base.components import find_function, with_params

from nemo_brorl.config.rollouts import PromptPoolConfig
from nemo_brorl.ports import PromptPool, PromptSource
from nemo_brorl.types import Prompt, ScoredGroup

NAME = "rollouts.prompt_pool.name"
PARAMS = "rollouts.prompt_pool.params"

MakePool = Callable[[PromptSource, int], PromptPool]  # (prompt stream, run's seed) → pool


class EveryPrompt:
    """The pool that samples every prompt."""

    def __init__(self, prompts: PromptSource, seed: int) -> None:
        self.prompts = prompts

    def begin_step(self) -> None:
        """Do nothing at the start of a step, because this prompt pool keeps no counts."""

    def take_prompts(self, num: int) -> list[Prompt]:
        return self.prompts.take_prompts(num)

    def record_groups(self, sampled: Sequence[ScoredGroup]) -> None:
        """Ignore the sampled groups, because this prompt pool offers every prompt, whatever its rewards."""

    def metrics(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing from a checkpoint, because this prompt pool has no state."""


def find_pool(config: PromptPoolConfig) -> MakePool:
    """Return the function that makes the prompt pool named by `rollouts.prompt_pool`.

    Raises ConfigError if there is no such function.
    """
    if config.name is None:
        return EveryPrompt
    function = find_function(NAME, config.name, {})
    return with_params(PARAMS, config.name, function, config.params)
