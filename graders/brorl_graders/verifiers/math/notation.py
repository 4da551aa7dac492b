"""Bring a mathematical answer into one notation: the tokens of plain LaTeX, and one form of what has several.

The tokens of `$\\displaystyle\\sqrt{2}$.` are those of `\\sqrt{2}`, those of `62\\,459\\,740` of `62 459 740`, those of
`5 choose 2` of `\\binom{5}{2}`, and those of `**5**` of `5`. The meaning of an answer never changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from brorl_graders.verifiers.math.lexer import tokens_of
from brorl_graders.verifiers.math.tokens import SPACE, Tokens, is_enclosed, stripped, text_of

MAX_WRAPPINGS = 8  # levels of braces, stars or quotes around a whole answer

_BRACED = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"
_FORMULA_IN_TEXT = re.compile(rf"[\s$]*\\(?:text(?:bf|it|rm)?|mbox|mathrm)\s*\{{((?=.*\d){_BRACED})\}}[\s$.]*")
_ROOT_IN_WORDS = re.compile(r"\b(?:the )?(square|cube) root of (?=\d)", re.IGNORECASE)
_COMMAND_START = re.compile(r"(?<!\\)\\(?!\\)")
_LONE_DOLLAR = re.compile(r"(?<=^)\$(?=\d)|(?<=^-)\$(?=\d)")
_VECTOR_FONTS = ("\\mathbf", "\\boldsymbol", "\\bm", "\\hat", "\\vec")
_UNIT_VECTORS = re.compile(
    r" ?([-+]?) ?((?:\d[\d.]*|\\frac ?\{[^{}]*\}\{[^{}]*\})?) ?\\(?:mathbf|boldsymbol|bm|hat|vec)"
    r" ?\{? ?(?:\\(?:mathbf|hat) ?\{ ?)?\\?([ijk])(?:math)?(?![A-Za-z]) ?\}* ?"
)
_PRIMES = re.compile(r"\^(?:\{('+)\}|')")
_CIRCLE = re.compile(r"\^\{(?:\\circ|(?<=\d\^\{)o)\}")
_SLASHED = re.compile(r"\^\{(\d+)\}/_\{(\d+)\}")
_DERIVATIVE = re.compile(r"\\frac\{d ?([A-Za-z])\}\{d ?[a-z]\}")
_NAMED_SIGN = re.compile(r"(?:\\text\{(angle|triangle)\}|(?<![\\A-Za-z])(angle|triangle)) ?(?=[A-Z]{1,3}(?![a-z]))")
_INFINITY = re.compile(
    r"\\text\{(?P<less>negative |minus )?infinity\}"
    r"|(?<![\\A-Za-z])(?P<minus>negative |minus )?inf(?:inity)?(?![A-Za-z])"
)
_COMBINATION = re.compile(
    r"(?<![A-Za-z\d^_}])(?:[\^_]\{(\d+)\} ?C_\{(\d+)\}|(\d+) ?C ?(?:_\{)?(\d+)\}?(?![\dA-Za-z_])"
    r"|C_\{(\d+)\}\^\{(\d+)\})"
)
_LETTER = r"\{(\d*[A-Za-z](?:[-+]\d+)?|\d)\}"
_COMBINATION_OF_LETTERS = re.compile(rf"(?<![A-Za-z\d^_}}])C_{_LETTER}\^{_LETTER}")
_OVER = re.compile(r"^(\d+) (?:over|out of) (\d+)$")
_CHOOSE = re.compile(r"^(\d+) choose (\d+)$")
_FACTORIAL = re.compile(r"^(\d+) factorial$")
_GROUPED = re.compile(r"(?<![\w.])[1-9]\d{0,2}(?:(?:\.\d{3}){2,}|(?:'\d{3})+|(?:_\d{3})+)(?![\w.'])")
_SEPARATOR = re.compile(r"[._']")
_NUMBER = r"[1-9]\d{0,2}(?:,\d{3})+(?![\d,])"
_THOUSANDS_IN_A_LIST = re.compile(
    rf"(?<![\d.,]){_NUMBER}(?=[^,;]*?(?:[,;] |;|and|or))|(?:(?<=[,;] )|(?<=and )|(?<=or )){_NUMBER}"
)
_SPLIT_DECIMAL = re.compile(r"(?<=\d)\. (?=\d)")
_ANGLED = re.compile(r"^<([^<>=]*,[^<>=]*)>$")
_ROW = re.compile(r"^(?:\\begin\{([pb])matrix\}([^\\]*&[^\\]*)\\end\{\1matrix\}|\(([^()]*,[^()]*)\))\^\{T\}$")
_ROWS = re.compile(r"^\[(\[[^\[\]]*,[^\[\]]*\](?:, ?\[[^\[\]]*\])*)\]$")
_UNION_LETTER = re.compile(r"(?<=[)\]]) ?U ?(?=[(\[])")
_OPENED_OUTWARD = re.compile(r"(^|\\(?:in|cup))\](?=[^\[\]]*[,;][^\[\]]*[\[\])])")
_CLOSED_OUTWARD = re.compile(r"(?<=[\w}) ])\[(?=$|\\cup)")
_COMPARISONS = {"greater than": ">", "more than": ">", "less than": "<", "at least": "\\ge ", "at most": "\\le "}
_COMPARED = re.compile(
    rf"^([A-Za-z]) ?(?:\\text\{{)?is ({'|'.join(_COMPARISONS)})(?P<equal> or equal to)?\}}? ?(?=[-.\d\\])"
)
_MATRIX_CALL = re.compile(r"\\(det|dim|deg) ([A-Z])(?![A-Za-z({\\])")
_CASES = re.compile(r"\\begin\{cases\}((?:(?!\\begin)[^&])*)\\end\{cases\}")
_QUOTES = frozenset("\"'“”「」")
_START = (":", ";", SPACE)
_END = (*_START, ",", ".", "。", "．", "！")
_CURRENCY = re.compile(r"^(-?)(?:US ?(?=\\\$))?(\\\$|[€£¥₹]|USD|EUR) ?(\.?\d[\d.,]*)(?=$|(.))")
_CURRENCIES = {"\\$": "dollars", "USD": "dollars", "EUR": "euros", "€": "euros", "¥": "yen", "₹": "rupees"}
_CURRENCIES |= {"£": "pounds sterling"}
_AFTER = re.compile(
    r"(?<=\d) ?[\u2600-\u27bf\ufe0f\U0001f000-\U0001faff]+$|(?<=\d)(?:です|である|だ|입니다|이다|이에요|예요)$"
)


@lru_cache(maxsize=1024)
def in_one_notation(text: str) -> Tokens:
    """Return the tokens of an answer in plain LaTeX, without a currency's sign, quotes, or full stop at its end."""
    if text.isdecimal() and text.isascii():
        return (text,)
    if "\\\\" in text and _COMMAND_START.search(text) is None:
        # It was escaped for a string of a program.
        text = text.replace("\\\\", "\\")
    if text.count("$") == 1:
        text = _LONE_DOLLAR.sub(r"\\$", text)
    in_text = _FORMULA_IN_TEXT.fullmatch(text) if "\\" in text else None
    if in_text:
        text = in_text[1]
    tokens = _unwrapped(tokens_of(_of_unit_vectors(without_roots_in_words(text))))
    plain = text_of(tokens)
    form = _in_one_form(plain)
    return tokens if form == plain else tokens_of(form)


def _in_one_form(text: str) -> str:
    """Write what has several forms in one of them: thousands, primes, degrees, binomials, brackets of intervals."""
    for sign, pattern, form in _FORMS:
        if sign in text:
            text = pattern.sub(form, text)
    return text


def without_roots_in_words(text: str) -> str:
    """Write "the square root of 7" as `sqrt 7`, and "cube root of 7" as `cbrt 7`."""
    if "root of" not in text:
        return text
    return _ROOT_IN_WORDS.sub(lambda found: "sqrt " if found[1].lower() == "square" else "cbrt ", text)


def _of_unit_vectors(text: str) -> str:
    """Write `2\\mathbf{i}-\\mathbf{k}` as `(2, 0, -1)`."""
    terms = list(_UNIT_VECTORS.finditer(text)) if any(font in text for font in _VECTOR_FONTS) else []
    names = [term[3] for term in terms]
    if len(terms) < 2 or len(set(names)) < len(names) or _UNIT_VECTORS.sub("", text).strip(" $"):
        return text
    parts = {term[3]: f"{term[1]}{term[2] or 1}".removeprefix("+") for term in terms}
    return "(" + ", ".join(parts.get(name, "0") for name in "ijk"[: 3 if "k" in parts else 2]) + ")"


def _unwrapped(tokens: Tokens) -> Tokens:
    """Remove what surrounds a whole answer: stars, braces, quotes, and a full stop or comma."""
    for _ in range(MAX_WRAPPINGS):
        before = tokens
        tokens = stripped(tokens, _START, _END)
        if tokens[:1] == tokens[-1:] == ("*",):
            tokens = stripped(tokens, "*")
        if tokens and tokens[0] in _QUOTES and tokens[-1] in _QUOTES:
            inside = stripped(tokens, _QUOTES)
            tokens = inside if _QUOTES.isdisjoint(inside) else tokens
        if len(tokens) == 1 and tokens[0].startswith("\\text{"):
            words = tokens[0][6:-1]
            is_quoted = words[0] in _QUOTES and words[-1] in _QUOTES
            tokens = tokens_of(words) if is_quoted or any(map(str.isdigit, words)) else tokens
        if tokens[:1] == ("{",) and is_enclosed(tokens):
            tokens = tokens[1:-1]
        if tokens == before:
            break
    return tokens


def _as_currency(found: re.Match[str]) -> str:
    """Write `\\$5` as `5\\text{dollars}`, and `\\$5 million` as `5 million`."""
    unit = "" if found[4] else f"\\text{{{_CURRENCIES[found[2]]}}}"
    return f"{found[1]}{found[3]}{unit}"


def _as_comparison(found: re.Match[str]) -> str:
    sign = _COMPARISONS[found[2]]
    return found[1] + ({">": "\\ge ", "<": "\\le "}.get(sign, sign) if found["equal"] else sign)


def _as_binomial(found: re.Match[str]) -> str:
    top, bottom = sorted((int(number) for number in found.groups() if number), reverse=True)
    return f"\\binom{{{top}}}{{{bottom}}}"


def _as_list(found: re.Match[str]) -> str:
    """Write the rows of `cases` as a list."""
    return ", ".join(row.strip(" ,;") for row in found[1].split("\\\\") if row.strip())


def _as_matrix(found: re.Match[str]) -> str:
    rows = found[1].strip("[] ").split("]")
    plain = "\\\\".join(row.strip(" ,[").replace(",", "&") for row in rows)
    return f"\\begin{{pmatrix}}{plain}\\end{{pmatrix}}"


def _as_column(found: re.Match[str]) -> str:
    entries = re.split("[&,]", found[2] or found[3])
    return "\\begin{pmatrix}" + "\\\\".join(entries) + "\\end{pmatrix}"


# A sign that a text needs, the pattern of a form, and what is written instead, in this order.
_FORMS: tuple[tuple[str, re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    ("", _AFTER, ""),
    ("", _CURRENCY, _as_currency),
    ("", _GROUPED, lambda found: _SEPARATOR.sub("", found[0])),
    ("^", _PRIMES, lambda found: found[1] or "'"),
    ("^", _CIRCLE, r"^\\circ"),
    ("^", _SLASHED, r"\\frac{\1}{\2}"),
    ("\\frac", _DERIVATIVE, r" \1'"),
    ("\\d", _MATRIX_CALL, r"\\\1(\2)"),
    ("\\begin", _CASES, _as_list),
    ("angle", _NAMED_SIGN, lambda found: f"\\{found[1] or found[2]} "),
    ("inf", _INFINITY, lambda found: "-\\infty " if found["less"] or found["minus"] else "\\infty "),
    ("C", _COMBINATION, _as_binomial),
    ("C", _COMBINATION_OF_LETTERS, r"\\binom{\1}{\2}"),
    ("is ", _COMPARED, _as_comparison),
    (" choose ", _CHOOSE, r"\\binom{\1}{\2}"),
    (" factorial", _FACTORIAL, r"\1!"),
    (" o", _OVER, r"\\frac{\1}{\2}"),
    (". ", _SPLIT_DECIMAL, ";"),
    (",", _THOUSANDS_IN_A_LIST, lambda found: found[0].replace(",", "")),
    ("<", _ANGLED, r"(\1)"),
    ("U", _UNION_LETTER, r"\\cup"),
    ("^{T}", _ROW, _as_column),
    ("[[", _ROWS, _as_matrix),
    ("]", _OPENED_OUTWARD, r"\1("),
    ("[", _CLOSED_OUTWARD, ")"),
)
