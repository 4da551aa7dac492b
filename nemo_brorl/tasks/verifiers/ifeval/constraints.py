"""The 25 verifiable instructions of IFEval (arXiv 2311.07911), by their public names, each a function of a response.

Written from the paper's descriptions and the public benchmark's behaviour on strict scoring, with sentences and
languages told apart offline: no tokenizer data is downloaded. Where the benchmark draws a missing value at random, it
must be given here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from nemo_brorl.tasks.verifiers.language import is_in_language

RELATIONS = ("at least", "less than")
CONSTRAINED_RESPONSES = ("my answer is yes.", "my answer is no.", "my answer is maybe.")
_SENTENCE_END = re.compile(r"[.!?…。！？]+[\"'”’)\]*_]*(?=\s|$)|[。！？]")
_ABBREVIATION = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|prof|sr|jr|st|vs|etc|e\.g|i\.e|a\.m|p\.m|inc|ltd|co|no|fig|approx|dept|est|u\.s|u\.k)|(?:^|\s)[A-Za-z])\.$",
    re.IGNORECASE,
)


def count_sentences(text: str) -> int:
    """Sentences of a text: they end in . ! ? but not in an abbreviation or an initial; a rest without an end is one
    too."""
    count, start = 0, 0
    for end in _SENTENCE_END.finditer(text):
        sentence = text[start : end.end()]
        if end.end() < len(text.rstrip()) and _ABBREVIATION.search(sentence):
            continue
        count += any(character.isalnum() for character in sentence)
        start = end.end()
    return count + any(character.isalnum() for character in text[start:])


def count_words(text: str) -> int:
    """Runs of letters, digits and underscores."""
    return len(re.findall(r"\w+", text))


def _compare(count: int, relation: str, limit: int) -> bool:
    return count >= limit if relation == "at least" else count < limit


def _parts(text: str, separator: str) -> list[str] | None:
    """Stripped parts between separators, of which the first and the last may be missing. None when an inner one is
    empty."""
    parts = [part.strip() for part in re.split(separator, text)]
    kept = parts[not parts[0] : len(parts) - (len(parts) > 1 and not parts[-1])]
    return kept if all(kept) else None


def has_keywords(text: str, keywords: Sequence[str]) -> bool:
    return all(word.lower() in text.lower() for word in keywords)


def keyword_frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return _compare(text.lower().count(keyword.lower()), relation, frequency)


def no_forbidden_words(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in forbidden_words)


def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return _compare(text.lower().count(letter.lower()), let_relation, let_frequency)


def number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return _compare(count_sentences(text), relation, num_sentences)


def number_words(text: str, num_words: int, relation: str) -> bool:
    return _compare(count_words(text), relation, num_words)


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """Divided by `***`."""
    parts = _parts(text, r"\s?\*\*\*\s?")
    return parts is not None and len(parts) == num_paragraphs


def nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Divided by empty lines, counted from 1."""
    paragraphs = [part.strip() for part in re.split(r"\n\n", text) if part.strip()]
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    word = re.match(r"\w+", paragraphs[nth_paragraph - 1].split()[0].lstrip("\"'“‘*_#(["))
    return word is not None and word[0].lower() == first_word.strip().lower()


def number_placeholders(text: str, num_placeholders: int) -> bool:
    """Such as `[address]`."""
    return len(re.findall(r"\[.*?\]", text)) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    letters = [re.escape(letter) for letter in postscript_marker.lower() if letter.isalpha()]
    is_usual = re.fullmatch(r"p\.\s?(?:p\.\s?)?s\.?", postscript_marker.strip().lower()) is not None
    pattern = (
        r"\.\s?".join(letters) + (r"\." if letters == ["p", "s"] else "")
        if is_usual
        else re.escape(postscript_marker.strip().lower())
    )
    return re.search(rf"(?:^|\s){pattern}", text.lower()) is not None


def number_bullet_lists(text: str, num_bullets: int) -> bool:
    return len(re.findall(r"^\s*(?:\*[^*]|-).*$", text, re.MULTILINE)) == num_bullets


def constrained_response(text: str) -> bool:
    return any(option in text.lower() for option in CONSTRAINED_RESPONSES)


def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    """In `*one*` or `**two**` stars."""
    found = re.findall(r"\*\*([^\n*]+)\*\*|\*([^\n*]+)\*", text)
    return sum(bool((double or single).strip()) for double, single in found) >= num_highlights


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """Each opened as `Section 1`."""
    return len(re.findall(rf"\s?{re.escape(section_spliter.strip())}\s?\d+\s?", text)) >= num_sections


def json_format(text: str) -> bool:
    fenced = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", text.strip(), re.DOTALL | re.IGNORECASE)
    try:
        json.loads(fenced[1] if fenced else text.strip())
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    return any(found.strip("<> ") for found in re.findall(r"<<[^\n]+>>", text))


def two_responses(text: str) -> bool:
    """Two different ones, divided by six stars."""
    parts = _parts(text, r"\*\*\*\*\*\*")
    return parts is not None and len(parts) == 2 and parts[0] != parts[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def end_checker(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    return _compare(sum(word.isupper() for word in re.findall(r"[\w'-]+", text)), capital_relation, capital_frequency)


def english_capital(text: str) -> bool:
    return text.isupper() and is_in_language(text, "en")


def english_lowercase(text: str) -> bool:
    return text.islower() and is_in_language(text, "en")


def no_comma(text: str) -> bool:
    return "," not in text


def quotation(text: str) -> bool:
    stripped = text.strip()
    return len(stripped) > 1 and stripped[0] == stripped[-1] == '"'


def response_language(text: str, language: str) -> bool:
    return is_in_language(text, language)


# public name -> function of the response and of the instruction's arguments, which have the benchmark's names
CONSTRAINTS: dict[str, Callable[..., bool]] = {
    "keywords:existence": has_keywords,
    "keywords:frequency": keyword_frequency,
    "keywords:forbidden_words": no_forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_checker,
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "punctuation:no_comma": no_comma,
    "startend:quotation": quotation,
}

# What an argument must be; those not named here are texts.
NUMBERS = ("frequency", "let_frequency", "capital_frequency", "nth_paragraph")  # and those that begin with num_
LISTS = ("keywords", "forbidden_words")


def wrong_argument(name: str, value: Any) -> str | None:
    """What is wrong with the value of an argument; None: nothing."""
    if name.endswith("relation"):
        return None if value in RELATIONS else f"write {' or '.join(RELATIONS)}"
    if name.startswith("num_") or name in NUMBERS:
        return (
            None
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
            else "write a number from 0"
        )
    if name in LISTS:
        is_list = isinstance(value, (list, tuple)) and value and all(isinstance(item, str) for item in value)
        return None if is_list else "write a list of texts"
    return None if isinstance(value, str) and value else "write a text"
