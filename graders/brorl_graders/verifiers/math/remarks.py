"""Tell an answer from what a response says of it or after it: remarks in brackets, denials, and text that goes on."""

from __future__ import annotations

import re

from brorl_graders.verifiers.math.lexer import tokens_of
from brorl_graders.verifiers.math.value import compare, read_value

MAX_SENTENCE = 400  # characters before a remark or an answer in which a number or a denial is looked for

_DENIED = re.compile(  # before an answer, such as "I doubt that the answer is"
    r"\b(?:doubt|not|never|impossible|deny|hardly|cannot|can't|don't|doesn't|isn't|false|wrong|nobody|if|whether|unless|suppose"
    r"|assume|assuming|supposing|(?:may|might|could|would) (?:think|say|guess|believe)|tempt(?:ed|ing))\b[^.,;:!?\n]*$",
    re.IGNORECASE,
)
_DENIED_AT = re.compile(
    r"\b(?:not|never|cannot|can't|couldn't|isn't|aren't)(?:\s|\$|\\[(\[]|equal(?: to)?\b|be\b|[A-Za-z]\s*=)*$"
    r"|\b(?:doubt|deny|whether)\b[^.,;:\n]*$",
    re.IGNORECASE,
)
_NO = r"(?:the|my|right|correct|possible|valid|it|true|what|an? (?:valid|possible|correct))"
_BAD = r"(?:wrong|incorrect|impossible|false|invalid|a mistake|excluded|extraneous|rejected|discarded|ruled out)"
_SIZE = r"too (?:large|big|small|high|low|much|many|few|long|short)"
_TAKEN_BACK = re.compile(
    r"[\s$*)\]}\\.,?!]*(?:(?:no|wait|hmm|but|oh|actually|sorry|however|which|this|that|it|answer|result)\b[,.!:… ]*)*"
    r"(?:\b(?:cannot|can't|can not|could not|couldn't|must not|may not)"
    r" (?:be(?! (?:reduced|simplified|written|expressed|factored|further))|hold)"
    rf"|(?:is|was|are|seems|looks|must be|[’']s) (?:clearly )?(?:not {_NO}|not {_BAD}|{_BAD}|{_SIZE})"
    rf"|(?:isn't|wasn't) {_NO}"
    r"|(?:scratch|strike) (?:that|this|it)|on second thought|never ?mind|i (?:don't|do not) (?:think|believe) so"
    r"|i (?:take|took) (?:that|this|it) back|i was wrong|i made (?:an error|a mistake)"
    r"|but (?:actually |really |in fact )?(?:it|that|this)(?: is|'s)(?= (?:actually |really )?[$\\(]*-?\d))\b",
    re.IGNORECASE,
)
_END_MARK = re.compile(
    r"</s>|<\|(?:im_end|eot_id|endoftext|end_of_text|end|return|eom_id)\|>|<(?:eos|end_of_turn)>|<｜end▁of▁sentence｜>"
)
_NEXT_QUESTION = re.compile(
    r"^[ \t]*(?:#+ ?|\*\*)?(?:question|problem|exercise|q|user|human|instruction)(?: ?\d+)?(?:\*\*)? ?:",
    re.IGNORECASE | re.MULTILINE,
)
_REMARK = re.compile(r"(?<=[\w}%$*)])[ \t]+[(\[](?P<inside>[^()\[\]\n]*)[)\]]")
_NO_REMARK = re.compile(r"\b(?:or|maybe|perhaps|possibly|mod|base)\b|^[ \t]*$", re.IGNORECASE)
_EXPLANATION = re.compile(r"^(?:where|here|since|because)\b")
_SAME = re.compile(r"^[ \t]*(?:or|i\.e\.|that is|equivalently|=),?[ \t]+(?=[-\d.\\$/]+[ \t]*$)")
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_LAST_NUMBER = re.compile(r"(\d+(?:\.\d+)?)[^\d]*$")


def is_denied_before(text: str, place: int) -> bool:
    """Return whether the clause before a position in a text denies or doubts what follows."""
    return _DENIED.search(text, max(place - MAX_SENTENCE, 0), place) is not None


def is_denied_at(text: str, place: int) -> bool:
    """Return whether the words right before a position in a text deny what follows, as in "x cannot be 8"."""
    return _DENIED_AT.search(text, max(place - MAX_SENTENCE, 0), place) is not None


def is_taken_back(text: str, place: int) -> bool:
    """Return whether the answer before a position in a text is denied right after it, as in "8 cannot be right"."""
    return _TAKEN_BACK.match(text, place) is not None


def without_continuation(text: str, first_answer: int) -> str:
    """Return a response up to its end: up to a written end mark, or up to a new question after its first answer.

    `first_answer`: where the first box or phrase such as "answer is" begins, or -1 if there is none.
    """
    end = _END_MARK.search(text) if "<" in text else None
    if end and text[: end.start()].strip():
        text = text[: end.start()]
    question = _NEXT_QUESTION.search(text, first_answer + 1) if first_answer >= 0 else None
    return text[: question.start()] if question else text


def without_remarks(text: str) -> str:
    """Remove remarks in brackets after a number, such as `72 (48 in April and 24 in May)` and `72 (48 + 24)`."""
    if "(" not in text and "[" not in text:
        return text
    return _REMARK.sub(_unless_remark, text)


def _unless_remark(found: re.Match[str]) -> str:
    inside = found["inside"]
    number = _LAST_NUMBER.search(found.string, max(found.start() - MAX_SENTENCE, 0), found.start())
    if number is None:
        return found[0]
    inside = _SAME.sub("", inside)
    if _NO_REMARK.search(inside):
        return found[0]
    if _PROSE.search(inside):
        return "" if _EXPLANATION.match(inside) or any(map(str.isdigit, inside)) else found[0]
    one = read_value(tokens_of(inside.strip()))
    other = read_value(tokens_of(number[1]))
    is_sum = one is not None and other is not None and compare(one, other)
    return "" if is_sum else found[0]
