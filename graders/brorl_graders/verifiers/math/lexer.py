r"""Turn the text of an answer into tokens of plain LaTeX: one spelling for each sign, and no typesetting.

`√2`, `\sqrt2` and `$\displaystyle\sqrt{2}$` all become `\sqrt`, `{`, `2`, `}`. Indices, exponents and arguments of one
character are in braces, a text such as `\text{ cm}` is one token, and a space stays only where it may mean something.
"""

from __future__ import annotations

import re
import unicodedata

from brorl_graders.verifiers.math.tokens import Tokens

_SPELLINGS = r"""
- − – ‐ ‑ ﹣ －
+ ＋
* \ast
/ ÷ ∕ ⁄ \div
% ％ \%
: ∶ ： \colon
' ’ ′ \prime
'' ″
| \lvert \rvert \vert \mid
( ⟨ \langle
) ⟩ \rangle
[ \lbrack
] \rbrack
i \imath
T \top \intercal
μ µ
" ``
... … ⋯ \ldots \dots \cdots
\{ \lbrace
\} \rbrace
\\ \cr
\frac \cfrac \dfrac \tfrac
\binom \dbinom \tbinom
\overline \bar
\times × ⨯
\cdot · ⋅ ∙
\pi π
\infty ∞
\le ≤ \leq \leqslant <=
\ge ≥ \geq \geqslant >=
\ne ≠ \neq
< \lt ＜
> \gt ＞
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
or \lor \vee ∨
and \land \wedge ∧
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
_SPACES = ("$", "~", "\\ ", "\\,", "\\;", "\\:", "\\>", "\\(", "\\)", "\\[", "\\]", "\\quad", "\\qquad", "\\")
_TYPESETTING_NAMES = "displaystyle textstyle limits bf rm it sf checkmark blacksquare qed"
_TYPESETTING = ["`", "\u200b", "\u2060", "\ufeff", *(f"\\{name}" for name in _TYPESETTING_NAMES.split())]
_LAYOUT = frozenset(("aligned", "align", "gathered", "split", "equation"))  # environments that mean nothing
_FONT_NAMES = "mathbf boldsymbol bm mathit mathsf mathtt underline num ce"
_FONTS = frozenset(f"\\{name}" for name in _FONT_NAMES.split())
_WITH_ONE_ARGUMENT = "^ _ \\sqrt \\overline \\vec \\hat \\mathbb \\mathcal \\mathfrak"
_NUM_ARGUMENTS = {"\\frac": 2, "\\binom": 2} | dict.fromkeys(_WITH_ONE_ARGUMENT.split(), 1)
_PIECE = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|tt)?|mbox|math(?:rm|bin|rel)|operatorname)\s*\{(?:[^{}]|\{[^{}]*\})*\}"
    r"|\{ ?\\(?:rm|bf|it|sf)(?![A-Za-z])[^{}]*\}|\\(?:SI|qty) ?\{[^{}]*\} ?\{[^{}]*\}"
    r"|\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?|\\mathbb\s*(?:\{\s*[A-Z]\s*\}|[A-Z](?![A-Za-z]))"
    r"|\\(?:begin|end) ?\{ ?[a-z]+\*? ?\}(?: ?\{[lcr| ]*\})?|\\(?:text)?color ?\{[^{}]*\}"
    r"|\\\\ ?\[[\d.]+ ?(?:pt|em|ex|mm|cm)\]|\\!\s*|\\q?quad|\\[A-Za-z]+|\\."
    r"|[A-Za-z]+|\d+|(?<=\d)\{\s*[,.:]\s*\}|[⁰¹²³⁴-⁹⁺⁻]+|[₀-₉]+|<=|>=|\+/-|\s+!=|\*\*|``|\.\.\.|\s+|.",
    re.DOTALL,
)
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉"
_DIGITS = str.maketrans(_RAISED + _LOWERED, "0123456789+-0123456789")
_SIZE = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|!)\s*\.?")
_UPRIGHT = re.compile(
    r"[eiT:]|-?\d[\d.,]*|, *(?:and|or),?|(?:and|or),?|to|if|for|when|only|negative|minus|about|exactly|approximately"
)
_UPRIGHT_FUNCTION = re.compile(r"arc(?:sin|cos|tan)|sin|cos|tan|cot|sec|csc|ln|log")
_OPENING = frozenset("+-*/^_=<>|([{&:")  # no space after these means anything


def tokens_of(text: str) -> Tokens:
    """Return the tokens of an answer in plain LaTeX."""
    pieces: list[str] = []
    for piece in _PIECE.findall(text if text.isascii() else unicodedata.normalize("NFC", text)):
        known = _NOTATION.get(piece)
        if known is None:
            known = (piece,) if piece.isascii() and piece.isalnum() else _spelled(piece)
        pieces.extend(known)
    return tuple(_Lexer(pieces).tokens)


def _spelled(piece: str) -> tuple[str, ...]:
    """Return a piece of a text in its one spelling, which may be several pieces."""
    if piece.isspace():
        return (" ",)
    if piece[0] in _RAISED + _LOWERED:
        return ("^" if piece[0] in _RAISED else "_", "{", *_PIECE.findall(piece.translate(_DIGITS)), "}")
    if piece.endswith("!="):
        return ("\\ne",)
    if piece[0] == "{" and len(piece) > 1:
        return _in_text("rm", piece[1:-1].strip()[3:]) if "\\" in piece else (piece.strip("{} \n\t"),)
    if _SIZE.fullmatch(piece):
        return ()
    return _command(piece) if piece[0] == "\\" else (piece,)


def _command(piece: str) -> tuple[str, ...]:
    name, _, inside = piece[1:].partition("{")
    name = name.strip()
    if name in ("begin", "end"):
        environment = inside.partition("}")[0].strip(" *")
        return () if environment in _LAYOUT else (f"\\{name}{{{environment}}}",)
    if name in ("color", "textcolor"):
        return ()
    if name.startswith("mathbb") and piece != "\\mathbb":
        return (f"\\mathbb{{{piece.strip(' }')[-1]}}}",)
    if name in ("SI", "qty"):
        number, _, unit = inside[:-1].partition("}")
        return (*tokens_of(number), *_text(unit.strip(" {").replace("\\per", "/").replace("\\", "")))
    if inside:
        return _in_text(name, inside[:-1])
    return ("\\\\",) if piece.startswith("\\\\") else (piece,)


def _in_text(name: str, inside: str) -> tuple[str, ...]:
    """Return a text as one token, or as it is where it is a number, a constant or the name of a function."""
    plain = " ".join(inside.split())
    if _UPRIGHT.fullmatch(plain):
        return (" ", *_PIECE.findall(plain), " ")
    if name in ("mathrm", "operatorname") and _UPRIGHT_FUNCTION.fullmatch(plain):
        return (f"\\{plain}",)
    return _text(plain)


def _text(inside: str) -> Tokens:
    words = "".join(tokens_of(inside)).replace("{", "").replace("}", "")
    return (f"\\text{{{words}}}",) if words else ()


class _Lexer:
    """Puts pieces together to tokens: it drops fonts and spaces, and adds braces around arguments of one character."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces[::-1]
        self.tokens: list[str] = []
        self.closing: list[tuple[str, int]] = []  # of each open brace: what closes it, and how many arguments follow
        self.wanted = 0  # arguments that the last command still takes
        self.is_spaced = False
        while self.pieces:
            self.take(self.pieces.pop())

    def take(self, piece: str) -> None:
        if piece == " ":
            self.is_spaced = True
        elif piece == "{":
            self.open()
        elif piece == "}":
            end, self.wanted = self.closing.pop() if self.closing else (piece, 0)
            if end:
                self.add(end)
        elif piece in _FONTS:
            self.without_font()
        elif piece == "**":
            self.stars()
        elif self.wanted and piece[0].isalnum():
            self.argument(piece)
        else:
            self.wanted = _NUM_ARGUMENTS.get(piece) or max(self.wanted - 1, 0)
            self.add(piece)

    def add(self, token: str) -> None:
        """Add a token, with a space before it where a space may mean something."""
        last = self.tokens[-1] if self.tokens else ""
        if last[:1] == "\\":
            if last[1:].isalpha() and token[0].isalpha():
                self.tokens.append(" ")
        elif self.is_spaced and last and last[-1] not in _OPENING and (token[0].isalnum() or token in '(["“'):
            self.tokens.append(" ")
        elif token[0].isdecimal() and (last == "." or last.isdecimal()):
            self.tokens.pop()
            before = self.tokens.pop() if last == "." and self.tokens and self.tokens[-1].isdecimal() else ""
            token = before + last + token
        self.is_spaced = False
        self.tokens.append(token)

    def next(self) -> str:
        """Return the next piece that is no space."""
        while self.pieces and self.pieces[-1] == " ":
            self.pieces.pop()
        return self.pieces[-1] if self.pieces else ""

    def open(self) -> None:
        """Add an opening brace, unless its group is empty, or one sign that is no argument."""
        inside = self.next()
        last = self.tokens[-1] if self.tokens else ""
        is_argument = self.wanted or last[-1:] in ("}", "]") or last[:1] == "\\"
        is_single = self.pieces[-2:-1] == ["}"] and (inside == "-" or (len(inside) == 1 and inside.isalpha()))
        if not is_argument and (inside == "}" or is_single):
            self.pieces.pop()
            if is_single:
                self.pieces[-1] = inside
            return
        self.closing.append(("}", max(self.wanted - 1, 0)))
        self.wanted = 0
        self.add("{")

    def argument(self, piece: str) -> None:
        """Add braces around the first character of a number or word. More digits in an exponent stay as they are."""
        is_script = self.tokens[-1] in ("^", "_")
        if is_script and len(piece) > 1 and (piece.isdecimal() or piece == "pi"):
            self.wanted = 0
            self.add(piece)
            return
        self.wanted -= 1
        if piece[1:]:
            self.pieces.append(piece[1:])
        self.tokens.extend(("{", piece[0], "}"))
        self.is_spaced = False

    def without_font(self) -> None:
        if self.next() == "{" and not self.wanted:
            self.pieces.pop()
            self.closing.append(("", 0))

    def stars(self) -> None:
        """Read `**` as a power between two operands, and drop it as a mark of bold type elsewhere."""
        exponent = self.next()
        is_base = bool(self.tokens) and (self.tokens[-1][-1].isalnum() or self.tokens[-1] in (")", "}"))
        is_bold = self.pieces[-2:-1] == ["**"]
        if is_base and not is_bold and (exponent[:1].isalnum() or (exponent in ("-", "(") and exponent)):
            self.wanted = 1
            self.add("^")


_NOTATION: dict[str, tuple[str, ...]] = dict.fromkeys(_SPACES + tuple("\u00a0\u2007\u2009\u200a\u202f"), (" ",))
_NOTATION |= dict.fromkeys(_TYPESETTING, ())
_NOTATION |= {letter: (f"\\{name}",) for letter, name in zip("αβγδεζηθλξρστφχψωΓΔΘΛΣΦΨ", _GREEK.split(), strict=True)}
for _row in _SPELLINGS.strip().split("\n"):
    _sign, *_others = _row.split()
    _pieces = tuple(_PIECE.findall(_sign))
    _NOTATION |= dict.fromkeys(_others, (" ", *_pieces, " ") if _sign.isalpha() else _pieces)
