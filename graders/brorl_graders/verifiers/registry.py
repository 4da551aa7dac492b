"""Verifiers: from a response's text to its raw reward. One file each, named in `VERIFIERS`; `pool.py` runs them.

A file of a verifier has `score(payload, response)`, and may have `check(payload)`, which yields what is wrong with a
payload before anything is sampled, `load()`, which imports its libraries, and `answer(payload, response)`, the
response's answer in one spelling, for votes. `Scorer` says what else one may declare. Imports of libraries are inside
functions: a process loads only what its verifiers need, and the driver none of it.

`find` is the only way from a name to a verifier, and no other module calls it. It takes names of this package and those
that the settings give (`graders/brorl_graders/base/names.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from brorl_graders.base.components import import_function, is_import_path, with_params
from brorl_graders.base.errors import ConfigError, DataError, NotAllowedError
from brorl_graders.base.names import Names, allow, allowed, refused_verifier
from brorl_graders.base.payload import (
    ENVIRONMENT,
    Answer,
    Check,
    Load,
    Payload,
    Score,
    check_timeout,
    score_and_reason,
)
from brorl_graders.base.settings import Endpoint, is_address
from brorl_graders.base.verdicts import Verdicts
from brorl_graders.verifiers import composite, exact_match, multiple_choice, reasoning_gym, response_format, services
from brorl_graders.verifiers.code import code
from brorl_graders.verifiers.ifeval import instruction_following
from brorl_graders.verifiers.math import answer as math_answer

# What reading a payload that was made by a stranger may raise.
MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def _nothing_wrong(payload: Payload) -> Iterator[str]:
    yield from ()


def _nothing_to_load() -> None:
    pass


def _no_settings(payload: Payload) -> str:
    return ""


def _nothing_to_prepare(settings: str) -> None:
    pass


def _asked_by_the_worker(payload: Payload, response: str) -> float:
    raise ConfigError("a verifier behind a network is asked by scoring workers, not in this process")


class Template(NamedTuple):
    """What a scoring process has loaded before it is forked: nothing of a prompt or of a response."""

    verifier: str
    settings: str = ""  # what the verifier prepares for many prompts at once


class Scorer(NamedTuple):
    """One verifier."""

    score: Score  # payload, text of a response -> raw reward, or that and a reason
    check: Check = _nothing_wrong  # messages about a payload that it cannot score; quick, without its libraries
    load: Load = _nothing_to_load  # imports what the first score would otherwise pay for
    answer: Answer | None = None  # what a response answers, for votes; None: there is no such thing, as of programs
    is_open: bool = False  # may use files, the network and processes, as a user's own and `code` with its sandbox
    is_foreign: bool = False  # a library judges the response: a new process scores each prompt's
    settings: Callable[[Payload], str] = _no_settings  # of a payload, for its `Template`
    prepare: Callable[[str], object] = _nothing_to_prepare  # makes what these settings stand for, after `load`


def use_names(names: Names) -> None:
    """Let this process, and those that it starts from now on, use the names that settings give. Imports none of them;
    `check_params` does. Raises ConfigError where a service has the name of a verifier of ours."""
    for name in names.endpoints:
        if name in VERIFIERS or name == ENVIRONMENT:
            raise ConfigError(f"rewards.services.endpoints: {name} has a meaning of its own: choose another name")
    allow(names)


def check_params() -> None:
    """Import the verifiers outside this package that settings give parameters to. Raises ConfigError where one cannot
    be imported or does not take its parameters.

    Others are imported by workers alone: what they load may be large.
    """
    for name, params in allowed().verifiers.items():
        if params:
            find(name)


def prepare(template: Template) -> None:
    """Import a verifier with its libraries and build what its settings describe, such as a task's dataset.

    Raises as `find`, and whatever the verifier raises.
    """
    scorer = find(template.verifier)
    scorer.load()
    scorer.prepare(template.settings)


def score_of(name: str) -> Score:
    """Return the function that scores a response. Raises as `find`."""
    return find(name).score


def judge(name: str, payload: Payload, response: str) -> tuple[float, str]:
    """Score of a response by the verifier of this name, and what it says of it ("": nothing). Raises as `find`, and
    whatever the verifier raises."""
    return score_and_reason(score_of(name)(payload, response))


def _score_composite(payload: Payload, response: str) -> tuple[float, str]:
    verdicts = composite.judged(payload, [response], _judge_part)
    [score] = verdicts.scores
    assert score is not None, "a part that fails raises"
    return score, verdicts.reasons[0]


def _judge_part(part: composite.Part, texts: Sequence[str]) -> Verdicts:
    judged = [judge(part.verifier, part.payload, text) for text in texts]
    return Verdicts([score for score, _ in judged], dict(enumerate(reason for _, reason in judged)))


def _check_composite(payload: Payload) -> Iterator[str]:
    wrong = list(composite.check(payload))
    yield from wrong
    if not wrong:
        for part in composite.parts_of(payload):
            yield from _wrong_payload(part.verifier, part.payload)


def _answer_composite(payload: Payload, response: str) -> str | None:
    """That of the first part whose verifier knows of one."""
    for part in composite.parts_of(payload):
        read = _answer_of(part.verifier)
        if read is not None:
            return read(part.payload, response)
    return None


# Prompt.verifier -> verifier. Settings may name others: services by name or address, and import paths of functions of
# the user's own, which take the place of `score`.
VERIFIERS: dict[str, Scorer] = {
    "code": Scorer(
        score=code.score,
        check=code.check,
        load=code.load,
        is_open=True,
    ),
    "composite": Scorer(
        score=_score_composite,
        check=_check_composite,
        answer=_answer_composite,
    ),
    "exact_match": Scorer(
        score=exact_match.score,
        check=exact_match.check,
        answer=exact_match.answer,
    ),
    "format": Scorer(
        score=response_format.score,
        check=response_format.check,
        load=response_format.load,
    ),
    "instruction_following": Scorer(
        score=instruction_following.score_and_reason,
        check=instruction_following.check,
        load=instruction_following.load,
    ),
    "math": Scorer(
        score=math_answer.score,
        check=math_answer.check,
        load=math_answer.load,
        answer=math_answer.answer,
    ),
    "multiple_choice": Scorer(
        score=multiple_choice.score,
        check=multiple_choice.check,
        answer=multiple_choice.answer,
    ),
    "reasoning_gym": Scorer(
        score=reasoning_gym.score,
        check=reasoning_gym.check,
        load=reasoning_gym.load,
        answer=reasoning_gym.answer,
        is_foreign=True,
        settings=reasoning_gym.settings,
        prepare=reasoning_gym.prepare,
    ),
}


def find(name: str) -> Scorer:
    """Return the verifier of this name, imported if it is the user's own.

    Raises ConfigError where there is none, NotAllowedError where no setting names it.
    """
    check_name(name)
    names = allowed()
    if name in VERIFIERS:
        return VERIFIERS[name]
    if name in names.endpoints:
        return Scorer(_asked_by_the_worker, check=partial(services.check, names.endpoints[name]), is_open=True)
    return Scorer(_imported(name, names.verifiers[name]), is_open=True)


def check_name(name: str) -> None:
    """Raise ConfigError for a word that is no verifier, NotAllowedError for an import path or an address that no
    setting names. Imports nothing."""
    names = allowed()
    if name in VERIFIERS or name in names.endpoints or name in names.verifiers:
        return
    if is_import_path(name) or is_address(name):
        raise refused_verifier(name)
    raise ConfigError(
        f"unknown verifier {name!r}; choose {', '.join(sorted(VERIFIERS))}, one of rewards.services.endpoints by its "
        "name, the address of a service (http://…), or your own as package.module:function"
    )


def check_payload(name: str, payload: Payload) -> None:
    """Raise DataError when a verifier of ours cannot score with this payload; as `check_name` for its name and those of
    its parts. What a user's own verifier needs is not known: its payloads pass."""
    check_name(name)
    try:
        wrong = list(_wrong_payload(name, payload))
    except NotAllowedError:
        raise
    except MALFORMED as error:
        wrong = [f"the payload of verifier {services.shown_url(name)} cannot be read: {error}"]
    if wrong:
        raise DataError("; ".join(wrong))


def names_in(name: str, payload: Payload) -> list[str]:
    """The verifiers that score this payload: the one of that name, or a composite one's parts."""
    if name != "composite":
        return [] if name == ENVIRONMENT else [name]
    return [part["verifier"] for part in payload.get("parts", ())]


def templates(name: str, payload: Payload) -> list[Template]:
    """What must be loaded to score this payload. Imports nothing."""
    if services.is_remote(name) or (name == "composite" and "parts" not in payload):
        return []
    if name != "composite":
        return [_template(name, payload)]
    found = []
    for part in composite.parts_of(payload):
        if not services.is_remote(part.verifier):
            template = _template(part.verifier, part.payload)
            found.append(template)
    return found


def is_open(name: str, payload: Payload) -> bool:
    """Whether one of the verifiers that score this payload needs files, the network or processes."""
    known = _known_in(name, payload)
    if len(known) < len(names_in(name, payload)):
        return True  # a user's own is among them
    return any(scorer.is_open for scorer in known)


def endpoints_in(name: str, payload: Payload) -> list[Endpoint]:
    """The services and judges that are asked over a network to score this payload."""
    endpoints = allowed().endpoints
    return [endpoints[part] for part in names_in(name, payload) if part in endpoints]


def is_foreign(name: str, payload: Payload) -> bool:
    """Whether a library judges responses to this payload."""
    return any(scorer.is_foreign for scorer in _known_in(name, payload))


def answer_reader(name: str, payload: Payload) -> Answer | None:
    """How a response's answer is read where this verifier, or a composite one's part, knows of answers; None where
    not."""
    if any(_answer_of(part) for part in names_in(name, payload)):
        return _answer_of(name)
    return None


def _answer_of(name: str) -> Answer | None:
    return VERIFIERS[name].answer if name in VERIFIERS else None


def _known_in(name: str, payload: Payload) -> list[Scorer]:
    """Ours among the verifiers that score this payload."""
    return [VERIFIERS[part] for part in names_in(name, payload) if part in VERIFIERS]


def _template(name: str, payload: Payload) -> Template:
    if name not in VERIFIERS:
        return Template(name)
    return Template(name, VERIFIERS[name].settings(payload))


def _wrong_payload(name: str, payload: Payload) -> Iterator[str]:
    try:
        check_name(name)
    except NotAllowedError:
        raise
    except ConfigError as error:
        yield str(error)
        return
    yield from check_timeout(payload)
    if name in VERIFIERS or services.is_remote(name):
        for message in find(name).check(payload):
            yield f"verifier {services.shown_url(name)}: {message}"


def _imported(path: str, params: Mapping[str, Any]) -> Score:
    """Return a user's own `score` with its parameters. Raises ConfigError when it cannot be imported."""
    function = import_function("verifier", path)
    score: Score = with_params(f"rewards.verifiers[{path}].params", path, function, params)
    return score
