"""Check the instructions of IFBench (arXiv 2507.02833) that count, or that look at words and sentences.

They count words, names, marks and kinds of sentences, or look at letters, order and positions. Each is a function of a
response and of arguments with the benchmark's names, written from the benchmark's description.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable
from itertools import groupby, pairwise

from brorl_graders.verifiers.ifeval.texts import MARKS as PUNCTUATION
from brorl_graders.verifiers.ifeval.texts import lines_of, sentences_of, tokens_of, words_of

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
OVERLAP_TOLERANCE = 2  # percentage points
KEYWORD_COUNTS = (1, 2, 3, 5, 7)
_JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")

VOWELS = "aeiou"
MAX_VOWELS = 3
_CLUSTER = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")
MIN_PALINDROMES = 10
MIN_PALINDROME = 5  # letters


def word_count_range(text: str, min_words: int, max_words: int) -> bool:
    return min_words <= len(re.findall(r"\w+", text)) <= max_words


def unique_word_count(text: str, N: int) -> bool:
    words = {word.strip(PUNCTUATION) for word in text.lower().split()}
    words.discard("")
    return len(words) >= N


def conjunctions(text: str, small_n: int) -> bool:
    """Return whether a response uses at least `small_n` different coordinating conjunctions."""
    used = set(words_of(text.lower()))
    return len(used.intersection(CONJUNCTIONS)) >= small_n


def person_names(text: str, N: int) -> bool:
    """Return whether a response uses at least N different first names from IFBench's list of names."""
    used = set(re.findall(r"\w+", text))
    return len(used.intersection(NAMES.split())) >= N


def numbers(text: str, N: int) -> bool:
    """Return whether a response has exactly N numbers.

    1,000 and 3.5 and 9-5 are one number each.
    """
    bare = text.translate(str.maketrans("", "", string.punctuation))
    return len(re.findall(r"\d+", bare)) == N


def punctuation(text: str) -> bool:
    """Return whether a response has all of . , ! ? ; : and an interrobang (?!, !? or ‽) besides."""
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
    """Return whether every N-th word of a response is Japanese."""
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
    """Return whether a response has the five given keywords once, twice, three, five and seven times."""
    lower = text.lower()
    keywords = (keyword1, keyword2, keyword3, keyword4, keyword5)
    for keyword, count in zip(keywords, KEYWORD_COUNTS, strict=True):
        if lower.count(keyword.strip().lower()) != count:
            return False
    return True


def sentence_type(text: str) -> bool:
    """Return whether a response has two statements for each question."""
    statements, questions, _ = _kinds(text)
    return questions > 0 and statements == 2 * questions


def sentence_balance(text: str) -> bool:
    """Return whether a response has as many statements as questions and as exclamations."""
    statements, questions, exclamations = _kinds(text)
    return statements > 0 and statements == questions == exclamations


def overlap(text: str, reference_text: str, percentage: float) -> bool:
    """Return whether a response shares `percentage` percent of its character trigrams with a reference text.

    The share may differ by `OVERLAP_TOLERANCE` percentage points.
    """
    own = _trigrams(text)
    if not own:
        return False
    shared = own.intersection(_trigrams(reference_text))
    difference = 100 * len(shared) / len(own) - percentage
    return abs(difference) <= OVERLAP_TOLERANCE


def sentence_words(text: str) -> bool:
    """Return whether a response has three sentences of equal length in characters, and no word twice."""
    sentences = sentences_of(text)
    lengths = {len(sentence) for sentence in sentences}
    words = words_of(text.lower())
    return len(sentences) == 3 and len(lengths) == 1 and len(set(words)) == len(words)


def _kinds(text: str) -> tuple[int, int, int]:
    """Return the numbers of statements, questions and exclamations in a text."""
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


def alphabet(text: str) -> bool:
    """Return whether the first letters of a response's words follow the alphabet.

    Each word begins with the letter after that of the word before, and a follows z.
    """
    letters = [word[0].lower() for word in words_of(text)]
    if len(letters) < 2 or not set(letters).issubset(string.ascii_lowercase):
        return False
    steps = [(ord(later) - ord(earlier)) % 26 for earlier, later in pairwise(letters)]
    return all(step == 1 for step in steps)


def vowel(text: str) -> bool:
    """Return whether a response is one paragraph with at most three different vowels."""
    used = set(text.lower()).intersection(VOWELS)
    return len(text.strip().split("\n")) == 1 and len(used) <= MAX_VOWELS


def consonants(text: str) -> bool:
    """Return whether every word of a response has two consonants in a row."""
    words = [word for word in text.lower().split() if words_of(word)]
    return bool(words) and all(_CLUSTER.search(word) for word in words)


def palindrome(text: str) -> bool:
    """Return whether a response has at least ten palindromes of five letters or more."""
    words = words_of(text.lower())
    found = [word for word in words if len(word) >= MIN_PALINDROME and word == word[::-1]]
    return len(found) >= MIN_PALINDROMES


def prime_lengths(text: str) -> bool:
    words = words_of(text)
    return bool(words) and all(_is_prime(len(word)) for word in words)


def repeats(text: str, small_n: int) -> bool:
    """Return whether a response uses no word more often than `small_n` times."""
    words = words_of(text.lower())
    return max(Counter(words).values(), default=0) <= small_n


def last_first(text: str) -> bool:
    """Return whether each sentence of a response begins with the last word of the sentence before."""
    sentences = [words_of(sentence.lower()) for sentence in sentences_of(text)]
    if len(sentences) < 2 or not all(sentences):
        return False
    return all(earlier[-1] == later[0] for earlier, later in pairwise(sentences))


def paragraph_last_first(text: str) -> bool:
    """Return whether each line of a response ends with the word that it begins with.

    At least one line must have more than one word.
    """
    lines = [words_of(line.lower()) for line in lines_of(text)]
    is_vacuous = max(map(len, lines), default=0) < 2
    return not is_vacuous and all(line[0] == line[-1] for line in lines if line)


def no_consecutive(text: str) -> bool:
    """Return whether no two neighbouring words of a response begin with the same letter."""
    letters = [word[0] for word in words_of(text.lower())]
    return len(letters) > 1 and all(earlier != later for earlier, later in pairwise(letters))


def keywords_specific_position(
    text: str,
    keyword: str,
    n: int,
    m: int,
) -> bool:
    """Return whether the m-th word of a response's n-th sentence is the keyword, counted from 1.

    A contraction may be one word or two.
    """
    sentences = sentences_of(text)
    if not 1 <= n <= len(sentences):
        return False
    wanted = keyword.strip().lower()
    sentence = sentences[n - 1].lower()
    return any(words[m - 1 : m] == [wanted] for words in (words_of(sentence), tokens_of(sentence)) if m)


def words_position(text: str, keyword: str) -> bool:
    """Return whether the second word of a response and its last but one are the keyword.

    A contraction may be one word or two.
    """
    wanted = [keyword.strip().lower()]
    lower = text.lower()
    return any(words[1:2] == wanted == words[-2:-1] for words in (words_of(lower), tokens_of(lower)))


def alliteration_increment(text: str) -> bool:
    """Return whether alliteration grows from sentence to sentence of a response.

    The alliteration of a sentence is the number of its words that begin with the same letter as a neighbouring word.
    """
    counts = []
    for sentence in sentences_of(text):
        letters = [word[0] for word in words_of(sentence.lower())]
        runs = [len(list(run)) for _, run in groupby(letters)]
        counts.append(sum(run for run in runs if run > 1))
    return _rises(counts)


def keyword(text: str, word: str, N: int) -> bool:
    """Return whether sentence N of a response, counted from 1, contains a word."""
    sentences = sentences_of(text)
    if not 1 <= N <= len(sentences):
        return False
    pattern = rf"\b{re.escape(word.strip())}\b"
    return re.search(pattern, sentences[N - 1], re.IGNORECASE) is not None


def increment(text: str, small_n: int) -> bool:
    """Return whether each sentence of a response has `small_n` words more than the sentence before."""
    counts = [len(words_of(sentence)) for sentence in sentences_of(text)]
    return len(counts) > 1 and all(later == earlier + small_n for earlier, later in pairwise(counts))


def sentence_alphabet(text: str) -> bool:
    """Return whether a response has 26 sentences, whose first letters are A to Z in order."""
    letters = [words_of(sentence)[0][0].lower() for sentence in sentences_of(text)]
    return "".join(letters) == string.ascii_lowercase


def _rises(counts: list[int]) -> bool:
    return len(counts) > 1 and all(later > earlier for earlier, later in pairwise(counts))


def _is_prime(number: int) -> bool:
    if number < 2:
        return False
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))


WORDS: dict[str, Callable[..., bool]] = {
    "words:alphabet": alphabet,
    "words:vowel": vowel,
    "words:consonants": consonants,
    "words:palindrome": palindrome,
    "words:prime_lengths": prime_lengths,
    "words:repeats": repeats,
    "words:last_first": last_first,
    "words:paragraph_last_first": paragraph_last_first,
    "words:no_consecutive": no_consecutive,
    "words:keywords_specific_position": keywords_specific_position,
    "words:words_position": words_position,
    "sentence:alliteration_increment": alliteration_increment,
    "sentence:keyword": keyword,
    "sentence:increment": increment,
    "custom:sentence_alphabet": sentence_alphabet,
}
