"""Agents that ask a model by themselves, as an environment: a program that calls an OpenAI-compatible endpoint.

The roles are turned round. `reset` starts the agent, whose first request is the prompt; each answer is a turn of the
model, the request after it the observation, and the agent's end that of the episode. An agent that waits for its model
is a coroutine, a thread or a process, and no engine's business.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import os
import shlex
import signal
import threading
from asyncio.subprocess import PIPE
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache
from numbers import Real
from typing import Any

from brorl_graders.base.components import import_function
from brorl_graders.base.errors import BroRLError, ConfigError
from brorl_graders.base.names import child_environment
from brorl_graders.environments.endpoint import Conversation, ModelEndpoint, open_conversation
from brorl_graders.environments.judged import Judged
from brorl_graders.environments.protocol import (
    ANY,
    Action,
    Environment,
    Message,
    Step,
    Task,
    Traits,
)
from brorl_graders.environments.registry import check_tools
from brorl_graders.verifiers import registry

FIRST_REQUEST_S = 60.0
STACK = 2**21  # bytes of a thread's, of which there may be thousands
M_ARENA_MAX, ARENAS = -8, 4  # or every thread takes 64 MiB of address space for its own memory
MAX_COMPLAINT = 1000  # characters

Result = float | str | None  # a reward, an answer that the task's verifier scores; None: the newest turn is the answer


class AgentError(RuntimeError):
    """What an agent raised."""


class Agent(Environment):
    """An agent by the import path of a function `run(task, endpoint)`, or by a command. Another kind of agent derives
    from this class and has an `act` of its own."""

    is_open = True
    is_agent = True

    def __init__(self, run: str = "", command: str = "", max_turns: int = 8) -> None:
        """`command` gets `{"task": …, "seed": …}` on its standard input, and finds the endpoint in OPENAI_BASE_URL and
        OPENAI_API_KEY. Raises ConfigError."""
        if max_turns < 1:
            raise ConfigError(f"agent: max_turns={max_turns}: write 1 or more")
        self.max_turns = max_turns
        self.command = shlex.split(command)
        self.function: Callable[..., Any] | None = None
        if run:
            self.function = import_function("agent", run)
        if type(self).act is Agent.act and bool(run) == bool(command):
            raise ConfigError("agent: write either run, package.module:function, or command, a command line")
        self._task: Task = {}
        self._conversation: Conversation | None = None
        self._work: asyncio.Task[Result] | None = None

    @classmethod
    def traits(cls, task: Task) -> Traits:
        """As the verifier of the task's question needs it, if there is one."""
        traits = Traits(cls.is_open, True, ANY)
        if "verifier" in task:
            judged = Judged.traits(task)
            traits = traits._replace(isolation=judged.isolation)
        with suppress(ImportError):
            import openai  # noqa: F401 for all processes that are forked from this one
        return traits

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Start the agent: its first request. Raises AgentError, ConfigError for tools that are none."""
        self._task = task
        self._conversation = await open_conversation()
        endpoint = self._conversation.endpoint(seed)
        work = self._run_agent(task, endpoint)
        self._work = asyncio.create_task(work)
        self._work.add_done_callback(_retrieve_exception)
        first = self._conversation.next_observation(self._work)
        try:
            observation = await asyncio.wait_for(first, FIRST_REQUEST_S)
        except TimeoutError:
            raise AgentError(f"it has asked the model nothing for {FIRST_REQUEST_S:g} s") from None
        if observation is None:
            self._work.result()
            raise AgentError("it ended without asking the model")
        self.tools = self._conversation.tools
        check_tools(type(self).__name__, self)
        return observation

    async def step(self, action: Action) -> Step:
        """Answer its request: the next one, or its end. Raises AgentError."""
        assert self._conversation is not None and self._work is not None, "an episode begins with reset"
        self._conversation.answer(action)
        observation = await self._conversation.next_observation(self._work)
        info = {}
        if action.tool_error:
            info["tool_error"] = True
        if observation is not None:
            return Step(observation, info=info)
        reward = self._reward(self._work.result(), action.text)
        return Step(reward=reward, terminated=True, info=info)

    def close(self) -> None:
        """End the agent. A thread ends when it asks again."""
        if self._conversation is not None:
            self._conversation.close()
        if self._work is not None:
            self._work.cancel()

    async def act(self, task: Task, endpoint: ModelEndpoint) -> Result:
        """The agent's work on a task."""
        if self.function is None:
            return await self._run_command(task, endpoint)
        if inspect.iscoroutinefunction(self.function):
            result: Result = await self.function(task, endpoint)
            return result
        return await _in_thread(self.function, task, endpoint)

    async def _run_agent(self, task: Task, endpoint: ModelEndpoint) -> Result:
        """The agent's work; nobody is told its token."""
        try:
            return await self.act(task, endpoint)
        except BroRLError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 an agent's own exception
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, AgentError):
                reason = str(error)
            raise AgentError(reason.replace(endpoint.api_key, "…")) from None

    def _reward(self, result: Result, newest: str) -> float:
        if isinstance(result, Real):
            return float(result)
        answer = newest if result is None else result
        if not isinstance(answer, str):
            raise TypeError(f"the agent returned {result!r:.200}, and not a reward, an answer or nothing")
        if "verifier" not in self._task:
            raise ValueError("the task has no verifier that scores an answer: the agent has to return a reward")
        reward, _ = registry.judge(self._task["verifier"], self._task["payload"], answer)
        return reward

    async def _run_command(self, task: Task, endpoint: ModelEndpoint) -> Result:
        given = json.dumps({"task": task, "seed": endpoint.seed})
        own = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": endpoint.api_key}
        process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=child_environment(**own),
            start_new_session=True,
        )
        try:
            printed, complaint = await process.communicate(given.encode())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            said = complaint.decode(errors="replace").strip()
            raise AgentError(f"exit code {process.returncode}: {said[-MAX_COMPLAINT:]}")
        return read_result(printed.decode(errors="replace"))


def read_result(printed: str) -> Result:
    """What a command's last line says, `{"reward": …}` or `{"answer": …}`; None where it says neither."""
    lines = printed.strip().splitlines()
    try:
        said = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    if not isinstance(said, Mapping):
        return None
    reward = said.get("reward")
    answer = said.get("answer")
    return reward if reward is not None else answer


async def _in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """What a function returns that blocks. It has a thread of its own: those of a pool would all wait for the model."""
    outcome: Future[Result] = Future()
    outcome.set_running_or_notify_cancel()

    def work() -> None:
        try:
            outcome.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001 raised where it is waited for
            outcome.set_exception(error)

    ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)
    before = threading.stack_size(STACK)
    thread = threading.Thread(target=work, name="agent", daemon=True)
    thread.start()
    threading.stack_size(before)
    return await asyncio.wrap_future(outcome)


def _retrieve_exception(work: asyncio.Task[Result]) -> None:
    """An agent that was given up may have raised something that nobody asks for."""
    if not work.cancelled():
        work.exception()


class Verifiers(Agent):
    """An environment of the library `verifiers`, run as an agent, by the name under which it is installed: its own loop
    of turns, its own rubric for the reward. Tasks are rows of its dataset.

    These are what `verifiers.load_environment` gives (SingleTurnEnv, MultiTurnEnv, ToolEnv, …), of its versions up to
    0.3; 0.4 has dropped them. The library is no requirement of this package: `pip install nemo_brorl[verifiers]`.
    """

    def __init__(
        self,
        environment: str,
        arguments: dict[str, Any] | None = None,
        max_turns: int = 16,
    ) -> None:
        """`arguments` are those of its `load_environment`. Raises ConfigError."""
        super().__init__(max_turns=max_turns)
        self.environment = _load_environment(environment, json.dumps(arguments or {}))

    def task(self, seed: int) -> Task:
        """A row, by its place."""
        return {"row": seed % len(self.environment.get_dataset())}

    async def act(self, task: Task, endpoint: ModelEndpoint) -> Result:
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
def _load_environment(name: str, arguments: str) -> Any:
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
