"""Agents for tests that use nothing but OpenAI's client, well and badly behaved."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from brorl_graders.environments.agent import Agent
from brorl_graders.environments.endpoint import ModelEndpoint
from openai import AsyncOpenAI, AuthenticationError, OpenAI

PLACE = "graders.tests.support.agents:"
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "a + b",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
Task = Mapping[str, Any]


def client_of(endpoint: ModelEndpoint) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)


async def count(task: Task, endpoint: ModelEndpoint) -> float:
    """Ask the model `task["turns"]` times, and return the length of all answers."""
    messages: list[Any] = [{"role": "system", "content": "Count."}, {"role": "user", "content": "1"}]
    total = 0
    async with client_of(endpoint) as client:
        for turn in range(task["turns"]):
            done = await client.chat.completions.create(model="any", messages=messages)
            answer = done.choices[0].message
            total += len(answer.content or "")
            messages += [answer, {"role": "user", "content": f"{turn + 2} after {answer.content}"}]
    return float(total)


def count_in_a_thread(task: Task, endpoint: ModelEndpoint) -> float:
    """Ask the model as `count` does, by blocking calls."""
    messages: list[Any] = [{"role": "user", "content": "1"}]
    total = 0
    with OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        for turn in range(task["turns"]):
            done = client.chat.completions.create(model="any", messages=messages)
            content = done.choices[0].message.content or ""
            total += len(content)
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": f"{turn + 2}"}]
    return float(total)


async def stream(task: Task, endpoint: ModelEndpoint) -> str:
    """Ask the model for a streamed answer, and return it."""
    said = []
    async with client_of(endpoint) as client:
        pieces = await client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "go"}], stream=True
        )
        async for piece in pieces:
            said += [choice.delta.content or "" for choice in piece.choices]
    return "".join(said)


async def use_tool(task: Task, endpoint: ModelEndpoint) -> float:
    """Add numbers as often as the model calls the tool. Return 1 when the last answer is the newest sum."""
    messages: list[Any] = [{"role": "user", "content": "2 + 3 ="}]
    newest = 0
    async with client_of(endpoint) as client:
        while True:
            done = await client.chat.completions.create(model="any", messages=messages, tools=[ADD])  # type: ignore[list-item]
            choice = done.choices[0]
            if choice.finish_reason != "tool_calls":
                return float(choice.message.content == str(newest))
            messages.append(choice.message)
            for call in choice.message.tool_calls or ():
                arguments = json.loads(call.function.arguments)  # type: ignore[union-attr]
                newest = arguments["a"] + arguments["b"]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(newest)})


async def ask_as_told(task: Task, endpoint: ModelEndpoint) -> str:
    """Make a first request and then the one in `task`, and return the error that answers it."""
    first: Any = {"messages": [{"role": "user", "content": "go"}]}
    async with client_of(endpoint) as client:
        await client.chat.completions.create(model="any", **first)
        second = {"messages": [*first["messages"], {"role": "assistant", "content": "well"}, *first["messages"]]}
        second.update(task["request"])
        await client.chat.completions.create(model="any", **second)
    return "was answered"


async def pretend(task: Task, endpoint: ModelEndpoint) -> float:
    """Ask with another agent's token and then with its own. Return 1 when the first was refused."""
    with_other = AsyncOpenAI(base_url=endpoint.base_url, api_key="sk-of-another")
    reward = 0.0
    try:
        await with_other.chat.completions.create(model="any", messages=[{"role": "user", "content": "go"}])
    except AuthenticationError as error:
        reward = float(error.status_code == 401)
    async with client_of(endpoint) as client:
        assert [model.id async for model in client.models.list()] == ["policy"]
        await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "go"}])
    return reward


async def say_nothing(task: Task, endpoint: ModelEndpoint) -> None:
    """End without a request."""


async def tell_the_token(task: Task, endpoint: ModelEndpoint) -> None:
    """Raise an error that has the token in its text."""
    async with client_of(endpoint) as client:
        await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "go"}])
    raise LookupError(f"my key is {endpoint.api_key}")


async def exit_early(task: Task, endpoint: ModelEndpoint) -> None:
    async with client_of(endpoint) as client:
        await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "go"}])
    sys.exit(3)


class Tasks(Agent):
    """An agent with tasks of its own."""

    def task(self, seed: int) -> Task:
        return {"turns": 1 + seed % 5}
