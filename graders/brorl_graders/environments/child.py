"""The process in which episodes run, forked by `processes/fork_server.py` with the environments' modules loaded.

It serves one owner over a channel and is killed when a step takes too long. A request is `(number, EpisodeStep,
seconds, ended)`, where `ended` lists episodes to close. With `number` None there is no step. A reply is JSON: `[number,
*EpisodeOutcome]`. Steps of synchronous environments run one after another, and those of asynchronous ones concurrently.
When an episode is missing, or its actions differ from those before the step, a new instance repeats them.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from brorl_graders.base.errors import BroRLError
from brorl_graders.base.foreign import read_json
from brorl_graders.base.verdicts import LARGEST_SCORE
from brorl_graders.environments import registry, tool_calls
from brorl_graders.environments.protocol import (
    Action,
    Environment,
    EpisodeOutcome,
    EpisodeStep,
    Message,
    Step,
    TurnSize,
    failed_outcome,
    resolve,
    run_without_waiting,
    to_messages,
)
from brorl_graders.processes.channel import ChildReplyError, receive_request, send_reply

MAX_ERROR = 2000  # longest error, in characters
MAX_INFO = 10_000
CUT = "\n… (cut: {} characters more)"
MAX_REPLY = 2**24  # bytes
OUTCOME_TYPES = (tuple, float, bool, bool, dict, str)
LATE = "has not ended after"  # start of the reason after a missed deadline


@dataclass
class EpisodeLimits:
    """The longest observation in characters and the format of tool calls, which the owner sends at the start."""

    max_characters: int
    written_in: str


@dataclass
class Episode:
    """A running episode: an environment and the actions that it has answered."""

    environment: Environment
    actions: list[str] = field(default_factory=list)  # texts of the turns so far


def serve(end: socket.socket) -> None:
    """Run the environment steps that another process requests, until that process closes the socket."""
    is_async, *limits = receive_request(end)
    server = Server(end, EpisodeLimits(*limits))
    if is_async:
        asyncio.run(server.serve_concurrently())
    else:
        server.serve()


class Server:
    """The server of an episode process: it holds the episodes and runs the steps that the owner requests."""

    def __init__(self, end: socket.socket, limits: EpisodeLimits) -> None:
        self.end = end
        self.limits = limits
        self.episodes: dict[str, Episode] = {}

    def serve(self) -> None:
        """Run environment steps one after another, until the process that requests them closes the socket."""
        while True:
            try:
                number, step, _, ended = receive_request(self.end)
            except EOFError:
                return
            self.forget(ended)
            if number is not None:
                outcome = run_without_waiting(self.run_step(step))
                self.reply(number, outcome)

    async def serve_concurrently(self) -> None:
        """Run environment steps concurrently in an event loop, until the process that requests them disconnects."""
        loop = asyncio.get_running_loop()
        requests: asyncio.Queue[Any] = asyncio.Queue()
        loop.add_reader(self.end.fileno(), self._receive, requests)
        steps: set[asyncio.Task[None]] = set()
        while (request := await requests.get()) is not None:
            number, step, seconds, ended = request
            self.forget(ended)
            if number is not None:
                task = loop.create_task(self._run_request(number, step, seconds))
                steps.add(task)
                task.add_done_callback(steps.discard)

    def _receive(self, requests: asyncio.Queue[Any]) -> None:
        try:
            requests.put_nowait(receive_request(self.end))
        except EOFError:
            asyncio.get_running_loop().remove_reader(self.end.fileno())
            requests.put_nowait(None)

    async def _run_request(self, number: int, step: EpisodeStep, seconds: float) -> None:
        try:
            outcome = await asyncio.wait_for(self.run_step(step), seconds)
        except TimeoutError:
            self.forget([step.episode])
            outcome = failed_outcome(f"{LATE} {seconds:g} s")
        self.reply(number, outcome)

    async def run_step(self, step: EpisodeStep) -> EpisodeOutcome:
        """Run a step of an episode and return its outcome, which also reports an exception of the environment.

        An episode that does not run in this process, or whose actions in it differ from the step's earlier actions, is
        first started again and its earlier actions are repeated.
        """
        try:
            return await self._advance_episode(step)
        except BroRLError as error:
            return self._fail_step(step, str(error))
        except MemoryError:
            raise  # the process cannot continue
        except (Exception, SystemExit) as error:  # noqa: BLE001 an environment may raise anything
            return self._fail_step(step, f"{type(error).__name__}: {error}")

    def forget(self, episodes: Iterable[str]) -> None:
        """Close those of the named episodes that run in this process, and remove them."""
        for name in episodes:
            episode = self.episodes.pop(name, None)
            if episode is not None:
                _close(episode.environment)

    def reply(self, number: int, outcome: EpisodeOutcome) -> None:
        """Send the outcome of an episode's step to the process that requested the step."""
        send_reply(self.end, json.dumps([number, *outcome]).encode())

    def _fail_step(self, step: EpisodeStep, reason: str) -> EpisodeOutcome:
        self.forget([step.episode])
        return failed_outcome(reason[:MAX_ERROR])

    async def _advance_episode(self, step: EpisodeStep) -> EpisodeOutcome:
        *before, newest = step.actions
        sizes = step.sizes or (None,) * len(step.actions)
        episode = self.episodes.get(step.episode)
        if episode is None or episode.actions != before:
            self.forget([step.episode])
            episode = Episode(registry.make_environment(step.environment, step.settings))
            self.episodes[step.episode] = episode
            await resolve(episode.environment.reset(step.task, step.seed))
            for text, size in zip(before, sizes, strict=False):
                await self._take_turn(episode, text, size)
        outcome = await self._take_turn(episode, newest, sizes[-1])
        if outcome.has_ended:
            self.forget([step.episode])
        return outcome

    async def _take_turn(
        self,
        episode: Episode,
        text: str,
        size: TurnSize | None,
    ) -> EpisodeOutcome:
        environment = episode.environment
        episode.actions.append(text)
        calls: tuple[tool_calls.ToolCall, ...] = ()
        wrong = ""
        if environment.tools:
            try:
                calls = tool_calls.parse_calls(text, self.limits.written_in, environment.tools)
            except tool_calls.ToolCallError as error:
                wrong = str(error)
        if wrong and not environment.is_agent:
            refusal = Step(f"error: {wrong}", info={"tool_error": True})
            return self._outcome(episode, refusal, "tool")
        action = Action(text, calls, wrong, size)
        result = await resolve(environment.step(action))
        if not isinstance(result, Step):
            raise TypeError(f"step returned {result!r:.200}, which is no Step")
        return self._outcome(episode, result, "tool" if calls else "user")

    def _outcome(self, episode: Episode, step: Step, role: str) -> EpisodeOutcome:
        reward = float(step.reward)
        if not abs(reward) <= LARGEST_SCORE:
            raise ValueError(f"the reward is {reward}")
        is_last = len(episode.actions) >= episode.environment.max_turns
        truncated = step.truncated or (is_last and not step.terminated)
        has_ended = bool(step.terminated or truncated)
        observation: tuple[Message, ...] = ()
        if not has_ended:
            observation = self._truncate(to_messages(step.observation, role))
        info = dict(step.info)
        if len(json.dumps(info)) > MAX_INFO:
            raise ValueError(f"info has more than {MAX_INFO} characters")
        return EpisodeOutcome(observation, reward, has_ended, bool(truncated), info, "")

    def _truncate(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Cut an observation's messages to the total number of characters that an episode's limits allow."""
        room = self.limits.max_characters
        shortened: list[Mapping[str, Any]] = []
        for message in messages:
            content = message["content"]
            num_more = len(content) - room
            if num_more > 0:
                content = content[:room] + CUT.format(num_more)
            room -= len(content)
            shortened.append({**message, "content": content})
            if num_more > 0:
                break
        return tuple(shortened)


def read_outcome(raw: bytes) -> tuple[int, EpisodeOutcome]:
    """Read a reply of a process that runs episodes, and return the number and outcome of its environment step.

    The reply is checked, since a response may have taken the process over. Raises ChildReplyError when the reply is no
    outcome.
    """
    try:
        number, messages, *rest = read_json(raw, most_bytes=MAX_REPLY)
        outcome = EpisodeOutcome(tuple(messages), *rest)
    except (ValueError, TypeError) as error:
        raise ChildReplyError("its reply is no outcome") from error
    if type(number) is not int or not _is_outcome(outcome):
        raise ChildReplyError("its reply is no outcome")
    return number, outcome


def _is_outcome(outcome: EpisodeOutcome) -> bool:
    for value, kind in zip(outcome, OUTCOME_TYPES, strict=True):
        if type(value) is not kind:
            return False
    for message in outcome.observation:
        if not _is_message(message):
            return False
    return abs(outcome.reward) <= LARGEST_SCORE


def _is_message(message: Any) -> bool:
    if type(message) is not dict:
        return False
    role = message.get("role")
    content = message.get("content")
    return type(role) is str and type(content) is str


def _close(environment: Environment) -> None:
    try:
        environment.close()
    except Exception:  # noqa: BLE001 the episode is over and its outcome known
        return
