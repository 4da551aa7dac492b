"""An OpenAI-compatible endpoint on this machine's loopback, by which agents ask the model that is trained.

A request to `/v1/chat/completions` is what an agent's environment observes: the messages that are new since the turn
before. It is answered when the model's next turn is there, whose token ids and log-probs the trajectory keeps as an
engine sampled them. So the requests of an agent continue each other, one at a time; another one is refused with the
reason (400). Every conversation has a token of its own, and who has none gets nothing (401).
"""

from __future__ import annotations

import asyncio
import json
import resource
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from nemo_brorl.tasks.environments.chat_requests import (
    ChatRequest,
    RequestError,
    completion,
    events,
    read_request,
    spoken,
)
from nemo_brorl.tasks.environments.protocol import Action, Message

HOST = "127.0.0.1"
MODEL = "policy"
MAX_REQUEST = 2**26  # bytes
BACKLOG = 1024
BAD_REQUEST, UNAUTHORIZED, GONE = 400, 401, 410
NEVER_AGAIN = {"x-should-retry": "false"}  # what OpenAI's clients read before they repeat a request
KINDS = {BAD_REQUEST: "invalid_request_error", UNAUTHORIZED: "authentication_error", GONE: "conversation_over"}


@dataclass(frozen=True)
class Endpoint:
    """What an agent is given to ask the model."""

    base_url: str
    api_key: str = field(repr=False)
    model: str = MODEL  # any other name will do
    seed: int = 0  # of the episode, for what the agent draws


class ConversationOverError(RuntimeError):
    """Nobody will answer any more."""


class Conversation:
    """Requests of an agent and answers of the model: asked → answered → asked → … → closed. Of one event loop."""

    def __init__(self, server: EndpointServer) -> None:
        self.token = secrets.token_urlsafe(32)
        self.server = server
        self.tools: tuple[Message, ...] = ()
        self.said: list[Message] = []  # by either, as requests repeat it
        self.num_turns = 0
        self._request: ChatRequest | None = None  # that waits for its answer
        self._new: asyncio.Future[tuple[Message, ...]] = server.loop.create_future()
        self._answer: asyncio.Future[dict[str, Any]] = server.loop.create_future()

    def endpoint(self, seed: int) -> Endpoint:
        """How its agent reaches it."""
        return Endpoint(self.server.base_url, self.token, seed=seed)

    async def ask(self, body: Any) -> tuple[ChatRequest, dict[str, Any]]:
        """A request as it was read, and the completion that answers it. Raises RequestError for what does not continue
        the conversation, ConversationOverError."""
        request = read_request(body)
        if self._request is None:
            self._take(request)
        elif request != self._request:
            raise RequestError("another request of this agent waits for its answer: ask one after the other")
        answer = await asyncio.shield(self._answer)
        return request, answer

    async def observed(self, work: asyncio.Task[Any]) -> tuple[Message, ...] | None:
        """New messages of the next request; None where the agent's work ends before."""
        await asyncio.wait({self._new, work}, return_when=asyncio.FIRST_COMPLETED)
        return None if work.done() else self._new.result()

    def answer(self, action: Action) -> None:
        """Answer the request that waits, by a turn of the model."""
        request = self._request
        assert request is not None, "a turn answers a request"
        message = spoken(action, self.num_turns)
        self.said = [*request.messages, message]
        self.num_turns += 1
        answered = self._answer
        self._request = None
        self._new = self.server.loop.create_future()
        self._answer = self.server.loop.create_future()
        if not answered.done():
            answered.set_result(completion(request, message, action, self.num_turns))

    def close(self) -> None:
        """Answer nothing more."""
        self.server.close(self)
        if not self._answer.done():
            self._answer.set_exception(ConversationOverError("the episode has ended"))
            self._answer.exception()  # nobody may be waiting for it

    def _take(self, request: ChatRequest) -> None:
        if self.num_turns == 0:
            self.tools = request.tools
        elif request.tools != self.tools:
            raise RequestError("the tools are others than those of the agent's first request: keep them as they are")
        num_said = len(self.said)
        for place, before in enumerate(self.said):
            now = request.messages[place] if place < len(request.messages) else None
            if now != before:
                raise RequestError(_difference(place, before, now))
        new = request.messages[num_said:]
        for message in new if self.num_turns else ():
            if message["role"] == "assistant":
                raise RequestError("a message of the assistant is new that the model has not written: leave it out")
        if not new:
            raise RequestError("nothing is new since the model's answer: add a message")
        self._request = request
        self._new.set_result(new)


def _difference(place: int, before: Message, now: Message | None) -> str:
    """What is wrong with a request that rewrites what was said."""
    was = json.dumps(before, ensure_ascii=False)
    found = "is gone" if now is None else f"is now {json.dumps(now, ensure_ascii=False):.300}"
    return (
        f"message {place} was {was:.300} and {found}: every request repeats all messages so far as they were, and adds "
        "to them; an agent that starts another conversation, or forgets, cannot be one trajectory"
    )


class EndpointServer:
    """Listens while there are conversations. One for each event loop; its methods are called within."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.base_url = ""
        self._conversations: dict[str, Conversation] = {}  # by token
        self._listening: asyncio.Server | None = None
        self._starting = asyncio.Lock()

    async def open(self) -> Conversation:
        """A conversation that has not begun."""
        conversation = Conversation(self)
        self._conversations[conversation.token] = conversation
        async with self._starting:
            if self._listening is None:
                self._listening = await self._listen()
        return conversation

    def close(self, conversation: Conversation) -> None:
        """Forget a conversation."""
        self._conversations.pop(conversation.token, None)
        if not self._conversations and self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _listen(self) -> asyncio.Server:
        _allow_many_files()
        application = web.Application(client_max_size=MAX_REQUEST)
        application.router.add_post("/v1/chat/completions", self._complete)
        application.router.add_get("/v1/models", self._list_models)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        assert runner.server is not None, "it was set up"
        listening = await self.loop.create_server(runner.server, HOST, 0, backlog=BACKLOG)
        port = listening.sockets[0].getsockname()[1]
        self.base_url = f"http://{HOST}:{port}/v1"
        return listening

    async def _complete(self, request: web.Request) -> web.Response:
        conversation = self._conversation(request.headers)
        if conversation is None:
            return _refused(UNAUTHORIZED, "the bearer token is no running agent's")
        try:
            asked, answer = await conversation.ask(await request.json())
        except ConversationOverError as error:
            return _refused(GONE, str(error))
        except ValueError as error:
            return _refused(BAD_REQUEST, str(error))
        if asked.is_streamed:
            return web.Response(text=events(answer), content_type="text/event-stream")
        return web.json_response(answer)

    async def _list_models(self, request: web.Request) -> web.Response:
        if self._conversation(request.headers) is None:
            return _refused(UNAUTHORIZED, "the bearer token is no running agent's")
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "nemo_brorl"}
        return web.json_response({"object": "list", "data": [model]})

    def _conversation(self, headers: Mapping[str, str]) -> Conversation | None:
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        return self._conversations.get(token) if scheme.lower() == "bearer" else None


_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, EndpointServer] = WeakKeyDictionary()


async def open_conversation() -> Conversation:
    """A conversation at the server of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _servers:
        _servers[loop] = EndpointServer()
    return await _servers[loop].open()


def _refused(status: int, reason: str) -> web.Response:
    error = {"message": reason, "type": KINDS[status], "param": None, "code": None}
    return web.json_response({"error": error}, status=status, headers=NEVER_AGAIN)


def _allow_many_files() -> None:
    """A waiting agent is two open sockets."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
