"""Remove what restricts no answer, such as "for every real x" and "only"; rename the argument of a function."""

from __future__ import annotations

import re

from brorl_graders.verifiers.math.expression import NAME_IN_TEXT
from brorl_graders.verifiers.math.lexer import tokens_of
from brorl_graders.verifiers.math.relation import is_inequality
from brorl_graders.verifiers.math.tokens import Tokens, text_of

_SIGNS = ("for ", "only", "w", "nearest", "place", "figure", "digit", ".", "mult", "root", " to ", "respect")
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


def without_qualifier(tokens: Tokens) -> Tokens:
    """Return an answer without a qualifier that restricts nothing, such as "only the pair"."""
    text = text_of(tokens)
    whole = _ANY_INTEGER.fullmatch(text) if "\\in" in tokens else None
    if whole and whole["name"] in _LETTERS.findall(whole["rest"]) and not is_inequality(tokens):
        return tokens_of(whole["rest"])
    if not any(sign in text for sign in _SIGNS):
        return tokens
    plain = _QUALIFIER.sub("", _ONLY.sub("", text)).strip()
    return tokens_of(plain) if plain and plain != text else tokens


def with_argument_of(reference: Tokens, given: Tokens) -> Tokens:
    """Return `f(t) = t^2` as `f(x) = x^2` if the reference is an equation for `f(x)`, and `x + c` as `x + C`.

    Constants with an index are renamed too.
    """
    wanted, text = text_of(reference), text_of(given)
    found = text
    if wanted.endswith("C") and _CONSTANT.search(wanted):
        found = _CONSTANT.sub("+C", text)
    if "C_" in wanted and "C_" not in text:
        found = _renamed(found, "c", "C")
    function = _FUNCTION.fullmatch(found) if "=" in given else None
    other = _FUNCTION.fullmatch(wanted) if function else None
    if function and other and other["name"] == function["name"]:
        old, new = function["argument"], other["argument"]
        if new not in _LETTERS.findall(function["body"]):
            found = f"{function['name']}({new})={_renamed(function['body'], old, new)}"
    return given if found == text else tokens_of(found)


def with_integer_of(reference: Tokens, given: Tokens) -> Tokens:
    """Return an answer with the name that the reference has for any integer, as in `2\\pi k, k \\in \\mathbb{Z}`."""
    wanted = _INTEGER.search(text_of(reference))
    text = text_of(given) if wanted else ""
    found = _INTEGER.search(text)
    if wanted is None or found is None or wanted[1] in _LETTERS.findall(text):
        return given
    return tokens_of(_renamed(text, found[1], wanted[1]))


def _renamed(text: str, old: str, new: str) -> str:
    return _LETTERS.sub(lambda letter: new if letter[0] == old else letter[0], text)
