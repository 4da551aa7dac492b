"""Environments that misbehave on command, for tests of their processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from brorl_graders.environments.protocol import Action, Environment, Step

COUNTER = "graders.tests.support.bad_environments:Counter"
OPEN = "graders.tests.support.bad_environments:OpenCounter"
REMEMBERING = "graders.tests.support.bad_environments:Remembering"
LATER = "graders.tests.support.bad_environments:AsyncCounter"


def spin() -> None:
    while True:
        pass


def raise_error() -> None:
    raise LookupError("told to")


DEEDS: dict[str, Callable[[], object]] = {
    "hang": lambda: time.sleep(3600),
    "spin": spin,
    "crash": lambda: os._exit(3),
    "exit": lambda: sys.exit(4),
    "raise": raise_error,
    "memory": lambda: bytearray(2**40),
    "print": lambda: os.write(1, b"x" * 100_000),
    "fork": lambda: subprocess.Popen(["sleep", "3600"], start_new_session=True),
    "file": lambda: os.open("/etc/passwd", os.O_RDONLY),
}


class Counter(Environment):
    """An environment that counts the turns of its episode, and misbehaves as they say."""

    max_turns = 5

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def reset(self, task: Mapping[str, Any], seed: int) -> str:
        self.task_of_episode = task
        return "count"

    def step(self, action: Action) -> Step:
        text = action.text
        self.count += 1
        if text in DEEDS:
            DEEDS[text]()
        if "nan" in text:
            return Step("", reward=float("nan"))
        said = "long " * 2_000_000 if "long" in text else f"{self.count} after {os.getpid()}"
        return Step(said, reward=float(self.count), terminated="end" in text, info={"count": self.count})


class OpenCounter(Counter):
    """A `Counter` that is not isolated."""

    is_open = True


class Remembering(Environment):
    """An environment that returns all actions of its episode."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def reset(self, task: Mapping[str, Any], seed: int) -> str:
        return "speak"

    def step(self, action: Action) -> Step:
        self.told.append(action.text)
        return Step(" ".join(self.told))


class AsyncCounter(Environment):
    """A `Counter` whose episodes run concurrently."""

    def __init__(self) -> None:
        self.count = 0

    async def reset(self, task: Mapping[str, Any], seed: int) -> str:
        return "count"

    async def step(self, action: Action) -> Step:
        self.count += 1
        if "block" in action.text:
            time.sleep(3600)
        await asyncio.sleep(3600 if "hang" in action.text else 0.3)
        return Step(str(self.count), reward=float(self.count))


class BadTool(Counter):
    """An environment with a tool whose schema is wrong."""

    tools = ({"type": "function", "function": {"name": "add", "parameters": {"type": "nothing"}}},)


class NoEnvironment:
    """A class that does not derive from Environment."""
