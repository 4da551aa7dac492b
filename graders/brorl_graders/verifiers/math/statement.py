"""Find the answer that a text without a box states: after its last "answer is", else its last formula or number.

Such an answer is short: an expression, a list of them ("3 or 4"), a number with its unit, or a few words. A text that
names another possibility in words ("5 or maybe 6") states no answer.
"""

from __future__ import annotations

import re

from brorl_graders.verifiers.math.equation import is_to_be_solved
from brorl_graders.verifiers.math.lexer import tokens_of
from brorl_graders.verifiers.math.notation import in_one_notation, without_roots_in_words
from brorl_graders.verifiers.math.number_words import (
    SCALES,
    changes_a_number,
    changes_in_another_language,
    changes_the_next_number,
    follows_as_a_change,
    read_number_words,
)
from brorl_graders.verifiers.math.quantity import read_quantity
from brorl_graders.verifiers.math.reading import is_plain, read
from brorl_graders.verifiers.math.remarks import is_denied_at, is_denied_before, is_taken_back, without_remarks
from brorl_graders.verifiers.math.units import read_unit
from brorl_graders.verifiers.math.words import DATE_IN_TEXT

MAX_STATEMENT = 400  # characters after "answer is"
MAX_BARE = 500  # characters of a text that is only an answer
MAX_BEFORE = 40  # characters around a number in which a date or a first unit is looked for
PERCENT = ("percent", "per cent")
FEW_WORDS = 3  # words before a number that may change it
MAX_WORDS = 6  # words of an answer in words
_MARK = re.compile(
    r"####|(?:^|\n)[ \t]*(?:in total|total|result|final result)[ \t]*[:=]"
    r"|\b(?:r\u00e9ponse|respuesta|antwort|risposta|resposta|\u043e\u0442\u0432\u0435\u0442)[ \t]*"
    r"(?::|\b(?:est|es|ist|lautet|\u00e8|\u00e9)\b)"
    r"|\u0111\u00e1p \u00e1n l\u00e0"
    r"|\u7b54[ \t]*[:\uff1a]|\u7b54\u6848[ \t]*(?:[:\uff1a]|\u662f|\u4e3a)|\u7b54\u3048\u306f"
    r"|\b(?:it|program|code|function|script)[ \t]+(?:prints|returns|outputs)\b:?"
    r"|\b(?:answers?|output)\b(?:[ \t]*[:=]|[ \t]*\n|(?:[ \t]+(?:to|for|of|in|here)\b[^\n]{0,80}?)?"
    r"[ \t]+(?:is|are|was|were|equals?|(?:would|will|should|must)[ \t]+be)\b[ \t]*:?)",
    re.IGNORECASE,
)
_FORMULA = re.compile(
    r"(?<!\\)\$\$(?P<display>(?:[^$\\]|\\.)+)\$\$|(?<!\\)\$(?P<inline>(?:[^$\n\\]|\\.|(?<=[\\}])\n|\n(?=\\end))+)\$"
    r"|\\\((?P<round>(?:[^\\]|\\(?![()]))+)\\\)|\\\[(?P<square>(?:[^\\]|\\(?![\[\]]))+)\\\]",
    re.DOTALL,
)
_SO = re.compile(r"^(?:[-=]>|[→⇒∴=])\s*")
_BETWEEN = re.compile(r"\s*(?:,?\s*(?:and|or)|,|;)\s*")
_BOLD = re.compile(
    r"\$\\(?:blacksquare|square|Box|qed|checkmark)\$|(?<![\w)])\*\*|\*\*(?![\w(\\])|(?<!`)`(?!`)|```|</?(?:b|strong|i|em)>"
)
_PIECES = (
    r"\{,\}",
    r"[-+*/^=<>%!|(){}\[\]_\d \t]",
    "[−–×·÷≤≥√π∞±°⁰¹²³⁴-⁹⁺⁻½¼¾]",
    r"[.:](?=\d)",
    r"\.(?=\\(?:overline|bar|dot)\b|\(\d)",
    r"\.{3}",
    r",(?= (?:and|or) (?:[-−\d(\[{\\∞√π]|[A-Za-z](?![A-Za-z])))",
    r",(?=\s?(?:[-−\d(\[{\\∞√π]|(?:[A-Za-z]|inf(?:inity)?)(?![A-Za-z])))",
    r"\\(?:text(?:bf|it|rm)?|mathrm) ?\{[^{}]*\}",
    r"\\(?:[A-Za-z]+|[{},%!;: ])",
    r"(?<![A-Za-z\\])(?:sqrt|cbrt|pi|or|and|to|inf(?:inity)?)(?![A-Za-z])",
    r"(?<=\d)[eE](?=[-+]?\d)",
    r"(?<![A-Za-z'’])[A-Za-z](?![A-Za-z'’])",
)
_RUN = re.compile(f"(?:{'|'.join(_PIECES)})+")  # one expression or several
_TRIM_START = re.compile(r"^(?:[\s*/^=,:)\]}%!]|[-=]>|(?:or|and|to)\b|[aAI](?= ))+")
_TRIM_END = re.compile(r"(?:[\s*/^=<>,:(\[{+\-_]|\b(?:and|to)|(?<= )[aAI])+$")
_OTHER = re.compile(r"\bor\s*$")
_UNIT = re.compile(r"\s?[A-Za-z]+(?:\^?\{?-?\d\}?)?(?: ?(?:/|per) ?[A-Za-z]+(?:\^?\{?-?\d\}?)?)?")
_CLAUSE_END = re.compile(
    r"(?<!\.)\.(?=\s|$)|[;!?](?=\s+[A-Za-z]{2}|\s*$)|,(?=\s+(?!(?:and|or|inf(?:inity)?)\b)[A-Za-z]{2})"
)
_JOINING = frozenset(("and", "or", "mod"))
_SENTENCE_END = re.compile(r"[.;!?](?:\s|$)|,\s|\n")
_ONLY_WORDS = re.compile(r"[“\"‘]?[^\W\d_](?:[^\W\d_]|[\u0300-\u036f'’&“”\" -])*[.!]?")
_COUNTED = re.compile(r"[-+]?[^A-Za-z=]*\d[^A-Za-z=]*[A-Za-z][A-Za-z '/^{}²³]*\d?\}?\.?")  # 5 apples, 12.5 m/s^2
_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|operatorname|begin|end|mbox) ?\{[^{}]*\}|\\[A-Za-z]+")
_WORD = re.compile(r"(?<![A-Za-z\d{])[A-Za-z]{2,}(?![A-Za-z}^_])")  # no match in 3qr and {CD}
_FUNCTION_NAMES = """arcsin arccos arctan exp sinh cosh tanh inf infinity sin cos tan log ln sqrt pi max min mod or and
abs base cbrt choose floor ceil"""
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_SENTENCE = re.compile(  # such as "the value of x is …"
    r"[A-Za-z]{2,}\b[^\n]{0,200}?\b(?:is|are|equals)\b[ \t]*:?[ \t]*"
    r"(?=[^\n]*(?:\d|\$|\\\())"
)
_DOUBT = re.compile(r"[^.\n]*\b(?:maybe|perhaps|possibly)\b[^.\n]*\d")  # such as "5, maybe 6"
_SHARE = re.compile(r"\s*(?:per ?cent|\\?%)\s+of\b")
_DENIAL = re.compile(r"\b(?:not|unknown|never|cannot|nicht|pas|\u043d\u0435|n\u00e3o|no|non)\b", re.IGNORECASE)
_NOT_BUT = re.compile(r"^not (?=\S*\d)(?:\$[^$\n]+\$|\S+) but (?:rather )?")
_IN_WORDS = re.compile(r"\s*\(?([A-Za-z -]+)\)")
_VERB = re.compile(r"\b(?:is|are|was|were|equals|be)\b")
_ESTIMATE = re.compile(r",? (?:or|which is) (?:approximately|about|roughly) \$?")
_DENIED = re.compile(r"(?:\b(?:not|nicht|pas)|\u4e0d\u662f|\u5e76\u975e)\W*$|\d[^\d,.\u3002\uff0c]{0,4}\u6216\W*$")
_QUOTIENT = re.compile(r"/ ?\d+$")  # a factorial may follow at a text's end
_VERDICT = re.compile(r"\b(yes|no|true|false)(?=\s*(?:[,.;:!]|$))", re.IGNORECASE)
_STATUS = re.compile(
    r"\b(no (?:real |such )?solutions?(?: exists?)?|does not exist|infinitely many(?: solutions)?"
    r"|(?:(?<=is )|(?<=are )|^)(?:the set of )?all real(?: number)?s(?: except [^.\n]{1,30})?)\s*[.!]?\s*$",
    re.IGNORECASE,
)
_OTHER_SCRIPT = re.compile(
    r"[\u0400-\u052f\u0590-\u06ff\u0900-\u0e7f\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
)
_NEXT_WORD = re.compile(r"[ \t]+([A-Za-z]+)\b")
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b")
_CLOCK_END = re.compile(r" ?[ap]\.?m\b\.?", re.IGNORECASE)
_COUNT_BEFORE = re.compile(r"\d+ (?:[A-Za-z]+,? ?(?:and )?|out of ?)$")
_DENIED_LAST_NUMBER = re.compile(r",\s(?:and\s)?not\s(?:\$[^$\n]+\$|[-\d][^\s,;]*?)(?:\s[a-z]+)?(?=[.!]?\s*$)")
_BOUND = re.compile(r" at (?:most|least)\b")
_PLAIN_NUMBER = re.compile(r"[-+]?[\d.,]*\d")
_CODE = re.compile(r"[A-Z][A-Za-z()]*\d[\w()]*")
_SIGN_WORD = re.compile(r"\b(?:negative|minus)[ \t]*$", re.IGNORECASE)


def stated_answer(text: str, may_be_words: bool = True) -> str | None:
    """Return the answer that a text states, in the text's own notation, or None if it states none.

    `may_be_words`: a text of a few words is an answer, even if it does not say so.
    """
    plain = without_roots_in_words(_BOLD.sub("", text))
    said = None
    for mark in _MARK.finditer(plain):
        said = mark
    if said is not None:
        if is_denied_before(plain, said.start()):
            return None
        may_exclaim = not said[0].rstrip().endswith((":", "#", "="))
        return _first_in(plain[said.end() : said.end() + MAX_STATEMENT].strip(), may_exclaim)
    if is_bare(plain) and (may_be_words or not _ONLY_WORDS.fullmatch(plain.strip())):
        return _SO.sub("", plain.strip()) or None
    verdicts = _VERDICT.findall(plain) if _VERDICT.match(plain.strip()) else ()
    if len(verdicts) == 1:
        return verdicts[0]
    status = _STATUS.search(plain, max(len(plain) - MAX_STATEMENT, 0))
    return status[1] if status else _last_in(plain)


def first_mark(text: str) -> int:
    """Return the start of the first phrase such as "answer is" in a text, or -1 if there is none."""
    mark = _MARK.search(text)
    return mark.start() if mark else -1


def last_mark(text: str) -> int:
    """Return the start of the last phrase such as "answer is" in a text, or -1 if there is none."""
    start = -1
    for mark in _MARK.finditer(text):
        start = mark.start()
    return start


def is_bare(text: str) -> bool:
    """Return whether a text is only an answer: an expression, a number with a unit, or a few words."""
    plain = text.strip()
    if "\n" in plain or len(plain) > MAX_BARE:
        return False
    if len(_OTHER_SCRIPT.findall(plain)) > 1 and any(map(str.isdigit, plain)):
        return False
    words = _words(plain)
    if not words or _ONLY_WORDS.fullmatch(plain):
        return len(words) <= MAX_WORDS
    counted = _COUNTED.fullmatch(plain)
    return counted is not None and len(words) < MAX_WORDS and not changes_a_number(plain)


def is_prose(text: str) -> bool:
    """Return whether a reference is a text with an answer in it, by a phrase such as "answer is" or a formula."""
    if _MARK.search(text):
        return True
    has_formula = _FORMULA.search(text) is not None
    return has_formula and bool(_words(_FORMULA.sub(" ", text)))


def _words(text: str) -> list[str]:
    """Return the words of prose in a text, without names of functions and LaTeX's text commands."""
    plain = _COMMAND.sub(" ", text)
    return [word for word in _WORD.findall(plain) if word.lower() not in _FUNCTIONS]


def _first_in(statement: str, may_exclaim: bool) -> str | None:
    """Return the first answer in the text after "answer is", or None if there is none or it is in doubt.

    `may_exclaim`: the text ends a sentence, so that its last `!` is no factorial.
    """
    sentence = _SENTENCE.match(statement)
    if sentence:
        statement = statement[sentence.end() :]
    statement = without_remarks(_NOT_BUT.sub("", statement))
    date = DATE_IN_TEXT.match(statement)
    if date:
        return date[0]
    formula = _FORMULA.search(statement)
    line, _, _ = statement.partition("\n")
    clause = _first_clause(line, may_exclaim)
    number = _PLAIN_NUMBER.match(clause)
    if number and changes_in_another_language(clause, 0, number.end()):
        return None
    if not formula and any(map(str.isdigit, clause)) and _is_read(clause):
        rest = line[line.index(clause) + len(clause) :]
        return None if _DOUBT.match(rest) or is_taken_back(rest, 0) else clause
    for run in _RUN.finditer(line):
        if formula and formula.start() <= run.end():
            break
        found = _trimmed(line, run)
        if found and (not line[: run.start()].strip() or any(map(str.isdigit, found))):
            sign = "-" if _SIGN_WORD.search(line[: run.start()]) else ""
            return None if _is_changed(line, run, found) else sign + found
    if formula:
        before = statement[: formula.start()]
        if changes_the_next_number(before) or is_taken_back(statement, formula.end()):
            return None
        sign = "-" if _SIGN_WORD.search(before) else ""
        return sign + _group(statement, formula)
    return _first_words(line)


def _first_clause(line: str, may_exclaim: bool) -> str:
    clause = _CLAUSE_END.split(line, 1)[0].strip()
    is_factorial = line == f"{clause}!" and (_QUOTIENT.search(clause) or not may_exclaim)
    return line if is_factorial else clause


def _first_words(line: str) -> str | None:
    status = _STATUS.search(line)
    if status is None:
        return _SENTENCE_END.split(line)[0].strip() or None
    return None if _DENIAL.search(line, 0, status.start()) else status[1]


def _is_read(clause: str) -> bool:
    return _is_expression(clause) or is_plain(read(in_one_notation(clause)))


def _is_expression(clause: str) -> bool:
    """Return whether a clause is an expression as a whole, with names of functions and units, and no other words."""
    return (
        all(word in _JOINING or read_unit(word) is not None for word in _words(clause))
        and _OTHER.search(clause) is None
    )


def _is_changed(line: str, run: re.Match[str], found: str) -> bool:
    """Return whether words before or after an answer deny it, doubt it or make something else of it."""
    place = run.start() + len(run[0].rstrip())
    if changes_the_next_number(line[: run.start()]) or _DOUBT.match(line[run.end() :]) or is_taken_back(line, place):
        return True
    in_words = _IN_WORDS.match(line, place)
    if in_words and read_number_words(in_words[1]) is not None:
        return True
    if _BOUND.match(line, place) or changes_in_another_language(line, run.start(), place):
        return True
    if _SHARE.match(line, place) or _DENIAL.search(line, 0, run.start()):
        return True
    next_word = _NEXT_WORD.match(line, place)
    return next_word is not None and not found[-1].isalpha() and follows_as_a_change(next_word[1])


def _last_in(text: str) -> str | None:
    """Return the last formula or number of a text, or None if it has none."""
    text = _DENIED_LAST_NUMBER.sub("", without_remarks(text))
    best = None
    last = -1
    group_start = None
    for formula in _FORMULA.finditer(text):
        if group_start is None or not _BETWEEN.fullmatch(text[last : formula.start()]):
            group_start = formula
        last = formula.end()
    if group_start is not None:
        best = None if _is_changed_at_the_end(text, group_start.start(), last) else _group(text, group_start)
    for run in _RUN.finditer(text, max(last, 0)):
        found = _trimmed(text, run)
        if found and any(map(str.isdigit, found)):
            end = run.start() + len(run[0].rstrip())
            if best and _ESTIMATE.fullmatch(text, last, text.find(found, run.start())):
                best = f"{best} \\approx {found}"
            else:
                best = None if _is_changed_at_the_end(text, run.start(), end) else _whole(text, run, found)
    return best


def _is_changed_at_the_end(text: str, start: int, end: int) -> bool:
    """Return whether words next to the last number or formula of a text deny it or make something else of it."""
    before = _SENTENCE_END.split(text[max(start - MAX_STATEMENT, 0) : start])[-1].split()
    few = _VERB.split(" ".join(before[-FEW_WORDS:]))[-1] + " "
    next_word = _NEXT_WORD.match(text, end) if not before and not start else None
    return (
        changes_the_next_number(few)
        or _DENIED.search(few) is not None
        or (next_word is not None and follows_as_a_change(next_word[1]))
        or changes_in_another_language(text, start, end)
        or is_denied_at(text, start)
        or is_taken_back(text, end)
    )


def _whole(text: str, run: re.Match[str], found: str) -> str:
    """Return the date, chemical formula, share ("3 out of 4") or quantity in two units that ends in a number, or it."""
    start = max(run.start() - MAX_BEFORE, 0)
    for pattern in (DATE_IN_TEXT, _CODE):
        for whole in pattern.finditer(text, start, run.end() + MAX_BEFORE):
            if whole.start() <= text.find(found, run.start()) < whole.end():
                return whole[0]
    first = _COUNT_BEFORE.search(text, start, run.start())
    both = f"{first[0].strip()} {found}" if first else found
    is_one = first is not None and (first[0].rstrip().endswith(" of") or read_quantity(tokens_of(both)) is not None)
    return both if is_one else found


def _group(text: str, first: re.Match[str]) -> str:
    """Return the contents of a formula and of the formulas listed right after it, such as `$1$, $2$ and $3$`.

    A single formula keeps the unit after it.
    """
    contents = []
    place = first.end()
    formula: re.Match[str] | None = first
    while formula:
        inside = formula["display"] or formula["inline"] or formula["round"] or formula["square"]
        contents.append(inside.strip())
        place = formula.end()
        between = _BETWEEN.match(text, place)
        formula = _FORMULA.match(text, between.end()) if between else None
    while len(contents) > 1 and is_to_be_solved(in_one_notation(contents[0])):
        contents = contents[1:]
    joined = ", ".join(contents)
    return joined if len(contents) > 1 else joined + _unit_at(text, place)


def _trimmed(text: str, run: re.Match[str]) -> str | None:
    """Return the expression in a run of signs and numbers, with the unit after it.

    None: it has no expression, or "or" follows with another answer in words.
    """
    inside = _TRIM_START.sub("", run[0])
    if _OTHER.search(inside) or _ORDINAL.match(text, run.end()):
        return None
    trimmed = _TRIM_END.sub("", inside)
    trimmed = _balanced(trimmed)
    if not trimmed:
        return None
    if run[0].rstrip().endswith(trimmed):
        return trimmed + _unit_at(text, run.start() + len(run[0].rstrip()))
    return trimmed


def _unit_at(text: str, place: int) -> str:
    """Return the known unit of measurement at a position in a text, with a space before it, or "" if there is none."""
    clock = _CLOCK_END.match(text, place) if text[place - 3 : place - 2] == ":" else None
    if clock:
        return f" {clock[0].strip()}"
    word = _NEXT_WORD.match(text, place)
    if word and word[1].lower() in SCALES:
        return f" {word[1]}{_unit_at(text, word.end())}"
    unit = _UNIT.match(text, place)
    if unit is None:
        return ""
    name = unit[0].strip()
    is_unit = name in PERCENT or (name != "in" and read_unit(name) is not None)  # "5 in all" has no inches
    return f" {name}" if is_unit else ""


def _balanced(text: str) -> str:
    """Remove a bracket at the start or end of an expression if its other half is missing."""
    plain = text.strip()
    num_opened = plain.count("(") + plain.count("[")
    num_closed = plain.count(")") + plain.count("]")
    if num_closed > num_opened and plain[-1] in ")]":
        return plain[:-1].strip()
    if num_opened > num_closed and plain[0] in "([":
        return plain[1:].strip()
    return plain
