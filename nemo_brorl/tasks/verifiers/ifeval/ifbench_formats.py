"""Instructions of IFBench about the form of a response: brackets, quotes, lists, lines, case."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from nemo_brorl.tasks.verifiers.ifeval.texts import MARKS, lines_of, sentences_of, words_of

CLOSING = {"(": ")", "[": "]", "{": "}"}
MIN_BRACKETS = 5  # levels
MIN_QUOTES = 3
TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")
_EMOJI = re.compile(r"[\u203c-\u3299\U0001f000-\U0001faff][\ufe0f\u200d\U0001f3fb-\U0001f3ff]*")
_ITALICS = re.compile(r"<(i|em)>(.*?)</\1>(.*)", re.DOTALL)


def parentheses(text: str) -> bool:
    """Five levels of brackets within one another, and closed."""
    opened: list[str] = []
    deepest = 0
    for character in text:
        if character in CLOSING:
            opened.append(character)
            deepest = max(deepest, len(opened))
        elif character in CLOSING.values():
            if not opened or CLOSING[opened.pop()] != character:
                opened = []
                deepest = 0
            elif not opened and deepest >= MIN_BRACKETS:
                return True
    return False


def quotes(text: str) -> bool:
    """Three levels of quotes within one another, double and single in turn, and closed."""
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
    """One of them and nothing else, marks around it and case aside."""
    given = _bare(text)
    return any(_bare(option) == given for option in _listed(options))


def newline(text: str) -> bool:
    """One word on each line."""
    lines = [words_of(line) for line in lines_of(text)]
    return bool(lines) and all(len(words) <= 1 for words in lines)


def emoji(text: str) -> bool:
    """One at the end of every sentence, before its mark or behind it."""
    ends = []
    rest = text.strip()
    for sentence in sentences_of(text):
        _, _, rest = rest.partition(sentence)
        bare = sentence.rstrip(MARKS + " ")
        is_inside = _EMOJI.fullmatch(bare[-1:]) or _EMOJI.search(bare[-3:])
        ends.append(bool(is_inside or _EMOJI.match(rest.lstrip())))
    return bool(ends) and all(ends)


def line_indent(text: str) -> bool:
    """Every line is indented further than the one before."""
    indents = [len(line) - len(line.lstrip()) for line in lines_of(text)]
    return all(later > earlier for earlier, later in pairwise(indents))


def quote_unquote(text: str) -> bool:
    """Something unquoted stands behind every quote."""
    straight = text.replace("“", '"').replace("”", '"')
    parts = straight.split('"')
    if len(parts) < 3 or len(parts) % 2 == 0:
        return len(parts) == 1
    behind = parts[2::2]
    return all(_bare(part) for part in behind)


def list_items(text: str, sep: str) -> bool:
    """Two lines or more that begin with the mark."""
    items = [line for line in lines_of(text) if line.lstrip().startswith(sep)]
    return len(items) > 1


def thesis(text: str) -> bool:
    """Words in italics of HTML, and something behind them."""
    found = _ITALICS.search(text)
    return found is not None and bool(found[2].strip()) and bool(found[3].strip())


def sub_bullets(text: str) -> bool:
    """Points by *, each with one by - below it."""
    sizes: list[int] = []  # of each point, in lines below it
    for line in lines_of(text):
        mark = line.strip()[0]
        if mark == "*":
            sizes.append(0)
        elif mark == "-" and sizes:
            sizes[-1] += 1
    return bool(sizes) and all(sizes)


def no_bullets_bullets(text: str) -> bool:
    """Two sentences that end in a full stop, then two points by * and nothing more."""
    lines = [line.strip() for line in lines_of(text)]
    is_point = [line.startswith("*") for line in lines]
    num_points = sum(is_point)
    num_lines = len(lines) - num_points
    if num_points < 2 or any(is_point[:num_lines]):
        return False
    prose = sentences_of("\n".join(lines[:num_lines]))
    return sum(sentence.endswith(".") for sentence in prose) >= 2


def title_case(text: str) -> bool:
    """Every word begins with its one capital, or is all capitals; small words may be small."""
    words = [word for word in words_of(text) if word[0].isalpha()]
    small = ("a", "an", "the", "and", "but", "or", "nor", "of", "in", "on", "at", "to", "for", "by", "with", "as")
    return bool(words) and all(word.isupper() or _is_capital(word) or word in small for word in words)


def output_template(text: str) -> bool:
    """Its three headings, in order."""
    places = [text.find(heading) for heading in TEMPLATE]
    return places[0] >= 0 and places == sorted(set(places))


def no_whitespace(text: str) -> bool:
    return not any(map(str.isspace, text.strip("\n")))


def _listed(options: Sequence[str] | str) -> list[str]:
    """Options of a list, or of a text that divides them by a slash, "or" or a comma."""
    if not isinstance(options, str):
        return list(options)
    for divider in ("/", " or ", ","):
        if divider in options:
            return options.split(divider)
    return [options]


def _bare(text: str) -> str:
    return text.strip(MARKS + " \n\t").casefold()


def _is_capital(word: str) -> bool:
    return word[0].isupper() and word[1:] in ("", word[1:].lower())


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
