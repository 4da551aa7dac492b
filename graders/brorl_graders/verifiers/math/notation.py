"""Bring a mathematical answer into one notation: the tokens of plain LaTeX, and one form of what has several.

`$\\displaystyle\\sqrt{2}$.` becomes `\\sqrt{2}`, `62\\,459\\,740` becomes `62 459 740`, `5 choose 2` becomes
`\\binom{5}{2}`, and `**5**` becomes `5`. The meaning of an answer never changes.
"""

from __future__ import annotations

import re
from functools import lru_cache

from brorl_graders.verifiers.math.lexer import tokens_of

MAX_WRAPPINGS = 8  # levels of braces, stars or quotes around a whole answer

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
_SPLIT_DECIMAL = re.compile(r"(?<=\d)\. (?=\d)")
_ANGLED = re.compile(r"<([^<>=]*,[^<>=]*)>")
_ROW = re.compile(r"\\begin\{([pb])matrix\}([^\\]*&[^\\]*)\\end\{\1matrix\}\^\{T\}|\(([^()]*,[^()]*)\)\^\{T\}")
_ROWS = re.compile(r"\[(\[[^\[\]]*,[^\[\]]*\](?:, ?\[[^\[\]]*\])*)\]")
_UNION_LETTER = re.compile(r"(?<=[)\]]) ?U ?(?=[(\[])")
_OUTWARD = re.compile(r"(^|\\(?:in|cup))\](?=[^\[\]]*[,;][^\[\]]*[\[\])])|(?<=[\w}) ])\[(?=$|\\cup)")
_COMPARISONS = {"greater than": ">", "more than": ">", "less than": "<", "at least": "\\ge ", "at most": "\\le "}
_COMPARED = re.compile(
    rf"^([A-Za-z]) ?(?:\\text\{{)?is ({'|'.join(_COMPARISONS)})(?P<equal> or equal to)?\}}? ?(?=[-.\d\\])"
)
_MATRIX_CALL = re.compile(r"\\(det|dim|deg) ([A-Z])(?![A-Za-z({\\])")
_CASES = re.compile(r"\\begin\{cases\}((?:(?!\\begin)[^&])*)\\end\{cases\}")
_NUMBER_IN_TEXT = re.compile(r"\\text\{((?=.*\d)[^{}]*)\}")
_QUOTE = "[\"'“”「」]+"
_QUOTED = re.compile(rf"(\\text\{{)?{_QUOTE}(?P<inside>(?:(?!{_QUOTE}).)+){_QUOTE}(?(1)\}})")
_CURRENCY = re.compile(r"^(-?)(?:US ?(?=\\\$))?(\\\$|[€£¥₹]|USD|EUR) ?(\.?\d[\d.,]*)(?=$|(.))")
_CURRENCIES = {"\\$": "dollars", "USD": "dollars", "EUR": "euros", "€": "euros", "¥": "yen", "₹": "rupees"}
_CURRENCIES |= {"£": "pounds sterling"}
_AFTER = re.compile(
    r"(?<=\d) ?[\u2600-\u27bf\ufe0f\U0001f000-\U0001faff]+$|(?<=\d)(?:です|である|だ|입니다|이다|이에요|예요)$"
)


@lru_cache(maxsize=1024)
def in_one_notation(text: str) -> str:
    """Return an answer in plain LaTeX: its tokens, without a currency's sign, quotes, or full stop at its end."""
    if text.isdecimal() and text.isascii():
        return text
    if "\\\\" in text and _COMMAND_START.search(text) is None:
        # It was escaped for a string of a program.
        text = text.replace("\\\\", "\\")
    if text.count("$") == 1:
        text = _LONE_DOLLAR.sub(r"\\$", text)
    text = _of_unit_vectors(without_roots_in_words(text))
    return _in_one_form(_unwrapped("".join(tokens_of(text))))


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


def _unwrapped(text: str) -> str:
    """Remove what surrounds a whole answer: stars, braces, quotes, a currency sign, and a full stop or comma."""
    plain = text
    for _ in range(MAX_WRAPPINGS):
        before = plain
        plain = plain.lstrip(":; ").rstrip(",;: \u3002\uff0e\uff01")
        plain = plain.rstrip(".") + "..." if plain.endswith("...") else plain.rstrip(".,;: ")
        if plain.startswith("*") and plain.endswith("*"):
            plain = plain.strip("*")
        quoted = _QUOTED.fullmatch(plain) or _NUMBER_IN_TEXT.fullmatch(plain)
        if quoted:
            plain = quoted[quoted.lastindex or 0].strip()
        if plain.startswith("{") and is_enclosed(plain):
            plain = plain[1:-1].strip()
        if plain == before:
            break
    return _CURRENCY.sub(_as_currency, plain if plain.isascii() else _AFTER.sub("", plain))


def _as_currency(found: re.Match[str]) -> str:
    """Write `\\$5` as `5\\text{dollars}`, and `\\$5 million` as `5 million`."""
    unit = "" if found[4] else f"\\text{{{_CURRENCIES[found[2]]}}}"
    return f"{found[1]}{found[3]}{unit}"


def _in_one_form(text: str) -> str:
    """Write what has several forms in one of them: thousands, primes, degrees, binomials, brackets of intervals."""
    plain = _GROUPED.sub(lambda found: _SEPARATOR.sub("", found[0]), text)
    if "^" in plain:
        plain = _CIRCLE.sub("^\\\\circ", _PRIMES.sub(lambda found: found[1] or "'", plain))
        plain = _SLASHED.sub(r"\\frac{\1}{\2}", plain)
    if "\\frac" in plain:
        plain = _DERIVATIVE.sub(r"\1'", plain)
    if "\\d" in plain:
        plain = _MATRIX_CALL.sub(r"\\\1(\2)", plain)
    if "\\begin" in plain:
        plain = _CASES.sub(_as_list, plain)
    if "angle" in plain:
        plain = _NAMED_SIGN.sub(lambda found: f"\\{found[1] or found[2]} ", plain)
    if "inf" in plain:
        plain = _INFINITY.sub(lambda found: "-\\infty " if found["less"] or found["minus"] else "\\infty ", plain)
    if "C" in plain:
        plain = _COMBINATION_OF_LETTERS.sub(r"\\binom{\1}{\2}", _COMBINATION.sub(_as_binomial, plain))
    if "is " in plain:
        plain = _COMPARED.sub(_as_comparison, plain)
    if " " in plain:
        plain = _OVER.sub(r"\\frac{\1}{\2}", _FACTORIAL.sub(r"\1!", _CHOOSE.sub(r"\\binom{\1}{\2}", plain)))
        plain = _SPLIT_DECIMAL.sub(";", plain)
    return _of_brackets(plain)


def _of_brackets(text: str) -> str:
    """Write vectors, unions, rows and columns in brackets, and intervals with their brackets turned outward."""
    if "(" not in text and "[" not in text and "]" not in text and "<" not in text and "matrix" not in text:
        return text
    angled = _ANGLED.fullmatch(text) if text[0] == "<" else None
    plain = f"({angled[1]})" if angled else _UNION_LETTER.sub(r"\\cup", text)
    row = _ROW.fullmatch(plain) if plain.endswith("^{T}") else None
    if row:
        entries = re.split("[&,]", row[2] or row[3])
        return "\\begin{pmatrix}" + "\\\\".join(entries) + "\\end{pmatrix}"
    if plain.startswith("[") and _ROWS.fullmatch(plain):
        return _ROWS.sub(_as_matrix, plain)
    return _OUTWARD.sub(lambda found: f"{found[1]}(" if found[1] is not None else ")", plain)


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


def is_enclosed(text: str) -> bool:
    """Return whether the bracket or brace that a text begins with is closed by its last character."""
    level = 0
    for place, character in enumerate(text):
        level += (character in "([{") - (character in ")]}")
        if level == 0:
            return place == len(text) - 1
    return False
