"""Read answers in words: names, dates, times, numerals of another base, formulas of matter, and what does not exist."""

from __future__ import annotations

import re
from fractions import Fraction

from brorl_graders.verifiers.math.expression import FUNCTIONS, ROOTS
from brorl_graders.verifiers.math.kinds import Quantity, Words, Written
from brorl_graders.verifiers.math.number_words import read_number_words
from brorl_graders.verifiers.math.value import Value

MIN_EXCLAIMED = 4  # characters of a word with an exclamation mark
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*")
_NUMERAL = re.compile(r"\(?(\d[0-9A-Fa-f]*)\)? ?(?:_ ?\{? ?\(?(?:base ?)?(\w+)\)? ?\}?|\(?(?:in )?base (\w+)\)?)")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}
_BASES |= {"binary": "2", "bin": "2", "octal": "8", "oct": "8", "hexadecimal": "16", "hex": "16"}
_CLOCK = re.compile(r"(\d{1,2}:\d\d(?::\d\d)?) ?([ap])\.? ?m\.?", re.IGNORECASE)
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(?P<day>[0-3]?\d) ?(?:st|nd|rd|th)?"
_DATE = re.compile(
    rf"(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day,? )?(?:(?:the )?{_DAY}\.? (?:of )?{_MONTH}"
    rf"|{_MONTH.replace('month', 'first')} ?(?:the )?{_DAY.replace('day', 'second')})(?:,? (?P<year>\d{{4}}))?",
    re.IGNORECASE,
)
DATE_IN_TEXT = re.compile(
    rf"(?<![\w/])(?:{_DAY.replace('?P<day>', '?:')}\.? (?:of )?{_MONTH.replace('?P<month>', '?:')}"
    rf"|{_MONTH.replace('?P<month>', '?:')} (?:the )?{_DAY.replace('?P<day>', '?:')})(?:,? \d{{4}})?(?!\w)",
    re.IGNORECASE,
)
_ISO_DATE = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)")
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DIGITS_OF_A_DATE = re.compile(r"\d{4}-\d\d?-\d\d?|\d{4}/\d\d?/\d\d?|(?!\d{1,3}(?:\.\d{3})+$)\d+(?:\.\d+){2,}")
_ELEMENT = r"(?:H|He|Li|Be|B|C|N|O|F|Ne|Na|Mg|Al|Si|P|S|Cl|Ar|K|Ca|Ti|Cr|Mn|Fe|Ni|Cu|Zn|Br|Ag|Sn|I|Ba|Au|Hg|Pb|U)"
_FORMULA = re.compile(rf"(?:{_ELEMENT}\d*|\((?:{_ELEMENT}\d*)+\)\d*){{2,}}")
_EMPTY = ("\\emptyset", "\\{\\}")
_TWICE = re.compile(r"(?:(\d[\d,]*) \(([A-Za-z -]+)\)|([A-Za-z -]+) \((\d[\d,]*)\))")
_ARTICLE = re.compile(r"^(?:an?|the) (?=[a-z]{4})")
_SMALL_WORDS = ("no", "am", "pm")
NONE = "no solution"
ENDLESS = "infinitely many"
_BEFORE_A_STATUS = re.compile(
    r"^(?:(?:there (?:is|are|exists?)|(?:the|this|it)(?: [a-z]+){0,2} has|we have|has|have|it"
    r"|(?:the )?(?:limit|value|answer)) (?:(?:is|are) )?)?"
)
_STATUSES = {
    NONE: r"(?:the )?empty set|none|no (?:such |real |integer |rational |positive )*(?:solutions?|roots?)(?: exists?)?",
    "dne": r"(?:does not|doesn't|do not) exist|dne|undefined|not defined",
    ENDLESS: r"infinitely many(?: solutions)?|infinite solutions|(?:an )?infinite number(?: of solutions)?",
}


def read_numeral(text: str) -> Written | None:
    """Read a number that names its base, such as `101_2` and "101 (base 2)"."""
    if "_" not in text and "base" not in text:
        return None
    numeral = _NUMERAL.fullmatch(" ".join(_TEXT.sub(r"\1", text).split()))
    if numeral is None:
        return None
    base = numeral[2] or numeral[3]
    return Written(f"{numeral[1].lower()}_{_BASES.get(base.lower(), base)}")


def read_date_or_time(text: str) -> Words | None:
    """Read "March 5", "the 5th of March", "3:10 PM", `1950-07-05` and numbers with two points or more."""
    if not text or text.isdecimal():
        return None
    plain = " ".join(_TEXT.sub(r" \1 ", text).split())
    clock = _CLOCK.fullmatch(plain) if ":" in text else None
    if clock:
        return Words(f"{clock[1].lstrip('0')} {clock[2].lower()}m")
    date = _DATE.fullmatch(plain) if plain[-1].isalnum() else None
    if date:
        month = (date["month"] or date["first"])[:3].lower()
        return Words(" ".join([str(int(date["day"] or date["second"])), month, *filter(None, [date["year"]])]))
    iso = _ISO_DATE.fullmatch(plain)
    if iso and 1 <= int(iso[2]) <= len(_MONTHS):
        return Words(f"{int(iso[3])} {_MONTHS[int(iso[2]) - 1]} {iso[1]}")
    return Words(plain) if _DIGITS_OF_A_DATE.fullmatch(plain) else None


def read_formula(text: str) -> Written | None:
    """Read a chemical formula of two atoms or more of which one has a number, such as `C6H12O6`."""
    if "\\" in text.replace("\\text", "") or not any(map(str.isdigit, text)):
        return None
    plain = re.sub(r"\\text|[_{} ]", "", text)
    return Written(plain) if _FORMULA.fullmatch(plain) else None


def read_words(text: str) -> Words | Quantity | None:
    """Read a few words, or the number that they name."""
    if text in _EMPTY:
        return Words(NONE)
    plain = _TEXT.sub(r" \1 ", text).strip(" .()")
    plain = plain.rstrip("!") if len(plain) > MIN_EXCLAIMED else plain  # `n!` is a factorial
    if _WORDS.fullmatch(plain) is None:
        return None
    words = " ".join(plain.lower().split())
    if not {*FUNCTIONS, *ROOTS}.isdisjoint(words.split()):
        return None
    number = read_number_words(words)
    if number is not None:
        return Quantity(Value(number))
    is_product = len(words) == 2 and words not in _SMALL_WORDS and not text.startswith("\\text")
    return None if is_product else Words(_status(words) or _ARTICLE.sub("", words))


def read_number_twice(text: str) -> Quantity | None:
    """Read a number in digits and in words, such as "7 (seven)". None: the text is none, or the two differ."""
    found = _TWICE.fullmatch(text) if text.endswith(")") else None
    if found is None:
        return None
    number = int((found[1] or found[4]).replace(",", ""))
    return Quantity(Value(Fraction(number))) if read_number_words(found[2] or found[3]) == number else None


def _status(words: str) -> str | None:
    """Return the usual words for no solution, infinitely many, or a value that does not exist. None: another text."""
    plain = _BEFORE_A_STATUS.sub("", words)
    return next((status for status, spellings in _STATUSES.items() if re.fullmatch(spellings, plain)), None)
