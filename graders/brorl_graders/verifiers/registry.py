"""Find verifiers, which turn the text of a response into its raw reward, by their names.

Each verifier of this package is a module with `score(payload, response)`, `check(payload)` and `KEYS`. `check` yields
what is wrong with a prompt's payload before anything is sampled. `KEYS` and the module's docstring describe the
verifier to users. A module may also have `load()`, which imports its libraries, and `answer(payload, response)`, which
returns the response's answer in one spelling, for votes. Imports of libraries are inside functions: a process loads
only what its verifiers need, and the driver loads none of it.

`find` is the only way from a name to a verifier that scores, and no other module calls it. It accepts the verifiers of
this package and those that the settings name (`graders/brorl_graders/base/names.py`).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import NamedTuple, Protocol

from brorl_graders.base.components import import_function, is_import_path, with_params
from brorl_graders.base.errors import ConfigError, DataError, NotAllowedError
from brorl_graders.base.extras import to_install
from brorl_graders.base.names import Names, allow, allowed, refused_verifier
from brorl_graders.base.payload import (
    ENVIRONMENT,
    Answer,
    Key,
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
from brorl_graders.verifiers.reward_functions import scoring

log = logging.getLogger(__name__)

# Errors that a malformed payload from untrusted data may raise while it is checked.
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
    """A verifier that a process loads before it forks scoring processes. It holds nothing of a prompt or response."""

    verifier: str
    settings: str = ""  # JSON that describes what the verifier builds for many prompts at once


class AnsweringPart(NamedTuple):
    """A verifier that can read answers, with the payload that it sees."""

    verifier: str
    payload: Payload
    read: Answer


class Verifier:
    """A verifier of one kind: what it needs from its process, what it checks, and how it scores a response."""

    is_open = False  # permission to use files, the network and processes
    is_foreign = False  # True: another library judges, so each prompt gets a scoring process of its own
    endpoint: Endpoint | None = None  # address that scoring workers ask over a network, instead of `score`
    keys: tuple[Key, ...] = ()  # keys of the payload; empty: unknown
    description = ""  # docstring of the verifier's module, as Markdown for users
    answer: Answer | None = None  # function that reads a response's answer for votes; None: no answers, as of programs

    def __init__(self, name: str) -> None:
        self.name = name

    def parts(self, payload: Payload) -> Iterator[tuple[Verifier, Payload]]:
        """Yield each verifier that scores with a prompt's payload, and the payload that it sees.

        A composition yields its parts, every other verifier only itself. Imports nothing.
        """
        yield self, payload

    def check(self, payload: Payload) -> Iterator[str]:
        """Yield one message for each reason why the verifier cannot score with a prompt's payload.

        Imports none of the verifier's libraries.
        """
        yield from ()

    def template(self, payload: Payload) -> Template:
        """Return what a process must load before it can score responses to a prompt with this payload.

        Imports nothing.
        """
        return Template(self.name)

    def load(self, settings: str) -> None:
        """Import the verifier's libraries, and build what `settings` describe, such as a dataset.

        The deadline of the first response would include this time otherwise.
        """

    def score(self, payload: Payload, response: str) -> Scored:
        """Return the raw reward of a response, alone or with a text that explains it.

        Raises whatever the verifier raises.
        """
        raise NotImplementedError


class VerifierModule(Protocol):
    """A module of this package that is a verifier. It may also have `load` and `answer`."""

    @property
    def KEYS(self) -> tuple[Key, ...]: ...
    def check(self, payload: Payload, /) -> Iterator[str]: ...
    def score(self, payload: Payload, response: str, /) -> Scored: ...


class ModuleVerifier(Verifier):
    """A verifier of this package that consists of the functions of one module."""

    def __init__(self, name: str, module: VerifierModule, is_open: bool = False, is_foreign: bool = False) -> None:
        super().__init__(name)
        self.is_open = is_open
        self.is_foreign = is_foreign
        self.keys = module.KEYS
        self.description = inspect.cleandoc(module.__doc__ or "")
        self.answer = getattr(module, "answer", None)
        self._module = module

    def check(self, payload: Payload) -> Iterator[str]:
        return self._module.check(payload)

    def load(self, settings: str) -> None:
        """Import the libraries of the module. Answers that need one that is not installed fail later, and no others."""
        try:
            getattr(self._module, "load", tuple)()
        except ModuleNotFoundError as error:
            if not to_install(error):
                raise
            log.warning("verifier %s cannot score every answer: %s%s", self.name, error, to_install(error))

    def score(self, payload: Payload, response: str) -> Scored:
        return self._module.score(payload, response)


class ReasoningGym(ModuleVerifier):
    """The verifier of Reasoning Gym. Its templates hold the name of a task and its settings."""

    def template(self, payload: Payload) -> Template:
        return Template(self.name, reasoning_gym.settings(payload))

    def load(self, settings: str) -> None:
        reasoning_gym.load()
        reasoning_gym.prepare(settings)


class Composition(Verifier):
    """A verifier that combines others. It needs what its parts need, and nothing else."""

    keys = composite.KEYS
    description = inspect.cleandoc(composite.__doc__ or "")

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

        verdicts = composite.judge_by_parts(payload, [response], judge_part)
        [score] = verdicts.scores
        assert score is not None, "a part that fails raises"
        return score, verdicts.reasons[0]


class Service(Verifier):
    """A verifier behind a network: a scoring service, or a language model that judges."""

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
    """A scoring function that a user wrote, known by its import path. Its check accepts any payload."""

    is_open = True

    @cached_property
    def _score(self) -> Score:
        """A user's scoring function, imported and with its parameters filled in.

        Raises NotAllowedError if no setting names it, ConfigError if it cannot be imported or refuses its parameters.
        """
        params = allowed().verifiers.get(self.name)
        if params is None:
            raise refused_verifier(self.name)
        function = import_function("verifier", self.name)
        try:
            return scoring(with_params(f"rewards.verifiers[{self.name}].params", self.name, function, params))
        except ConfigError as error:
            raise ConfigError(f"verifier {self.name}: {error}") from None

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
# Verifiers of this package by name. Settings may name more: services by name or address, users' functions by path.
VERIFIERS: dict[str, Verifier] = {verifier.name: verifier for verifier in OURS}


def use_names(names: Names) -> None:
    """Allow the verifiers, services and environments that the settings name, in this process and its later children.

    Imports none of the named functions. Raises ConfigError if a service has the name of a verifier of this package.
    """
    for name in names.endpoints:
        if name in VERIFIERS or name == ENVIRONMENT:
            raise ConfigError(f"rewards.services.endpoints: {name} has a meaning of its own: choose another name")
    allow(names)


def prepare(template: Template) -> None:
    """Import a verifier with its libraries, and build what its settings describe, such as a dataset of Reasoning Gym.

    Raises ConfigError for an unknown verifier, NotAllowedError for one that no setting names, and whatever the verifier
    raises.
    """
    find(template.verifier).load(template.settings)


def score_of(name: str) -> Score:
    """Return the function that scores a response by the verifier of this name.

    Raises ConfigError for an unknown verifier, NotAllowedError for one that no setting names.
    """
    return find(name).score


def judge(name: str, payload: Payload, response: str) -> tuple[float, str]:
    """Score a response in this process, and return its raw reward and the verifier's reason ("" if it gives none).

    Raises ConfigError for an unknown verifier, NotAllowedError for one that no setting names, and whatever the verifier
    raises.
    """
    return score_and_reason(score_of(name)(payload, response))


def find(name: str) -> Verifier:
    """Return the verifier of this name. Imports nothing.

    Raises ConfigError for an unknown verifier, NotAllowedError for one that no setting names.
    """
    check_name(name)
    return _verifier(name)


def check_name(name: str) -> None:
    """Raise an error unless a verifier has this name and may be used. Imports nothing.

    Raises ConfigError for a word that is no verifier, NotAllowedError for an import path or address that no setting
    names.
    """
    names = allowed()
    if not isinstance(name, str):
        raise ConfigError(f"the name of a verifier is of type {type(name).__name__}: give a text such as 'math'")
    if name in VERIFIERS or name in names.endpoints or name in names.verifiers:
        return
    if is_import_path(name) or is_address(name):
        raise refused_verifier(name)
    raise ConfigError(
        f"unknown verifier {name!r}; choose {', '.join(sorted(VERIFIERS))}, one of rewards.services.endpoints by its "
        "name, the address of a service (http://…), or your own as package.module:function"
    )


def check_payload(name: str, payload: Payload) -> None:
    """Raise DataError if the verifier of this name cannot score with a prompt's payload.

    The payload of a user's own verifier always passes, since its needs are unknown. Raises ConfigError for an unknown
    verifier, NotAllowedError for one that no setting names, also in a part of a composition.
    """
    check_name(name)
    try:
        wrong = list(_wrong_payload(name, payload))
    except MALFORMED as error:
        wrong = [f"the payload of verifier {services.shown_url(name)} cannot be read: {error}"]
    if wrong:
        raise DataError("; ".join(wrong))


def names_in(name: str, payload: Payload) -> list[str]:
    """Return the names of the verifiers that score responses to a prompt with this payload.

    A composition is replaced by its parts. The list is empty where an environment scores.
    """
    return [verifier.name for verifier, _ in _parts(name, payload)]


def templates(name: str, payload: Payload) -> list[Template]:
    """Return what a process must load to score with this verifier and payload. Imports nothing."""
    return [verifier.template(own) for verifier, own in _parts(name, payload) if verifier.endpoint is None]


def is_open(name: str, payload: Payload) -> bool:
    """Return whether a verifier that scores with this payload may use files, the network or processes."""
    return any(verifier.is_open for verifier, _ in _parts(name, payload))


def endpoints_in(name: str, payload: Payload) -> list[Endpoint]:
    """Return the services and judges that score with this payload over a network."""
    endpoints = [verifier.endpoint for verifier, _ in _parts(name, payload)]
    return [endpoint for endpoint in endpoints if endpoint is not None]


def runs_own_code(name: str, payload: Payload) -> bool:
    """Return whether a function of the user's own scores with this payload."""
    return any(isinstance(verifier, UserFunction) for verifier, _ in _parts(name, payload))


def is_foreign(name: str, payload: Payload) -> bool:
    """Return whether the scorer of another library, such as Reasoning Gym, judges responses to this payload."""
    return any(verifier.is_foreign for verifier, _ in _parts(name, payload))


def answer_reader(name: str, payload: Payload) -> Callable[[str], str | None] | None:
    """Return a function that reads the answer in a response, or None if none can be read."""
    part = answering_part(name, payload)
    return None if part is None else partial(part.read, part.payload)


def answering_part(name: str, payload: Payload) -> AnsweringPart | None:
    """Return the first verifier of this payload that can read answers, or None."""
    for verifier, own in _parts(name, payload):
        if verifier.answer is not None:
            return AnsweringPart(verifier.name, own, verifier.answer)
    return None


def _parts(name: str, payload: Payload) -> Iterator[tuple[Verifier, Payload]]:
    return iter(()) if name == ENVIRONMENT else _verifier(name).parts(payload)


def _verifier(name: str) -> Verifier:
    """Return the verifier of any name, without importing it.

    A verifier that no setting names can be described. Its `load` and `score` raise NotAllowedError before they import
    it.
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
