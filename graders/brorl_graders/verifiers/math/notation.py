"""Bring a mathematical answer into one notation: typesetting is removed, and Unicode becomes LaTeX.

`√2`, `\\sqrt2` and `$\\displaystyle\\sqrt{2}$.` all become `\\sqrt{2}`, `62\\,459\\,740` becomes `62 459 740`, and
`**5**` becomes `5`. The meaning of an answer never changes. A row of `_SPELLINGS` begins with its
one notation.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

MAX_WRAPPINGS = 8  # levels of braces, stars or dollars around a whole answer

_SPELLINGS = r"""
- − – ‐ ‑ ﹣ －
+ ＋
* \ast
/ ÷ ∕ ⁄ \div
% ％
: ∶ ： \colon
' ’ ′ \prime
'' ″
| \lvert \rvert \vert
( ⟨ \langle
) ⟩ \rangle
[ \lbrack
] \rbrack
i \imath
T \top \intercal
μ µ
... … ⋯ \ldots \dots \cdots
\{ \lbrace
\} \rbrace
\\ \cr
\frac \cfrac
\overline \bar
\times × ⨯
\cdot · ⋅ ∙
\pi π
\infty ∞
\le ≤ \leq \leqslant <=
\ge ≥ \geq \geqslant >=
\ne ≠ \neq
\approx ≈ \simeq
\pm ± +/-
\cup ∪
\cap ∩
\in ∈
\emptyset ∅ \varnothing
\equiv ≡
\setminus ∖ \backslash
\angle ∠
\triangle △
\lor ∨
\land ∧
\lfloor ⌊
\rfloor ⌋
\lceil ⌈
\rceil ⌉
^\circ ° º \degree
^\circ\text{C} ℃
^\circ\text{F} ℉
\mathbb{R} ℝ \real \reals
\mathbb{Z} ℤ
\frac{1}{2} ½
\frac{1}{3} ⅓
\frac{2}{3} ⅔
\frac{1}{4} ¼
\frac{3}{4} ¾
\frac{1}{5} ⅕
\frac{1}{8} ⅛
"""
_GREEK = """alpha beta gamma delta epsilon zeta eta theta lambda xi rho sigma tau phi chi psi omega
Gamma Delta Theta Lambda Sigma Phi Psi"""
_NOTATION = dict.fromkeys("\u00a0\u2007\u2009\u200a\u202f", " ") | dict.fromkeys("\u200b\u2060\ufeff", "")
_NOTATION |= {" !=": " \\ne ", "\\quad": " ", "\\qquad": " "}  # `n!=2` may be a factorial
for _letter, _name in zip("αβγδεζηθλξρστφχψωΓΔΘΛΣΦΨ", _GREEK.split(), strict=True):
    _NOTATION[_letter] = f"\\{_name} "
for _row in _SPELLINGS.strip().split("\n"):
    _sign, *_others = _row.split()
    for _other in _others:
        _is_command = _sign[0] in "\\^" and _sign[-1].isalpha() and _other[0] != "\\"
        _NOTATION[_other] = f"{_sign} " if _is_command else _sign
_TABLE = str.maketrans({spelling: sign for spelling, sign in _NOTATION.items() if len(spelling) == 1})
_SIGNS_OF_SEVERAL = re.compile("|".join(re.escape(name) for name in _NOTATION if len(name) > 1 and name[0] != "\\"))
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉"
_RAISED_TABLE = str.maketrans(_RAISED, "0123456789+-")
_LOWERED_TABLE = str.maketrans(_LOWERED, "0123456789")
_RAISED_RUN = re.compile(f"[{_RAISED}]+")
_LOWERED_RUN = re.compile(f"[{_LOWERED}]+")
_ROOT_IN_WORDS = re.compile(r"\b(?:the )?(square|cube) root of (?=\d)", re.IGNORECASE)
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\d)")
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:(\d)|\{([^{}]*)\})\s*(?:(\d)|\{([^{}]*)\})")
_FRACTION = re.compile(r"\\[dtc](frac|binom)(?![A-Za-z])")
_SIZE = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits)(?![A-Za-z])\s*\.?")
_COMMAND = re.compile(r"\\q?quad|\\[A-Za-z]+")
_FONT = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|mathit|mathsf|mathtt|underline|num|ce)(?![A-Za-z])\s*(?:\{([^{}]*)\}|(\w))"
)
_WORDS = re.compile(r"\\(?:textbf|textit|textrm|textnormal|texttt|mbox|mathrm|operatorname)\s*(?=\{)")
_UPRIGHT_FUNCTION = re.compile(
    r"\\(?:mathrm|operatorname) ?\{ ?(arc(?:sin|cos|tan)|sin|cos|tan|cot|sec|csc|ln|log) ?\}"
)
_UPRIGHT = re.compile(r"\\(?:mathrm|operatorname|text|textrm) ?\{ ?([eiT]|-?\d[\d.,]*) ?\}")
_ENDS_IN_COMMAND = re.compile(r"\\[A-Za-z]+$")
_OLD_FONT = re.compile(r"\{ ?\\(?:rm|bf|it|sf) ?([^{}]*)\}")
_OVER = re.compile(r"^(\d+) (?:over|out of) (\d+)$")
_CHOOSE = re.compile(r"^(\d+) choose (\d+)$")
_FACTORIAL = re.compile(r"^(\d+) factorial$")
_COLON = re.compile(r"\\(?:text|mathbin|mathrel) ?\{ ?: ?\}")
_MID = re.compile(r"^([^\\|]*)\\mid ?([^\\|{}]+)\\mid(?![A-Za-z])")
_CALL = re.compile(r"(?<![\\A-Za-z])(abs|floor|ceil) ?\(([^()]*)\)")
_CALLS = {"abs": "|{}|", "floor": "\\lfloor {}\\rfloor ", "ceil": "\\lceil {}\\rceil "}
_ANGLED = re.compile(r"^ ?<([^<>=]*,[^<>=]*)> ?$")
_ROW_TRANSPOSED = re.compile(r"\\begin ?\{([pb])matrix\}([^\\]*&[^\\]*)\\end ?\{\1matrix\} ?\^ ?\{? ?T ?\}?")
_UNIT_VECTORS = re.compile(
    r" ?([-+]?) ?((?:\d[\d.]*|\\frac ?\{[^{}]*\}\{[^{}]*\})?) ?\\(?:mathbf|boldsymbol|bm|hat|vec)"
    r" ?\{? ?(?:\\(?:mathbf|hat) ?\{ ?)?\\?([ijk])(?:math)?(?![A-Za-z]) ?\}* ?"
)
_UNION_LETTER = re.compile(r"(?<=[)\]]) ?U ?(?=[(\[])")
_ROWS = re.compile(r"\[ ?(\[[^\[\]]*,[^\[\]]*\](?: ?, ?\[[^\[\]]*\])*) ?\]")
_QUANTITY = re.compile(r"\\(?:SI|qty) ?\{([^{}]*)\} ?\{([^{}]*)\}")
_BRACED = re.compile(r"(?<![\w}^_\])\\])\{ ?([-A-Za-z]) ?\}|(?<![}\\])\{\}(?=[\^_])")
_PRIMES = re.compile(r"\^ ?(?:\{ ?('[' ]*)\}|')")
_CIRCLE = re.compile(r"(?<=\d)\^ ?(?:\{ ?o ?\}|o(?![A-Za-z]))")
_DEGREES = r" ?(\d+(?:\.\d+)?) ?\^ ?(?:\\circ|\{ ?\\circ ?\}) ?"
_ANGLE = re.compile(
    rf"((?:\\|(?<![\\A-Za-z]))(?:sin|cos|tan|cot|sec|csc)) ?(?:\({_DEGREES}\)|\{{{_DEGREES}\}}|{_DEGREES})"
)
_TRANSPOSED = re.compile(r"\(([^()]*,[^()]*)\) ?\^ ?\{? ?T ?\}?")
_DERIVATIVE = re.compile(r"\\frac ?\{ ?d ?([A-Za-z]) ?\} ?\{ ?d ?[a-z] ?\}")
_INFINITY = re.compile(
    r"\\text ?\{ ?(?P<less>negative |minus )?infinity ?\}"
    r"|(?<![\\A-Za-z])(?P<minus>negative |minus )?inf(?:inity)?(?![A-Za-z])"
)
_OUTWARD = re.compile(r"(^|\\(?:in|cup) ?)\](?=[^\[\]]*[,;][^\[\]]*[\[\])])|(?<=[\w}) ])\[(?=$| ?\\cup)")
_COMBINATION = re.compile(
    r"(?<![A-Za-z\d^_}])(?:(?:\^|_) ?\{? ?(\d+) ?\}? ?C ?_ ?\{? ?(\d+) ?\}?|(\d+) ?C ?_? ?(\d+)(?![\dA-Za-z_])"
    r"|C ?_ ?\{? ?(\d+) ?\}? ?\^ ?\{? ?(\d+) ?\}?)"
)
_COMBINATION_OF_LETTERS = re.compile(
    r"(?<![A-Za-z\d^_}])C ?_ ?(\{ ?\d*[A-Za-z](?: ?[-+] ?\d+)? ?\}|[A-Za-z])"
    r" ?\^ ?(\{ ?[A-Za-z\d](?: ?[-+] ?\d+)? ?\}|[A-Za-z\d])"
)
_SLASHED = re.compile(r"^\^ ?\{? ?(\d+) ?\}? ?/ ?_ ?\{? ?(\d+) ?\}?$")
_STACKED = re.compile(r"\{([^{}]*)\\(choose|over)(?![A-Za-z])([^{}]*)\}|^([^{}]*)\\(choose|over)(?![A-Za-z])([^{}]*)$")
_POWERS_IN_TEXT = re.compile(r"(\\text ?\{)((?:[^{}]|\{-?\d\})*)\}")
_BRACES = str.maketrans("", "", "{}")
_NUMBER_IN_TEXT = re.compile(r"\\text ?\{((?=.*\d)(?:[^{}]|\{[^{}]*\})*)\}")
_NARROW = re.compile(r"(?<!\\)\\(?:[,;:> ]|$)|~")
_GROUPED = re.compile(r"(?<![\w.])[1-9]\d{0,2}(?:(?:\.\d{3}){2,}|(?:'\d{3})+|(?:_\d{3})+)(?![\w.'])")
_SEPARATOR = re.compile(r"[._']")
_SPLIT_DECIMAL = re.compile(r"(?<=\d)\. +(?=\d)")
_NEGATIVE_SPACE = re.compile(r"\\! ?")
_BRACED_SIGN = re.compile(r"(?<=\d)\{\s*([,.:])\s*\}")
_ROW_SPACE = re.compile(r"(\\\\) ?\[[\d.]+ ?(?:pt|em|ex|mm|cm)\]")
_NAMED_SIGN = re.compile(
    r"(?:\\text ?\{ ?(angle|triangle) ?\}|(?<![\\A-Za-z])(angle|triangle)) ?(?=[A-Z]{1,3}(?![a-z]))"
)
_CASES = re.compile(r"\\begin ?\{cases\}((?:(?!\\begin)[^&])*)\\end ?\{cases\}")
_SPACE = re.compile(r"\s+")
_FORMULA_MARKS = re.compile(r"(?<!\\)(?:\$+|\\[()\[\]])")
_COMMAND_START = re.compile(r"(?<!\\)\\(?!\\)")
_STARS = re.compile(r"(?<=[\w)}]) ?\*\* ?(?:(-?\d+|[A-Za-z])(?!\*\*)|\(([^()]*)\))")  # the power in `x**2`
_BOLD = re.compile(r"(?<![\w)])\*\*|\*\*(?![\w(\\])")  # the power in `2**3` does not match
_CURRENCY = re.compile(r"^(-?)\s*(?:US ?(?=\\\$))?(\\\$|[€£¥₹]|USD|EUR)\s*(\.?\d[\d.,]*)(?=$|(.))")
_LONE_DOLLAR = re.compile(r"(?<=^)\$(?=\d)|(?<=^-)\$(?=\d)")
_AFTER = re.compile(
    r"(?<=\d) ?[\u2600-\u27bf\ufe0f\U0001f000-\U0001faff]+$|(?<=\d)(?:です|である|だ|입니다|이다|이에요|예요)$"
)
_LATEX_QUOTE = re.compile("(?<!`)``(?!`)")
_QUOTE = "[\"'“”「」]+"
_QUOTED = re.compile(rf"(\\text ?\{{ ?)?{_QUOTE}(?P<inside>(?:(?!{_QUOTE}).)+){_QUOTE}(?(1) ?\}})")
_CURRENCIES = {
    "\\$": "dollars",
    "USD": "dollars",
    "EUR": "euros",
    "€": "euros",
    "£": "pounds sterling",
    "¥": "yen",
    "₹": "rupees",
}


@lru_cache(maxsize=1024)
def in_one_notation(text: str) -> str:
    """Return an answer in plain LaTeX.

    It has no dollar signs, size commands, spacing commands, marks of Markdown, or full stop at its end.
    """
    if "\\\\" in text and _COMMAND_START.search(text) is None:
        # It was escaped for a string of a program.
        text = text.replace("\\\\", "\\")
    if text.count("$") == 1:
        text = _LONE_DOLLAR.sub(r"\\$", text)
    plain = _SIGNS_OF_SEVERAL.sub(_synonym, _of_unicode(_of_vectors(text)))
    if "**" in plain:
        plain = _STARS.sub(_as_group_power, plain)
        plain = _BOLD.sub("", plain)
    if "`" in plain:
        plain = _LATEX_QUOTE.sub('"', plain).replace("`", "")
    if "$" in plain or "\\" in plain:
        plain = _FORMULA_MARKS.sub(" ", plain)
    plain = _unwrapped(_SPACE.sub(" ", _of_latex(plain)))
    return plain if plain.isdecimal() else _of_signs(plain)


def _of_signs(text: str) -> str:
    """Write what has several spellings in one of them: thousands, primes, degrees, binomials, brackets of intervals."""
    plain = _GROUPED.sub(lambda found: _SEPARATOR.sub("", found[0]), text)
    if "^" in plain:
        plain = _PRIMES.sub(_as_primes, plain)
        plain = _CIRCLE.sub("^\\\\circ", plain)
        plain = _SLASHED.sub(r"\\frac{\1}{\2}", plain)
        plain = _ANGLE.sub(_as_radians, plain)
    if "\\frac" in plain:
        plain = _DERIVATIVE.sub(r"\1'", plain)
    plain = _NAMED_SIGN.sub(lambda found: f"\\{found[1] or found[2]} ", plain) if "angle" in plain else plain
    if "inf" in plain:
        plain = _INFINITY.sub(lambda found: "-\\infty " if found["less"] or found["minus"] else "\\infty ", plain)
    if "C" in plain:
        plain = _COMBINATION_OF_LETTERS.sub(r"\\binom{\1}{\2}", _COMBINATION.sub(_as_binomial, plain))
    plain = _OVER.sub(r"\\frac{\1}{\2}", plain) if " o" in plain else plain
    plain = _MID.sub(r"\1|\2|", plain) if "\\mid" in plain else plain
    plain = _FACTORIAL.sub(r"\1!", _CHOOSE.sub(r"\\binom{\1}{\2}", plain))
    plain = _CALL.sub(lambda found: _CALLS[found[1]].format(found[2]), plain)
    return _of_brackets(plain) if "(" in plain or "[" in plain or "]" in plain else _of_decimals(plain)


def _of_brackets(text: str) -> str:
    """Write unions, rows and columns in brackets, and intervals with their brackets turned outward."""
    plain = _UNION_LETTER.sub(r"\\cup ", text)
    transposed = _TRANSPOSED.fullmatch(plain)
    if transposed:
        return "\\begin{pmatrix}" + transposed[1].replace(",", "\\\\") + "\\end{pmatrix}"
    if plain.startswith("[") and _ROWS.fullmatch(plain):
        return _ROWS.sub(_as_matrix, plain)
    return _of_decimals(_OUTWARD.sub(lambda found: f"{found[1]}(" if found[1] is not None else ")", plain))


def _of_decimals(plain: str) -> str:
    return _SPLIT_DECIMAL.sub(".; ", plain) if ". " in plain else plain


def _as_radians(found: re.Match[str]) -> str:
    return f"{found[1]}(\\frac{{{found[2] or found[3] or found[4]}\\pi}}{{180}})"


def _as_primes(found: re.Match[str]) -> str:
    return (found[1] or "'").replace(" ", "")


def _as_binomial(found: re.Match[str]) -> str:
    numbers = [number for number in found.groups() if number]
    top, bottom = sorted(map(int, numbers), reverse=True)
    return f"\\binom{{{top}}}{{{bottom}}}"


def _of_unicode(text: str) -> str:
    plain = without_roots_in_words(text)
    if plain.isascii():
        return plain
    plain = unicodedata.normalize("NFC", plain)
    plain = _RAISED_RUN.sub(_as_power, plain)
    plain = _LOWERED_RUN.sub(_as_index, plain)
    return plain.translate(_TABLE)


def _of_vectors(text: str) -> str:
    """Write `2\\mathbf{i}-\\mathbf{k}` and `<2, 0, -1>` as `(2, 0, -1)`, and a transposed row as a column."""
    if "<" in text:
        return _ANGLED.sub(r"(\1)", text)
    if "matrix" in text and "^" in text:
        return _ROW_TRANSPOSED.sub(_as_column, text)
    terms = list(_UNIT_VECTORS.finditer(text)) if "\\" in text else []
    names = [term[3] for term in terms]
    if len(terms) < 2 or len(set(names)) < len(names) or _UNIT_VECTORS.sub("", text).strip(" $"):
        return text
    parts = {term[3]: f"{term[1]}{term[2] or 1}".removeprefix("+") for term in terms}
    return "(" + ", ".join(parts.get(name, "0") for name in "ijk"[: 3 if "k" in parts else 2]) + ")"


def _as_column(found: re.Match[str]) -> str:
    rows = found[2].replace("&", "\\\\")
    return f"\\begin{{pmatrix}}{rows}\\end{{pmatrix}}"


def without_roots_in_words(text: str) -> str:
    """Write "the square root of 7" as `sqrt 7`, and "cube root of 7" as `cbrt 7`."""
    if "root of" not in text:
        return text
    return _ROOT_IN_WORDS.sub(lambda found: "sqrt " if found[1].lower() == "square" else "cbrt ", text)


def _as_group_power(found: re.Match[str]) -> str:
    return f"^{{{found[1] or found[2]}}}"


def _as_power(found: re.Match[str]) -> str:
    digits = found[0].translate(_RAISED_TABLE)
    return f"^{{{digits}}}"


def _as_index(found: re.Match[str]) -> str:
    digits = found[0].translate(_LOWERED_TABLE)
    return f"_{{{digits}}}"


def _of_latex(text: str) -> str:
    text = _COLON.sub(":", text)
    plain = _of_commands(text) if "\\" in text or "~" in text else text
    if "{" in plain:
        plain = _BRACED_SIGN.sub(r"\1", _BRACED.sub(r"\1", plain))
    if "frac" in plain:
        plain = _SHORT_FRACTION.sub(_as_fraction, plain)
    return plain


def _of_commands(text: str) -> str:
    plain = _SIZE.sub("", _FRACTION.sub(r"\\\1", text))
    plain = _OLD_FONT.sub(r"\\mathrm{\1}", plain)
    if "\\SI" in plain or "\\qty" in plain:
        plain = _QUANTITY.sub(_as_quantity, plain)
    if "\\mathrm" in plain or "\\operatorname" in plain or "\\text" in plain:
        plain = _UPRIGHT_FUNCTION.sub(r"\\\1 ", _UPRIGHT.sub(r"\1", plain))
    plain = _WORDS.sub(r"\\text", plain)
    plain = _FONT.sub(_without_font, plain)
    plain = _COMMAND.sub(_synonym, plain)
    plain = _NEGATIVE_SPACE.sub("", plain)
    plain = _NARROW.sub(" ", plain)
    plain = plain.replace("\\%", "%")
    if "\\begin" in plain:
        plain = _CASES.sub(_as_list, _ROW_SPACE.sub(r"\1", plain))
    plain = _SHORT_ROOT.sub(r"\\sqrt{\1}", plain)
    if "\\choose" in plain or "\\over" in plain:
        plain = _STACKED.sub(_as_binomial_or_fraction, plain)
    if "\\text" in plain:
        plain = _POWERS_IN_TEXT.sub(lambda found: f"{found[1]}{found[2].translate(_BRACES)}}}", plain)
    return plain


def _as_list(found: re.Match[str]) -> str:
    """Write the rows of `cases` as a list."""
    return ", ".join(row.strip(" ,;") for row in found[1].split("\\\\") if row.strip())


def _as_matrix(found: re.Match[str]) -> str:
    rows = found[1].strip("[] ").split("]")
    plain = "\\\\".join(row.strip(" ,[").replace(",", "&") for row in rows)
    return f"\\begin{{pmatrix}}{plain}\\end{{pmatrix}}"


def _without_font(found: re.Match[str]) -> str:
    """Return the text in a font, with a space after a command, as in `\\times\\mathbf{v}`."""
    inside = found[1] if found[1] is not None else found[2]
    return f" {inside}" if _ENDS_IN_COMMAND.search(found.string, 0, found.start()) else inside


def _as_quantity(found: re.Match[str]) -> str:
    """Write `\\SI{5}{\\kilo\\gram}` as `5 \\text{ kilogram}`."""
    unit = found[2].replace("\\per", "/").replace("\\", "")
    return f"{found[1]} \\text{{ {unit}}}"


def _synonym(found: re.Match[str]) -> str:
    return _NOTATION.get(found[0], found[0])


def _as_binomial_or_fraction(found: re.Match[str]) -> str:
    top, name, bottom = found.groups()[:3] if found[2] else found.groups()[3:]
    command = "\\binom" if name == "choose" else "\\frac"
    return f"{command}{{{top.strip()}}}{{{bottom.strip()}}}"


def _as_fraction(found: re.Match[str]) -> str:
    top = found[1] or found[2] or ""
    bottom = found[3] or found[4] or ""
    return f"\\frac{{{top.strip()}}}{{{bottom.strip()}}}"


def _unwrapped(text: str) -> str:
    """Remove what surrounds a whole answer: spaces, stars, braces, a currency sign, and a full stop or comma."""
    plain = text.strip()
    for _ in range(MAX_WRAPPINGS):
        before = plain
        plain = plain.lstrip(":; ")
        plain = plain.rstrip(",;: \u3002\uff0e\uff01")
        plain = plain.rstrip(".") + "..." if plain.endswith("...") else plain.rstrip(".,;: ")
        if plain.startswith("*") and plain.endswith("*"):
            plain = plain.strip("*")
        quoted = _QUOTED.fullmatch(plain)
        plain = quoted["inside"] if quoted else plain
        in_text = _NUMBER_IN_TEXT.fullmatch(plain) if plain.startswith("\\text") else None
        if in_text:
            plain = in_text[1].strip()
        if plain.startswith("{") and _closes_at_the_end(plain):
            plain = plain[1:-1].strip()
        if plain == before:
            break
    return _CURRENCY.sub(_as_currency, plain if plain.isascii() else _AFTER.sub("", plain))


def _as_currency(found: re.Match[str]) -> str:
    """Write `\\$5` as `5 \\text{ dollars}`, and `\\$5 million` as `5 million`."""
    unit = "" if found[4] else f" \\text{{ {_CURRENCIES[found[2]]}}}"
    return f"{found[1]}{found[3]}{unit}"


def _closes_at_the_end(text: str) -> bool:
    """Return whether the brace that a text begins with is closed by its last character."""
    level = 0
    for place, character in enumerate(text):
        if text[place - 1] == "\\" and place > 0:
            continue
        if character == "{":
            level += 1
        elif character == "}":
            level -= 1
        if level == 0:
            return place == len(text) - 1
    return False


def depth(text: str) -> int:
    """Return how many levels of brackets a text nests at most. Brackets without an end count too."""
    level = 0
    deepest = 0
    for character in text:
        if character in "({[":
            level += 1
        elif character in ")}]":
            level -= 1
        deepest = max(deepest, level)
    return deepest
