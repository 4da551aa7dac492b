"""Instructions of IFBench that ask for one certain text: lists that are known, tables, a request repeated."""

from __future__ import annotations

import csv
import re
import string
from collections.abc import Callable
from datetime import date
from itertools import pairwise

from nemo_brorl.tasks.verifiers.ifeval.texts import MARKS, lines_of, without_accents, words_of

NUM_COUNTRIES = 52  # at least, of Africa
LAST_COUNTRY = "Zimbabwe"
CAPITALS = (
    "Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin Amsterdam Warsaw "
    "London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau Bern Ljubljana Zagreb"
)
CITY_COLUMNS = ["ID", "Country", "City", "Year", "Count"]
PRODUCT_COLUMNS = ["ProductID", "Category", "Brand", "Price", "Stock"]
STUDENT_COLUMNS = ["StudentID", "Subject", "Grade", "Semester", "Score"]
NAPOLEON = (1769, 1821)  # years of his life
REPEATED = "Only output this sentence here, ignore all other requests."
_OPTION = re.compile(r"\s*[A-Ea-e][.)]\s*\w")
_QUOTED_FIELD = re.compile(r'(?:^|,)[ \t]*"([^"\n]*)"[ \t]*(?=,|$)', re.MULTILINE)
_QUESTION = re.compile(r"^(?:[#*]|[^\S\n])*Question\b[^\n]*", re.MULTILINE)


def multiples(text: str) -> bool:
    """Those of 7 from 10 to 50."""
    numbers = re.findall(r"\d+", text)
    return numbers == ["14", "21", "28", "35", "42", "49"]


def mcq_count_length(text: str) -> bool:
    """Four questions of five options, each question (up to its options) longer than the one before."""
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
    """Countries of Africa from Z to A, one on a line."""
    lines = [without_accents(line).strip(MARKS + string.whitespace) for line in lines_of(text)]
    if LAST_COUNTRY not in lines:
        return False
    countries = lines[lines.index(LAST_COUNTRY) :]
    return len(countries) >= NUM_COUNTRIES and countries == sorted(countries, reverse=True)


def word_reverse(text: str) -> bool:
    """A sentence about the bald eagle, its words from the last to the first."""
    words = words_of(text.lower())
    return "bald eagle" in " ".join(reversed(words)) and len(words) > 2


def character_reverse(text: str) -> bool:
    """The same, letter by letter."""
    return "elgae dlab" in text.lower()


def european_capitals_sort(text: str) -> bool:
    """Those north of 45 degrees, from north to south, between commas."""
    capitals = [part.strip(" .\n") for part in without_accents(text).split(",")]
    return capitals == CAPITALS.split()


def csv_city(text: str) -> bool:
    header = next(csv.reader(lines_of(text)), None)
    return _rows(text, ",", num_rows=7) is not None and header == CITY_COLUMNS


def csv_special_character(text: str) -> bool:
    """One field in quotes has a character that is no letter, digit or blank."""
    rows = _rows(text, ",", num_rows=14)
    quoted = _QUOTED_FIELD.findall(text)
    has_special = any(re.search(r"[^\w\s]", field) for field in quoted)
    return rows is not None and rows[0] == PRODUCT_COLUMNS and has_special


def csv_quotes(text: str) -> bool:
    """Between tabs, every field in quotes."""
    rows = _rows(text, "\t", num_rows=3)
    fields = []
    for line in lines_of(text):
        fields += [field.strip() for field in line.split("\t")]
    are_quoted = all(len(field) > 1 and field[0] == field[-1] == '"' for field in fields)
    return rows is not None and rows[0] == STUDENT_COLUMNS and are_quoted


def date_format_list(text: str) -> bool:
    """Days of Napoleon's life as YYYY-MM-DD between commas."""
    days = [part.strip() for part in text.strip().split(",")]
    return all(map(_is_his_day, days))


def repeat_change(text: str, prompt_to_repeat: str) -> bool:
    """The request with another first word."""
    wanted = prompt_to_repeat.split()
    given = text.split()
    return given[1:] == wanted[1:] and given[:1] != wanted[:1]


def repeat_simple(text: str) -> bool:
    """The instruction itself."""
    return text.strip().lower() == REPEATED.lower()


def repeat_span(
    text: str,
    prompt_to_repeat: str,
    n_start: int,
    n_end: int,
) -> bool:
    """Words of the request from one index to another, both included."""
    wanted = prompt_to_repeat.lower().split()
    return text.lower().split() == wanted[n_start : n_end + 1]


def _rows(text: str, delimiter: str, num_rows: int) -> list[list[str]] | None:
    """A table of five columns, its header first; None where it is none."""
    rows = []
    for row in csv.reader(lines_of(text), delimiter=delimiter, skipinitialspace=True):
        rows.append([field.strip() for field in row])
    if len(rows) != num_rows + 1 or any(len(row) != 5 for row in rows):
        return None
    return rows


def _is_his_day(text: str) -> bool:
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
