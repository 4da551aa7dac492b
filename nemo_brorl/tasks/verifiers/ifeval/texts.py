"""Parts of a response: sentences, words, paragraphs, and what of two versions of a text is the same."""

from __future__ import annotations

import re
import string
import unicodedata

_SENTENCE_END = re.compile(r"(?<![.…])(?!(?:\.\.+|…)\s+[a-z])[.!?…。！？]+[\"'”’)\]*_]*(?=\s|$)|[。！？]")
_ABBREVIATION = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|prof|sr|jr|st|vs|etc|e\.g|i\.e|a\.m|p\.m|inc|ltd|co|no|fig|approx|dept|est|u\.s|u\.k)|(?:^|\s)[A-Za-z])\.$",
    re.IGNORECASE,
)
_CONTRACTION = re.compile(r"(n['’]t|['’](?:s|m|d|ll|re|ve))\b", re.IGNORECASE)
_BETWEEN_TOKENS = re.compile(r"\s+|[\[\](){}<>\"“”«»„;@#$%&*?!…]+|[:,](?!\d)|--|\.{2,}")
MARKS = string.punctuation + "“”‘’…"
_WITHOUT_MARKS = str.maketrans("", "", MARKS)


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
