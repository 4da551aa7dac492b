"""Which of a prompt's verifiable instructions a response follows: IFEval's rows, scored strictly (`constraints.py`).

`payload["instruction_id_list"]` names the instructions and `payload["kwargs"]` has one object of arguments for each, as
in the public data; arguments that are null count as left out. They apply to the response without its thinking. An empty
one follows none.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from nemo_brorl.tasks.verifiers import language
from nemo_brorl.tasks.verifiers.answer import without_thinking
from nemo_brorl.tasks.verifiers.ifeval.constraints import CONSTRAINTS, wrong_argument
from nemo_brorl.tasks.verifiers.payload import Payload, check_choice, is_list

Arguments = Mapping[str, Any]
SCORINGS = ("fraction", "all")  # share of instructions that are followed (ProRL's reward); 1 when all are, else 0


def check(payload: Payload) -> Iterator[str]:
    """What is wrong with a payload."""
    yield from check_choice(payload, "scoring", SCORINGS)
    names: Any = payload.get("instruction_id_list")
    arguments: Any = payload.get("kwargs")
    if not is_list(names):
        yield (
            f"'instruction_id_list' is {names!r}; write a list of IFEval's names, for example ['punctuation:no_comma']"
        )
    elif not is_list(arguments) or len(arguments) != len(names):
        yield f"'kwargs' is {arguments!r}; write a list with one object for each of the {len(names)} instructions"
    else:
        for name, given in zip(names, arguments, strict=True):
            yield from _wrong_instruction(name, given)


def score(payload: Payload, response: str) -> float:
    """Share of the instructions that the response follows, or with `scoring: all` whether it follows every one."""
    text = without_thinking(response)
    if not text.strip():
        return 0.0
    followed = []
    names = payload["instruction_id_list"]
    arguments = payload["kwargs"]
    for name, given in zip(names, arguments, strict=True):
        is_followed = CONSTRAINTS[name]
        followed.append(is_followed(text, **_given(given)))
    if payload.get("scoring", SCORINGS[0]) == "all":
        return float(all(followed))
    return sum(followed) / len(followed)


def load() -> None:
    """Read the language model."""
    language.load()


def _given(arguments: Arguments | None) -> dict[str, Any]:
    if arguments is None:
        return {}
    return {name: value for name, value in arguments.items() if value is not None}


def _wrong_instruction(name: str, arguments: Arguments | None) -> Iterator[str]:
    if name not in CONSTRAINTS:
        yield f"unknown instruction {name!r}; the known ones are {', '.join(CONSTRAINTS)}"
        return
    given = _given(arguments)
    signature = inspect.signature(CONSTRAINTS[name])
    _, *wanted = signature.parameters  # behind the response
    if set(given) != set(wanted):
        yield f"{name} takes {', '.join(wanted) or 'no arguments'} and was given {', '.join(given) or 'none'}"
    for argument in set(given).intersection(wanted):
        reason = wrong_argument(argument, given[argument])
        if reason is not None:
            yield f"{name}: {argument} is {given[argument]!r}; {reason}"
