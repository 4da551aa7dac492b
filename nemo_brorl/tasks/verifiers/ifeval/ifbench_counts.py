"""Instructions of IFBench (arXiv 2507.02833) that count: words, names, marks, kinds of sentences. Written from their
descriptions; each is a function of a response and of arguments by the benchmark's names."""

from __future__ import annotations

import re
import string
from collections.abc import Callable

from nemo_brorl.tasks.verifiers.ifeval.texts import MARKS as PUNCTUATION
from nemo_brorl.tasks.verifiers.ifeval.texts import sentences_of, tokens_of, words_of

CONJUNCTIONS = ("and", "but", "for", "nor", "or", "so", "yet")
NAMES = (
    "Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander Amelia Benjamin "
    "Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel Ella Jacob Scarlett Nathan Victoria "
    "Elijah Layla Nicholas Audrey David Hannah Christopher Penelope Thomas Nora Andrew Aria Joseph Claire Ryan Stella "
    "Jonathan"
)
PRONOUNS = (
    "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers "
    "herself it its itself they them their theirs themselves this that these those who whom whose which what whoever "
    "whomever whatever whichever anybody anyone anything everybody everyone everything nobody nothing somebody someone "
    "something each either neither both all some any none"
)
MARKS = (".", ",", "!", "?", ";", ":")
INTERROBANGS = ("?!", "!?", "‽")
OVERLAP_TOLERANCE = 2  # per cent
KEYWORD_COUNTS = (1, 2, 3, 5, 7)
_JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")


def word_count_range(text: str, min_words: int, max_words: int) -> bool:
    return min_words <= len(re.findall(r"\w+", text)) <= max_words


def unique_word_count(text: str, N: int) -> bool:
    words = {word.strip(PUNCTUATION) for word in text.lower().split()}
    words.discard("")
    return len(words) >= N


def conjunctions(text: str, small_n: int) -> bool:
    """Different coordinating ones."""
    used = set(words_of(text.lower()))
    return len(used.intersection(CONJUNCTIONS)) >= small_n


def person_names(text: str, N: int) -> bool:
    """Different ones of the instruction's list."""
    used = set(re.findall(r"\w+", text))
    return len(used.intersection(NAMES.split())) >= N


def numbers(text: str, N: int) -> bool:
    """Exactly so many; 1,000 and 3.5 and 9-5 are one each."""
    bare = text.translate(str.maketrans("", "", string.punctuation))
    return len(re.findall(r"\d+", bare)) == N


def punctuation(text: str) -> bool:
    """Every mark, and an interrobang beside them."""
    for interrobang in INTERROBANGS:
        before, found, after = text.partition(interrobang)
        if found and all(mark in before + after for mark in MARKS):
            return True
    return False


def pronouns(text: str, N: int) -> bool:
    words = tokens_of(text.lower().replace("/", " "))
    known = PRONOUNS.split()
    return sum(word in known for word in words) >= N


def words_japanese(text: str, N: int) -> bool:
    """Every N-th word."""
    words = text.split()
    in_japanese = []
    for word in words[N - 1 :: N] if N else []:
        bare = word.strip(PUNCTUATION)
        if bare and not bare.isdigit():
            in_japanese.append(_JAPANESE.search(bare) is not None)
    return bool(in_japanese) and all(in_japanese)


def keywords_multiple(
    text: str,
    keyword1: str,
    keyword2: str,
    keyword3: str,
    keyword4: str,
    keyword5: str,
) -> bool:
    """Once, twice, three, five and seven times."""
    lower = text.lower()
    keywords = (keyword1, keyword2, keyword3, keyword4, keyword5)
    for keyword, count in zip(keywords, KEYWORD_COUNTS, strict=True):
        if lower.count(keyword.strip().lower()) != count:
            return False
    return True


def sentence_type(text: str) -> bool:
    """Two statements for each question."""
    statements, questions, _ = _kinds(text)
    return questions > 0 and statements == 2 * questions


def sentence_balance(text: str) -> bool:
    """As many statements as questions and exclamations."""
    statements, questions, exclamations = _kinds(text)
    return statements > 0 and statements == questions == exclamations


def overlap(text: str, reference_text: str, percentage: float) -> bool:
    """Share of the response's trigrams of characters that the reference has."""
    own = _trigrams(text)
    if not own:
        return False
    shared = own.intersection(_trigrams(reference_text))
    difference = 100 * len(shared) / len(own) - percentage
    return abs(difference) <= OVERLAP_TOLERANCE


def sentence_words(text: str) -> bool:
    """Three sentences of the same length in characters, all words different."""
    sentences = sentences_of(text)
    lengths = {len(sentence) for sentence in sentences}
    words = words_of(text.lower())
    return len(sentences) == 3 and len(lengths) == 1 and len(set(words)) == len(words)


def _kinds(text: str) -> tuple[int, int, int]:
    """Number of statements, questions and exclamations."""
    counts = dict.fromkeys(".?!", 0)
    for sentence in sentences_of(text):
        end = sentence.rstrip("\"'”’)]*_")[-1:]
        if end in counts:
            counts[end] += 1
    return counts["."], counts["?"], counts["!"]


def _trigrams(text: str) -> set[str]:
    return {text[start : start + 3] for start in range(len(text) - 2)}


COUNTS: dict[str, Callable[..., bool]] = {
    "count:word_count_range": word_count_range,
    "count:unique_word_count": unique_word_count,
    "count:conjunctions": conjunctions,
    "count:person_names": person_names,
    "count:numbers": numbers,
    "count:punctuation": punctuation,
    "count:pronouns": pronouns,
    "count:words_japanese": words_japanese,
    "count:keywords_multiple": keywords_multiple,
    "ratio:sentence_type": sentence_type,
    "ratio:sentence_balance": sentence_balance,
    "ratio:overlap": overlap,
    "ratio:sentence_words": sentence_words,
}
