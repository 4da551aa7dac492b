"""The score of a Reasoning Gym task's own `score_answer`: 1 for a right answer, and what it grants of that to others.

Nine tasks run the answer as Python. Theirs has to be a literal or arithmetic (`safe_answer.py`); every other task
scores under a guard that lets no answer run.

Some answers the library's own scorers get wrong (version 0.1.25). Where one rewards what is no answer to the question,
or is busy for seconds, and the truth can be decided here, it is: `RULES` has a function for each such task, which
returns a score, or None to leave it to the library.
"""

from __future__ import annotations

import contextlib
import json
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from brorl_graders.base.answer import read_answer
from brorl_graders.base.payload import Payload, is_blank
from brorl_graders.verifiers.arithmetic import FUNCTIONS, exact_value, is_antiderivative, numbers_in, uses_only
from brorl_graders.verifiers.safe_answer import EvaluationError, EvaluationGuard, is_arithmetic

BOARD_TASKS = ("arc_agi", "rearc")  # a right answer to these equals metadata["output"], tuples of tuples

# Tasks that run an answer as Python when it is not the one they wrote (version 0.1.25): by eval(), for lists ...
LIST_TASKS = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
# ... and by SymPy's parse_expr, which calls eval(), for numbers, polynomials and antiderivatives.
NUMBER_TASKS = ("countdown", "puzzle24")
POLYNOMIAL_TASKS = ("polynomial_multiplication",)
INTEGRAL_TASKS = ("intermediate_integration", "simple_integration")

# Names in an antiderivative beside its variable: any constant of one letter, and pi.
CONSTANTS = frozenset((*string.ascii_letters, "pi"))
# What tasks raise about an odd answer: prime_factorization ("abc"), boxnet ("[1]", "0"), game_of_life ("{}"),
# coin_flip ("1e999"), propositional_logic (a thousand negations).
ODD_ANSWER_ERRORS = (ValueError, AttributeError, TypeError, KeyError, OverflowError, RecursionError)

# What tasks raise about settings that they do not take.
TASK_ERRORS = (ValueError, TypeError, KeyError, AssertionError, OSError)

_guard = EvaluationGuard()
Rule = Callable[[Payload, str], float | None]  # payload, answer -> score; None: the library's

TARGET = 24
WRONG_ARITHMETIC = 0.01  # what the library gives for an expression that is not right ...
WRONG_COUNTDOWN = 0.05
COIN_TOLERANCE = 1e-4  # of a probability, the library's ...
COIN_SHARE = 0.01  # ... and at most this share of it: the library takes 0 for 1/16384
MAX_FORMULA = 300  # characters
NUMBER = re.compile(r"[+-]?\d{1,40}(?:\.\d{0,40})?(?:e[+-]?\d{1,2})?|[+-]?\.\d{1,40}", re.IGNORECASE)
FRACTION = re.compile(r"(\d{1,40})\s*/\s*(\d{1,40})")
NOT_A_NUMBER = re.compile(r"nan", re.IGNORECASE)


def score(payload: Mapping[str, Any], response: str) -> float:
    """Score the response to the entry in `payload` (`dataset`, `config`, `question`, `answer`, `metadata`).

    No answer scores 0, and so does one that would be run and may not; `RULES` has the tasks whose
    scorers are wrong. Raises EvaluationError when a task runs answers
    that is not known to.
    """
    given = read_answer(payload, response)
    if given is None or not _is_safe(payload, given):
        return 0.0
    if is_blank(given) and given != payload["answer"]:
        return 0.0
    score_answer = _score_answer(payload["dataset"], json.dumps(payload["config"], sort_keys=True))
    own_verdict = _own_verdict(payload, given)
    if own_verdict is not None:
        return own_verdict
    entry = _entry(payload)
    try:
        return _guarded(payload["dataset"], lambda: float(score_answer(given, entry)), entry)
    except ODD_ANSWER_ERRORS:
        score_answer(entry["answer"], entry)  # raises as well where the entry is at fault and not the answer
        return 0.0


def answer(payload: Mapping[str, Any], response: str) -> str | None:
    """The response's answer, one blank for a run of white space."""
    return " ".join((read_answer(payload, response) or "").split()) or None


def check(payload: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a payload: an entry that lacks a part."""
    if missing := [key for key in ("dataset", "config", "question", "answer", "metadata") if key not in payload]:
        lacking = ", ".join(missing)
        yield f"the payload has no {lacking}; it holds an entry of a Reasoning Gym task, its name and its settings"


def load() -> None:
    """Import Reasoning Gym (about a second) ahead of the first score, whose deadline it would eat."""
    import reasoning_gym as library  # noqa: F401


def settings(payload: Mapping[str, Any]) -> str:
    """The task and its settings; "" for a payload without one."""
    if "dataset" not in payload:
        return ""
    config = json.dumps(payload["config"], sort_keys=True)
    return json.dumps([payload["dataset"], config])


def prepare(wanted: str) -> None:
    """Make a task's scorer ahead of the processes that use it: one in twenty tasks reads files of words or boards for
    it, up to 0.3 s. One that cannot be made fails where it is used."""
    if not wanted:
        return
    task, config = json.loads(wanted)
    with contextlib.suppress(*TASK_ERRORS):
        _score_answer(task, config)


def _is_safe(payload: Mapping[str, Any], given: str) -> bool:
    """Whether a task that hands answers to SymPy may see this one. It may see the entry's own."""
    task, metadata = payload["dataset"], payload["metadata"]
    if given == payload["answer"]:
        return True
    if task in NUMBER_TASKS:
        return is_arithmetic(given)
    if task in POLYNOMIAL_TASKS:
        return is_arithmetic(given, names=metadata["variables"])
    if task in INTEGRAL_TASKS:
        return is_arithmetic(given, names={*CONSTANTS, metadata["variable"]}, functions=FUNCTIONS)
    return True


def _own_verdict(payload: Mapping[str, Any], given: str) -> float | None:
    """The score where it is not left to the library."""
    rule = RULES.get(payload["dataset"])
    if rule is None or given == payload["answer"]:
        return None
    return rule(payload, given)


def _guarded(task: str, score_answer: Callable[[], float], entry: Mapping[str, Any]) -> float:
    if task in (*NUMBER_TASKS, *POLYNOMIAL_TASKS, *INTEGRAL_TASKS):
        return score_answer()  # SymPy compiles what it writes itself, of an answer that is arithmetic
    _install_guard()
    try:
        return _guard.call(score_answer, _own_texts(entry))
    except EvaluationError as error:
        if task in LIST_TASKS:
            return 0.0
        raise EvaluationError(f"task {task} runs answers as Python, which it is not known to: {error}") from error


@cache
def _install_guard() -> None:
    _guard.install()


def _own_texts(entry: Mapping[str, Any]) -> Collection[str]:
    """What a task may evaluate of its own: bitwise_arithmetic its problem, number_sorting its answer."""
    return [text for text in (entry["answer"], *entry["metadata"].values()) if isinstance(text, str)]


def _entry(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry as the task made it: boards are compared as tuples, and JSON has only lists."""
    if payload["dataset"] not in BOARD_TASKS:
        return payload
    metadata = payload["metadata"]
    return {**payload, "metadata": {**metadata, "output": tuple(tuple(row) for row in metadata["output"])}}


@lru_cache(maxsize=256)
def _score_answer(dataset: str, config: str) -> Callable[[str, Mapping[str, Any]], float]:
    """A dataset object with the task's settings (some tasks score by them); generating nothing, it is cheap to make."""
    from reasoning_gym.factory import create_dataset

    return create_dataset(dataset, **json.loads(config), seed=0, size=1).score_answer


def game_of_life_halting(payload: Payload, given: str) -> float | None:
    """The library takes any text for the right one of two words."""
    said = given.strip().casefold()
    wanted = str(payload["answer"]).casefold()
    return float(said == wanted)


def complex_arithmetic(payload: Payload, given: str) -> float | None:
    """The library takes nan, whose distance to every number is below any bound, for right."""
    return 0.0 if NOT_A_NUMBER.search(given) else None


def puzzle24(payload: Payload, given: str) -> float | None:
    """The library takes four numbers of the right size, whichever they are, and 24.9 for 24."""
    operators = payload["config"].get("operators", ("+", "-", "*", "/"))
    numbers = payload["metadata"]["numbers"]
    if uses_only(given, operators) and _reaches(given, numbers, TARGET):
        return 1.0
    return WRONG_ARITHMETIC


def countdown(payload: Payload, given: str) -> float | None:
    """The library takes 500.004 for 500."""
    metadata = payload["metadata"]
    if _reaches(given, metadata["numbers"], metadata["target"]):
        return 1.0
    return WRONG_COUNTDOWN if given.strip() else 0.0


def coin_flip(payload: Payload, given: str) -> float | None:
    """The library pays for a common beginning of two numbers, so that 0 earns 0.9, and reads 1e999193359375."""
    value = _probability(given.replace(",", ""))
    if value is None:
        return 0.0
    wanted = Fraction(payload["answer"])
    tolerance = min(COIN_TOLERANCE, COIN_SHARE * wanted)
    return float(abs(value - wanted) <= tolerance)


def prime_factorization(payload: Payload, given: str) -> float | None:
    """The library pays 0.01 for an empty answer, and half for the question's number itself."""
    if not given.strip(" ×\n"):
        return 0.0
    metadata = payload["metadata"]
    number = str(metadata.get("number"))
    is_composite = len(metadata.get("factors", ())) > 1
    if is_composite and given.strip() == number:
        return WRONG_ARITHMETIC
    return None


def integration(payload: Payload, given: str) -> float | None:
    """The library simplifies the difference, which takes SymPy seconds, and fails for some right answers."""
    metadata = payload["metadata"]
    constants = [*string.ascii_letters]
    is_right = is_antiderivative(
        given,
        metadata["integrand"],
        metadata["variable"],
        constants,
    )
    return float(is_right)


def propositional_logic(payload: Payload, given: str) -> float | None:
    """The library takes time that grows with the square of the formula's length."""
    return 0.0 if len(given) > MAX_FORMULA else None


def _reaches(given: str, numbers: list[int], target: int) -> bool:
    """Whether an expression uses each number once and has this value."""
    wanted = Counter(map(Fraction, numbers))
    return numbers_in(given) == wanted and exact_value(given) == target


def _probability(text: str) -> Fraction | None:
    stripped = text.strip()
    if NUMBER.fullmatch(stripped):
        return Fraction(stripped)
    found = FRACTION.fullmatch(stripped)
    if found is None or not int(found[2]):
        return None
    above = int(found[1])
    below = int(found[2])
    return Fraction(above, below)


RULES: dict[str, Rule] = {
    "coin_flip": coin_flip,
    "complex_arithmetic": complex_arithmetic,
    "countdown": countdown,
    "game_of_life_halting": game_of_life_halting,
    "intermediate_integration": integration,
    "prime_factorization": prime_factorization,
    "propositional_logic": propositional_logic,
    "puzzle24": puzzle24,
    "simple_integration": integration,
}
