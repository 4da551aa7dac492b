"""Read quantities: a number or plain expression, with a percent sign, a scale, units or the name of counted things."""

from __future__ import annotations

import re

from brorl_graders.verifiers.math.expression import NAME_IN_TEXT
from brorl_graders.verifiers.math.kinds import Quantity
from brorl_graders.verifiers.math.number_words import SCALES, changes_a_number
from brorl_graders.verifiers.math.tokens import SPACE, Tokens, stripped, text_of
from brorl_graders.verifiers.math.units import read_unit, unknown_unit
from brorl_graders.verifiers.math.value import Value, read_number, read_value, scaled

_PERCENTS = ("%", "percent", "percentage", "pct", "\\text{%}", "\\text{percent}", "\\text{per cent}")
_UNIT_PAIR = re.compile(r" ?(\d+(?:\.\d+)?) ?([A-Za-z]+)(?: ?(?:,|and\b))?")
_HOURS = re.compile(r"(h(?:rs?|ours?)? ?,? ?(?:and )?\d+) ?m(?![a-z])")
_UNIT_THEN_NUMBER = re.compile(r"[A-Za-z]{1,20}(?:\}| ?,| ?and)* ?\d")
_UNIT_COMMANDS = ("\\omega", "\\Omega", "\\mu", "\\frac")
_NOUN = re.compile(r"(?:(?:square|sq|cubic|cu)\.? )?[a-z]{2,}(?:[ -][a-z]{2,})*")
_AFTER_A_NOUN = re.compile(
    r"(?<=[a-z]) (?:long|tall|wide|high|deep|away|old|each|left|altogether|remaining|only|in (?:total|all)"
    r"|of [a-z ]+)$"
)
_SCALE = re.compile(rf"(?:\\text\{{)?({'|'.join(SCALES)})(?![A-Za-z])", re.IGNORECASE)
_NO_NOUN = re.compile(rf"{NAME_IN_TEXT}|\b(?:mod|to|or|and|not)\b")
MIN_NOUN = 3  # letters of a noun after a number and a space; a shorter one may be a product of variables
_POWER = re.compile(r"\^\{?[2-5]\}? ?$")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")


def read_quantity(tokens: Tokens) -> Quantity | None:
    """Read a quantity, such as "5 cm", `12\\%`, "7 hours 30 minutes" and "5 apples". None: the tokens are none."""
    value = read_plain(tokens)
    if value is not None and not value.has_variables:
        return Quantity(value)
    num = 1 if tokens[-1:] and tokens[-1] in _PERCENTS else 3 * (tokens[-3:] == ("per", SPACE, "cent"))
    if num:
        part = read_plain(stripped(tokens[:-num]))
        return None if part is None else Quantity(part, is_percent=True)
    text = text_of(tokens)
    total = _in_several_units(text) if _UNIT_THEN_NUMBER.search(text) else None
    return total or _with_unit(tokens) or (None if value is None else Quantity(value))


def read_plain(tokens: Tokens) -> Value | None:
    """Read a number as it is written, or else the value of an expression."""
    return read_number(text_of(tokens)) or read_value(tokens)


def _with_unit(tokens: Tokens) -> Quantity | None:
    """Read a number with a scale or a unit after it, known or not, such as "5 million" or "5 apples"."""
    for place in range(1, len(tokens)):
        if not _begins_a_unit(tokens, place):
            continue
        value = read_plain(stripped(tokens[:place]))
        if value is None or value.has_variables:
            continue
        name = text_of(tokens[place:]).strip()
        scale = _SCALE.match(name)
        if scale:
            value = scaled(value, SCALES[scale[1].lower()])
            name = name[scale.end() :].strip().removeprefix("}")
            if not name:
                return Quantity(value)
        unit = read_unit(name)
        is_spaced = tokens[place - 1] == SPACE
        is_letter = len(name) == 1 and not is_spaced  # 5m is a product, as 5x is
        if unit is not None and not is_letter:
            return Quantity(value, unit=unit)
        is_product = tokens[place].isalpha() and len(name) < (MIN_NOUN if is_spaced else MIN_NOUN + 1)
        counted = None if is_product else _counted(value, name)
        if counted:
            return counted
    return None


def _begins_a_unit(tokens: Tokens, place: int) -> bool:
    token = tokens[place]
    if token[0] == "\\":
        return token.startswith("\\text{") or token in _UNIT_COMMANDS
    is_after_number = tokens[place - 1][-1] in "0123456789}) "
    return tokens[place : place + 2] == ("^", "\\circ") or (is_after_number and (token in "μΩ" or token.isalpha()))


def _in_several_units(text: str) -> Quantity | None:
    """Read quantities of one kind from the largest unit on as their sum, such as "5 feet 3 inches"."""
    plain = _HOURS.sub(r"\1 min", " ".join(_TEXT.sub(r" \1 ", text).split()))
    parts = [_with_unit((number, f"\\text{{{name}}}")) for number, name in _UNIT_PAIR.findall(plain)]
    known = [(part.value.value, part.unit) for part in parts if part and part.unit]
    if len(known) < max(len(parts), 2) or _UNIT_PAIR.sub("", plain).strip():
        return None
    (total, largest), *others = known
    for value, unit in others:
        if unit.powers != largest.powers or unit.factor >= largest.factor:
            return None
        total += value * unit.factor / largest.factor
    return Quantity(Value(total), unit=largest)


def _counted(value: Value, name: str) -> Quantity | None:
    """Read a number of things of a name that is no known unit. None: the name is not a name of things."""
    plain = _POWER.sub("", _TEXT.sub(r" \1 ", name)).strip(" .{}()").lower()
    plain = _AFTER_A_NOUN.sub("", plain)
    if _NOUN.fullmatch(plain) is None or changes_a_number(plain) or _NO_NOUN.search(plain):
        return None
    words = plain.replace(".", "").split()
    if words[-1] in ("unit", "units"):
        return Quantity(value)
    unit = read_unit(plain)
    return Quantity(value, unit=unit or unknown_unit(" ".join(words)))
