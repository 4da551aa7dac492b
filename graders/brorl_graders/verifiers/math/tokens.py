"""Divide the tokens of an answer at the signs that stand outside all brackets.

A token is a number, a run of letters, a command, a text such as `\\text{ cm}`, a space or one sign. So the word "or" is
a token, and is none in "for" or `\\text{or}`.
"""

from __future__ import annotations

from collections.abc import Collection

Tokens = tuple[str, ...]

MAX_DEPTH = 30  # levels of brackets
SPACE = " "
_OPENING = frozenset(("(", "[", "{", "\\{"))
_CLOSING = frozenset((")", "]", "}", "\\}"))


def text_of(tokens: Tokens) -> str:
    """Return tokens as a text in plain LaTeX."""
    return "".join(tokens)


def stripped(tokens: Tokens, signs: Collection[str] = (SPACE,), ending: Collection[str] = ()) -> Tokens:
    """Return tokens without those signs at the start and end, or without the signs `ending` at the end."""
    ending = ending or signs
    if tokens and tokens[0] not in signs and tokens[-1] not in ending:
        return tokens
    start, end = 0, len(tokens)
    while start < end and tokens[start] in signs:
        start += 1
    while end > start and tokens[end - 1] in ending:
        end -= 1
    return tokens[start:end]


def split(tokens: Tokens, signs: Collection[str]) -> list[Tokens] | None:
    """Split tokens at the signs outside all brackets, and strip each part of spaces.

    None: a bracket is not closed, or there are too many levels.
    """
    parts = []
    level = 0
    start = 0
    for place, token in enumerate(tokens):
        if token in _OPENING:
            level += 1
        elif token in _CLOSING:
            level -= 1
        elif level == 0 and token in signs:
            parts.append(stripped(tokens[start:place]))
            start = place + 1
        if not 0 <= level <= MAX_DEPTH:
            return None
    parts.append(stripped(tokens[start:]))
    return None if level else parts


def split_everywhere(tokens: Tokens, signs: Collection[str]) -> list[Tokens]:
    """Split tokens at signs within brackets too, and strip each part of spaces."""
    parts = []
    start = 0
    for place, token in enumerate(tokens):
        if token in signs:
            parts.append(stripped(tokens[start:place]))
            start = place + 1
    return [*parts, stripped(tokens[start:])]


def joined(parts: Collection[Tokens], sign: str) -> Tokens:
    """Return parts with a sign between them."""
    found: list[str] = []
    for part in parts:
        found.extend((sign, *part))
    return tuple(found[1:])


def is_enclosed(tokens: Tokens) -> bool:
    """Return whether the bracket or brace that tokens begin with is closed by the last of them."""
    level = 0
    for place, token in enumerate(tokens):
        level += (token in _OPENING) - (token in _CLOSING)
        if level == 0:
            return place == len(tokens) - 1
    return False


def replaced(tokens: Tokens, signs: Collection[str], sign: str) -> Tokens:
    """Return tokens with one sign instead of several."""
    return tuple(sign if token in signs else token for token in tokens)
