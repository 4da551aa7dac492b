"""1 for a mathematically equal answer: numbers, fractions, units, percentages, words, sets, intervals, equations.

The answer is looked for in the response without its thinking: in the last `<answer>` tags if there are any, and there,
in this order, in the last `\\boxed{}` (and those that stand with it), or where the text states it (`statement.py`).
Both answers are brought into one notation (`notation.py`); numbers, plain expressions, words and groups of those are
read and compared here (`reading.py`, `compare.py`), all else by math-verify (`library.py`). A verdict depends on
nothing but the two answers and the rules, and is kept: most of a prompt's responses end in one of few answers.

Votes are counted for answers in one spelling: `\\frac{1}{2}`, `1/2`, `$0.5$` and `\\boxed{\\dfrac12}` are one. What can
be read without a grammar (`reading.py`) is spelt by its value; of anything else spacing and typesetting are dropped.
Two spellings of one expression may stay apart (`x+1`, `1+x`): votes are counted thousands of times, and no library that
may hang is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

from nemo_brorl.tasks.verifiers.answer import Box, boxed_answers, extract_answer, last_answer, without_thinking
from nemo_brorl.tasks.verifiers.math.compare import PERCENT, UNITS, USUAL, Rules, are_equal
from nemo_brorl.tasks.verifiers.math.library import equal_by_library
from nemo_brorl.tasks.verifiers.math.notation import in_one_notation
from nemo_brorl.tasks.verifiers.math.reading import Group, Named, Numeral, Quantity, Reading, Words, read
from nemo_brorl.tasks.verifiers.math.statement import is_prose, stated_answer
from nemo_brorl.tasks.verifiers.payload import Payload, accepted_answers, check_answer, check_choice, is_number

PLACES = ("anywhere", "boxed", "tags", "last")  # where an answer may stand; the first is the default
TOLERANCE = "relative_tolerance"
MAX_TAIL = 2000  # characters at the end of a response in which an unmarked answer is looked for, and of any answer
_FINAL_ANSWER = re.compile("final answer is", re.IGNORECASE)  # what is said so after a box counts, and the box does not
_TEXT = re.compile(r"\\text ?\{([^{}]*)\}")
_LOOSE_SPACE = re.compile(r" (?![A-Za-z0-9])|(?<![A-Za-z0-9]) +")
_NAMED = re.compile(r"[a-zA-Z]\w?(?:\([a-z]\))?=(?=.)")
_SMALL_WORDS = ("yes", "no")  # shorter ones may be names of points or products, whose capitals count
_MIN_WORD = 4  # letters
MAX_LENGTH = 2000  # characters of an answer that is brought into one spelling


def check(payload: Payload) -> Iterator[str]:
    """What is wrong with a payload."""
    yield from check_answer(payload)
    yield from check_choice(payload, "extract", PLACES)
    yield from check_choice(payload, "percent", PERCENT)
    yield from check_choice(payload, "units", UNITS)
    tolerance = payload.get(TOLERANCE, 0.0)
    if not is_number(tolerance) or not 0 <= tolerance < 1:
        yield f"{TOLERANCE!r} is {tolerance!r}; write a share of the number, from 0 to below 1"


def score(payload: Payload, response: str) -> float:
    """1 when the response's answer equals one of `payload["answer"]`. `payload["extract"]`: where it must stand;
    `percent`, `units`, `relative_tolerance`: what is held equal (`compare.py`)."""
    place = place_of(payload)
    given = find_answer(response, place)
    if given is None:
        return 0.0
    rules = Rules(
        payload.get("percent", PERCENT[0]),
        payload.get("units", UNITS[0]),
        float(payload.get(TOLERANCE, 0.0)),
    )
    for reference in accepted_answers(payload):
        if is_equal(reference, given, rules):
            return 1.0
    return 0.0


def answer(payload: Payload, response: str) -> str | None:
    """The response's answer in one spelling; what math-verify finds equal may still be two."""
    place = place_of(payload)
    found = find_answer(response, place)
    return key_of(found) if found else None


def load() -> None:
    """Import math-verify and sympy, also what they import when first used, and fill their tables (1 s)."""
    equal_by_library("x^2+118x+2185", "(x+23)(x+96)")
    equal_by_library("\\sqrt{8}+\\frac{1}{3}", "3.1")
    equal_by_library("(1, 2]", "\\{1, 2\\}")
    equal_by_library("x<3", "(1,3)")


def place_of(payload: Payload) -> str:
    """Where an answer must stand: as the verifier's own option says, else as the data's format does."""
    place: str = payload.get("extract") or payload.get("answer_format") or PLACES[0]
    return place


def find_answer(response: str, place: str = PLACES[0]) -> str | None:
    """The answer of a response, as short as can be told: what is in its box. None when there is none at that place."""
    if place == "last":
        said = last_answer(response)
        return None if said is None else stated_answer(f"answer is {said}")
    shown = without_thinking(response)
    tagged = extract_answer(shown)
    if place == "tags" and tagged is None:
        return None
    text = shown if tagged is None else tagged
    boxes = boxed_answers(text)
    final = -1  # where the last "final answer is" begins
    for match in _FINAL_ANSWER.finditer(text):
        final = match.start()
    if boxes and final < boxes[-1].end:
        return _in_boxes(boxes)
    if place == "boxed":
        return None
    if final >= 0:
        return stated_answer(text[final : final + MAX_TAIL])
    return stated_answer(text[-MAX_TAIL:], may_be_words=tagged is not None)


def _in_boxes(boxes: list[Box]) -> str:
    """What stands in the boxes, each text once."""
    contents = dict.fromkeys(box.content.strip() for box in boxes)
    return ", ".join(contents)


def is_equal(reference: str, given: str, rules: Rules = USUAL) -> bool:
    """Whether two answers are equal. `given` is what `find_answer` returns."""
    if not given or len(given) > MAX_TAIL:
        return False
    return _is_equal(_in_reference(reference), in_one_notation(given), rules)


@lru_cache(maxsize=4096)
def _in_reference(reference: str) -> str:
    """The answer in a reference, which may be a text with one in it, in one notation."""
    boxes = boxed_answers(reference)
    if boxes:
        return in_one_notation(_in_boxes(boxes))
    if is_prose(reference):
        return in_one_notation(stated_answer(reference) or reference)
    return in_one_notation(reference)


@lru_cache(maxsize=65536)
def _is_equal(reference: str, given: str, rules: Rules) -> bool:
    """For answers in one notation."""
    if _letters(reference) == _letters(given):
        return bool(given)
    wanted = read(reference)
    found = read(given)
    if wanted is not None and found is not None:
        verdict = are_equal(wanted, found, rules)
        if verdict is not None:
            return verdict
    return equal_by_library(reference, given)


def _letters(text: str) -> str:
    """What is compared letter for letter: spaces count between letters and numbers only."""
    plain = _TEXT.sub(r" \1 ", text) if "\\text" in text else text
    return _LOOSE_SPACE.sub("", " ".join(plain.split()))


def key_of(answer: str) -> str | None:
    """One spelling of an answer; None for an empty one."""
    if len(answer) > MAX_LENGTH:
        return answer
    plain = in_one_notation(answer)
    reading = read(plain)
    key = None if reading is None else _key(reading)
    return key or _compact(plain) or None


def _key(reading: Reading) -> str | None:
    """The spelling of a reading; None where the text itself is as good."""
    if isinstance(reading, Named):
        return _key(reading.reading)
    if isinstance(reading, Quantity):
        return _key_of_quantity(reading)
    if isinstance(reading, Group):
        return _key_of_group(reading)
    if isinstance(reading, Words):
        is_word = len(reading.text) >= _MIN_WORD or reading.text in _SMALL_WORDS
        return reading.text if is_word else None
    assert isinstance(reading, Numeral)
    return f"{reading.digits}_{reading.base}"


def _key_of_quantity(quantity: Quantity) -> str | None:
    value = quantity.value.value
    if quantity.value.has_variables or not isinstance(value, Fraction):
        return None
    if quantity.unit is None or quantity.unit.powers == {("degree", 1)}:
        return str(value)
    names = []
    for name, power in sorted(quantity.unit.powers):
        names.append(f"{name}^{power}")
    unit = " ".join(names)
    return f"{value * quantity.unit.factor} {unit}"


def _key_of_group(group: Group) -> str | None:
    keys = []
    for item in group.items:
        key = _key(item)
        if key is None:
            return None
        keys.append(key)
    if group.brackets in ("()", "[]", "(]", "[)"):
        return f"{group.brackets[0]}{','.join(keys)}{group.brackets[1]}"
    unordered = ",".join(sorted(set(keys)))
    return f"{{{unordered}}}"


def _compact(text: str) -> str:
    plain = _TEXT.sub(r"\1", text)
    plain = plain.replace(" ", "")
    named = _NAMED.match(plain)
    if named:
        plain = plain[named.end() :]
    return plain
