"""Play an agent's episode in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from brorl_graders.environments.agent import Agent
from brorl_graders.environments.protocol import Action, Step
from brorl_graders.environments.registry import make_environment

from graders.tests.support.names import allow_also


def agent_played(
    settings: Mapping[str, Any], actions: Sequence[Action], task: Mapping[str, Any]
) -> tuple[Any, list[Step]]:
    """Return the agent's first request, and the steps until its end."""
    allow_also(environments=[("agent", settings)])

    async def play() -> tuple[Any, list[Step]]:
        agent = make_environment("agent", settings)
        assert isinstance(agent, Agent)
        try:
            first = await agent.reset(task, 7)
            steps = [await agent.step(action) for action in actions]
        finally:
            agent.close()
        return first, steps

    return asyncio.run(play())
