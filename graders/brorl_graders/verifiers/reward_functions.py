"""Call reward functions as their authors wrote them: with our arguments, with TRL's or with verl's.

    score(payload, response)                                           ours
    score(completions, **columns)                                      TRL's: lists of length one
    score(data_source, solution_str, ground_truth, extra_info=None)    verl's

The names of a function's arguments tell which it is. It may be a coroutine function. Its result is a number, a number
with a reason, a mapping with `score`, a list of one of these, or None, which gives no score.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from inspect import Parameter
from typing import Any

from brorl_graders.base.errors import ConfigError
from brorl_graders.base.payload import Payload, Score, Scored

OTHERS = "(completions, **columns), (data_source, solution_str, ground_truth, extra_info=None)"
NOT_COLUMNS = ("prompt", "completion", "completions")  # TRL gives these under names of its own
NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
# Names of a first argument that expects no row of data, but a response, its reference, or a list.
NO_ROW = (
    *("response", "completion", "output", "generation", "prediction", "pred", "responses", "outputs", "predictions"),
    *("answer", "ground_truth", "reference", "gold", "label", "target", "expected", "prompts", "queries", "samples"),
)


class NoScoreError(ValueError):
    """Raised for a response that a reward function gives no score."""


def scoring(function: Callable[..., Any]) -> Score:
    """Return a function of payload and response that calls a user's reward function and reads its result.

    Raises ConfigError for a function that can be called in none of the known ways.
    """
    signature = inspect.signature(function)
    known = signature.parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    arguments_of = _of_trl if "completions" in known else _of_verl if "solution_str" in known else None
    needed = {name for name, given in known.items() if given.kind in NAMED and given.default is Parameter.empty}

    def call(payload: Payload, response: str) -> Any:
        if arguments_of is None:
            return function(payload, response)
        named = arguments_of(payload, response)
        if lacking := needed - named.keys():
            raise TypeError(f"it takes {', '.join(sorted(lacking))}, and the row has {', '.join(sorted(payload))}")
        return function(**{name: value for name, value in named.items() if takes_all or name in known})

    def score(payload: Payload, response: str) -> Scored:
        result = call(payload, response)
        if inspect.isawaitable(result):
            result = _loop().run_until_complete(_awaited(result))
        found, reason = _scored(result)
        return (found, reason) if reason else found

    try:
        if arguments_of is None:
            signature.bind("payload", "response")
            first = next(iter(known), "")
            if first in NO_ROW:
                raise TypeError(f"its first argument, {first}, gets the row of data")
        elif arguments_of is _of_verl:
            signature.bind(**{name: None for name in _of_verl({}, "") if takes_all or name in known})
    except TypeError as error:
        raise ConfigError(
            f"it takes {signature} and is called with (payload, response): {error}. Other arguments that are known: "
            f"{OTHERS}"
        ) from None
    return score


def _of_trl(payload: Payload, response: str) -> dict[str, Any]:
    """Return the arguments that TRL gives: messages as completion if the prompt has messages, else a text."""
    prompt = payload.get("prompt", payload.get("question"))
    completion = response if isinstance(prompt, str) else [{"role": "assistant", "content": response}]
    columns = {name: [value] for name, value in payload.items() if name not in NOT_COLUMNS}
    return {**columns, "prompts": [prompt], "completions": [completion]}


def _of_verl(payload: Payload, response: str) -> dict[str, Any]:
    model = payload.get("reward_model")
    answer = payload.get("answer", payload.get("ground_truth"))
    return {
        "data_source": payload.get("data_source", ""),
        "solution_str": response,
        "ground_truth": model.get("ground_truth", answer) if isinstance(model, Mapping) else answer,
        "extra_info": payload.get("extra_info", dict(payload)),
    }


def _scored(result: Any) -> tuple[Any, str]:
    """Return score and reason in a reward function's result. Raises NoScoreError for None, TypeError for no score."""
    if isinstance(result, tuple) and len(result) == 2:
        return _scored(result[0])[0], result[1]
    if isinstance(result, Mapping):
        if "score" not in result:
            raise TypeError(f"the result has no score, but {', '.join(map(str, result)) or 'nothing'}")
        others = ", ".join(f"{name} {value}" for name, value in result.items() if name != "score")
        return _scored(result["score"])[0], others
    if isinstance(result, list | tuple) or getattr(result, "ndim", None):
        if len(result) != 1:
            raise TypeError(f"the result has {len(result)} scores for one response")
        return _scored(result[0])
    if result is None:
        raise NoScoreError("it returned None")
    return result, ""


async def _awaited(result: Any) -> Any:
    return await result


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process, which clients that a reward function keeps may belong to."""
    return asyncio.new_event_loop()
