"""Which of a prompt's verifiable instructions a response follows: rows of IFEval and IFBench. All instructions stand
here by their public names, with those that are refused, and what their arguments must be.

`payload["instruction_id_list"]` names the instructions and `payload["kwargs"]` has one object of arguments for each, as
in the public data; arguments that are null count as left out. They apply to the response without its thinking. An empty
one follows none. `judging: loose` takes an instruction as followed when one of eight versions of the response follows
it, as the benchmarks' loose accuracy does: without its first line, its last, both or none, with stars and without.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nemo_brorl.tasks.verifiers import language
from nemo_brorl.tasks.verifiers.answer import without_thinking
from nemo_brorl.tasks.verifiers.ifeval.constraints import CONSTRAINTS, RELATIONS
from nemo_brorl.tasks.verifiers.ifeval.ifbench_counts import COUNTS
from nemo_brorl.tasks.verifiers.ifeval.ifbench_formats import FORMATS
from nemo_brorl.tasks.verifiers.ifeval.ifbench_tasks import TASKS
from nemo_brorl.tasks.verifiers.ifeval.ifbench_words import WORDS
from nemo_brorl.tasks.verifiers.payload import Payload, check_choice, is_blank, is_list, is_number


def wrong_argument(name: str, value: Any) -> str | None:
    """What is wrong with the value of an argument; None: nothing."""
    if name.endswith("relation"):
        is_right = value in RELATIONS
        wanted = " or ".join(RELATIONS)
    elif name.startswith("num_") or name in NUMBERS:
        is_right = is_number(value) and value >= 0
        wanted = "a number from 0"
    elif name in LISTS:
        is_right = is_list(value) and all(isinstance(item, str) for item in value)
        wanted = "a list of texts"
    elif name == "options":
        is_right = is_list(value) or isinstance(value, str)
        wanted = "a list of texts, or a text"
    else:
        is_right = isinstance(value, str) and len(value) > 0
        wanted = "a text"
    return None if is_right else f"write {wanted}"


Arguments = Mapping[str, Any]
JUDGINGS = ("strict", "loose")
SCORINGS = ("fraction", "all")  # share of instructions that are followed (ProRL's reward); 1 when all are, else 0
INSTRUCTIONS: dict[str, Callable[..., bool]] = {
    **CONSTRAINTS,
    **COUNTS,
    **WORDS,
    **FORMATS,
    **TASKS,
}

# Instructions of IFBench that are not judged here: name -> why.
REFUSED: dict[str, str] = {
    "ratio:stop_words": "which words are stop words is a list of NLTK's, which has to be downloaded",
    "words:start_verb": "it needs a tagger of parts of speech",
    "words:odd_even_syllables": "it needs a dictionary of syllables",
}

# What an argument must be; those not named here are texts.
NUMBERS = (  # and those that begin with num_
    "frequency",
    "let_frequency",
    "capital_frequency",
    "nth_paragraph",
    "min_words",
    "max_words",
    "N",
    "small_n",
    "n",
    "m",
    "n_start",
    "n_end",
    "percentage",
)
LISTS = ("keywords", "forbidden_words")


def check(payload: Payload) -> Iterator[str]:
    """What is wrong with a payload."""
    yield from check_choice(payload, "scoring", SCORINGS)
    yield from check_choice(payload, "judging", JUDGINGS)
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
    value, _ = score_and_reason(payload, response)
    return value


def score_and_reason(payload: Payload, response: str) -> tuple[float, str]:
    """The score, and which instructions are not followed."""
    text = without_thinking(response)
    if is_blank(text):
        return 0.0, "nothing is said"
    texts = [text]
    if payload.get("judging", JUDGINGS[0]) == "loose":
        texts = versions(text)
    missed: list[str] = []
    names = payload["instruction_id_list"]
    arguments = payload["kwargs"]
    for name, given in zip(names, arguments, strict=True):
        is_followed = INSTRUCTIONS[name]
        own_arguments = _given(given)
        if not any(is_followed(version, **own_arguments) for version in texts):
            missed.append(name)
    reason = f"not followed: {', '.join(missed)}" if missed else ""
    if payload.get("scoring", SCORINGS[0]) == "all":
        return float(not missed), reason
    return (len(names) - len(missed)) / len(names), reason


def versions(text: str) -> list[str]:
    """The eight versions of a response that loose judging looks at, without the empty ones."""
    lines = text.split("\n")
    found = [text]
    for cut in (lines[1:], lines[:-1], lines[1:-1]):
        found.append("\n".join(cut).strip())
    for version in list(found):
        found.append(version.replace("*", ""))
    return [version for version in found if not is_blank(version)]


def load() -> None:
    """Read the language model."""
    language.load()


def _given(arguments: Arguments | None) -> dict[str, Any]:
    """Arguments that are not null; whole numbers as such, which tables of several types have as 3.0."""
    found: dict[str, Any] = {}
    for name, value in (arguments or {}).items():
        if value is None:
            continue
        is_whole = isinstance(value, float) and value.is_integer()
        found[name] = int(value) if is_whole else value
    return found


def _wrong_instruction(name: str, arguments: Arguments | None) -> Iterator[str]:
    if name in REFUSED:
        yield f"instruction {name!r} cannot be judged here: {REFUSED[name]}; leave its rows out (data.max_bad_rows)"
        return
    if name not in INSTRUCTIONS:
        yield f"unknown instruction {name!r}; the known ones are {', '.join(INSTRUCTIONS)}"
        return
    given = _given(arguments)
    signature = inspect.signature(INSTRUCTIONS[name])
    _, *wanted = signature.parameters  # behind the response
    if set(given) != set(wanted):
        yield f"{name} takes {', '.join(wanted) or 'no arguments'} and was given {', '.join(given) or 'none'}"
    for argument in set(given).intersection(wanted):
        reason = wrong_argument(argument, given[argument])
        if reason is not None:
            yield f"{name}: {argument} is {given[argument]!r}; {reason}"
