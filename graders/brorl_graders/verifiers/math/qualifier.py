"""Remove what restricts no answer, such as "for every real x" and "only"; rename the argument of a function."""

from __future__ import annotations

import re

from brorl_graders.verifiers.math.expression import NAME_IN_TEXT
from brorl_graders.verifiers.math.relation import is_inequality
from brorl_graders.verifiers.math.tokens import tokens_in

_LETTER = r"[A-Za-z](?:_\{\d\})?"
_START = r",? ?\(?(?:\\text\{,? ?\(?)?"
_ONLY = re.compile(
    r"^(?:\\text\{)?only(?: the)?(?: (?:ordered )?(?:pair|point|solution|value|number)s?)?\}? ?(?=[\d(\[\\-])"
)
_PLACES = r"(?:decimal places?|decimals|significant (?:figures?|digits?)|d\.? ?p\.?|s\.? ?f\.?)"
_QUALIFIER = re.compile(
    rf"{_START}(?<![A-Za-z])(?:"
    r"only ?\)?\}? ?\)?"
    r"|(?:correct |rounded |accurate )?(?:to )?(?:the )?"
    rf"(?:nearest [a-z ]+|(?:\d|one|two|three|four) {_PLACES}) ?\)?\}}? ?\)?"
    r"|for (?:all|every|each|any)\b[^=]*"
    r"|(?:(?:a )?(?:double|repeated) root|(?:with |of )?multiplicity (?:\d|two|three)|respectively|[a-z]+ to [a-z]+)"
    r" ?\)?\}? ?\)?"
    rf"|(?:where|with|for) ?\}}? ?{_LETTER}(?: ?(?:,|and|\\text\{{and\}}) ?{_LETTER})* ?(?:\\text\{{)?"
    r"(?:is|are|being|as|any|an?)? ?(?:an? |any |some )?"
    r"(?:arbitrary |real |fixed |positive )*(?:constants?|integers?|numbers?|reals?) ?\}?"
    r")$"
)
_ANY_INTEGER = re.compile(  # "k \\in \\mathbb{Z}" after an answer with k
    rf"(?P<rest>[^<>]*?) ?{_START}(?:(?:where|with|for) ?\}}? ?)?(?P<name>[a-z])\\in\\mathbb\{{Z\}}\)?"
)
_INTEGER = re.compile(r"(?<![\\A-Za-z])([a-z]) ?(?:\\in\\mathbb\{Z|(?:\\text\{)?is an (?:arbitrary )?integer)")
_FUNCTION = re.compile(r"(?P<name>[A-Za-z])\((?P<argument>[a-z])\)=(?P<body>.*)")
_CONSTANT = re.compile(r"\+(?:[cCkK]|\\text\{(?:[cC]|const(?:ant|\.)?)\})$")
_LETTERS = re.compile(rf"\\[A-Za-z]+|{NAME_IN_TEXT}|[A-Za-z]")


def without_qualifier(text: str) -> str:
    """Return an answer in plain LaTeX without a qualifier that restricts nothing, such as "only the pair"."""
    whole = _ANY_INTEGER.fullmatch(text) if "\\in" in text else None
    if whole and whole["name"] in _LETTERS.findall(whole["rest"]) and not is_inequality(tokens_in(whole["rest"])):
        return whole["rest"]
    if not any(
        word in text
        for word in ("for ", "only", "w", "nearest", "place", "figure", "digit", ".", "mult", "root", " to ", "respect")
    ):
        return text
    plain = _QUALIFIER.sub("", _ONLY.sub("", text)).strip()
    return plain or text


def with_argument_of(reference: str, given: str) -> str:
    """Return `f(t) = t^2` as `f(x) = x^2` if the reference is an equation for `f(x)`, and `x + c` as `x + C`.

    Constants with an index are renamed too.
    """
    if reference.endswith("C") and _CONSTANT.search(reference):
        given = _CONSTANT.sub("+C", given)
    if "C_" in reference and "C_" not in given:
        given = _LETTERS.sub(lambda letter: "C" if letter[0] == "c" else letter[0], given)
    if "=" not in given:
        return given
    wanted = _FUNCTION.fullmatch(reference)
    found = _FUNCTION.fullmatch(given)
    if wanted is None or found is None or wanted["name"] != found["name"]:
        return given
    old, new = found["argument"], wanted["argument"]
    if new in _LETTERS.findall(found["body"]):
        return given
    return f"{found['name']}({new})={_renamed(found['body'], old, new)}"


def with_integer_of(reference: str, given: str) -> str:
    """Return an answer with the name that the reference has for any integer, as in `2\\pi k, k \\in \\mathbb{Z}`."""
    wanted = _INTEGER.search(reference) if "nteger" in reference or "\\in" in reference else None
    found = _INTEGER.search(given) if wanted else None
    if wanted is None or found is None or wanted[1] in _LETTERS.findall(given):
        return given
    return _renamed(given, found[1], wanted[1])


def _renamed(text: str, old: str, new: str) -> str:
    return _LETTERS.sub(lambda letter: new if letter[0] == old else letter[0], text)
