"""An agent that knows nothing of nemo_brorl: it asks a question, and says "No." once if the answer was wrong.

    PYTHONPATH=examples .venv/bin/brorl train --config-name sums_cpu data.environment=agent \\
        "data.environment_settings={run: 'agent:run'}" \\
        rollouts.num_per_prompt=32 rollouts.max_response_tokens=144 rollouts.max_turn_tokens=64

`task` is the question: `text`, `verifier`, `payload`. The agent returns nothing, so the question's verifier scores the
model's last message. As a command it is the same agent: `data.environment_settings={command: 'python agent.py'}`.
"""

import asyncio
import json
import sys
from typing import Any

from openai import AsyncOpenAI


async def run(task: dict[str, Any], endpoint: Any) -> None:
    """Ask the model one question, at most twice."""
    async with AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        await ask(client, task)


async def ask(client: AsyncOpenAI, task: dict[str, Any]) -> None:
    """Hold the conversation about one question: ask, and say "No." if the answer is wrong."""
    messages: list[Any] = [{"role": "user", "content": task["text"]}]
    first = await client.chat.completions.create(model="policy", messages=messages)
    answer = first.choices[0].message.content or ""
    if f"<answer>{task['payload']['answer']}</answer>" in answer:
        return
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "No."}]
    await client.chat.completions.create(model="policy", messages=messages)


if __name__ == "__main__":
    asyncio.run(ask(AsyncOpenAI(), json.load(sys.stdin)["task"]))
