"""Verifiers: from a response's text to its raw reward. One file each, named in `VERIFIERS`; `pool.py` runs them.

A file of a verifier has `score(payload, response)`, and may have `check(payload)`, which yields what is wrong with a
payload before anything is sampled, `load()`, which imports its libraries, and `answer(payload, response)`, the
response's answer in one spelling, for votes. `Scorer` says what else one may declare. Imports of libraries are inside
functions: a process loads only what its verifiers need, and the driver none of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from nemo_brorl.config.schema import OwnVerifierConfig
from nemo_brorl.core.components import import_function, is_import_path, with_params
from nemo_brorl.core.errors import ConfigError, DataError
from nemo_brorl.core.files import MALFORMED
from nemo_brorl.tasks.verifiers import answer, composite, multiple_choice, reasoning_gym, response_format, services
from nemo_brorl.tasks.verifiers.code import code
from nemo_brorl.tasks.verifiers.ifeval import instruction_following
from nemo_brorl.tasks.verifiers.math import answer as math_answer
from nemo_brorl.tasks.verifiers.payload import (
    ENVIRONMENT,
    Answer,
    Check,
    Load,
    Payload,
    Score,
    check_timeout,
    score_and_reason,
)

PARAMS_VARIABLE = "BRORL_VERIFIER_PARAMS"  # of the environment: parameters of a user's own verifiers, by import path


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


def judge(name: str, payload: Payload, response: str) -> tuple[float, str]:
    """Score of a response by the verifier of this name, and what it says of it ("": nothing). Raises as `find`, and
    whatever the verifier raises."""
    return score_and_reason(find(name).score(payload, response))


def _score_composite(payload: Payload, response: str) -> tuple[float, str]:
    return composite.score_and_reason(payload, response, judge)


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


# key of Prompt.verifier -> verifier. Any other name is an import path `package.module:function` of a user's own
# `score`.
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
        score=answer.score,
        check=answer.check,
        answer=answer.answer,
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
    services.JUDGE: Scorer(
        score=_asked_by_the_worker,
        check=services.check_judge,
        is_open=True,
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
    """The verifier of this name, imported if it is a user's. Raises ConfigError when there is none."""
    check_name(name)
    if name in VERIFIERS:
        return VERIFIERS[name]
    if services.is_url(name):
        return Scorer(_asked_by_the_worker, check=services.check_service, is_open=True)
    return Scorer(_imported(name), is_open=True)


def check_name(name: str) -> None:
    """Raise ConfigError unless `name` is a key of VERIFIERS or has the form of an address or of an import path. Imports
    nothing."""
    if services.is_url(name):
        wrong = services.wrong_url(name)
        if wrong is not None:
            raise ConfigError(wrong)
    elif name not in VERIFIERS and not is_import_path(name):
        raise ConfigError(
            f"unknown verifier {name!r}; choose {', '.join(sorted(VERIFIERS))}, the address of a service "
            "(http://…), or your own as package.module:function"
        )


def check_payload(name: str, payload: Payload) -> None:
    """Raise DataError when a verifier of ours cannot score with this payload; ConfigError for an unknown name. What a
    user's own verifier needs is not known: its payloads pass."""
    check_name(name)
    try:
        wrong = list(_wrong_payload(name, payload))
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


def is_remote(name: str, payload: Payload) -> bool:
    """Whether one of the verifiers that score this payload is asked over a network."""
    return any(map(services.is_remote, names_in(name, payload)))


def remote_parts(name: str, payload: Payload) -> list[tuple[str, Payload]]:
    """The verifiers behind a network among those that score this payload, each with what it is given."""
    if services.is_remote(name):
        return [(name, payload)]
    if name != "composite":
        return []
    found: list[tuple[str, Payload]] = []
    for part in composite.parts_of(payload):
        if services.is_remote(part.verifier):
            found.append((part.verifier, part.payload))
    return found


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
    except ConfigError as error:
        yield str(error)
        return
    yield from check_timeout(payload)
    if name in VERIFIERS or services.is_url(name):
        for message in find(name).check(payload):
            yield f"verifier {services.shown_url(name)}: {message}"


def configure(verifiers: Sequence[OwnVerifierConfig]) -> None:
    """Use the parameters of these verifiers, a user's own, in this process and those that it starts from now on.
    Imports none of them; `find` does, and raises ConfigError where one does not take its parameters."""
    params = {verifier.name: verifier.params for verifier in verifiers}
    os.environ[PARAMS_VARIABLE] = json.dumps(params)


def _imported(path: str) -> Score:
    """A user's own `score`, with its parameters. Raises ConfigError when it cannot be imported."""
    function = import_function("verifier", path)
    params = json.loads(os.environ.get(PARAMS_VARIABLE, "{}"))
    score: Score = with_params(f"rewards.verifiers[{path}].params", path, function, params.get(path, {}))
    return score
