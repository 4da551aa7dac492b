"""Requests and answers of OpenAI's chat completions, as far as a trajectory can be made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_brorl.tasks.environments.protocol import Action, Message
from nemo_brorl.tasks.environments.tool_calls import without_calls

# What a request may say of these: how the model samples is the run's to decide. Temperature, top_p, limits of tokens,
# penalties and seeds are passed over instead, since clients send some unasked.
ONLY: dict[str, tuple[Any, ...]] = {
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
MAX_SHOWN = 200  # characters


class RequestError(ValueError):
    """A request that cannot be answered; the message is what the agent is told."""


@dataclass(frozen=True)
class ChatRequest:
    """What counts of a request."""

    messages: tuple[Message, ...]  # role and content, and what tools need
    tools: tuple[Message, ...]
    model: str = field(compare=False)
    is_streamed: bool = field(compare=False)


def read_request(body: Any) -> ChatRequest:
    """Raises RequestError for what is none, or asks for what a trajectory cannot have."""
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise RequestError("a request is a JSON object with a list of messages")
    for name, allowed in ONLY.items():
        if body.get(name) not in allowed:
            raise RequestError(
                f"{name}={body[name]!r:.{MAX_SHOWN}} cannot be had from a model in training: leave it out"
            )
    messages = tuple(_message(written) for written in body["messages"])
    if messages[-1]["role"] == "assistant":
        raise RequestError("the last message is the assistant's: the model begins its turns itself")
    tools = tuple(_tool(written) for written in body.get("tools") or ())
    return ChatRequest(
        messages,
        tools,
        str(body.get("model")),
        bool(body.get("stream")),
    )


def spoken(action: Action, turn: int) -> Message:
    """A turn of the model as a message; a call that is wrong stays text, as engines leave it."""
    if not action.tool_calls:
        return {"role": "assistant", "content": action.text}
    calls = []
    for place, call in enumerate(action.tool_calls):
        function = {"name": call.name, "arguments": dict(call.arguments)}
        calls.append({"id": f"call_{turn}_{place}", "type": "function", "function": function})
    return {"role": "assistant", "content": without_calls(action.text), "tool_calls": calls}


def completion(
    request: ChatRequest,
    message: Message,
    action: Action,
    number: int,
) -> dict[str, Any]:
    """The answer to a request."""
    said = dict(message)
    reason = "stop"
    if "tool_calls" in message:
        said["content"] = message["content"] or None
        said["tool_calls"] = [_written_call(call) for call in message["tool_calls"]]
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


def events(answer: Mapping[str, Any]) -> str:
    """An answer as the stream of a single piece."""
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


def _message(written: Any) -> Message:
    """A message with what templates read of it, the same however a client writes it."""
    role = written.get("role") if isinstance(written, dict) else None
    if role not in ROLES:
        raise RequestError(f"{written!r:.{MAX_SHOWN}} is no message of one of the roles {', '.join(ROLES)}")
    message: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": _text(written.get("content")),
    }
    for name in ("name", "tool_call_id"):
        if written.get(name) is not None:
            message[name] = str(written[name])
    calls = written.get("tool_calls")
    if calls:
        message["tool_calls"] = [_read_call(call) for call in calls]
    return message


def _text(content: Any) -> str:
    """A text, or texts in parts."""
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
    """A call as templates want it, with its arguments as an object."""
    try:
        function = call["function"]
        arguments = json.loads(function["arguments"] or "{}")
        return {
            "id": str(call["id"]),
            "type": "function",
            "function": {"name": str(function["name"]), "arguments": arguments},
        }
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{call!r:.{MAX_SHOWN}} is no call of a function") from error


def _written_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _tool(written: Any) -> Message:
    function = written.get("function") if isinstance(written, dict) else None
    if not isinstance(function, dict):
        raise RequestError(f"{written!r:.{MAX_SHOWN}} is no function that a model may call")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return {"type": "function", "function": {**function, "parameters": parameters}}
