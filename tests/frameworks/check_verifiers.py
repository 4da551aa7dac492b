"""verifiers scores traces with the README's example."""

from __future__ import annotations

import asyncio

import verifiers.v1 as vf
from example import run_example


class SumData(vf.TaskData):
    """A question with its right answer."""

    answer: str


Sum = run_example("verifiers", {"SumData": SumData})["Sum"]
task = Sum(SumData(prompt="3 + 4 = ?", answer="7"))


async def rewards_of(reply: str) -> dict[str, float]:
    """Score the trace of an agent that has replied."""
    trace = vf.Trace.model_construct(task=None, root_reply=reply, rewards={}, metrics={})
    await task.score(trace)
    return {name: reward.value for name, reward in trace.rewards.items()}


found = [asyncio.run(rewards_of(reply)) for reply in ("\\boxed{7}", "It is 8.")]
assert found == [{"math": 1.0}, {"math": 0.0}]
print("rewards of verifiers:", found)
