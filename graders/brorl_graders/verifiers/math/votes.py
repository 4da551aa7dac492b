r"""Write each answer in one spelling, to count equal answers: `\frac{1}{2}`, `1/2` and `\boxed{\dfrac12}` are one vote.

Other expressions lose spacing and typesetting, so `x+1` and `1+x` are two votes. No library that may hang is asked.
"""

from __future__ import annotations

import re
from fractions import Fraction

from brorl_graders.verifiers.math.equality import MIN_WORD
from brorl_graders.verifiers.math.kinds import Group, Quantity, Reading, Words, Written, unnamed
from brorl_graders.verifiers.math.notation import in_one_notation
from brorl_graders.verifiers.math.reading import read
from brorl_graders.verifiers.math.tokens import text_of

MAX_LENGTH = 2000  # characters of an answer that is brought into one spelling
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_NAMED = re.compile(r"[a-zA-Z]\w?(?:\([a-z]\))?=(?=.)")
_SMALL_WORDS = ("yes", "no")  # other short words may be points or products, whose capitals count


def key_of(answer: str) -> str | None:
    """Return one spelling for all spellings of an answer, to count equal answers. None: the answer is empty."""
    if len(answer) > MAX_LENGTH:
        return answer
    plain = in_one_notation(answer)
    return _key(read(plain)) or _compact(text_of(plain)) or None


def _key(reading: Reading | None) -> str | None:
    """Return one spelling for all spellings of a parsed answer, or None if the answer's text can be counted as is."""
    reading = unnamed(reading)
    if isinstance(reading, Quantity):
        return _key_of_quantity(reading)
    if isinstance(reading, Group):
        return _key_of_group(reading)
    if isinstance(reading, Words):
        is_word = len(reading.text) >= MIN_WORD or reading.text in _SMALL_WORDS
        return reading.text if is_word else None
    return reading.text if isinstance(reading, Written) else None


def _key_of_quantity(quantity: Quantity) -> str | None:
    value = quantity.value.value
    if quantity.value.has_variables or not isinstance(value, Fraction):
        return None
    if max(abs(value.numerator), value.denominator).bit_length() > MAX_LENGTH:
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
    if group.brackets not in ("", "{}", "U"):
        return f"{group.brackets[0]}{','.join(keys)}{group.brackets[-1]}"
    unordered = ",".join(sorted(set(keys)))
    return f"{{{unordered}}}"


def _compact(text: str) -> str:
    plain = _TEXT.sub(r"\1", text)
    plain = plain.replace(" ", "")
    named = _NAMED.match(plain)
    if named:
        plain = plain[named.end() :]
    return plain
