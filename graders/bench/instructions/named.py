"""Intended differences from the official checkers.

Each has the kind of verdict, the instruction (or the start of its name), a pattern to search in the response, and the
reason.
"""

from __future__ import annotations

import re

ZERO = "0 here"  # our verdict is 0 and the official one 1
PAID = "1 here"  # our verdict is 1 and the official one 0
VACUOUS = "nothing in it that could follow or break the instruction"
AROUND = "white space around a response is no part of it"
ALONE = "one word, sentence or line alone is not compared with another"
COMPARING = ("words:alphabet", "words:last_first", "words:no_consecutive", "sentence:", "format:line_indent")
DOTS = "… ends a sentence where no small letter follows, and ... too"
MARKS = "words have no marks, and a mark is no word"
CURLY = "“ and ” are quotes, ’ in a word is none"
QUOTED = "a mark may stand before a closing quote, and what is balanced is there"

DIFFERENCES = [
    (ZERO, "detectable_format:number_highlighted_sections", r"\*\*\*|\* \*", "a highlight counts once, not twice"),
    (ZERO, "change_case:", r"^\W*(?:\w+\W+){0,3}$", "too short for its language to be told"),
    (PAID, "change_case:", "[A-Z]", "capitals do not change the language"),
    (PAID, "language:", "[A-Z]{4}", "capitals do not change the language"),
    (PAID, "language:", "```", "too short for its language to be told"),
    (ZERO, "length_constraints:number_sentences", "```", "a fence is no sentence"),
    (ZERO, "length_constraints:number_sentences", r"…|\.\.", DOTS),
    (PAID, "length_constraints:number_sentences", r"…|\.\.", DOTS),
    (ZERO, "length_constraints:number_sentences", r"(?i)e\.g\.", "an abbreviation ends no sentence"),
    (PAID, "length_constraints:number_sentences", r"(?i)e\.g\.", "an abbreviation ends no sentence"),
    (ZERO, "sentence:", r"…|\.\.", DOTS),
    (ZERO, "words:last_first", "…", DOTS),
    (ZERO, "words:last_first", r"^[^.!?]*[.!?]?\s*$", ALONE),
    (ZERO, "format:line_indent", r"^[^\n]*$", ALONE),
    (ZERO, "words:keywords_specific_position", r"…|\.\.", DOTS),
    (ZERO, "format:quote_unquote", '[“”]|" - "', "“ and ” are quotes, and a dash explains nothing"),
    (ZERO, "repeat:repeat_span", "", "indices are those of words, as the prompts say"),
    (PAID, "repeat:repeat_span", "", "indices are those of words, as the prompts say"),
    (ZERO, "format:parentheses", "", "all of the five levels are closed"),
    (ZERO, "format:no_bullets_bullets", "[!:?]", "two sentences end in a full stop, as the prompt says"),
    (PAID, "format:no_bullets_bullets", r"\n\s*$", AROUND),
    (PAID, "format:no_bullets_bullets", r"\n\s*\n", "an empty line ends no list"),
    (ZERO, "format:sub-bullets", r"\*", "without its stars a response has no points"),
    (ZERO, "format:list", r"\w-\w", "a mark between items is no part of a word"),
    (ZERO, "count:unique_word_count", "", MARKS),
    (ZERO, "custom:word_reverse", r"^\W*\w+\W+\w+\W*$", "two words are no sentence"),
    (ZERO, "count:conjunctions", "", "and, And and `and,` are one conjunction"),
    (ZERO, "format:output_template", "", "a template has an order"),
    (ZERO, "custom:date_format_list", "-00|1812-02-30|1813-02-29", "dates exist"),
    (ZERO, "ratio:sentence_words", "", "all words differ, as the prompt says"),
    (ZERO, "format:thesis", "<em>", "something stands behind the thesis"),
    (PAID, "words:", r"[^\w\s]", MARKS),
    (PAID, "sentence:", r"[^\w\s]", MARKS),
    (PAID, "count:words_japanese", "[“”]", MARKS),
    (PAID, "custom:sentence_alphabet", '[#"“]', MARKS),
    (PAID, "custom:word_reverse", "[“”]", MARKS),
    (PAID, "format:options", "[“”]", MARKS),
    (PAID, "ratio:sentence_words", "😀", "signs alone are no sentence"),
    (PAID, "format:title_case", r"of Rome|['’]t|['’]s", "small words may be small, and Don't is one word"),
    (PAID, "format:no_whitespace", r"^\s|\s$", AROUND),
    (PAID, "format:options", r"^\s|\s$", AROUND),
    (PAID, "custom:csv_city", r"^\s|\s$", AROUND),
    (PAID, "custom:csv_", r"^\s|\s$", AROUND),
    (PAID, "custom:csv_", ", ", "white space around a field is no part of it"),
    (PAID, "format:quotes", "[“”‘’]|\\w['’]\\w", CURLY),
    (ZERO, "format:quotes", "[“”‘’]|\\w['’]\\w", CURLY),
    (PAID, "format:sub-bullets", r"\*\*", "stars of bold type are no points"),
    (PAID, "format:line_indent", r"\n\s*\n", "empty lines are no steps"),
    (PAID, "format:line_indent", r"\s$", AROUND),
    (PAID, "format:emoji", "[🇦-🇿]|🏽|👩|☕|❤", "an emoji may be of several characters"),
    (PAID, "custom:european_capitals_sort", r"\W$", "a full stop or a quote may end the list"),
    (PAID, "custom:mcq_count_length", "Question:", "questions need no number"),
    (PAID, "ratio:", "[\"”')]", QUOTED),
    (ZERO, "ratio:sentence_", "[\"”')]|^[^?]*$|\n", QUOTED),
]


def find_reason(
    kind: str,
    judging: str,
    name: str,
    response: str,
    is_generic: bool,
) -> str | None:
    """Return why an instruction's verifier intentionally differs from the official checker on a response, or None.

    None means that the difference is not intended.
    """
    if is_generic and kind == ZERO:
        return VACUOUS
    if judging == "loose" and kind == ZERO and name.startswith(COMPARING) and "\n" in response:
        return ALONE
    for difference_kind, name_start, pattern, why in DIFFERENCES:
        if kind == difference_kind and name.startswith(name_start) and re.search(pattern, response):
            return why
    return None
