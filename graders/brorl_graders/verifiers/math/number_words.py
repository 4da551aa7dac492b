"""Read numbers in words, and tell nouns after a number from words that change it.

"5 marbles" is 5, and "5 hundred" is 500. "5 is too large", "half of 5" and "5 times" are no numbers: one of their words
compares, denies, counts or says something of the number.
"""

from __future__ import annotations

import re
from fractions import Fraction

_SMALL_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_BELOW_HUNDRED = {name: number for number, name in enumerate(_SMALL_NUMBERS.split())} | {
    name: 10 * number for number, name in enumerate(_TENS.split(), start=2)
}
SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
SCALES |= {f"{name}s": number for name, number in SCALES.items()}
_PARTS = {
    "half": 2,
    "halves": 2,
    "third": 3,
    "fourth": 4,
    "quarter": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
}
_PARTS |= {"ninth": 9, "eleventh": 11, "twelfth": 12}
_PARTS |= {"tenth": 10, "hundredth": 100, "thousandth": 1000}
# Words that make something else of the number before or after them.
_CHANGING = """
half halves third thirds fourth fourths quarter quarters fifth fifths sixth sixths eighth eighths tenth tenths
hundredth hundredths thousandth thousandths hundred hundreds thousand thousands million millions billion billions
trillion trillions dozen dozens twice double triple thrice times squared cubed factorial power root inverse reciprocal
opposite negative minus plus divided multiplied more less fewer most least greater smaller larger bigger over under
above below beyond exceeds exceed than up almost nearly between besides except excluding is are was were be been being
isn't aren't wasn't cannot can't can could would should may might must has have had does do did doesn't don't didn't
equals makes gives becomes satisfies works fails not no never none neither nor without wrong incorrect false
invalid impossible maybe perhaps possibly probably too if unless when whenever because since but however instead rather
wait actually though although otherwise
"""
_CHANGES = frozenset(_CHANGING.split())
# Words that may begin a remark after a number: "72 because 48 + 24 = 72".
_REMARKS_TEXT = """
because since but however is are was were has have had not though although when if which actually must should would can
gives makes satisfies does
"""
_REMARKS = frozenset(_REMARKS_TEXT.split())
_BEFORE = re.compile(
    r"\b(?:half|thirds?|quarters?|twice|double|triple|thrice|times|more|less|fewer|least|most|greater|smaller|larger|over"
    r"|under|above|below|beyond|not|never|no|neither|nor|between|except|squared?|cubed?|opposite|reciprocal|inverse|root"
    r"|power|than|before|after|until|almost|nearly|up to|up(?=\s*$)|far from|but|anything|\w+n't|exceeds?|hundred"
    r"|dozen|thousand|million|without|close to|per ?cent of)\b[^,:;(]*$",
    re.IGNORECASE,
)
# The same in other languages: more, at least, not, minus; and after a number: thousand, of, is not.
_OTHER_BEFORE = re.compile(
    r"\b(?:mehr|weniger|mindestens|höchstens|nicht|kein|más|menos|al menos|plus|moins|au moins|pas|больше|меньше|менее"
    r"|не|более|meno|più|non|não|mais) (?:als |de |di |que |чем )?$"
    r"|(?:大于|小于|至少|至多|超过|不到|不是|并非|不等于|负|以上|以下)[是为]?\W*$",
    re.IGNORECASE,
)
_OTHER_AFTER = re.compile(
    r"\s?(?:(?:[万亿百億萬만천]|千(?![克米]))|的|の|倍|(?:이|가) 아|では(?:な|あ)|じゃな"
    r"|(?:mil|mille|tausend|millones|millionen|тысяч|млн)\b)",
    re.IGNORECASE,
)
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")


def changes_a_number(text: str) -> bool:
    """Return whether a text has a word that changes the number next to it."""
    return any(word.lower() in _CHANGES for word in _WORD.findall(text.replace("’", "'")))


def changes_the_next_number(text: str) -> bool:
    """Return whether a text before a number makes something else of it, as "half of" and "at least" do."""
    return _BEFORE.search(text) is not None


def changes_in_another_language(text: str, start: int, end: int) -> bool:
    """Return whether words around a number from `start` to `end` change it, in a language other than English."""
    before = _OTHER_BEFORE.search(text, max(start - 20, 0), start + text.startswith(" ", start))
    return before is not None or _OTHER_AFTER.match(text, end) is not None


def follows_as_a_change(word: str) -> bool:
    """Return whether a word right after a number makes something else of it, as in "5 times" and "5 or more"."""
    small = word.lower()
    return small in _CHANGES and small not in _REMARKS


def read_number_words(text: str) -> Fraction | None:
    """Return the number that English words name, such as "twenty-five" or "two thirds". None: they name none."""
    words = [word for word in text.lower().replace("-", " ").split() if word != "and"]
    if not words:
        return None
    if words[0] in ("a", "an") and len(words) == 2 and words[1] in SCALES:
        words = ["one", words[1]]
    sign = 1
    if words[0] in ("minus", "negative"):
        sign = -1
        words = words[1:]
    parts = _PARTS.get(words[-1]) or _PARTS.get(words[-1].removesuffix("s")) if len(words) > 1 else None
    if parts is not None:
        words = words[:-1]
    number = 1 if parts is not None and words in (["a"], ["one"]) else _whole_number(words)
    return None if number is None else Fraction(sign * number, parts or 1)


def _whole_number(words: list[str]) -> int | None:
    total = group = 0
    previous = 1000
    for word in words:
        if word in _BELOW_HUNDRED:
            number = _BELOW_HUNDRED[word]
            if previous <= number or 0 < previous < 20:
                return None
            group += number
            previous = number
        elif word in SCALES and group:
            scale = SCALES[word]
            group *= scale
            previous = 100
            if scale > 100:
                total += group
                group = 0
                previous = 1000
        else:
            return None
    return total + group if words else None
