"""Environments of the library `verifiers`, run as agents: its own loop of turns, its own rubric for the reward.

These are what `verifiers.load_environment` gives (SingleTurnEnv, MultiTurnEnv, ToolEnv, …), of its versions up to 0.3;
0.4 has dropped them. The library is no requirement of this package: `pip install nemo_brorl[verifiers]`.
"""

from __future__ import annotations

import json
import signal
from functools import lru_cache
from typing import Any

from nemo_brorl.core.errors import ConfigError
from nemo_brorl.tasks.environments.agent import Agent, AgentError, Result
from nemo_brorl.tasks.environments.endpoint import Endpoint
from nemo_brorl.tasks.environments.protocol import Task


class Verifiers(Agent):
    """One of its environments, by the name under which it is installed. Tasks are rows of its dataset."""

    def __init__(
        self,
        environment: str,
        arguments: dict[str, Any] | None = None,
        max_turns: int = 16,
    ) -> None:
        """`arguments` are those of its `load_environment`. Raises ConfigError."""
        super().__init__(max_turns=max_turns)
        self.environment = _loaded(environment, json.dumps(arguments or {}))

    def task(self, seed: int) -> Task:
        """A row, by its place."""
        return {"row": seed % len(self.environment.get_dataset())}

    async def act(self, task: Task, endpoint: Endpoint) -> Result:
        """A rollout of its own; the rubric's reward of a single one."""
        from openai import AsyncOpenAI
        from verifiers.clients import OpenAIChatCompletionsClient

        row = self.environment.get_dataset()[task["row"]]
        async with AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            asking = OpenAIChatCompletionsClient(client)
            output = await self.environment.run_rollout(row, asking, endpoint.model, {})
        if output.get("error"):
            raise AgentError(f"{output['error']}")
        return float(output["reward"])


@lru_cache(maxsize=8)
def _loaded(name: str, arguments: str) -> Any:
    """Environment with its dataset, one for all episodes of a process."""
    try:
        from verifiers import load_environment
    except ImportError as error:
        raise ConfigError(
            f"environment verifiers needs the library verifiers, below 0.4 ({error}): pip install 'verifiers<0.4'"
        ) from error
    handled = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in handled]
    try:
        loaded = load_environment(name, **json.loads(arguments))
        loaded.get_dataset()
    except (ValueError, RuntimeError, TypeError) as error:
        raise ConfigError(f"environment verifiers: {name} cannot be loaded: {error}") from error
    finally:
        for number, handler in zip(handled, handlers, strict=True):
            signal.signal(number, handler)  # the library has put its own there
    return loaded
