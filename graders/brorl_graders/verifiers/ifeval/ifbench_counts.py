"""Instructions of IFBench (arXiv 2507.02833) that count (words, names, marks, kinds of sentences), or look at words and
sentences: their letters, their order, where one stands. Written from their
descriptions; each is a function of a response and of arguments by the benchmark's names.
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
OVERLAP_TOLERANCE = 2  # per cent
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


def alphabet(text: str) -> bool:
    """Each word begins with the letter behind that of the word before; a follows z."""
    letters = [word[0].lower() for word in words_of(text)]
    if len(letters) < 2 or not set(letters).issubset(string.ascii_lowercase):
        return False
    steps = [(ord(later) - ord(earlier)) % 26 for earlier, later in pairwise(letters)]
    return all(step == 1 for step in steps)


def vowel(text: str) -> bool:
    """One paragraph with at most three different vowels."""
    used = set(text.lower()).intersection(VOWELS)
    return len(text.strip().split("\n")) == 1 and len(used) <= MAX_VOWELS


def consonants(text: str) -> bool:
    """Two consonants together in each word."""
    words = [word for word in text.lower().split() if words_of(word)]
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
    if len(sentences) < 2 or not all(sentences):
        return False
    return all(earlier[-1] == later[0] for earlier, later in pairwise(sentences))


def paragraph_last_first(text: str) -> bool:
    """Each line ends with its first word, and one at least has more than that word."""
    lines = [words_of(line.lower()) for line in lines_of(text)]
    is_vacuous = max(map(len, lines), default=0) < 2
    return not is_vacuous and all(line[0] == line[-1] for line in lines if line)


def no_consecutive(text: str) -> bool:
    """No two words behind one another begin alike."""
    letters = [word[0] for word in words_of(text.lower())]
    return len(letters) > 1 and all(earlier != later for earlier, later in pairwise(letters))


def keywords_specific_position(
    text: str,
    keyword: str,
    n: int,
    m: int,
) -> bool:
    """The m-th word of the n-th sentence; a contraction may be one word or two."""
    sentences = sentences_of(text)
    if not 1 <= n <= len(sentences):
        return False
    wanted = keyword.strip().lower()
    sentence = sentences[n - 1].lower()
    return any(words[m - 1 : m] == [wanted] for words in (words_of(sentence), tokens_of(sentence)) if m)


def words_position(text: str, keyword: str) -> bool:
    """The second word and the last but one; a contraction may be one word or two."""
    wanted = [keyword.strip().lower()]
    lower = text.lower()
    return any(words[1:2] == wanted == words[-2:-1] for words in (words_of(lower), tokens_of(lower)))


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
    if not 1 <= N <= len(sentences):
        return False
    pattern = rf"\b{re.escape(word.strip())}\b"
    return re.search(pattern, sentences[N - 1], re.IGNORECASE) is not None


def increment(text: str, small_n: int) -> bool:
    """Each sentence has so many words more than the one before."""
    counts = [len(words_of(sentence)) for sentence in sentences_of(text)]
    return len(counts) > 1 and all(later == earlier + small_n for earlier, later in pairwise(counts))


def sentence_alphabet(text: str) -> bool:
    """26 sentences, from A to Z."""
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
