"""Arguments and responses for IFBench's instructions about words and sentences, drawn by seed."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from itertools import pairwise
from random import Random

from graders.bench.instructions.ifeval import Drawn, near
from graders.bench.instructions.prose import plain, prose, sentence, sentences

NAMES = ["Emma", "Liam", "Sophia", "Noah", "Ava's", "Lucas,", "Zoe", "Daniel", "Leo", "Mary", "EMMA", "Ella-Mae"]
CONJUNCTIONS = ["and", "but", "for", "nor", "or", "so", "yet", "And", "but,", "and/or", "because"]
PALINDROMES = [
    "level",
    "radar",
    "civic",
    "rotor",
    "kayak",
    "madam",
    "refer",
    "tenet",
    "solos",
    "stats",
    "Hannah",
    "Level",
    "noon",
]
CLUSTERED = ["strong", "things", "stand", "while", "black", "it's", "gypsy", "a", "well-known", "—", "don't", "Plants,"]
PRIME_WORDS = ["to", "the", "house", "quickly", "is", "cat", "it's", "a", "four", "-", "don't", "well-to-do"]
ALPHABET = (
    "All Both Can Do Even Few Girls He In Just Kings Let Men Nobody On People Queens Rivers She They Under Very We "
    "Xylophones You Zebras"
)
COUNTED = ["3", "1,000", "2.5", "10–20", "3-4", "1999", "(7)", "1.", "$5", "50%", "two", "3rd", "10:30", "v1.2.3"]


def range_of_words(draw: Random) -> Drawn:
    text = prose(draw)
    least = near(draw, len(text.split()))
    return {"min_words": least, "max_words": least + draw.randint(0, 4)}, text


def unique_words(draw: Random) -> Drawn:
    text = prose(draw)
    words = [word.strip(string.punctuation) for word in text.lower().split()]
    return {"N": near(draw, len(set(words)))}, text


def conjunctions(draw: Random) -> Drawn:
    used = draw.sample(CONJUNCTIONS, draw.randint(1, 6))
    return {"small_n": near(draw, len(used))}, " it goes ".join(["Then", *used, "on."])


def names(draw: Random) -> Drawn:
    used = draw.sample(NAMES, draw.randint(1, 8))
    return {"N": near(draw, len(used))}, f"{', '.join(used)} met. {sentence(draw)}"


def numbers(draw: Random) -> Drawn:
    used = draw.sample(COUNTED, draw.randint(1, 6))
    text = draw.choice([" and ", ", ", "\n"]).join(used)
    return {"N": near(draw, len(used))}, f"We saw {text} birds"


def punctuation(draw: Random) -> Drawn:
    mark = draw.choice(["?!", "!?", "‽", "?", "?!?"])
    text = f"One, two; three: go{draw.choice(['!', '!', ''])} Is it{draw.choice(['?', '?', ''])} What{mark}"
    return {}, text + draw.choice([" Yes.", " Yes.", ""])


def pronouns(draw: Random) -> Drawn:
    text = prose(draw) + draw.choice(
        ["", " They're here/there; everyone's mine, and this isn't yours. I'm what you've."]
    )
    count = len(re.findall(r"\b(?:it|they|she|who|this|that|what|you|I|he|me|everyone)\b", text))
    return {"N": near(draw, count)}, text


def japanese(draw: Random) -> Drawn:
    count = draw.randint(2, 5)
    words = plain(draw, 4).split()
    for place in range(count - 1, len(words), count):
        words[place] = draw.choice(["犬", "ねこ", "テレビ", "「本」", "水。", "カフェ", "食べる"])
    words[draw.randrange(len(words))] = draw.choice(["-", "3", "tea", "山", "犬"])
    return {"N": count}, " ".join(words)


def five_keywords(draw: Random) -> Drawn:
    keys = ["ant", "bee", "cat", "dog", "elk"]
    words: list[str] = []
    counts = [1, 2, 3, 5, draw.choice([7, 7, 7, 6, 8])]
    for key, times in zip(keys, counts, strict=True):
        forms = [key, key, key.title(), f"{key}s", f"**{key}**"]
        words += [draw.choice(forms) for _ in range(times)]
    draw.shuffle(words)
    arguments = {f"keyword{number}": key for number, key in enumerate(keys, 1)}
    return arguments, " ".join(words) + draw.choice([".", "", " Category."])


def sentence_type(draw: Random) -> Drawn:
    num_questions = draw.randint(1, 3)
    num_sentences = 2 * num_questions + draw.choice([0, 0, 0, 1])
    text = f"{plain(draw, num_sentences)} {plain(draw, num_questions, '?')}"
    return {}, text + draw.choice(["", "", "", " Go!", " Go!", ' He said "no."'])


def balance(draw: Random) -> Drawn:
    each = draw.randint(1, 3)
    parts = [plain(draw, each + draw.choice([0, 0, 0, 0, 1]), mark) for mark in ".?!"]
    draw.shuffle(parts)
    return {}, draw.choice([" ", "\n\n"]).join(parts)


def overlap(draw: Random) -> Drawn:
    reference = sentences(draw, 3)
    text = reference[: draw.randint(10, len(reference))] + " " + sentence(draw)
    trigrams = {text[place : place + 3] for place in range(len(text) - 2)}
    reference_trigrams = {reference[place : place + 3] for place in range(len(reference) - 2)}
    share = round(100 * len(trigrams & reference_trigrams) / len(trigrams)) + draw.choice([-4, -2, -1, 0, 1, 2, 5])
    return {"reference_text": reference, "percentage": share}, text


def three_sentences(draw: Random) -> Drawn:
    text = draw.choice(
        ["Ann ran. Bob sat. Cat hid.", "We see tea. Old men go. Cats sit b.", "Ann ran! Bob sat? Cat hid."]
    )
    return {}, text + draw.choice(["", "", "", " Yes.", "\n"])


def from_letters(draw: Random) -> Drawn:
    start = draw.randrange(26)
    letters = [string.ascii_lowercase[(start + step) % 26] for step in range(draw.randint(3, 30))]
    words = [letter + draw.choice(["ndo", "aps", "est,", "it's", "o-so"]) for letter in letters]
    words[draw.randrange(len(words))] += draw.choice(["", "", "", " end", " —", "."])
    return {}, " ".join(words).capitalize()


def vowels(draw: Random) -> Drawn:
    words = draw.choices(["a", "tree", "in", "sand", "lamps", "mist", "bend", "SEA"], k=6)
    return {}, " ".join([*words, draw.choice(["", "", "mud", "\nend", "up", "\n"])])


def clusters(draw: Random) -> Drawn:
    return {}, " ".join(draw.choices(CLUSTERED[:5], k=4) + draw.choices(CLUSTERED, k=1))


def palindromes(draw: Random) -> Drawn:
    words = draw.sample(PALINDROMES, draw.randint(9, 13))
    return {}, draw.choice([", ", " ", "\n- ", " and "]).join(words)


def prime_words(draw: Random) -> Drawn:
    return {}, " ".join(draw.choices(PRIME_WORDS[:6], k=4) + draw.choices(PRIME_WORDS, k=1)) + "."


def repeats(draw: Random) -> Drawn:
    text = prose(draw)
    words = re.findall(r"\w+", text.lower())
    return {"small_n": near(draw, max(map(words.count, words), default=1))}, text


def chained(draw: Random) -> Drawn:
    words = draw.sample(["rain", "tea", "night", "they", "us"], 4)
    mark = draw.choice([".", "!", ".", "…"])
    parts = [f"{first.title()} comes before {last}{mark}" for first, last in pairwise(words)]
    parts[-1] = draw.choice([parts[-1], parts[-1], "Nothing is so."])
    return {}, draw.choice([" ", "\n\n"]).join(parts)


def rounds(draw: Random) -> Drawn:
    words = draw.sample(["rain", "tea", "night", "us"], 3)
    parts = [
        f"{word.title()}{draw.choice([' ', ' ', ', '])}we like {draw.choice(['', 'the '])}{word}." for word in words
    ]
    parts.append(draw.choice(["Tea.", "Rain: we like rain", "Nothing is so."]))
    return {}, draw.choice(["\n", "\n\n"]).join(parts)


def no_twins(draw: Random) -> Drawn:
    words = draw.choices(
        ["one", "big", "cat", "sat", "down", "by", "“it”", "(then)", "well", "—", "3"], k=draw.randint(3, 6)
    )
    return {}, " ".join(words) + "."


def keyword_at(draw: Random) -> Drawn:
    place, word = draw.randint(1, 4), draw.randint(1, 5)
    key = draw.choice(["giggle", "beneath"])
    parts = [sentence(draw) for _ in range(4)]
    words = [draw.choice(["it", "was", "don't", "well-known", "tea,", "it's"]) for _ in range(word - 1)]
    parts[place - 1] = " ".join([*words, draw.choice([key, key, key.title(), f"{key},"]), "again."])
    return {"keyword": key, "n": place, "m": word}, " ".join(parts)


def keyword_twice(draw: Random) -> Drawn:
    key = draw.choice(["vibrant", "whisper"])
    first = draw.choice(["A", "A", "A", "A", "A", "Oh,", "It's"])
    last = draw.choice([key, key, key.title(), f"{key},"])
    return {"keyword": key}, f"{first} {key} {prose(draw)} The {last} end{draw.choice(['.', '', '!', '?!'])}"


def alliteration(draw: Random) -> Drawn:
    parts = ["Cats see tea.", "Big bad dogs run.", "Six sad seals sing songs.", "Tiny tots try two tall toys."]
    parts = parts[draw.randint(0, 2) :]
    if draw.random() < 0.3:
        draw.shuffle(parts)
    return {}, " ".join(parts)


def keyword_in(draw: Random) -> Drawn:
    place = draw.randint(1, 5)
    key = draw.choice(["eat", "giraffe", "it"])
    parts = [sentence(draw) for _ in range(5)]
    parts[place - 1] = f"They {draw.choice([key, key, key.upper(), 'great', f'{key}s', f'**{key}**'])} today."
    return {"word": key, "N": place}, draw.choice([" ", " ", "\n"]).join(parts)


def growing(draw: Random) -> Drawn:
    step = draw.randint(1, 4)
    count = draw.randint(1, 4)
    parts = []
    for number in range(3):
        size = count + number * step
        words = draw.choices(["tea", "is", "well-known", "good,", "don't"], k=size)
        parts.append(" ".join(words).capitalize() + draw.choice([".", ".", "!"]))
    parts[-1] += draw.choice(["", "", " Yes.", " —"])
    return {"small_n": draw.choice([step, step, step + 1])}, " ".join(parts)


def alphabet_story(draw: Random) -> Drawn:
    ends = ["can go on.", "can see it!", "said so?", "Wait...", '"Yes."', "Dr. Lee left."]
    parts = [f"{word} {draw.choice(ends[:3])}" for word in ALPHABET.split()]
    parts[draw.randrange(26)] += " " + draw.choice(["", "", "", *ends])
    return {}, draw.choice([" ", "\n", "\n\n"]).join(parts[draw.choice([0, 0, 0, 1]) :])


BUILDERS: dict[str, Callable[[Random], Drawn]] = {
    "count:word_count_range": range_of_words,
    "count:unique_word_count": unique_words,
    "count:conjunctions": conjunctions,
    "count:person_names": names,
    "count:numbers": numbers,
    "count:punctuation": punctuation,
    "count:pronouns": pronouns,
    "count:words_japanese": japanese,
    "count:keywords_multiple": five_keywords,
    "ratio:sentence_type": sentence_type,
    "ratio:sentence_balance": balance,
    "ratio:overlap": overlap,
    "ratio:sentence_words": three_sentences,
    "words:alphabet": from_letters,
    "words:vowel": vowels,
    "words:consonants": clusters,
    "words:palindrome": palindromes,
    "words:prime_lengths": prime_words,
    "words:repeats": repeats,
    "words:last_first": chained,
    "words:paragraph_last_first": rounds,
    "words:no_consecutive": no_twins,
    "words:keywords_specific_position": keyword_at,
    "words:words_position": keyword_twice,
    "sentence:alliteration_increment": alliteration,
    "sentence:keyword": keyword_in,
    "sentence:increment": growing,
    "custom:sentence_alphabet": alphabet_story,
}
