"""Mathematical answers in one spelling, to count votes for them: `\\frac{1}{2}`, `1/2`, `$0.5$` and
`\\boxed{\\dfrac12}` are one answer.

What can be read without a grammar (`reading.py`) is spelt by its value; of anything else spacing and typesetting are
dropped. Two spellings of one expression may stay apart (`x+1`, `1+x`): votes are counted thousands of times, and no
library that may hang is asked.
"""

from __future__ import annotations

import re
from fractions import Fraction

from nemo_brorl.tasks.verifiers.math.notation import in_one_notation
from nemo_brorl.tasks.verifiers.math.reading import Group, Named, Numeral, Quantity, Reading, Words, read

_TEXT = re.compile(r"\\text ?\{([^{}]*)\}")
_NAMED = re.compile(r"[a-zA-Z]\w?(?:\([a-z]\))?=(?=.)")
_SMALL_WORDS = ("yes", "no")  # shorter ones may be names of points or products, whose capitals count
_MIN_WORD = 4  # letters
MAX_LENGTH = 2000  # characters of an answer that is brought into one spelling


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
