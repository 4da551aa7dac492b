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
    said = list(_SAID.finditer(tail))
    text = said[-1]["said"].strip() if said else tail
    formulas, numbers = list(_LATEX.finditer(text)), list(_NUMBER.finditer(text))
    if formulas:
        return next(part for part in formulas[-1].groups() if part is not None)
    if numbers:
        return numbers[-1][0]
    return text.rstrip(".") if said else None


def key_of(answer: str) -> str | None:
    """One spelling of an answer; None for an empty one."""
    boxes = boxed_answers(answer)
    text = "; ".join(content for content, _, _ in boxes) if boxes else answer
    text = _SPACING.sub("", _WORDS.sub(r"\1", text).strip().rstrip("."))
    text = _SHORT_FRACTION.sub(_as_ratio, _UNIT.sub("", text))
    text = _NAMED.sub("", text, count=1) if _NAMED.match(text) else text
    number = _as_number(text)
    return (str(number) if number is not None else text.lower()) or None


def _as_ratio(found: re.Match[str]) -> str:
    top, bottom = found[1] or found[2] or "", found[3] or found[4] or ""
    return f"{top}/{bottom}" if top.lstrip("-").isdigit() and bottom.isdigit() else f"({top})/({bottom})"


def _as_number(text: str) -> Fraction | None:
    plain = text.replace(",", "") if _THOUSANDS.fullmatch(text) else text
    if _DECIMAL.fullmatch(plain):
        return Fraction(plain)
    ratio = _RATIO.fullmatch(plain)
    if ratio is None or int(ratio[3]) == 0:
        return None
    value = Fraction(int(ratio[2]), int(ratio[3]))
    return -value if ratio[1] == "-" else value
