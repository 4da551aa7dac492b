"""Verifier of Reasoning Gym's tasks: the score that a task's own `score_answer` gives, 1 for a right answer.

Nine tasks run the answer as Python, so an answer to these must be a list, bounded arithmetic, a polynomial or an
integral (`safe_answer.py`). Every other task scores under an audit hook that blocks execution. An attempt to execute an
answer counts as failed. An answer that makes a scorer raise earns 0.

Some scorers of the library (version 0.1.25) are wrong or slow: they reward a text that does not answer the question, or
they compute for seconds. `RULES` in `reasoning_gym.py` replaces, with reasons, the scorers of `coin_flip`,
`complex_arithmetic`, `countdown`, `game_of_life_halting`, `intermediate_integration`, `prime_factorization`,
`propositional_logic` (0 above 300 characters), `puzzle24` and `simple_integration`.
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
from brorl_graders.base.foreign import LARGE, read_json
from brorl_graders.base.payload import Key, Payload, is_blank
from brorl_graders.verifiers.arithmetic import FUNCTIONS, exact_value, is_antiderivative, numbers_in, uses_only
from brorl_graders.verifiers.safe_answer import EvaluationError, EvaluationGuard, is_arithmetic

KEYS = (
    Key("dataset", "name of the Reasoning Gym task", is_required=True),
    Key("config", "settings of the task, as an object", is_required=True),
    Key("question", "`question` of the task's entry", is_required=True),
    Key("answer", "`answer` of the task's entry", is_required=True),
    Key("metadata", "`metadata` of the task's entry", is_required=True),
)
BOARD_TASKS = ("arc_agi", "rearc")  # a right answer to these equals metadata["output"], tuples of tuples

# Tasks that run an answer as Python when it is not the one they wrote (version 0.1.25): by eval(), for lists ...
LIST_TASKS = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
# ... and by SymPy's parse_expr, which calls eval(), for numbers, polynomials and antiderivatives.
NUMBER_TASKS = ("countdown", "puzzle24")
POLYNOMIAL_TASKS = ("polynomial_multiplication",)
INTEGRAL_TASKS = ("intermediate_integration", "simple_integration")

# Names that an antiderivative may use besides its variable: constants of one letter, and pi.
CONSTANTS = frozenset((*string.ascii_letters, "pi"))
# Errors of tasks about an odd answer: prime_factorization ("abc"), boxnet ("[1]", "0"), game_of_life ("{}"),
# coin_flip ("1e999"), propositional_logic (a thousand negations).
ODD_ANSWER_ERRORS = (ValueError, AttributeError, TypeError, KeyError, OverflowError, RecursionError)

# Errors of tasks about settings that they refuse.
TASK_ERRORS = (ValueError, TypeError, KeyError, AssertionError, OSError)

_guard = EvaluationGuard()
Rule = Callable[[Payload, str], float | None]  # payload, answer -> score; None: the library scores

TARGET = 24
WRONG_ARITHMETIC = 0.01  # the library's score of a wrong expression, but for countdown
WRONG_COUNTDOWN = 0.05
COIN_TOLERANCE = 1e-4  # absolute difference of probabilities, the library's
COIN_SHARE = 0.01  # largest relative difference, since the library accepts 0 for 1/16384
MAX_FORMULA = 300  # characters
NUMBER = re.compile(r"[+-]?\d{1,40}(?:\.\d{0,40})?(?:e[+-]?\d{1,2})?|[+-]?\.\d{1,40}", re.IGNORECASE)
FRACTION = re.compile(r"(\d{1,40})\s*/\s*(\d{1,40})")
NOT_A_NUMBER = re.compile(r"nan", re.IGNORECASE)


def score(payload: Mapping[str, Any], response: str) -> float:
    """Return the score of a response to a Reasoning Gym entry: 1.0 if it is right, less for a partly right answer.

    The payload is the entry: `dataset`, `config`, `question`, `answer` and `metadata`. A response without an answer
    scores 0, and so does an answer that the task would run and that is not safe. The tasks in `RULES` have scorers of
    their own. Raises EvaluationError if a task that is not known to run answers tries to run one.
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
        score_answer(entry["answer"], entry)  # also raises if the entry is at fault and not the answer
        return 0.0


def answer(payload: Mapping[str, Any], response: str) -> str | None:
    """Return the answer in a response with one space for each run of white space, or None if there is none."""
    return " ".join((read_answer(payload, response) or "").split()) or None


def check(payload: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the payload of a Reasoning Gym task: keys of its entry that are missing."""
    if missing := [key.name for key in KEYS if key.name not in payload]:
        lacking = ", ".join(missing)
        yield f"the payload has no {lacking}; it holds an entry of a Reasoning Gym task, its name and its settings"


def load() -> None:
    """Import Reasoning Gym, which takes about a second, before the deadline for scoring a first response."""
    import reasoning_gym as library  # noqa: F401


def settings(payload: Mapping[str, Any]) -> str:
    """Return the Reasoning Gym task in a payload, its name and settings, as JSON, or "" if there is none."""
    if "dataset" not in payload:
        return ""
    config = json.dumps(payload["config"], sort_keys=True)
    return json.dumps([payload["dataset"], config])


def prepare(wanted: str) -> None:
    """Build the scorer of a Reasoning Gym task before the processes that use it are forked.

    `wanted` is a result of `settings`. One task in twenty reads files of words or boards for its scorer, up to 0.3 s. A
    scorer that cannot be built raises where it is used, not here.
    """
    if not wanted:
        return
    task, config = read_json(wanted, most_bytes=LARGE)
    with contextlib.suppress(*TASK_ERRORS):
        _score_answer(task, config)


def _is_safe(payload: Mapping[str, Any], given: str) -> bool:
    """Return whether an answer is safe for its Reasoning Gym task, which may hand answers to SymPy.

    The entry's own answer is always safe.
    """
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
    """Return the score that the verifier's own rule for a task gives to an answer. None: Reasoning Gym scores it."""
    rule = RULES.get(payload["dataset"])
    if rule is None or given == payload["answer"]:
        return None
    return rule(payload, given)


def _guarded(task: str, score_answer: Callable[[], float], entry: Mapping[str, Any]) -> float:
    if task in (*NUMBER_TASKS, *POLYNOMIAL_TASKS, *INTEGRAL_TASKS):
        return score_answer()  # SymPy compiles only its own text for an answer that is arithmetic
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
    """Return the texts of a Reasoning Gym entry that its task may evaluate as Python, besides literals.

    For example bitwise_arithmetic evaluates its problem and number_sorting its answer.
    """
    return [text for text in (entry["answer"], *entry["metadata"].values()) if isinstance(text, str)]


def _entry(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entry of a Reasoning Gym task in its original form.

    Two tasks compare boards as tuples, which JSON turned into lists.
    """
    if payload["dataset"] not in BOARD_TASKS:
        return payload
    metadata = payload["metadata"]
    return {**payload, "metadata": {**metadata, "output": tuple(tuple(row) for row in metadata["output"])}}


@lru_cache(maxsize=256)
def _score_answer(dataset: str, config: str) -> Callable[[str, Mapping[str, Any]], float]:
    """Return the scorer of a Reasoning Gym task with these settings (JSON), on which some tasks' scores depend.

    The dataset that the scorer belongs to generates nothing, so it is cheap to make.
    """
    from reasoning_gym.factory import create_dataset

    return create_dataset(dataset, **read_json(config, most_bytes=LARGE), seed=0, size=1).score_answer


def game_of_life_halting(payload: Payload, given: str) -> float | None:
    """Score an answer that must be one of two words, such as those for whether a program halts.

    Reasoning Gym itself accepts any text as the right word.
    """
    said = given.strip().casefold()
    wanted = str(payload["answer"]).casefold()
    return float(said == wanted)


def complex_arithmetic(payload: Payload, given: str) -> float | None:
    """Score 0.0 for an answer with "nan" in it, and leave all other answers to Reasoning Gym.

    Reasoning Gym accepts "nan" as right, since its distance to every number is below any bound.
    """
    return 0.0 if NOT_A_NUMBER.search(given) else None


def puzzle24(payload: Payload, given: str) -> float | None:
    """Score an arithmetic answer that must use four given numbers and equal 24.

    Reasoning Gym itself accepts any four numbers of the right size, and 24.9 for 24.
    """
    operators = payload["config"].get("operators", ("+", "-", "*", "/"))
    numbers = payload["metadata"]["numbers"]
    if uses_only(given, operators) and _reaches(given, numbers, TARGET):
        return 1.0
    return WRONG_ARITHMETIC


def countdown(payload: Payload, given: str) -> float | None:
    """Score an arithmetic answer that must use the given numbers and equal the target.

    Reasoning Gym itself accepts 500.004 for 500.
    """
    metadata = payload["metadata"]
    if _reaches(given, metadata["numbers"], metadata["target"]):
        return 1.0
    return WRONG_COUNTDOWN if given.strip() else 0.0


def coin_flip(payload: Payload, given: str) -> float | None:
    """Score a probability by its distance from the right one.

    Reasoning Gym itself rewards a common prefix of two numbers, so that 0 earns 0.9. It also tries to read
    1e999193359375.
    """
    value = _probability(given.replace(",", ""))
    if value is None:
        return 0.0
    wanted = Fraction(payload["answer"])
    tolerance = min(COIN_TOLERANCE, COIN_SHARE * wanted)
    return float(abs(value - wanted) <= tolerance)


def prime_factorization(payload: Payload, given: str) -> float | None:
    """Score an empty answer, or a number given as its own prime factorization, and leave others to Reasoning Gym.

    Reasoning Gym gives 0.01 for an empty answer, and half for the number of the question.
    """
    if not given.strip(" ×\n"):
        return 0.0
    metadata = payload["metadata"]
    number = str(metadata.get("number"))
    is_composite = len(metadata.get("factors", ())) > 1
    if is_composite and given.strip() == number:
        return WRONG_ARITHMETIC
    return None


def integration(payload: Payload, given: str) -> float | None:
    """Score an antiderivative by comparing its derivative with the integrand at several points.

    Reasoning Gym itself simplifies the difference. That takes SymPy seconds, and fails for some right answers.
    """
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
    """Score 0.0 for a formula of more than `MAX_FORMULA` characters, and leave all others to Reasoning Gym.

    Reasoning Gym's time grows with the square of the formula's length.
    """
    return 0.0 if len(given) > MAX_FORMULA else None


def _reaches(given: str, numbers: list[int], target: int) -> bool:
    """Return whether an arithmetic expression uses each of these numbers once and has the target as its value."""
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


# Scorers of this package by task. None as a result leaves an answer to the library.
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
