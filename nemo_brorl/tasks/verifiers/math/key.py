"""Mathematical answers in one spelling, to count votes for them: `\\frac{1}{2}`, `1/2`, `$0.5$` and
`\\boxed{\\dfrac12}` are one answer.

Numbers are read exactly; of anything else spacing and typesetting are dropped. Two spellings of one expression may stay
apart (`x+1`, `1+x`): votes are counted thousands of times, and no library that may hang is asked.
"""

from __future__ import annotations

import re
from fractions import Fraction

from nemo_brorl.tasks.verifiers.answer import boxed_answers

MAX_DIGITS = 40  # of a number that is read as one
_LATEX = re.compile(r"\$\$?(?P<dollar>[^$]+)\$\$?|\\\((?P<round>.+?)\\\)|\\\[(?P<square>.+?)\\\]", re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:\s*/\s*-?\d+(?:\.\d+)?)?")
_SAID = re.compile(r"answer\s*(?:is\s*:?|:|=)\s*(?P<said>[^\n]+)", re.IGNORECASE)
_WORDS = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\s*\{([^{}]*)\}")
_SHORT_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_SPACING = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[,;:! ]|\\q?quad\b|[\s$]|\\[()\[\]]")
_UNIT = re.compile(r"\^\{?\\circ\}?|\\%|%|\\degree")
_NAMED = re.compile(r"[a-zA-Z]\w?(?:\([a-z]\))?=(?=.)")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(rf"[-+]?(?:\d{{1,{MAX_DIGITS}}}(?:\.\d{{0,{MAX_DIGITS}}})?|\.\d{{1,{MAX_DIGITS}}})")
_RATIO = re.compile(rf"([-+]?)\(?([-+]?\d{{1,{MAX_DIGITS}}})\)?/\(?([-+]?\d{{1,{MAX_DIGITS}}})\)?")


def unmarked(tail: str) -> str | None:
    """What a text without a box says at its end: what follows its last "answer is", or its last LaTeX or number."""
    text = tail
    said = list(_SAID.finditer(tail))
    if said:
        text = said[-1]["said"].strip()
    formulas = list(_LATEX.finditer(text))
    if formulas:
        last = formulas[-1]
        return last["dollar"] or last["round"] or last["square"]
    numbers = _NUMBER.findall(text)
    if numbers:
        return str(numbers[-1])
    return text.rstrip(".") if said else None


def key_of(answer: str) -> str | None:
    """One spelling of an answer; None for an empty one."""
    text = answer
    boxes = boxed_answers(answer)
    if boxes:
        text = "; ".join(box.content for box in boxes)
    text = _WORDS.sub(r"\1", text)
    text = text.strip().rstrip(".")
    text = _SPACING.sub("", text)
    text = _UNIT.sub("", text)
    text = _SHORT_FRACTION.sub(_as_ratio, text)
    named = _NAMED.match(text)
    if named:
        text = text[named.end() :]
    number = _as_number(text)
    if number is not None:
        return str(number)
    return text.lower() or None


def _as_ratio(found: re.Match[str]) -> str:
    top = found[1] or found[2] or ""
    bottom = found[3] or found[4] or ""
    if top.lstrip("-").isdigit() and bottom.isdigit():
        return f"{top}/{bottom}"
    return f"({top})/({bottom})"


def _as_number(text: str) -> Fraction | None:
    plain = text
    if _THOUSANDS.fullmatch(text):
        plain = text.replace(",", "")
    if _DECIMAL.fullmatch(plain):
        return Fraction(plain)
    ratio = _RATIO.fullmatch(plain)
    if ratio is None:
        return None
    sign, numerator, denominator = ratio.groups()
    if int(denominator) == 0:
        return None
    value = Fraction(int(numerator), int(denominator))
    return -value if sign == "-" else value
