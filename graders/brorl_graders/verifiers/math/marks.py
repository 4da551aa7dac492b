"""Tell answers apart by what a comparison of values does not see: primes, hats, stars, transposes and capitals."""

from __future__ import annotations

import re

_MARK = re.compile(
    r"(?P<of>[\w)}\]|])? ?(?:(?P<primes>'+)(?![A-Za-z])"
    r"|\^ ?\{? ?(?P<sign>\*|\\d?dagger|(?<=[A-Z)}\]]\^)T|(?<=[A-Z)}\]]\^\{)T) ?\}?)(?!\w)"
    r"|\\(?:wide)?(?P<above>hat|tilde|check|vec)(?![A-Za-z]) ?\{? ?(?P<under>\w)?"
)
_NAME_END = re.compile(r"^.*(?<![<>!:])=")
_CAPITALS = re.compile(r"(?:\\(?P<sign>angle|triangle|overline|overrightarrow) ?\{? ?)?(?P<letters>[A-Za-z]{2,3}) ?\}?")
_SMALL_WORDS = frozenset(("yes", "no", "dne", "odd", "one", "two", "six", "ten"))


def are_marked_alike(reference: str, given: str) -> bool:
    """Return whether the same symbols of two answers have primes, hats or other marks.

    Where only one of them has an equals sign, the text before it is a name, and does not count.
    """
    if "=" in reference and "=" not in given:
        reference = _NAME_END.sub("", reference)
    elif "=" in given and "=" not in reference:
        given = _NAME_END.sub("", given)
    return _marks(reference) == _marks(given)


def have_one_name(reference: str, given: str) -> bool | None:
    """Compare names of points, segments, angles and triangles in capitals. None: one of the texts is no such name.

    `\\angle ABC` is `\\angle CBA`. `AB` is not `BA`, as it may be a vector or a product of matrices.
    """
    one, other = _CAPITALS.fullmatch(reference), _CAPITALS.fullmatch(given)
    if one is None or other is None or one["letters"].lower() in _SMALL_WORDS:
        return None
    is_angle = one["sign"] == "angle" and one["letters"] == other["letters"][::-1]
    return one["letters"] == other["letters"] or is_angle


def without_marks(text: str) -> str:
    """Remove the marks of symbols, of which math-verify drops some and misreads others."""
    return _MARK.sub(lambda found: (found["of"] or "") + (found["under"] or ""), text) if _has_marks(text) else text


def _has_marks(text: str) -> bool:
    return "'" in text or "^" in text or "\\" in text


def _marks(text: str) -> list[tuple[str, str]]:
    if not _has_marks(text):
        return []
    found = []
    for mark in _MARK.finditer(text):
        sign = mark["primes"] or mark["sign"] or mark["above"]
        found.append((sign, mark["of"] or mark["under"] or ""))
    return sorted(found)
