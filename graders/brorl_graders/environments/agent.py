"""Environments whose agent asks the model: a program that calls an OpenAI-compatible endpoint.

Here the program drives the episode. `reset` starts the agent, and its first request to the model is the prompt. Each
response is a turn of the model, the agent's next request is the observation, and the agent's end is the episode's end.
An agent that waits for its model is a coroutine, a thread or a process, and occupies no engine.
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
from brorl_graders.base.foreign import LARGE, read_json
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
STACK = 2**21  # bytes of stack for each agent thread; there may be thousands
M_ARENA_MAX, ARENAS = -8, 4  # else each thread reserves 64 MiB of address space for malloc
MAX_COMPLAINT = 1000  # longest error output of a command that is quoted, in characters
MAX_PRINTED = 2**20  # bytes of the end of what a command prints, in which its last line is looked for

Result = float | str | None  # a reward, or an answer for the task's verifier; None: the answer is the newest turn


class AgentError(RuntimeError):
    """An exception or a failure of an agent."""


class Agent(Environment):
    """An environment that runs an agent, given as a function `run(task, endpoint)` or as a command."""

    is_open = True
    is_agent = True

    def __init__(self, run: str = "", command: str = "", max_turns: int = 8) -> None:
        """Check and store the settings of an agent.

        `run` is the import path of a function. `command` is a command line that gets `{"task": …, "seed": …}` on its
        standard input and finds the endpoint in OPENAI_BASE_URL and OPENAI_API_KEY. Raises ConfigError unless exactly
        one is set.
        """
        if max_turns < 1:
            raise ConfigError(f"agent: max_turns={max_turns}: set 1 or more")
        self.max_turns = max_turns
        self.command = shlex.split(command)
        self.function: Callable[..., Any] | None = None
        if run:
            self.function = import_function("agent", run)
        if type(self).act is Agent.act and bool(run) == bool(command):
            raise ConfigError("agent: set either run, package.module:function, or command, a command line")
        self._task: Task = {}
        self._conversation: Conversation | None = None
        self._work: asyncio.Task[Result] | None = None

    @classmethod
    def traits(cls, task: Task) -> Traits:
        """Return the properties that decide which process may run an agent on this task.

        Where the task has a question with a verifier, the process needs the isolation of that verifier.
        """
        traits = Traits(cls.is_open, True, ANY)
        if "verifier" in task:
            judged = Judged.traits(task)
            traits = traits._replace(isolation=judged.isolation)
        with suppress(ImportError):
            import openai  # noqa: F401 imported once, for all forks of this process
        return traits

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Start the agent and return its first request, the prompt of the episode.

        Raises AgentError when the agent fails, or makes no request within `FIRST_REQUEST_S`, and ConfigError for
        malformed tools in the request.
        """
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
        """Answer the agent's request with the model's turn, and return the next request or the reward.

        Raises AgentError when the agent fails.
        """
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
        """End the episode's agent. An agent that runs in a thread ends at its next request to the model."""
        if self._conversation is not None:
            self._conversation.close()
        if self._work is not None:
            self._work.cancel()

    async def act(self, task: Task, endpoint: ModelEndpoint) -> Result:
        """Run the agent on a task, and return its result: a reward, an answer to score, or None.

        Agents of other kinds override this method.
        """
        if self.function is None:
            return await self._run_command(task, endpoint)
        if inspect.iscoroutinefunction(self.function):
            result: Result = await self.function(task, endpoint)
            return result
        return await _in_thread(self.function, task, endpoint)

    async def _run_agent(self, task: Task, endpoint: ModelEndpoint) -> Result:
        """Run the agent, and raise AgentError for whatever it raises, without the endpoint's token in the message."""
        try:
            return await self.act(task, endpoint)
        except BroRLError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 an agent may raise anything
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
        request = json.dumps({"task": task, "seed": endpoint.seed})
        variables = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": endpoint.api_key}
        process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=child_environment(**variables),
            start_new_session=True,
        )
        try:
            assert process.stdin and process.stdout and process.stderr, "all three are pipes"
            ends = _end_of(process.stdout, MAX_PRINTED), _end_of(process.stderr, 4 * MAX_COMPLAINT)
            _, printed, complaint = await asyncio.gather(_send(process.stdin, request.encode()), *ends)
            await process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            said = complaint.decode(errors="replace").strip()
            raise AgentError(f"exit code {process.returncode}: {said[-MAX_COMPLAINT:]}")
        return read_result(printed.decode(errors="replace"))


async def _send(stream: asyncio.StreamWriter, content: bytes) -> None:
    # An agent may end before it has read its task.
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.write(content)
        await stream.drain()
        stream.close()
        await stream.wait_closed()


async def _end_of(stream: asyncio.StreamReader, num_bytes: int) -> bytes:
    """Return the last bytes of what a process prints, which may be gigabytes."""
    end = b""
    while part := await stream.read(num_bytes):
        end = (end + part)[-num_bytes:]
    return end


def read_result(printed: str) -> Result:
    """Return the reward or answer in the last line that an agent's command printed, or None when the line has neither.

    The line is `{"reward": …}` or `{"answer": …}`.
    """
    lines = printed.strip().splitlines()
    try:
        said = read_json(lines[-1], most_bytes=MAX_PRINTED) if lines else None
    except ValueError:
        return None
    if not isinstance(said, Mapping):
        return None
    reward = said.get("reward")
    answer = said.get("answer")
    return reward if reward is not None else answer


async def _in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Run a blocking function in a thread of its own, and return its result.

    A thread pool would not do: all its threads could wait for the model.
    """
    outcome: Future[Result] = Future()
    outcome.set_running_or_notify_cancel()

    def work() -> None:
        try:
            outcome.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001 raised where the result is awaited
            outcome.set_exception(error)

    ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)
    before = threading.stack_size(STACK)
    thread = threading.Thread(target=work, name="agent", daemon=True)
    thread.start()
    threading.stack_size(before)
    return await asyncio.wrap_future(outcome)


def _retrieve_exception(work: asyncio.Task[Result]) -> None:
    """Mark an agent's exception as seen, so that asyncio does not log it after the agent was cancelled."""
    if not work.cancelled():
        work.exception()


class Verifiers(Agent):
    """An environment of the library `verifiers`, run as an agent with its own loop of turns and its own rubric.

    The tasks are rows of the environment's dataset. Every environment works that `verifiers.load_environment` loads
    (SingleTurnEnv, MultiTurnEnv, ToolEnv, …). Version 0.4 of the library lacks these environments.
    """

    def __init__(
        self,
        environment: str,
        arguments: dict[str, Any] | None = None,
        max_turns: int = 16,
    ) -> None:
        """Load an environment of the library `verifiers`.

        `environment` is the environment's name, and `arguments` are those of `load_environment`. Raises ConfigError
        when it cannot be loaded.
        """
        super().__init__(max_turns=max_turns)
        self.environment = _load_environment(environment, json.dumps(arguments or {}))

    def task(self, seed: int) -> Task:
        """Return a task that names the dataset row which the seed selects."""
        return {"row": seed % len(self.environment.get_dataset())}

    async def act(self, task: Task, endpoint: ModelEndpoint) -> Result:
        """Run one rollout of the `verifiers` environment and return the reward of its rubric."""
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
    """Load an environment of the library `verifiers` with its dataset, once for all episodes of a process."""
    try:
        from verifiers import load_environment
    except ImportError as error:
        raise ConfigError(
            f"environment verifiers needs the library verifiers, below 0.4 ({error}): pip install 'verifiers<0.4'"
        ) from error
    handled = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in handled]
    try:
        loaded = load_environment(name, **read_json(arguments, most_bytes=LARGE))
        loaded.get_dataset()
    except (ValueError, RuntimeError, TypeError) as error:
        raise ConfigError(f"environment verifiers: {name} cannot be loaded: {error}") from error
    finally:
        for number, handler in zip(handled, handlers, strict=True):
            signal.signal(number, handler)  # the library replaces these handlers
    return loaded
