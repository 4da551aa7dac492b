"""Instructions of IFBench about words and sentences: their letters, their order, where one stands."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable
from itertools import groupby, pairwise

from nemo_brorl.tasks.verifiers.ifeval.texts import lines_of, sentences_of, words_of

VOWELS = "aeiou"
MAX_VOWELS = 3
_CLUSTER = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")
MIN_PALINDROMES = 10
MIN_PALINDROME = 5  # letters


def alphabet(text: str) -> bool:
    """Each word begins with the letter behind that of the word before; a follows z."""
    letters = [word[0].lower() for word in words_of(text)]
    if not letters or not set(letters).issubset(string.ascii_lowercase):
        return False
    steps = [(ord(later) - ord(earlier)) % 26 for earlier, later in pairwise(letters)]
    return all(step == 1 for step in steps)


def vowel(text: str) -> bool:
    """One paragraph with at most three different vowels."""
    used = set(text.lower()).intersection(VOWELS)
    return len(text.strip().split("\n")) == 1 and len(used) <= MAX_VOWELS


def consonants(text: str) -> bool:
    """Two consonants together in each word."""
    words = words_of(text.lower())
    return bool(words) and all(_CLUSTER.search(word) for word in words)


def palindrome(text: str) -> bool:
    """Ten of five letters or more, each a word."""
    words = words_of(text.lower())
    found = [word for word in words if len(word) >= MIN_PALINDROME and word == word[::-1]]
    return len(found) >= MIN_PALINDROMES


def prime_lengths(text: str) -> bool:
    words = words_of(text)
    return bool(words) and all(_is_prime(len(word)) for word in words)


def repeats(text: str, small_n: int) -> bool:
    """No word more often than that."""
    words = words_of(text.lower())
    return max(Counter(words).values(), default=0) <= small_n


def last_first(text: str) -> bool:
    """Each sentence begins with the last word of the one before."""
    sentences = [words_of(sentence.lower()) for sentence in sentences_of(text)]
    if not all(sentences):
        return False
    return all(earlier[-1] == later[0] for earlier, later in pairwise(sentences))


def paragraph_last_first(text: str) -> bool:
    """Each line ends with its first word."""
    lines = [words_of(line.lower()) for line in lines_of(text)]
    return all(line[0] == line[-1] for line in lines if line)


def no_consecutive(text: str) -> bool:
    """No two words behind one another begin alike."""
    letters = [word[0] for word in words_of(text.lower())]
    return all(earlier != later for earlier, later in pairwise(letters))


def keywords_specific_position(
    text: str,
    keyword: str,
    n: int,
    m: int,
) -> bool:
    """The m-th word of the n-th sentence."""
    sentences = sentences_of(text)
    if not 1 <= n <= len(sentences):
        return False
    words = words_of(sentences[n - 1])
    return 1 <= m <= len(words) and words[m - 1] == keyword.strip()


def words_position(text: str, keyword: str) -> bool:
    """The second word and the last but one."""
    words = words_of(text)
    return len(words) > 1 and words[1] == words[-2] == keyword.strip()


def alliteration_increment(text: str) -> bool:
    """More words of a sentence begin like their neighbour than in the sentence before."""
    counts = []
    for sentence in sentences_of(text):
        letters = [word[0] for word in words_of(sentence.lower())]
        runs = [len(list(run)) for _, run in groupby(letters)]
        counts.append(sum(run for run in runs if run > 1))
    return _rises(counts)


def keyword(text: str, word: str, N: int) -> bool:
    """In the N-th sentence."""
    sentences = sentences_of(text)
    return 1 <= N <= len(sentences) and word.strip().lower() in sentences[N - 1].lower()


def increment(text: str, small_n: int) -> bool:
    """Each sentence has so many words more than the one before."""
    counts = [len(words_of(sentence)) for sentence in sentences_of(text)]
    return all(later == earlier + small_n for earlier, later in pairwise(counts))


def sentence_alphabet(text: str) -> bool:
    """26 sentences, from A to Z."""
    letters = [words_of(sentence)[0][0].lower() for sentence in sentences_of(text)]
    return "".join(letters) == string.ascii_lowercase


def _rises(counts: list[int]) -> bool:
    return all(later > earlier for earlier, later in pairwise(counts))


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
