"""verifiers scores traces with the README's example."""

from __future__ import annotations

import asyncio

import verifiers.v1 as vf
from example import run_example


class SumData(vf.TaskData):
    """A question with its right answer."""

    answer: str


def trace_of(task: vf.Task, reply: str) -> vf.Trace:
    """Build the trace of an agent that has replied."""
    trace = vf.Trace.model_construct(task=None, root_reply=reply, rewards={}, metrics={})
    return trace


Sum = run_example("verifiers", {"SumData": SumData})["Sum"]
task = Sum(SumData(prompt="3 + 4 = ?", answer="7"))


async def rewards() -> list[object]:
    found = []
    for reply in ("\\boxed{7}", "It is 8."):
        trace = trace_of(task, reply)
        await task.score(trace)
        found.append(trace.rewards)
    return found


print(asyncio.run(rewards()))
