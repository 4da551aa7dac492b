"""Verifier of instructions that rules can check: the share that a response follows, or 1 only if it follows all.

The verifier knows all 25 instructions of IFEval (arXiv 2311.07911), and 55 of the 58 of IFBench, by their public names
and arguments. Loading data refuses `ratio:stop_words`, `words:start_verb` and `words:odd_even_syllables`.

The instructions apply to the response without its thinking. An empty response follows no instruction. The eight
versions of `judging: loose` lack the response's first line, last line, both or none, and have stars or none.

IFEval's instructions are written from the paper's descriptions and from the public benchmark's strict scoring.
Sentences and languages are found offline. Where the benchmark draws a missing argument at random, `kwargs` must have
this argument.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from brorl_graders.base.answer import without_thinking
from brorl_graders.base.payload import Key, Payload, check_choices, is_blank, is_list, is_number
from brorl_graders.verifiers.ifeval import texts
from brorl_graders.verifiers.ifeval.ifbench_counts import COUNTS, WORDS
from brorl_graders.verifiers.ifeval.ifbench_formats import FORMATS, TASKS
from brorl_graders.verifiers.ifeval.texts import is_identifiable, is_in_language, is_likeliest, sentences_of, tokens_of

RELATIONS = ("at least", "less than")
CONSTRAINED_RESPONSES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

Arguments = Mapping[str, Any]
JUDGINGS = ("strict", "loose")
SCORINGS = ("fraction", "all")
KEYS = (
    Key("instruction_id_list", "names of the instructions, as in the public data", is_required=True),
    Key("kwargs", "one object of arguments for each instruction; null counts as left out", is_required=True),
    Key("scoring", "`fraction`: share of followed instructions, as in ProRL; `all`: 1 if all are followed", SCORINGS),
    Key(
        "judging",
        "`loose`: an instruction is followed if one of eight versions of the response follows it, as in the "
        "benchmarks' loose accuracy",
        JUDGINGS,
    ),
)

# Instructions of IFBench that are refused: name -> reason.
REFUSED: dict[str, str] = {
    "ratio:stop_words": "which words are stop words is a list of NLTK's, which has to be downloaded",
    "words:start_verb": "it needs a tagger of parts of speech",
    "words:odd_even_syllables": "it needs a dictionary of syllables",
}

# Types of arguments by name. All others are texts.
NUMBERS = (  # names that begin with num_ are numbers too
    "frequency",
    "let_frequency",
    "capital_frequency",
    "nth_paragraph",
    "min_words",
    "max_words",
    "N",
    "small_n",
    "n",
    "m",
    "n_start",
    "n_end",
    "percentage",
)
LISTS = ("keywords", "forbidden_words")


def count_sentences(text: str) -> int:
    """Count the sentences of a text, including a last one without an end mark."""
    return len(sentences_of(text))


def count_words(text: str) -> int:
    """Count the runs of letters, digits and underscores in a text."""
    words = re.findall(r"\w+", text)
    return len(words)


def _compare(count: int, relation: str, limit: int) -> bool:
    if relation == "at least":
        return count >= limit
    return count < limit


def _parts(text: str, separator: str) -> list[str] | None:
    """Split a text at a separator, and return the stripped parts. None: an inner part is empty.

    The first and the last part may be empty, and are then left out.
    """
    found = re.split(separator, text)
    parts = [part.strip() for part in found]
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    if not parts[0]:
        parts.pop(0)
    return parts if all(parts) else None


def has_keywords(text: str, keywords: Sequence[str]) -> bool:
    lower = text.lower()
    return all(word.lower() in lower for word in keywords)


def keyword_frequency(
    text: str,
    keyword: str,
    frequency: int,
    relation: str,
) -> bool:
    lower = text.lower()
    count = lower.count(keyword.lower())
    return _compare(count, relation, frequency)


def no_forbidden_words(text: str, forbidden_words: Sequence[str]) -> bool:
    for word in forbidden_words:
        pattern = rf"\b{re.escape(word)}\b"
        if re.search(pattern, text, re.IGNORECASE):
            return False
    return True


def letter_frequency(
    text: str,
    letter: str,
    let_frequency: int,
    let_relation: str,
) -> bool:
    lower = text.lower()
    count = lower.count(letter.lower())
    return _compare(count, let_relation, let_frequency)


def number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return _compare(count_sentences(text), relation, num_sentences)


def number_words(text: str, num_words: int, relation: str) -> bool:
    return _compare(count_words(text), relation, num_words)


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """Return whether a response has exactly `num_paragraphs` paragraphs, divided by `***`."""
    parts = _parts(text, r"\s?\*\*\*\s?")
    return parts is not None and len(parts) == num_paragraphs


def nth_paragraph_first_word(
    text: str,
    num_paragraphs: int,
    nth_paragraph: int,
    first_word: str,
) -> bool:
    """Return whether paragraph `nth_paragraph` of a response begins with the word `first_word`.

    Paragraphs are divided by empty lines and counted from 1. The response must have `num_paragraphs` of them.
    """
    parts = text.split("\n\n")
    paragraphs = [part for part in parts if part.strip()]
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    first, *_ = paragraphs[nth_paragraph - 1].split()
    bare = first.lstrip("\"'“‘")
    found = re.match(r"\w+(?!-?\w)", bare)
    if found is None:
        return False
    word = found[0].lower()
    return word == first_word.strip().lower()


def number_placeholders(text: str, num_placeholders: int) -> bool:
    """Return whether a response has at least `num_placeholders` placeholders such as `[address]`."""
    count = 0
    for line in text.split("\n"):
        *closed, _ = line.split("]")
        count += sum("[" in part for part in closed)
    return count >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    marker = postscript_marker.strip().lower()
    pattern = re.escape(marker)
    if re.fullmatch(r"p\.\s?s\.?", marker):
        pattern = r"p\.\s?s\."
    elif re.fullmatch(r"p\.\s?p\.\s?s\.?", marker):
        pattern = r"p\.\s?p\.\s?s"
    found = re.search(rf"(?<![a-z0-9]){pattern}", text.lower())
    return found is not None


def number_bullet_lists(text: str, num_bullets: int) -> bool:
    bullets = re.findall(r"^[^\S\n]*(?:\*[^*]|-).*$", text, re.MULTILINE)
    return len(bullets) == num_bullets


def constrained_response(text: str) -> bool:
    return any(option in text for option in CONSTRAINED_RESPONSES)


def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    """Return whether a response has at least `num_highlights` highlights: `*one*` or `**two**`."""
    count = 0
    for double, single in re.findall(r"\*\*([^\n*]+)\*\*|\*([^\n*]+)\*", text):
        highlighted = double or single
        if highlighted.strip():
            count += 1
    return count >= num_highlights


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """Return whether a response has at least `num_sections` sections.

    Each begins with the word in `section_spliter` and a number, such as `Section 1`.
    """
    name = re.escape(section_spliter.strip())
    sections = re.findall(rf"\s?{name}\s?\d+\s?", text)
    return len(sections) >= num_sections


def json_format(text: str) -> bool:
    """Return whether a response is JSON, alone or in a code fence, which may lack its end."""
    opened = re.sub(r"^```(?:json)?", "", text.strip(), flags=re.IGNORECASE)
    bare = opened.removesuffix("```")
    try:
        json.loads(bare)
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    for line in text.split("\n"):
        _, _, opened = line.partition("<<")
        said, _, _ = opened.rpartition(">>")
        if said.strip("<> "):
            return True
    return False


def two_responses(text: str) -> bool:
    """Return whether a text holds two different responses, divided by six stars."""
    parts = _parts(text, r"\*\*\*\*\*\*")
    if parts is None or len(parts) != 2:
        return False
    return parts[0] != parts[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    prompt = prompt_to_repeat.strip().lower()
    response = text.strip().lower()
    return response.startswith(prompt)


def end_checker(text: str, end_phrase: str) -> bool:
    stripped = text.strip().strip('"')
    phrase = end_phrase.strip()
    return stripped.lower().endswith(phrase.lower())


def capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    words = tokens_of(text)
    count = sum(map(str.isupper, words))
    return _compare(count, capital_relation, capital_frequency)


def english_capital(text: str) -> bool:
    return text.isupper() and is_likeliest(text, "en")


def english_lowercase(text: str) -> bool:
    return text.islower() and is_likeliest(text, "en")


def no_comma(text: str) -> bool:
    return "," not in text


def quotation(text: str) -> bool:
    stripped = text.strip()
    found = re.fullmatch(r'".*"', stripped, re.DOTALL)
    return found is not None


def response_language(text: str, language: str) -> bool:
    """Return whether a response may be in the language with this ISO 639 code.

    A text without letters fits every language, and a word that occurs in all languages fits none.
    """
    has_letters = any(map(str.isalpha, text))
    if has_letters and not is_identifiable(text):
        return False
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


def wrong_argument(name: str, value: Any) -> str | None:
    """Return what is wrong with the value of an argument of an IFEval instruction. None: nothing."""
    if name.endswith("relation"):
        is_right = value in RELATIONS
        wanted = " or ".join(RELATIONS)
    elif name.startswith("num_") or name in NUMBERS:
        is_right = is_number(value) and value >= 0
        wanted = "a number from 0"
    elif name in LISTS:
        is_right = is_list(value) and all(isinstance(item, str) for item in value)
        wanted = "a list of texts"
    elif name == "options":
        is_right = is_list(value) or isinstance(value, str)
        wanted = "a list of texts, or a text"
    else:
        is_right = isinstance(value, str) and len(value) > 0
        wanted = "a text"
    return None if is_right else f"write {wanted}"


INSTRUCTIONS: dict[str, Callable[..., bool]] = {
    **CONSTRAINTS,
    **COUNTS,
    **WORDS,
    **FORMATS,
    **TASKS,
}


def check(payload: Payload) -> Iterator[str]:
    """Yield what is wrong with the instructions and options in the payload of an instruction-following question."""
    yield from check_choices(payload, KEYS)
    names: Any = payload.get("instruction_id_list")
    arguments: Any = payload.get("kwargs")
    if not is_list(names):
        yield (
            f"'instruction_id_list' is {names!r}; write a list of IFEval's names, for example ['punctuation:no_comma']"
        )
    elif not is_list(arguments) or len(arguments) != len(names):
        yield f"'kwargs' is {arguments!r}; write a list with one object for each of the {len(names)} instructions"
    else:
        for name, given in zip(names, arguments, strict=True):
            yield from _wrong_instruction(name, given)


def score(payload: Payload, response: str) -> tuple[float, str]:
    """Return the share of the payload's instructions that a response follows, and a text that names the missed ones.

    With `scoring: all` the score is 1.0 if the response follows all instructions, else 0.0.
    """
    text = without_thinking(response)
    if is_blank(text):
        return 0.0, "nothing is said"
    texts = [text]
    if payload.get("judging", JUDGINGS[0]) == "loose":
        texts = versions(text)
    missed: list[str] = []
    names = payload["instruction_id_list"]
    arguments = payload["kwargs"]
    for name, given in zip(names, arguments, strict=True):
        is_followed = INSTRUCTIONS[name]
        own_arguments = _given(given)
        if not any(is_followed(version, **own_arguments) for version in texts):
            missed.append(name)
    reason = f"not followed: {', '.join(missed)}" if missed else ""
    if payload.get("scoring", SCORINGS[0]) == "all":
        return float(not missed), reason
    return (len(names) - len(missed)) / len(names), reason


def versions(text: str) -> list[str]:
    """Return the eight versions of a response that IFEval's loose judging looks at, except the empty ones."""
    lines = text.split("\n")
    found = [text]
    for cut in (lines[1:], lines[:-1], lines[1:-1]):
        found.append("\n".join(cut).strip())
    for version in list(found):
        found.append(version.replace("*", ""))
    return [version for version in found if not is_blank(version)]


def load() -> None:
    """Load the model that identifies the language of a text."""
    texts.load_languages()


def _given(arguments: Arguments | None) -> dict[str, Any]:
    """Return those arguments of an IFEval instruction that are not null.

    Whole numbers become integers: tables whose columns have several types hold them as 3.0.
    """
    found: dict[str, Any] = {}
    for name, value in (arguments or {}).items():
        if value is None:
            continue
        is_whole = isinstance(value, float) and value.is_integer()
        found[name] = int(value) if is_whole else value
    return found


def _wrong_instruction(name: str, arguments: Arguments | None) -> Iterator[str]:
    if name in REFUSED:
        yield f"instruction {name!r} cannot be judged here: {REFUSED[name]}; leave its rows out (data.max_bad_rows)"
        return
    if name not in INSTRUCTIONS:
        yield f"unknown instruction {name!r}; the known ones are {', '.join(INSTRUCTIONS)}"
        return
    given = _given(arguments)
    signature = inspect.signature(INSTRUCTIONS[name])
    _, *wanted = signature.parameters  # the first parameter is the response
    if set(given) != set(wanted):
        yield f"{name} takes {', '.join(wanted) or 'no arguments'} and was given {', '.join(given) or 'none'}"
    for argument in set(given).intersection(wanted):
        reason = wrong_argument(argument, given[argument])
        if reason is not None:
            yield f"{name}: {argument} is {given[argument]!r}; {reason}"
