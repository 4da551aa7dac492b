"""Parts of a response: sentences, words, paragraphs, and what of two versions of a text is the same.

A text's language is told by py3langid: offline, the same answer every time, about 140 languages by their ISO 639 codes.
"""

from __future__ import annotations

import re
import string
import unicodedata
from functools import lru_cache
from typing import Any

UNLIKELY = 0.1  # of the likeliest language's probability: below it, a language is not the text's. A few words fit many

UNTOLD = 0.02  # a probability of the likeliest language below it is no more than that of a text without letters

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
    """Read the model (0.5 s)."""
    _identifier()


def known_languages() -> set[str]:
    """Codes that `is_in_language` can tell apart."""
    return set(_identifier().nb_classes)


def is_in_language(text: str, code: str) -> bool:
    """Whether a text may be in the language `code` (`zh-cn` counts as `zh`): it is the likeliest one, or not much less
    likely."""
    lower = text.lower()  # in capitals, known letter sequences are rare
    ranked = _identifier().rank(lower)
    _, highest = ranked[0]
    language, _, _ = code.lower().partition("-")
    probability = dict(ranked).get(language, 0.0)
    return float(probability) >= UNLIKELY * float(highest)


def is_told(text: str) -> bool:
    """Whether a text has a sequence of letters that speaks for any language: "a" and "ok" have none."""
    _, highest = _identifier().rank(text.lower())[0]
    return float(highest) >= UNTOLD


def is_likeliest(text: str, code: str) -> bool:
    """Whether a text is more likely in the language `code` than in any other: a word or two often are not."""
    language, _ = _identifier().classify(text.lower())
    return bool(language == code)


@lru_cache(maxsize=1)
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def sentences_of(text: str) -> list[str]:
    """Sentences of a text: they end in . ! ? but not in an abbreviation, an initial, or dots before a small letter; a
    rest without an end is one too. Stripped, none without a letter or digit."""
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
    """Words between blanks, without punctuation; none that was nothing else."""
    words = []
    for word in text.split():
        bare = word.translate(_WITHOUT_MARKS)
        if bare:
            words.append(bare)
    return words


def tokens_of(text: str) -> list[str]:
    """Words as English treebanks part them: "it's" and "don't" are two each, "AT&T" too, "TCP/IP" and "U.S." one."""
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
    """Lines with something on them."""
    return [line for line in text.split("\n") if line.strip()]


def without_accents(text: str) -> str:
    """São Tomé as Sao Tome."""
    apart = unicodedata.normalize("NFKD", text)
    return apart.encode("ascii", "ignore").decode("ascii")


def _has_words(sentence: str) -> bool:
    return any(map(str.isalnum, sentence))
