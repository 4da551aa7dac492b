r"""Verifier of multiple-choice questions: 1 for the right option, named by its letter or by its text.

The first location that exists in the response, apart from its thinking, decides:

1. The last `<answer>` tags.
2. The `\boxed{}`. A box that names no option is passed over where words after it mark an answer.
3. The text after the last "answer is", "Answer:" or "I choose", or the letter before "is the right answer".
4. The whole response, if it is an option's letter or text.
5. A last sentence that only concludes a letter: "So C.", "It must be C, not A."
6. The last letter that stands alone in brackets, in bold or on its own line ("(C)", "**C**", "C.").

A letter that is taken back ("C. Wait, it's B"), or stands before another option's text, is not chosen.
A number from 1 stands for a letter where no option's text has a digit. Punctuation of other scripts is read as ASCII's.
So a response that discusses "(A)" and ends in "Answer: C" has chosen C. A list of letters ("A, B, C or D") chooses no
option.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from brorl_graders.base.answer import boxed_answers, extract_answer, json_answer, without_thinking
from brorl_graders.base.payload import Key, Payload, is_list
from brorl_graders.verifiers.math.remarks import is_taken_back

Choices = Sequence[str]  # texts of the options; empty: any letter is an option

KEYS = (
    Key("answer", "right option: its letter, its number from 0, or its text", is_required=True),
    Key("choices", "texts of the options, from 2 to 26; without texts `answer` must be a letter"),
)

LETTERS = string.ascii_uppercase
_NUMBERS = tuple(str(number) for number in range(1, len(LETTERS) + 1))
_HAS_DIGIT = re.compile(r"\d")
TRIMMED = string.whitespace + "*_$\"'`.,:;!"
BRACKETS = "()[]{}"
MAX_READ = 4000  # characters of a text in which a choice is looked for

# Possessive quantifiers (`*+`) and bounds keep the cost linear: each character is read once, whatever follows.
_COMMAND = re.compile(
    r"\\(?:f?boxed|fbox|text(?:bf|it|rm|sf|tt)?|math(?:rm|bf|it|sf|tt)|operatorname|emph)\s{0,4}\{([^{}]*+)\}"
)
_NUMBERED = re.compile(
    r"(?:(?:option|choice|answer)\s)?\(?(?P<number>\d{1,2})\)?(?:[.):]\s*(?P<text>.*))?", re.IGNORECASE
)
_SPACING = re.compile(r"\\(?:[,;:! ]|q?quad\b)|~|\$|\\[()\[\]]|</?\w{1,8}>")
MAX_COMMANDS = 4  # levels of nested commands

# Text that may come before a letter: `(C)`, `**C**`, `option C`.
_BEFORE = r"(?:(?i:option|choice|answer)\b:?|[\s*_(\[{\"'`])*+"
_LETTER = re.compile(_BEFORE + r"(?P<letter>[A-Za-z])(?![A-Za-z0-9'’]|[-+=*/^]\s?\w)")
# A lower-case word after "a", "A" or "I" means that a sentence begins there, except for the words listed here.
_SENTENCE = re.compile(r"\s+(?!(?:because|since|is|as|which|based|due|given|for|rather|instead)\b)[a-z]")
_ANOTHER = re.compile(  # a letter after the first one: `, B`, `/B`, ` or (B)`, ` B`
    r"[\s)\]}*_.\"'`]{0,8}(?:(?:[,;/&+|]|\b(?:and|or|ou|et|oder|und|o|y)\b)[\s]{0,4}){0,2}"
    r"(?:(?:and|or|option|choice)\b\s{0,4}){0,2}[(\[*\s\"'`]{0,4}"
    r"(?P<letter>[A-Z])(?=[\s)\]}*_.?!\"'`]{0,8}(?:$|[,;/&+|]|\b(?:and|or|ou|et|oder|und|o|y)\b|[A-Z]\b))"
)

_SURELY = r"(?:\s(?:for\ssure|definitely|clearly|certainly|indeed|surely|therefore|thus))?"
_IS = rf"[*_]{{0,3}}\s{{0,4}}(?::|(?:is{_SURELY}|are|would\sbe|must\sbe|should\sbe|has\sto\sbe)\b)"
_WHICH = r"(?:\b(?:the|my|our)\s{1,4})?+(?:\b(?:final|correct|right|best|most\slikely)\s{1,4}){0,3}"
_NOUN = r"\b(?:answer|option|choice|solution|statement)"
# Words that take a letter back and put another one in its place: "Wait, actually it's", "no, it should be"
_CORRECTION = (
    r"(?:\b(?:wait|actually|hmm|sorry|correction|oops|rather|instead|i\smeant?)\b[,.!:;\s\u2026-]{1,6}"
    r"|\bno\b[,.!:;\u2026-]\s{0,4}){1,4}"
    r"(?:(?:it|that|this)(?:'s|\sis|\sshould\sbe|\smust\sbe)\s|make\s(?:it|that)\s)?"
)
_MARK = re.compile(
    rf"(?i:{_WHICH}{_NOUN}(?:\s(?:to|for)\s(?:the|this)\s(?:question|problem))?{_IS}|\banswer\s{{0,4}}[-=]+>?"
    r"|\bans\.?\s{0,4}[-=:]+>?"
    rf"|{_CORRECTION}(?=[*_(\[]{{0,4}}(?-i:[A-Z])\b)"
    r"|\b(?:I|we)(?:'d|\swould|\swill|'ll)?\s(?:choose|pick|select|go\swith|chose|answer)\b"
    r"|\b(?:la\s)?(?:bonne\s)?r\u00e9ponse\s(?:correcte\s|finale\s)?est\b(?:\s(?:la|le|l'option)\b)?"
    r"|\b(?:la\s)?respuesta\s(?:correcta\s|final\s)?es\b(?:\s(?:la|el)\b)?"
    r"|\b(?:richtige\s)?Antwort\s(?:ist|lautet)\b|\b(?:r\u00e9ponse|respuesta|Antwort|\u043e\u0442\u0432\u0435\u0442)\s?:"
    r"|\(\u7b54\u6848\)|\u7b54\u6848(?:\u662f|\u4e3a|\u70ba|:)"
    r"|(?<![\u4e0d\u672a])\u9009(?:\u62e9|\u9879)?(?=[ (]{0,4}[A-Z])"
    r"|\u7b54\u3048\u306f|\uc815\ub2f5\uc740"
    r"|^[#*_ \t]{0,12}(?:final\s|correct\s){0,2}answer[#*_: \t]{0,12}$)[*_]{0,3}\s{0,4}:?",
    re.MULTILINE,
)
# A letter with its mark after it: "C is the right answer", "(C) is correct."
_MARKED = re.compile(
    r"(?P<bracket>\()?\b(?P<letter>[A-Z])\b(?(bracket)\))[*_)]{0,4}\s(?i:is\s(?:therefore\s|thus\s)?"
    r"(?:the\s(?:final\s|correct\s|right\s|best\s){0,3}(?:answer|option|choice)\b|(?:correct|right)(?:\shere)?[*_]{0,3}[.!]?\s{0,4}$"
    r"|the\sonly\s(?:correct|right|true|valid)\s(?:answer|option|choice|statement|one)\b))",
    re.MULTILINE,
)
# A sentence that only concludes a letter, with reasons or denied letters after it. Any other word leaves it unread.
_CONCLUDING = (
    r"(?:so|thus|therefore|hence|then|it|it's|that|that's|this|which|must|has|have|to|should|be|is|i|i'm|am|think|believe"
    r"|guess|choose|going|go|with|settle|settled|on|leaves|leaving|gives|means|option|choice|letter|the|correct|right|one|answer|only"
    r"|matches|corresponds|fits|statement|we)"
)
_WORDS = rf"(?P<words>(?:(?i:{_CONCLUDING})[,:]?\s+)*+)"
_MORE = (
    r"(?P<more>,?\s*\(?(?:(?:and\s)?not|rather\sthan|instead\sof|it\s(?:cannot|can't|is\snot)|because|since|as)\s[^?]*+)?"
    r"[.!*_)\s]{0,4}"
)
_CLOSING = re.compile(
    rf"{_WORDS}[*_(\[]{{0,4}}(?P<letter>[A-HJ-Z])\b[*_)\]]{{0,4}}(?:\s\([^()]*\))?"
    rf"(?:\s(?:is\s)?(?:correct|right|fits|works|matches|true))?(?:\sit\sis)?{_MORE}"
)
_CLOSING_TEXT = re.compile(rf"{_WORDS}(?P<text>[^?]{{1,200}}?){_MORE}")  # an option's text in place of its letter
_REASONED = re.compile(
    r"[*_(\[]{0,4}(?P<letter>[A-Z])[*_)\]]{0,4}(?:[.):,]\s*|\s+)?(?:(?<=[.):]\s)(?P<text>[^.,;?]+),?\s)??(?:(?i:because|since|as|it\s|not\b|the\sothers?\b)|\u4e0d\u662f)[^?]*"
)
# A whole response that repeats an option whose text is not known: a letter, its bracket or full stop, and few words.
_OPTION_TEXT = re.compile(
    r"\(?[A-Z](?:[).:]|\):) (?!(?i:[^\n]*\b(?:not|no|never|or|and|is|are|was|wrong|incorrect|false|maybe|perhaps|i)\b))"
    r"[^\s?]+(?: [^\s?]+){0,7}"
)
_SENTENCE_END = re.compile(r"(?<=[.!?])[*_\s]+|\n+")
_SO = re.compile(r"[,;]\s(?=(?:so|thus|hence|therefore|which\s(?:leaves|means))\s)|\s(?=leav(?:es|ing)\s)")
MAX_CLOSING = 300  # characters of a last sentence
# Full-width forms of ASCII, and other punctuation and conjunctions of Chinese and Japanese texts
_PUNCTUATION = {"\u3002": ".", "\u3001": ",", "\u3010": "(", "\u3011": ")", "\u6216": " or ", "\u548c": " and "}
_ASCII: dict[int, int | str] = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_ASCII.update({ord(other): plain for other, plain in _PUNCTUATION.items()})
_ALONE = re.compile(
    r"\((?P<bracket>[A-Z])\)|\*\*\(?(?P<bold>[A-Z])[).:]?\*\*|^(?:#{1,6} )?[ \t]*+(?P<line>[A-Z])[ \t]*+[).:]?[ \t]*+$",
    re.MULTILINE,
)


class _Place(NamedTuple):
    """Text in which a response names its choice, with its position."""

    start: int
    text: str


def check(payload: Payload) -> Iterator[str]:
    """Yield what is wrong with the payload of a multiple-choice question."""
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
    """Return 1.0 if a response chose the right option, which is `payload["answer"]`, else 0.0.

    `payload["choices"]` holds the texts of the options. Without it only letters are compared.
    """
    choices = payload.get("choices") or ()
    chosen = chosen_letter(response, choices)
    if chosen is None:
        return 0.0
    return float(chosen == right_letter(payload["answer"], choices))


def answer(payload: Payload, response: str) -> str | None:
    """Return the letter of the option that a response chose, or None if it chose none."""
    return chosen_letter(response, payload.get("choices") or ())


def right_letter(answer: str | int, choices: Choices) -> str | None:
    """Return the letter of the right option, or None if the reference names no option.

    The reference `answer` is a letter, the index of a choice (from 0), or the text of a choice.
    """
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
    """Return the letter that a response chose, or None if it chose no option."""
    text = without_thinking(response).translate(_ASCII)
    tagged = extract_answer(text) or json_answer(text)
    if tagged is not None:
        return _in_tags(tagged, choices)
    boxes = boxed_answers(text)
    naming = [box for box in boxes if _names_options(box.content, choices)]
    if len(naming) > 1:
        return None
    if naming:
        return None if is_taken_back(text, naming[0].end) else _read(naming[0].content, choices)
    marked = _last_marked(text[boxes[-1].end :] if boxes else text)
    if marked is not None:
        return _read(marked, choices)
    if boxes:
        return None
    reasoned = _REASONED.fullmatch(text.strip()) if len(text) <= MAX_CLOSING else None
    if reasoned and (not reasoned["text"] or _by_text(reasoned["text"], choices) == reasoned["letter"]):
        return _option(reasoned["letter"], choices)
    return _whole(text, choices) or _concluded(text, choices) or _last_alone(text, choices)


def _names_options(text: str, choices: Choices) -> bool:
    return _read(text, choices) is not None or _lists_letters(_plain_text(text))


def _concluded(text: str, choices: Choices) -> str | None:
    """Return the letter that the last sentence of a response concludes, as "So C." does, or None."""
    *before, last = _SO.split(_SENTENCE_END.split(text.strip())[-1])
    if len(last) > MAX_CLOSING:
        return None
    found = _CLOSING.fullmatch(last)
    if found is None:
        said = _CLOSING_TEXT.fullmatch(last)
        return _by_text_alone(said["text"], choices) if said and said["words"] else None
    # A letter alone may end a list of letters
    return _option(found["letter"], choices) if found["words"] or found["more"] or before else None


def _in_tags(tagged: str, choices: Choices) -> str | None:
    """Return the letter of the multiple-choice option that a text in answer tags, such as a sentence, names."""
    boxes = boxed_answers(tagged)
    if len(boxes) > 1:
        return None
    if boxes:
        (box,) = boxes
        return _read(box.content, choices)
    by_text = _by_text_alone(_plain_text(tagged), choices)
    if by_text is not None:
        return by_text
    marked = _last_marked(tagged)
    if marked is not None:
        return _read(marked, choices)
    if _lists_letters(_plain_text(tagged)):
        return None
    named = {_letter_of(found) for found in _ALONE.finditer(tagged)}
    if len(named) > 1:
        return None
    return _read(tagged, choices) or _last_alone(tagged, choices)


def _last_marked(text: str) -> str | None:
    """Return the answer that a text marks last, by words such as "Answer:". None: no words mark one.

    It is the rest of the line after the words, or the letter before "is the right answer".
    """
    places = []
    for mark in _MARK.finditer(text):
        behind = text[mark.end() : mark.end() + MAX_READ].strip()
        first_line, _, _ = behind.partition("\n")
        places.append(_Place(mark.start(), first_line))
    for mark in _MARKED.finditer(text):
        places.append(_Place(mark.start(), mark["letter"]))
    if not places:
        return None
    return max(places).text


def letter_of_number(text: str, choices: Choices) -> str | None:
    """Return the letter of the option that a number from 1 means, or None where an option's text has a digit."""
    if text not in _NUMBERS[: len(choices)] or any(_HAS_DIGIT.search(str(choice)) for choice in choices):
        return None
    return LETTERS[int(text) - 1]


def _read(text: str, choices: Choices) -> str | None:
    """Return the letter of the multiple-choice option that a short text begins with, or whose whole text it is."""
    plain = _plain_text(text)
    by_text = _by_text_alone(plain, choices)
    if by_text is not None:
        return by_text
    number = _NUMBERED.fullmatch(plain.strip(TRIMMED + BRACKETS))
    by_number = letter_of_number(number["number"], choices) if number else None
    if number and by_number is not None:
        return by_number if not number["text"] or _by_text(number["text"], choices) == by_number else None
    found = _LETTER.match(plain)
    if found is None:
        return None
    letter = found["letter"]
    behind = plain[found.end() :]
    if letter in "aAI" and _SENTENCE.match(behind):
        return None
    if _lists_letters(plain) or is_taken_back(behind, 0) or _names_another(behind, letter, choices):
        return None
    return _option(letter, choices)


def _names_another(behind: str, letter: str, choices: Choices) -> bool:
    """Return whether the text behind an option's letter is the text of another option, as in "(B) Paris"."""
    named = _by_text(behind.strip(BRACKETS + TRIMMED + "-"), choices)
    return named is not None and named != letter.upper()


def _whole(text: str, choices: Choices) -> str | None:
    """Return the letter of the option that a whole response consists of: its text, its letter, or both.

    Returns None if the response says anything else.
    """
    plain = _plain_text(text)
    by_text = _by_text_alone(plain, choices)
    found = _LETTER.match(plain)
    if by_text is not None or found is None or len(plain) == MAX_READ:
        return by_text
    behind = plain[found.end() :].strip(BRACKETS + TRIMMED + "-")
    letter = _option(found["letter"], choices)
    if behind and _by_text(behind, choices) != letter:
        return letter if not choices and _OPTION_TEXT.fullmatch(text.strip()) else None
    return letter


def _lists_letters(plain: str) -> bool:
    """Return whether a text begins with several letters, as "A, B, C or D" does."""
    found = _LETTER.match(plain)
    if found is None:
        return False
    behind = plain[found.end() :]
    return _ANOTHER.match(behind) is not None


def _plain_text(text: str) -> str:
    """Return the beginning of a text without LaTeX commands around words, LaTeX spacing and HTML tags."""
    plain = text[:MAX_READ].translate(_ASCII)
    for _ in range(MAX_COMMANDS):
        plain = _COMMAND.sub(r"\1", plain)
    return _SPACING.sub(" ", plain).strip()


def _last_alone(text: str, choices: Choices) -> str | None:
    alone = list(_ALONE.finditer(text))
    if not alone:
        return None
    letter = _letter_of(alone[-1])
    line, _, _ = text[alone[-1].end() :].partition("\n")
    return None if _names_another(line, letter, choices) else _option(letter, choices)


def _letter_of(alone: re.Match[str]) -> str:
    letter: str = alone["bracket"] or alone["bold"] or alone["line"]
    return letter


def _option(letter: str, choices: Choices) -> str | None:
    options = LETTERS[: len(choices)] if choices else LETTERS
    capital = letter.upper()
    if capital not in options:
        return None
    return capital


def _by_text_alone(text: str, choices: Choices) -> str | None:
    """Return the letter of the option with this text, unless the text is an option's letter, which counts as that."""
    return None if text.strip(TRIMMED) in LETTERS[: len(choices)] else _by_text(text, choices)


def _by_text(text: str, choices: Choices) -> str | None:
    """Return the letter of the only multiple-choice option with this text, or None if no option or several have it."""
    plain = [_plain(_plain_text(str(choice))) for choice in choices]
    wanted = _plain(text)
    if plain.count(wanted) != 1:
        return None
    return LETTERS[plain.index(wanted)]


def _plain(text: str) -> str:
    trimmed = text.strip(TRIMMED)
    return " ".join(trimmed.casefold().split())
