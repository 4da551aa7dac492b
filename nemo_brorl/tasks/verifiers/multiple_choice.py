"""1 for the right option, named by its letter or by its text.

Where the choice is looked for, in the response without its thinking, the first that is there: in the last `<answer>`
tags, in the last `\\boxed{}`, behind the last "answer is" or "Answer:", and, where none of these was used, the last
letter that stands alone in brackets, in bold or on a line of its own ("(C)", "**C**", "C."). Marks are asked first, so
a text that argues about "(A)" and ends in "Answer: C" has chosen C; a mark with something else behind it has chosen
nothing.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Sequence
from typing import Any

from nemo_brorl.tasks.verifiers.answer import boxed_answers, extract_answer, without_thinking
from nemo_brorl.tasks.verifiers.payload import Payload, is_list

Choices = Sequence[str]  # texts of the options; none: any letter is one

LETTERS = string.ascii_uppercase
# What may be around a letter: `(C)`, `**C**`, `$C$`, `\text{C}`, `option C`, `C. because`, `C) because`.
_BEFORE = r"(?:\\(?:text|textbf|mathrm|mathbf)\s*\{|(?i:\b(?:option|choice|answer)\b)\s*:?|[\s*_$(\[{\"'`])*"
_LETTER = re.compile(_BEFORE + r"(?P<letter>[A-Za-z])(?![A-Za-z0-9']|[-+=*/^]\s*\w)")
_MARK = re.compile(
    r"(?i:\b(?:the\s+)?(?:final\s+|correct\s+|best\s+)*(?:answer|option|choice)\s*(?:is|:)|\banswer\s*[-=]+>?)\**\s*:?"
)
_ALONE = re.compile(
    r"\((?P<bracket>[A-Z])\)|\*\*\(?(?P<bold>[A-Z])[).:]?\*\*|^\s*(?P<line>[A-Z])\s*[).:]?\s*$", re.MULTILINE
)
_TRIM = re.compile(r"^[\s*_$\"'`.,:;!]+|[\s*_$\"'`.,:;!]+$")


def check(payload: Payload) -> Iterator[str]:
    """What is wrong with a payload."""
    choices: Any = payload.get("choices")
    answer: Any = payload.get("answer")
    has_choices = is_list(choices) and 2 <= len(choices) <= len(LETTERS)
    if choices is not None and not has_choices:
        yield f"'choices' is {choices!r}; write a list of 2 to {len(LETTERS)} texts"
        return
    can_be_right = isinstance(answer, (str, int)) and not isinstance(answer, bool)
    if not can_be_right or right_letter(answer, choices or ()) is None:
        wanted = "a letter"
        if choices:
            last = LETTERS[len(choices) - 1]
            wanted = f"one of the letters A to {last}, a number from 0, or a text of 'choices'"
        yield f"'answer' is {answer!r}; write {wanted}"


def score(payload: Payload, response: str) -> float:
    """Whether the response chose `payload["answer"]`; `payload["choices"]`, if given, are the options' texts."""
    choices = payload.get("choices") or ()
    chosen = chosen_letter(response, choices)
    if chosen is None:
        return 0.0
    return float(chosen == right_letter(payload["answer"], choices))


def answer(payload: Payload, response: str) -> str | None:
    """The letter that the response chose."""
    return chosen_letter(response, payload.get("choices") or ())


def right_letter(answer: str | int, choices: Choices) -> str | None:
    """The letter of the reference: it is a letter, the place among the choices from 0, or a choice's text. None: none
    of these."""
    options = LETTERS[: len(choices)] if choices else LETTERS
    if isinstance(answer, int):
        if not 0 <= answer < len(options):
            return None
        return options[answer]
    stripped = answer.strip().strip("().")
    if len(stripped) == 1 and stripped.upper() in options:
        return stripped.upper()
    return _by_text(answer, choices)


def chosen_letter(response: str, choices: Choices = ()) -> str | None:
    """The letter that a response chose; None when it chose none, or none of the options."""
    text = without_thinking(response)
    tagged = extract_answer(text)
    if tagged is not None:
        return _read(tagged, choices) or _last_alone(tagged, choices)
    boxes = boxed_answers(text)
    if len(boxes) > 1:
        return None
    if boxes:
        (box,) = boxes
        return _read(box.content, choices)
    marks = list(_MARK.finditer(text))
    if marks:
        last = marks[-1]
        behind = text[last.end() :].strip()
        first_line, _, _ = behind.partition("\n")
        return _read(first_line, choices)
    return _by_text(text, choices) or _last_alone(text, choices)


def _read(text: str, choices: Choices) -> str | None:
    """The option that a short text begins with, or is."""
    by_text = _by_text(text, choices)
    if by_text is not None:
        return by_text
    found = _LETTER.match(text)
    if found is None:
        return None
    letter = found["letter"]
    behind = text[found.end() :]
    # "a dog" and "I think" begin with a word and not with a letter of an option: "a", "A" and "I" need a sign behind
    # them.
    if letter in "aAI" and re.match(r"\s+[a-z]", behind):
        return None
    return _option(letter, choices)


def _last_alone(text: str, choices: Choices) -> str | None:
    alone = list(_ALONE.finditer(text))
    if not alone:
        return None
    last = alone[-1]
    letter = last["bracket"] or last["bold"] or last["line"]
    return _option(letter, choices)


def _option(letter: str, choices: Choices) -> str | None:
    options = LETTERS[: len(choices)] if choices else LETTERS
    capital = letter.upper()
    if capital not in options:
        return None
    return capital


def _by_text(text: str, choices: Choices) -> str | None:
    """The letter of the one choice whose text this is."""
    plain = [_plain(str(choice)) for choice in choices]
    wanted = _plain(text)
    if plain.count(wanted) != 1:
        return None
    return LETTERS[plain.index(wanted)]


def _plain(text: str) -> str:
    trimmed = _TRIM.sub("", text)
    return " ".join(trimmed.casefold().split())
