"""Compare names of points, segments, angles and triangles, whose letters have an order."""

from __future__ import annotations

import re

_CAPITALS = re.compile(r"(?:\\(?P<sign>angle|triangle|overline|overrightarrow) ?\{?)?(?P<letters>[A-Za-z]{2,3})\}?")
_SMALL_WORDS = frozenset(("yes", "no", "dne", "odd", "one", "two", "six", "ten"))


def have_one_name(reference: str, given: str) -> bool | None:
    """Compare names of points, segments, angles and triangles in capitals. None: one of the texts is no such name.

    `\\angle ABC` is `\\angle CBA`. `AB` is not `BA`, as it may be a vector or a product of matrices.
    """
    one, other = _CAPITALS.fullmatch(reference), _CAPITALS.fullmatch(given)
    if one is None or other is None or not one["letters"].isupper() or one["letters"].lower() in _SMALL_WORDS:
        return None
    if one["sign"] and other["sign"] and one["sign"] != other["sign"]:
        return False
    is_angle = one["sign"] == "angle" and one["letters"] == other["letters"][::-1]
    return one["letters"] == other["letters"] or is_angle
