"""Split a response into sentences, words and lines, and find its language.

py3langid finds the language: offline, with the same answer every time, among about 140 languages by ISO 639 code.
"""

from __future__ import annotations

import re
import string
import unicodedata
from functools import lru_cache
from typing import Any

MIN_RELATIVE_PROBABILITY = 0.1  # smallest probability relative to the likeliest language, since a few words fit many

MIN_PROBABILITY = 0.02  # smallest probability of the likeliest language, below which a text fits any

_SENTENCE_END = re.compile(r"(?<![.…])(?!(?:\.\.+|…)\s+[a-z])[.!?…。！？]+[\"'”’)\]*_]*(?=\s|$)|[。！？]")
_ABBREVIATION = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|prof|sr|jr|st|vs|etc|e\.g|i\.e|a\.m|p\.m|inc|ltd|co|no|fig|approx|dept|est|u\.s|u\.k)|(?:^|\s)[A-Za-z])\.$",
    re.IGNORECASE,
)
_CONTRACTION = re.compile(r"(n['’]t|['’](?:s|m|d|ll|re|ve))\b", re.IGNORECASE)
_BETWEEN_TOKENS = re.compile(r"\s+|[\[\](){}<>\"“”«»„;@#$%&*?!…]+|[:,](?!\d)|--|\.{2,}")
MARKS = string.punctuation + "“”‘’…"
_WITHOUT_MARKS = str.maketrans("", "", MARKS)


def load_languages() -> None:
    """Load the model that identifies the language of a text (0.5 s)."""
    _identifier()


def known_languages() -> set[str]:
    """Return the codes of the languages that `is_in_language` can tell apart."""
    return set(_identifier().nb_classes)


def is_in_language(text: str, code: str) -> bool:
    """Return whether a text may be in the language `code`.

    It may if that language is the likeliest one, or at least `MIN_RELATIVE_PROBABILITY` times as likely. `zh-cn` counts
    as `zh`.
    """
    lower = text.lower()  # the model knows few letter sequences in capitals
    ranked = _identifier().rank(lower)
    _, highest = ranked[0]
    language, _, _ = code.lower().partition("-")
    probability = dict(ranked).get(language, 0.0)
    return float(probability) >= MIN_RELATIVE_PROBABILITY * float(highest)


def is_identifiable(text: str) -> bool:
    """Return whether the language of a text can be identified at all.

    Words such as "a" and "ok" occur in too many languages.
    """
    _, highest = _identifier().rank(text.lower())[0]
    return float(highest) >= MIN_PROBABILITY


def is_likeliest(text: str, code: str) -> bool:
    """Return whether a text is more likely in the language `code` than in any other.

    A text of one or two words often is not, even in its own language.
    """
    language, _ = _identifier().classify(text.lower())
    return bool(language == code)


@lru_cache(maxsize=1)
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text, stripped, without those that have no letter or digit.

    A sentence ends in . ! or ?, but not in an abbreviation, an initial, or dots before a lower-case letter. A rest
    without an end mark is a sentence too.
    """
    found = []
    start = 0
    length = len(text.rstrip())
    for mark in _SENTENCE_END.finditer(text):
        end = mark.end()
        sentence = text[start:end]
        if end < length and _ABBREVIATION.search(sentence[-16:]):
            continue
        found.append(sentence)
        start = end
    found.append(text[start:])
    return [sentence.strip() for sentence in found if _has_words(sentence)]


def words_of(text: str) -> list[str]:
    """Return the words of a text between spaces, without punctuation."""
    words = []
    for word in text.split():
        bare = word.translate(_WITHOUT_MARKS)
        if bare:
            words.append(bare)
    return words


def tokens_of(text: str) -> list[str]:
    """Return the words of a text as English treebanks split them.

    "it's", "don't" and "AT&T" are two words each, "TCP/IP" and "U.S." one.
    """
    apart = _CONTRACTION.sub(r" \1", text)
    tokens = []
    for piece in _BETWEEN_TOKENS.split(apart):
        bare = piece.strip("'’‘")
        if "." not in bare[:-1]:
            bare = bare.removesuffix(".")
        if _has_words(bare):
            tokens.append(bare)
    return tokens


def lines_of(text: str) -> list[str]:
    """Return the lines of a text that are not blank."""
    return [line for line in text.split("\n") if line.strip()]


def without_accents(text: str) -> str:
    """Return a text in ASCII without its accents: "São Tomé" becomes "Sao Tome"."""
    apart = unicodedata.normalize("NFKD", text)
    return apart.encode("ascii", "ignore").decode("ascii")


def _has_words(sentence: str) -> bool:
    return any(map(str.isalnum, sentence))
