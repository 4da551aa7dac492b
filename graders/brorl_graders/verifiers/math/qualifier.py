"""Remove what restricts no answer, such as "for every real x" and "only"; rename the argument of a function."""

from __future__ import annotations

import re

from brorl_graders.verifiers.math.relation import is_inequality

_START = r",? ?\(?(?:\\text ?\{ ?,? ?\(?)?"
_ONLY = re.compile(
    r"^(?:\\text ?\{ ?)?only (?:the )?(?:(?:ordered )?(?:pair|point|solution|value|number)s? )?\}? ?(?=[\d(\[\\-])"
)
_PLACES = r"(?:decimal places?|decimals|significant (?:figures?|digits?)|d\.? ?p\.?|s\.? ?f\.?)"
_QUALIFIER = re.compile(
    rf"{_START}(?<![A-Za-z])(?:"
    r"only ?\)?\}? ?\)?"
    r"|(?:correct |rounded |accurate )?(?:to )?(?:the )?"
    rf"(?:nearest [a-z ]+|(?:\d|one|two|three|four) {_PLACES}) ?\)?\}}? ?\)?"
    r"|for (?:all|every|each|any)\b[^=]*"
    r"|(?:(?:a )?(?:double|repeated) root|(?:with |of )?multiplicity (?:\d|two|three)) ?\)?\}? ?\)?"
    r"|(?:where|with|for) ?\}? ?\$?[A-Za-z](?:_\d)? ?(?:\\text ?\{)? ?(?:is|being|as|any|an?)? ?(?:an? |any |some )?"
    r"(?:arbitrary |real |fixed |positive )*(?:constants?|integers?|numbers?|reals?) ?\}?"
    r")$"
)
_ANY_INTEGER = re.compile(  # "k \\in \\mathbb{Z}" after an answer with k
    rf"(?P<rest>[^<>]*?) ?{_START}(?:(?:where|with|for) ?\}}? ?)?(?P<name>[a-z]) ?\\in ?\\mathbb ?\{{? ?Z ?\}}? ?\)?"
)
_FUNCTION = re.compile(r"(?P<name>[A-Za-z]) ?\( ?(?P<argument>[a-z]) ?\) ?=(?P<body>.*)")
_CONSTANT = re.compile(r"\+ ?(?:[cCkK]|\\text ?\{ ?(?:[cC]|const(?:ant|\.)?) ?\})$")
_LETTERS = re.compile(r"\\[A-Za-z]+|[A-Za-z]")


def without_qualifier(text: str) -> str:
    """Return an answer in plain LaTeX without a qualifier that restricts nothing, such as "only the pair"."""
    whole = _ANY_INTEGER.fullmatch(text) if "\\in" in text else None
    if whole and whole["name"] in _LETTERS.findall(whole["rest"]) and not is_inequality(whole["rest"]):
        return whole["rest"]
    if not any(word in text for word in ("for ", "only", "w", "nearest", "place", "figure", "digit", ".", "mult", "root")):
        return text
    plain = _QUALIFIER.sub("", _ONLY.sub("", text)).strip()
    return plain or text


def with_argument_of(reference: str, given: str) -> str:
    """Return `f(t) = t^2` as `f(x) = x^2` if the reference is an equation for `f(x)`, and `x + c` as `x + C`."""
    if reference.endswith("C") and _CONSTANT.search(reference):
        given = _CONSTANT.sub("+C", given)
    if "=" not in given:
        return given
    wanted = _FUNCTION.fullmatch(reference)
    found = _FUNCTION.fullmatch(given)
    if wanted is None or found is None or wanted["name"] != found["name"]:
        return given
    old, new = found["argument"], wanted["argument"]
    if old == new or new in _LETTERS.findall(found["body"]):
        return given
    body = _LETTERS.sub(lambda letter: new if letter[0] == old else letter[0], found["body"])
    return f"{found['name']}({new})={body}"
