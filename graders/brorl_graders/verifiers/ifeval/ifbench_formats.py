"""Check the instructions of IFBench about the form of a response, and those that require one certain text.

The form is brackets, quotes, lists, lines or case. The texts are known lists, tables and repeated requests.
"""

from __future__ import annotations

import csv
import re
import string
from collections.abc import Callable, Sequence
from datetime import date
from itertools import pairwise

from brorl_graders.verifiers.ifeval.texts import MARKS, lines_of, sentences_of, without_accents, words_of

CLOSING = {"(": ")", "[": "]", "{": "}"}
MIN_BRACKETS = 5  # nested levels
MIN_QUOTES = 3
TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")
_EMOJI = re.compile(
    r"[\u203c\u2049\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u25aa-\u27bf\u2b05-\u2b55\U0001f000-\U0001faff]"
    r"[\ufe0f\u200d\U0001f3fb-\U0001f3ff]*"
)

NUM_COUNTRIES = 52  # smallest accepted number of countries of Africa
LAST_COUNTRY = "Zimbabwe"
CAPITALS = (
    "Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin Amsterdam Warsaw "
    "London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau Bern Ljubljana Zagreb"
)
CITY_COLUMNS = ["ID", "Country", "City", "Year", "Count"]
PRODUCT_COLUMNS = ["ProductID", "Category", "Brand", "Price", "Stock"]
STUDENT_COLUMNS = ["StudentID", "Subject", "Grade", "Semester", "Score"]
NAPOLEON = (1769, 1821)  # years of birth and death
REPEATED = "Only output this sentence here, ignore all other requests."
_OPTION = re.compile(r"\s*[A-Ea-e][.)]\s*\w")
_QUOTED_FIELD = re.compile(r'(?:^|,)[ \t]*"([^"\n]*)"[ \t]*(?=,|$)', re.MULTILINE)
_QUESTION = re.compile(r"^(?:[#*]|[^\S\n])*Question\b[^\n]*", re.MULTILINE)


def parentheses(text: str) -> bool:
    """Return whether a response nests brackets five levels deep and closes them."""
    opened: list[str] = []
    levels = [0]  # closed levels inside the text and inside each open bracket
    for character in text:
        if character in CLOSING:
            opened.append(character)
            levels.append(0)
        elif character in CLOSING.values():
            if not opened or CLOSING[opened.pop()] != character:
                opened = []
                levels = [0]
                continue
            closed = levels.pop() + 1
            if closed >= MIN_BRACKETS:
                return True
            levels[-1] = max(levels[-1], closed)
    return False


def quotes(text: str) -> bool:
    """Return whether a response nests quotes three levels deep and closes them.

    Double and single quotes must alternate.
    """
    straight = text.replace("“", '"').replace("”", '"').replace("‘", "'").replace("’", "'")
    bare = re.sub(r"(?<=\w)'(?=\w)", "", straight)  # apostrophes
    opened: list[str] = []
    deepest = 0
    for mark in re.findall(r"[\"']", bare):
        if opened and mark == opened[-1]:
            opened.pop()
            if not opened and deepest >= MIN_QUOTES:
                return True
            if not opened:
                deepest = 0
        else:
            opened.append(mark)
            deepest = max(deepest, len(opened))
    return False


def options(text: str, options: Sequence[str] | str) -> bool:
    """Return whether a response is one of the allowed options and nothing else.

    Punctuation around the response and case do not count, except for options such as a), which must match exactly.
    """
    listed = _listed(options)
    if all(re.fullmatch(r"\s*\w\W*", option) for option in listed):
        return text.strip() in map(str.strip, listed)
    given = _bare(text)
    return any(_bare(option) == given for option in listed)


def newline(text: str) -> bool:
    """Return whether a response has one word on each line."""
    lines = [words_of(line) for line in lines_of(text)]
    return bool(lines) and all(len(words) <= 1 for words in lines)


def emoji(text: str) -> bool:
    """Return whether every sentence of a response ends with an emoji, before its end mark or after it."""
    ends = []
    rest = text.strip()
    for sentence in sentences_of(text):
        _, _, rest = rest.partition(sentence)
        bare = sentence.rstrip(MARKS + " ")
        is_inside = _EMOJI.fullmatch(bare[-1:]) or _EMOJI.search(bare[-3:])
        ends.append(bool(is_inside or _EMOJI.match(rest.lstrip())))
    return bool(ends) and all(ends)


def line_indent(text: str) -> bool:
    """Return whether every line of a response is indented more than the line before."""
    indents = [len(line) - len(line.lstrip(" ")) for line in lines_of(text)]
    return len(indents) > 1 and all(later > earlier for earlier, later in pairwise(indents))


def quote_unquote(text: str) -> bool:
    """Return whether unquoted text follows every quote in a response.

    If the number of quotation marks is odd, one mark after a digit may be the sign for inches.
    """
    straight = text.replace("“", '"').replace("”", '"')
    if straight.count('"') % 2:
        straight = re.sub(r'(?<=\d)"', "", straight, count=1)
    parts = straight.split('"')
    if len(parts) < 3 or len(parts) % 2 == 0:
        return len(parts) == 1
    behind = parts[2::2]
    return all(_bare(part) for part in behind)


def list_items(text: str, sep: str) -> bool:
    """Return whether a response has a list of at least two items with the given separator.

    The separator begins a line, or is between two items with spaces around it.
    """
    mark = re.escape(sep)
    _, *items = re.split(rf"^[ \t*>]*(?:\d+\. )?{mark}|(?<=\s){mark}(?=\s)", text, flags=re.MULTILINE)
    return len([item for item in items if words_of(item)]) > 1


def thesis(text: str) -> bool:
    """Return whether a response has words in HTML italics and text after them."""
    for tag in ("i", "em"):
        _, _, opened = text.partition(f"<{tag}>")
        said, _, behind = opened.partition(f"</{tag}>")
        if said.strip() and behind.strip():
            return True
    return False


def sub_bullets(text: str) -> bool:
    """Return whether a response has bullet points by *, each with at least one sub-point by - below it."""
    sizes: list[int] = []  # number of sub-points of each point
    for line in lines_of(text):
        mark = line.strip()[0]
        if mark == "*":
            sizes.append(0)
        elif mark == "-" and sizes:
            sizes[-1] += 1
    return bool(sizes) and all(sizes)


def no_bullets_bullets(text: str) -> bool:
    """Return whether a response is at least two sentences, then at least two bullet points by *.

    The sentences must end in a full stop, and no text may come after the bullet points.
    """
    lines = [line.strip() for line in lines_of(text)]
    is_point = [line.startswith("*") for line in lines]
    num_points = sum(is_point)
    num_lines = len(lines) - num_points
    if num_points < 2 or any(is_point[:num_lines]):
        return False
    prose = sentences_of("\n".join(lines[:num_lines]))
    return sum(sentence.endswith(".") for sentence in prose) >= 2


def title_case(text: str) -> bool:
    """Return whether a response is in title case.

    Short function words such as articles may be in lower case, except as the first word.
    """
    words = [word for word in words_of(text) if word[0].isalpha()]
    small = ("a", "an", "the", "and", "but", "or", "nor", "of", "in", "on", "at", "to", "for", "by", "with", "as")
    major = [word for place, word in enumerate(words) if place == 0 or word not in small]
    return bool(words) and not any(word.islower() or _is_swapped(word) for word in major)


def output_template(text: str) -> bool:
    """Return whether a response has the three headings of IFBench's output template in order."""
    places = [text.find(heading) for heading in TEMPLATE]
    return places[0] >= 0 and places == sorted(set(places))


def no_whitespace(text: str) -> bool:
    return not any(map(str.isspace, text.strip("\n")))


def _listed(options: Sequence[str] | str) -> list[str]:
    """Return the allowed options, given as a list or as a text that divides them by a slash, "or" or a comma."""
    if not isinstance(options, str):
        return list(options)
    for divider in ("/", " or ", ","):
        if divider in options:
            return options.split(divider)
    return [options]


def _bare(text: str) -> str:
    return text.strip(MARKS + " \n\t").casefold()


def _is_swapped(word: str) -> bool:
    """Return whether only the first letter of a word is in lower case, as in "tEA"."""
    return word[0].islower() and word[1:].isupper()


FORMATS: dict[str, Callable[..., bool]] = {
    "format:parentheses": parentheses,
    "format:quotes": quotes,
    "format:options": options,
    "format:newline": newline,
    "format:emoji": emoji,
    "format:line_indent": line_indent,
    "format:quote_unquote": quote_unquote,
    "format:list": list_items,
    "format:thesis": thesis,
    "format:sub-bullets": sub_bullets,
    "format:no_bullets_bullets": no_bullets_bullets,
    "format:title_case": title_case,
    "format:output_template": output_template,
    "format:no_whitespace": no_whitespace,
}


def multiples(text: str) -> bool:
    """Return whether the numbers in a response are the multiples of 7 from 10 to 50 in order."""
    numbers = re.findall(r"\d+", text)
    return numbers == ["14", "21", "28", "35", "42", "49"]


def mcq_count_length(text: str) -> bool:
    """Return whether a response has four questions of five options each, with questions of growing length.

    The length of a question is that of the lines before its options.
    """
    starts = [found.start() for found in _QUESTION.finditer(text)]
    if len(starts) != 4 or text[: starts[0]].strip():
        return False
    lengths = []
    for start, end in pairwise([*starts, len(text)]):
        lines = lines_of(text[start:end])
        is_option = [_OPTION.match(line) is not None for line in lines]
        if sum(is_option) != 5:
            return False
        asked = lines[: is_option.index(True)]
        lengths.append(sum(map(len, asked)))
    return all(later > earlier for earlier, later in pairwise(lengths))


def reverse_newline(text: str) -> bool:
    """Return whether a response lists the countries of Africa from Z to A, one on each line.

    The list begins at Zimbabwe, ends with the response, and has at least `NUM_COUNTRIES` lines.
    """
    lines = [without_accents(line).strip(MARKS + string.whitespace) for line in lines_of(text)]
    if LAST_COUNTRY not in lines:
        return False
    countries = lines[lines.index(LAST_COUNTRY) :]
    return len(countries) >= NUM_COUNTRIES and countries == sorted(countries, reverse=True)


def word_reverse(text: str) -> bool:
    """Return whether a response is a sentence about the bald eagle with its words in reverse order."""
    words = words_of(text.lower())
    return "bald eagle" in " ".join(reversed(words)) and len(words) > 2


def character_reverse(text: str) -> bool:
    """Return whether a response has the words "bald eagle" with their letters in reverse order."""
    return "elgae dlab" in text.lower()


def european_capitals_sort(text: str) -> bool:
    """Return whether a response lists Europe's capitals north of 45 degrees from north to south, between commas."""
    capitals = [part.strip(" .\n") for part in without_accents(text).split(",")]
    return capitals == CAPITALS.split()


def csv_city(text: str) -> bool:
    header = next(csv.reader(lines_of(text)), None)
    return _rows(text, ",", num_rows=7) is not None and header == CITY_COLUMNS


def csv_special_character(text: str) -> bool:
    """Return whether a response is the requested CSV table of products, with a special character in a quoted field.

    A special character is no letter, digit or space.
    """
    rows = _rows(text, ",", num_rows=14)
    quoted = _QUOTED_FIELD.findall(text)
    has_special = any(re.search(r"[^\w\s]", field) for field in quoted)
    return rows is not None and rows[0] == PRODUCT_COLUMNS and has_special


def csv_quotes(text: str) -> bool:
    """Return whether a response is the requested table of students, divided by tabs, with every field in quotes."""
    rows = _rows(text, "\t", num_rows=3)
    fields = []
    for line in lines_of(text):
        fields += [field.strip() for field in line.split("\t")]
    are_quoted = all(len(field) > 1 and field[0] == field[-1] == '"' for field in fields)
    return rows is not None and rows[0] == STUDENT_COLUMNS and are_quoted


def date_format_list(text: str) -> bool:
    """Return whether a response lists days of Napoleon's life as YYYY-MM-DD, with commas between them."""
    days = [part.strip() for part in text.strip().split(",")]
    return all(map(_is_day_of_napoleon, days))


def repeat_change(text: str, prompt_to_repeat: str) -> bool:
    """Return whether a response repeats the text `prompt_to_repeat` with only its first word changed."""
    wanted = prompt_to_repeat.split()
    given = text.split()
    return given[1:] == wanted[1:] and given[:1] != wanted[:1]


def repeat_simple(text: str) -> bool:
    """Return whether a response is IFBench's instruction itself, word for word."""
    return text.strip().lower() == REPEATED.lower()


def repeat_span(
    text: str,
    prompt_to_repeat: str,
    n_start: int,
    n_end: int,
) -> bool:
    """Return whether a response is words `n_start` to `n_end` of `prompt_to_repeat`, both included, counted from 0."""
    wanted = prompt_to_repeat.lower().split()
    return text.lower().split() == wanted[n_start : n_end + 1]


def _rows(text: str, delimiter: str, num_rows: int) -> list[list[str]] | None:
    """Return the rows of a table with five columns, or None if the text is no such table.

    `num_rows` is the number of rows after the header, which is returned as the first row.
    """
    rows = []
    for row in csv.reader(lines_of(text), delimiter=delimiter, skipinitialspace=True):
        rows.append([field.strip() for field in row])
    if len(rows) != num_rows + 1 or any(len(row) != 5 for row in rows):
        return None
    return rows


def _is_day_of_napoleon(text: str) -> bool:
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) is None:
        return False
    try:
        year = date.fromisoformat(text).year
    except ValueError:
        return False
    first, last = NAPOLEON
    return first <= year <= last


TASKS: dict[str, Callable[..., bool]] = {
    "custom:multiples": multiples,
    "custom:mcq_count_length": mcq_count_length,
    "custom:reverse_newline": reverse_newline,
    "custom:word_reverse": word_reverse,
    "custom:character_reverse": character_reverse,
    "custom:european_capitals_sort": european_capitals_sort,
    "custom:csv_city": csv_city,
    "custom:csv_special_character": csv_special_character,
    "custom:csv_quotes": csv_quotes,
    "custom:date_format_list": date_format_list,
    "repeat:repeat_change": repeat_change,
    "repeat:repeat_simple": repeat_simple,
    "repeat:repeat_span": repeat_span,
}
