"""Find verifiers, the functions from a response's text to its raw reward, by their names.

A file of a verifier has `score(payload, response)` and `check(payload)`, which yields what is wrong with a payload
before anything is sampled. It may have `load()`, which imports its libraries, and `answer(payload, response)`, the
response's answer in one spelling, for votes. Imports of libraries are inside functions: a process loads only what its
verifiers need, and the driver none of it.

`find` is the only way from a name to a verifier that scores, and no other module calls it. It takes names of this
package and those that the settings give (`graders/brorl_graders/base/names.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import NamedTuple, Protocol

from brorl_graders.base.components import import_function, is_import_path, with_params
from brorl_graders.base.errors import ConfigError, DataError, NotAllowedError
from brorl_graders.base.names import Names, allow, allowed, refused_verifier
from brorl_graders.base.payload import (
    ENVIRONMENT,
    Answer,
    Payload,
    Score,
    Scored,
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


class Template(NamedTuple):
    """What a scoring process has loaded before it is forked: nothing of a prompt or of a response."""

    verifier: str
    settings: str = ""  # what the verifier prepares for many prompts at once


class Verifier:
    """Base of all kinds of verifiers. A subclass overrides what differs for its kind."""

    is_open = False  # may use files, the network and processes
    is_foreign = False  # a library judges the response: a new process scores each prompt's
    endpoint: Endpoint | None = None  # whom scoring workers ask over a network, in place of `score`
    answer: Answer | None = None  # what a response answers, for votes; None: there is no such thing, as of programs

    def __init__(self, name: str) -> None:
        self.name = name

    def parts(self, payload: Payload) -> Iterator[tuple[Verifier, Payload]]:
        """Yield the verifiers that score with this payload, each with what it sees of it. Imports nothing."""
        yield self, payload

    def check(self, payload: Payload) -> Iterator[str]:
        """Yield messages about a payload that the verifier cannot score. Quick, without its libraries."""
        yield from ()

    def template(self, payload: Payload) -> Template:
        """Return what must be loaded to score with this payload. Imports nothing."""
        return Template(self.name)

    def load(self, settings: str) -> None:
        """Import what the first score would otherwise pay for, and build what a template's settings stand for."""

    def score(self, payload: Payload, response: str) -> Scored:
        """Return the raw reward of a response, or that and a reason. Raises whatever the verifier raises."""
        raise NotImplementedError


class VerifierModule(Protocol):
    """A module of this package that is a verifier. It may have `load` and `answer` as well."""

    def check(self, payload: Payload, /) -> Iterator[str]: ...
    def score(self, payload: Payload, response: str, /) -> Scored: ...


class ModuleVerifier(Verifier):
    """A verifier of this package: the functions of a module."""

    def __init__(self, name: str, module: VerifierModule, is_open: bool = False, is_foreign: bool = False) -> None:
        super().__init__(name)
        self.is_open = is_open
        self.is_foreign = is_foreign
        self.answer = getattr(module, "answer", None)
        self._module = module

    def check(self, payload: Payload) -> Iterator[str]:
        return self._module.check(payload)

    def load(self, settings: str) -> None:
        if hasattr(self._module, "load"):
            self._module.load()

    def score(self, payload: Payload, response: str) -> Scored:
        return self._module.score(payload, response)


class ReasoningGym(ModuleVerifier):
    """The verifier of Reasoning Gym, whose templates hold a task and its settings."""

    def template(self, payload: Payload) -> Template:
        return Template(self.name, reasoning_gym.settings(payload))

    def load(self, settings: str) -> None:
        super().load(settings)
        reasoning_gym.prepare(settings)


class Composition(Verifier):
    """Several verifiers put together. It scores by them alone, so that it needs what they need."""

    def parts(self, payload: Payload) -> Iterator[tuple[Verifier, Payload]]:
        for part in composite.parts_of(payload):
            yield from _verifier(part.verifier).parts(part.payload)

    def check(self, payload: Payload) -> Iterator[str]:
        wrong = list(composite.check(payload))
        yield from wrong
        if not wrong:
            for part in composite.parts_of(payload):
                yield from _wrong_payload(part.verifier, part.payload)

    def score(self, payload: Payload, response: str) -> Scored:
        def judge_part(part: composite.Part, texts: Sequence[str]) -> Verdicts:
            score, reason = judge(part.verifier, part.payload, response)
            return Verdicts([score], {0: reason})

        verdicts = composite.judged(payload, [response], judge_part)
        [score] = verdicts.scores
        assert score is not None, "a part that fails raises"
        return score, verdicts.reasons[0]


class Service(Verifier):
    """A scoring service or a judge that settings name."""

    is_open = True
    endpoint: Endpoint

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        super().__init__(name)
        self.endpoint = endpoint

    def check(self, payload: Payload) -> Iterator[str]:
        return services.check(self.endpoint, payload)

    def score(self, payload: Payload, response: str) -> Scored:
        raise ConfigError("a verifier behind a network is asked by scoring workers, not in this process")


class UserFunction(Verifier):
    """A function of the user's own, by its import path. What it needs of a payload is not known."""

    is_open = True

    @cached_property
    def _score(self) -> Score:
        """The imported function with its parameters filled in.

        Raises NotAllowedError if no setting names it, ConfigError if it cannot be imported.
        """
        params = allowed().verifiers.get(self.name)
        if params is None:
            raise refused_verifier(self.name)
        function = import_function("verifier", self.name)
        score: Score = with_params(f"rewards.verifiers[{self.name}].params", self.name, function, params)
        return score

    def load(self, settings: str) -> None:
        self._score  # noqa: B018

    def score(self, payload: Payload, response: str) -> Scored:
        return self._score(payload, response)


OURS = (
    Composition("composite"),
    ModuleVerifier("code", code, is_open=True),
    ModuleVerifier("exact_match", exact_match),
    ModuleVerifier("format", response_format),
    ModuleVerifier("instruction_following", instruction_following),
    ModuleVerifier("math", math_answer),
    ModuleVerifier("multiple_choice", multiple_choice),
    ReasoningGym("reasoning_gym", reasoning_gym, is_foreign=True),
)
# Prompt.verifier -> verifier. Settings may name others: services by name or address, and functions of the user's own.
VERIFIERS: dict[str, Verifier] = {verifier.name: verifier for verifier in OURS}


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
            find(name).load("")


def prepare(template: Template) -> None:
    """Import a verifier with its libraries and build what its settings describe, such as a task's dataset.

    Raises as `find`, and whatever the verifier raises.
    """
    find(template.verifier).load(template.settings)


def score_of(name: str) -> Score:
    """Return the function that scores a response. Raises as `find`."""
    return find(name).score


def judge(name: str, payload: Payload, response: str) -> tuple[float, str]:
    """Score of a response by the verifier of this name, and what it says of it ("": nothing). Raises as `find`, and
    whatever the verifier raises."""
    return score_and_reason(score_of(name)(payload, response))


def find(name: str) -> Verifier:
    """Return the verifier of this name. Imports nothing.

    Raises ConfigError where there is none, NotAllowedError where no setting names it.
    """
    check_name(name)
    return _verifier(name)


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
    return [verifier.name for verifier, _ in _parts(name, payload)]


def templates(name: str, payload: Payload) -> list[Template]:
    """What must be loaded to score this payload. Imports nothing."""
    return [verifier.template(own) for verifier, own in _parts(name, payload) if verifier.endpoint is None]


def is_open(name: str, payload: Payload) -> bool:
    """Whether one of the verifiers that score this payload needs files, the network or processes."""
    return any(verifier.is_open for verifier, _ in _parts(name, payload))


def endpoints_in(name: str, payload: Payload) -> list[Endpoint]:
    """The services and judges that are asked over a network to score this payload."""
    endpoints = [verifier.endpoint for verifier, _ in _parts(name, payload)]
    return [endpoint for endpoint in endpoints if endpoint is not None]


def is_foreign(name: str, payload: Payload) -> bool:
    """Whether a library judges responses to this payload."""
    return any(verifier.is_foreign for verifier, _ in _parts(name, payload))


def answer_reader(name: str, payload: Payload) -> Callable[[str], str | None] | None:
    """What reads a response's answer: the first of the verifiers of this payload that knows of answers. None where none
    does."""
    for verifier, own in _parts(name, payload):
        if verifier.answer is not None:
            return partial(verifier.answer, own)
    return None


def _parts(name: str, payload: Payload) -> Iterator[tuple[Verifier, Payload]]:
    return iter(()) if name == ENVIRONMENT else _verifier(name).parts(payload)


def _verifier(name: str) -> Verifier:
    """Return the verifier of any name, without importing it.

    One that no setting names can be described. Its `load` and `score` raise NotAllowedError before they import.
    """
    if name in VERIFIERS:
        return VERIFIERS[name]
    endpoint = allowed().endpoints.get(name)
    return UserFunction(name) if endpoint is None else Service(name, endpoint)


def _wrong_payload(name: str, payload: Payload) -> Iterator[str]:
    try:
        verifier = find(name)
    except NotAllowedError:
        raise
    except ConfigError as error:
        yield str(error)
        return
    yield from check_timeout(payload)
    for message in verifier.check(payload):
        yield f"verifier {services.shown_url(name)}: {message}"
