"""An OpenAI-compatible endpoint on the loopback interface, where agents ask the model that is trained.

A request to `/v1/chat/completions` becomes an observation of the agent's environment: the messages that are new since
the last turn. The answer is the model's next turn, and the trajectory keeps its token ids and log-probs as an engine
sampled them. So an agent's requests continue one conversation, one at a time. Any other request is refused with the
reason (400). Each conversation has its own token, and a request without a valid token is refused (401).

The endpoint supports those parts of OpenAI's chat completions that fit into a trajectory. `stream` returns an answer
in one piece.
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

from brorl_graders.base.foreign import read_json
from brorl_graders.environments.protocol import Action, Message
from brorl_graders.environments.tool_calls import text_before_calls

# Values that a request may have for these fields, since the settings of the run decide how the model samples.
# Temperature, top_p, token limits, penalties and seeds are ignored instead, since clients send some by default.
ALLOWED_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "stop": (None, "", []),
    "logprobs": (None, False),
    "logit_bias": (None, {}),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto"),
    "functions": (None, []),
    "modalities": (None, ["text"]),
}
ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_SHOWN = 200  # longest quotation from a request in an error, in characters

HOST = "127.0.0.1"
MODEL = "policy"
MAX_REQUEST = 2**26  # largest request, in bytes
BACKLOG = 1024
BAD_REQUEST, UNAUTHORIZED, GONE = 400, 401, 410
NEVER_AGAIN = {"x-should-retry": "false"}  # tells OpenAI's clients not to repeat the request
KINDS = {BAD_REQUEST: "invalid_request_error", UNAUTHORIZED: "authentication_error", GONE: "conversation_over"}


class RequestError(ValueError):
    """An error in an agent's request. Its message is sent to the agent."""


@dataclass(frozen=True)
class ChatRequest:
    """The parts of an agent's chat-completion request that the endpoint uses."""

    messages: tuple[Message, ...]  # messages with role, content and the fields of tool calls
    tools: tuple[Message, ...]
    model: str = field(compare=False)
    is_streamed: bool = field(compare=False)


def read_request(body: Any) -> ChatRequest:
    """Check the JSON body of a chat-completion request, and return the parts that the endpoint uses.

    Raises RequestError for a malformed body, or one with an option that a model in training does not offer, such as
    stop strings or log probabilities.
    """
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise RequestError("a request is a JSON object with a list of messages")
    for name, allowed in ALLOWED_VALUES.items():
        if body.get(name) not in allowed:
            raise RequestError(
                f"{name}={body[name]!r:.{MAX_SHOWN}} cannot be had from a model in training: leave it out"
            )
    messages = tuple(_read_message(written) for written in body["messages"])
    if messages[-1]["role"] == "assistant":
        raise RequestError("the last message is the assistant's: the model begins its turns itself")
    tools = tuple(_read_tool(written) for written in body.get("tools") or ())
    return ChatRequest(
        messages,
        tools,
        str(body.get("model")),
        bool(body.get("stream")),
    )


def assistant_message(action: Action, turn: int) -> Message:
    """Return a turn of the model as an assistant message.

    A malformed tool call stays in the message's text, as in inference engines.
    """
    if not action.tool_calls:
        return {"role": "assistant", "content": action.text}
    calls = []
    for place, call in enumerate(action.tool_calls):
        function = {"name": call.name, "arguments": dict(call.arguments)}
        calls.append({"id": f"call_{turn}_{place}", "type": "function", "function": function})
    return {"role": "assistant", "content": text_before_calls(action.text), "tool_calls": calls}


def make_completion(
    request: ChatRequest,
    message: Message,
    action: Action,
    number: int,
) -> dict[str, Any]:
    """Build the chat completion that answers a request with a turn of the model."""
    said = dict(message)
    reason = "stop"
    if "tool_calls" in message:
        said["content"] = message["content"] or None
        said["tool_calls"] = [_write_call(call) for call in message["tool_calls"]]
        reason = "tool_calls"
    elif action.size is not None and action.size.is_cut:
        reason = "length"
    choice = {"index": 0, "message": said, "finish_reason": reason, "logprobs": None}
    answer: dict[str, Any] = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": request.model,
        "choices": [choice],
    }
    if action.size is not None:
        num_prompt, num_sampled, _ = action.size
        answer["usage"] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_sampled,
            "total_tokens": num_prompt + num_sampled,
        }
    return answer


def stream_events(answer: Mapping[str, Any]) -> str:
    """Return a chat completion as server-sent events with one chunk of content."""
    (choice,) = answer["choices"]
    delta = dict(choice["message"])
    calls = delta.get("tool_calls", ())
    if calls:
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
    shared = {**answer, "object": "chat.completion.chunk"}
    usage = shared.pop("usage", None)
    whole = {"index": 0, "delta": delta, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    chunks = [{**shared, "choices": [whole]}, {**shared, "choices": [end]}]
    if usage is not None:
        chunks.append({**shared, "choices": [], "usage": usage})
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"])


def _read_message(written: Any) -> Message:
    """Return a request's message with the fields that chat templates read, in one form for all clients."""
    role = written.get("role") if isinstance(written, dict) else None
    if role not in ROLES:
        raise RequestError(f"{written!r:.{MAX_SHOWN}} is no message of one of the roles {', '.join(ROLES)}")
    message: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": _read_text(written.get("content")),
    }
    for name in ("name", "tool_call_id"):
        if written.get(name) is not None:
            message[name] = str(written[name])
    calls = written.get("tool_calls")
    if calls:
        message["tool_calls"] = [_read_call(call) for call in calls]
    return message


def _read_text(content: Any) -> str:
    """Return the text of a message's content, which is a text or a list of text parts."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise RequestError(f"{part!r:.{MAX_SHOWN}} is no text: the model reads nothing else")
        texts.append(text)
    return "".join(texts)


def _read_call(call: Any) -> dict[str, Any]:
    """Return a tool call with its arguments as an object, as chat templates expect."""
    try:
        function = call["function"]
        arguments = read_json(function["arguments"] or "{}", most_bytes=MAX_REQUEST)
        return {
            "id": str(call["id"]),
            "type": "function",
            "function": {"name": str(function["name"]), "arguments": arguments},
        }
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{call!r:.{MAX_SHOWN}} is no call of a function") from error


def _write_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _read_tool(written: Any) -> Message:
    function = written.get("function") if isinstance(written, dict) else None
    if not isinstance(function, dict):
        raise RequestError(f"{written!r:.{MAX_SHOWN}} is no function that a model may call")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return {"type": "function", "function": {**function, "parameters": parameters}}


@dataclass(frozen=True)
class ModelEndpoint:
    """Address and token of the endpoint at which one agent asks the model."""

    base_url: str
    api_key: str = field(repr=False)
    model: str = MODEL  # name of the model; the endpoint accepts any name
    seed: int = 0  # seed of the episode, for random choices of the agent


class ConversationOverError(RuntimeError):
    """An error for a request after the end of its episode."""


class Conversation:
    """The conversation of one agent with the model: its requests and the model's answers, in turn, until it is closed.

    It belongs to one event loop.
    """

    def __init__(self, server: EndpointServer) -> None:
        self.token = secrets.token_urlsafe(32)
        self.server = server
        self.tools: tuple[Message, ...] = ()
        self.said: list[Message] = []  # messages of both sides so far, as requests repeat them
        self.num_turns = 0
        self._request: ChatRequest | None = None  # request without an answer yet
        self._new_messages: asyncio.Future[tuple[Message, ...]] = server.loop.create_future()
        self._answer: asyncio.Future[dict[str, Any]] = server.loop.create_future()

    def endpoint(self, seed: int) -> ModelEndpoint:
        """Return the endpoint at which the agent of this conversation reaches the model."""
        return ModelEndpoint(self.server.base_url, self.token, seed=seed)

    async def ask(self, body: Any) -> tuple[ChatRequest, dict[str, Any]]:
        """Take an agent's request and wait for the model's turn, which answers it.

        Returns the parsed request and the chat completion. Raises RequestError for a request that does not continue the
        conversation, and ConversationOverError after its end.
        """
        request = read_request(body)
        if self._request is None:
            self._accept(request)
        elif request != self._request:
            raise RequestError("another request of this agent waits for its answer: ask one after the other")
        answer = await asyncio.shield(self._answer)
        return request, answer

    async def next_observation(self, work: asyncio.Task[Any]) -> tuple[Message, ...] | None:
        """Return the new messages of the agent's next request, or None when the agent's work ends first."""
        await asyncio.wait({self._new_messages, work}, return_when=asyncio.FIRST_COMPLETED)
        return None if work.done() else self._new_messages.result()

    def answer(self, action: Action) -> None:
        """Answer the agent's waiting request with a turn of the model."""
        request = self._request
        assert request is not None, "a turn answers a request"
        message = assistant_message(action, self.num_turns)
        self.said = [*request.messages, message]
        self.num_turns += 1
        answered = self._answer
        self._request = None
        self._new_messages = self.server.loop.create_future()
        self._answer = self.server.loop.create_future()
        if not answered.done():
            answered.set_result(make_completion(request, message, action, self.num_turns))

    def close(self) -> None:
        """End the agent's conversation with the model, and fail a waiting request with a ConversationOverError."""
        self.server.close(self)
        if not self._answer.done():
            self._answer.set_exception(ConversationOverError("the episode has ended"))
            self._answer.exception()  # marks the exception as seen, since no request may be waiting

    def _accept(self, request: ChatRequest) -> None:
        if self.num_turns == 0:
            self.tools = request.tools
        elif request.tools != self.tools:
            raise RequestError("the tools are others than those of the agent's first request: keep them as they are")
        num_said = len(self.said)
        for place, before in enumerate(self.said):
            now = request.messages[place] if place < len(request.messages) else None
            if now != before:
                raise RequestError(_describe_difference(place, before, now))
        new = request.messages[num_said:]
        for message in new if self.num_turns else ():
            if message["role"] == "assistant":
                raise RequestError("a message of the assistant is new that the model has not written: leave it out")
        if not new:
            raise RequestError("nothing is new since the model's answer: add a message")
        self._request = request
        self._new_messages.set_result(new)


def _describe_difference(place: int, before: Message, now: Message | None) -> str:
    """Say what is wrong with an agent's request that changes an earlier message of its conversation."""
    was = json.dumps(before, ensure_ascii=False)
    change = "is gone" if now is None else f"is now {json.dumps(now, ensure_ascii=False):.300}"
    return (
        f"message {place} was {was:.300} and {change}: every request repeats all messages so far as they were, and "
        "adds to them; an agent that starts another conversation, or forgets, cannot be one trajectory"
    )


class EndpointServer:
    """The HTTP server of one event loop, at which agents ask the model. It listens while there are conversations."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.base_url = ""
        self._conversations: dict[str, Conversation] = {}  # open conversations by token
        self._listening: asyncio.Server | None = None
        self._starting = asyncio.Lock()

    async def open(self) -> Conversation:
        """Start an agent's conversation with the model, and the HTTP server when it is not running."""
        conversation = Conversation(self)
        self._conversations[conversation.token] = conversation
        async with self._starting:
            if self._listening is None:
                self._listening = await self._listen()
        return conversation

    def close(self, conversation: Conversation) -> None:
        """Remove an agent's conversation, and stop the HTTP server after the last one."""
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
            return _error_response(UNAUTHORIZED, "the bearer token is no running agent's")
        try:
            chat_request, answer = await conversation.ask(read_json(await request.read(), most_bytes=MAX_REQUEST))
        except ConversationOverError as error:
            return _error_response(GONE, str(error))
        except ValueError as error:
            return _error_response(BAD_REQUEST, str(error))
        if chat_request.is_streamed:
            return web.Response(text=stream_events(answer), content_type="text/event-stream")
        return web.json_response(answer)

    async def _list_models(self, request: web.Request) -> web.Response:
        if self._conversation(request.headers) is None:
            return _error_response(UNAUTHORIZED, "the bearer token is no running agent's")
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "nemo_brorl"}
        return web.json_response({"object": "list", "data": [model]})

    def _conversation(self, headers: Mapping[str, str]) -> Conversation | None:
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        return self._conversations.get(token) if scheme.lower() == "bearer" else None


_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, EndpointServer] = WeakKeyDictionary()


async def open_conversation() -> Conversation:
    """Start an agent's conversation with the model, at the HTTP server of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _servers:
        _servers[loop] = EndpointServer()
    return await _servers[loop].open()


def _error_response(status: int, reason: str) -> web.Response:
    error = {"message": reason, "type": KINDS[status], "param": None, "code": None}
    return web.json_response({"error": error}, status=status, headers=NEVER_AGAIN)


def _allow_many_files() -> None:
    """Raise this process's limit of open files to its maximum, since each waiting agent has two open sockets."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
