r"""Parse a mathematical answer in plain LaTeX as a tree. What is not understood as a whole has no tree.

`in_one_notation` has removed typesetting before. The tree of `2\sqrt{x}+1` is `("+", ("*", 2, ("root", 2, "x")), 1)`:
a number, a name, or the name of an operation and its operands. Operands are read in one pass without going back, and no
text reaches another parser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from brorl_graders.verifiers.math.tokens import SPACE, Tokens

Tree = Fraction | str | tuple["Tree", ...]

MAX_LENGTH = 500  # tokens
MAX_DEPTH = 16  # levels of brackets
MAX_LETTERS = 4  # letters that stand together and may be a product; more are a word

_RELATIONS = {
    "=": "=",
    "<": "<",
    ">": ">",
    "\\le": "<=",
    "\\ge": ">=",
    "\\ne": "!=",
}
FUNCTIONS = {name: name for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "log", "exp")}
FUNCTIONS |= {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "ln": "log"}  # the names that SymPy has
_LETTERS = """alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau
upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell hbar"""
_NAMES = frozenset(_LETTERS.split())
ROOTS = ("sqrt", "cbrt")
CALLED_WORDS = ("abs", "floor", "ceil")  # functions before brackets, and words elsewhere
_PLAIN = (*FUNCTIONS, *ROOTS, *["pi", "theta", "alpha", "beta", "gamma", "delta", "lambda", "phi", "omega"])
NAME_IN_TEXT = rf"(?<![\\A-Za-z])(?:{'|'.join(_PLAIN)})(?![A-Za-z])"  # a function or letter without a backslash
VARIABLE = rf"(?:(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])|\\(?:{'|'.join(_LETTERS.split())})(?![A-Za-z]))"
_NAMED = {name: f"\\{name}" for name in (*_PLAIN, *CALLED_WORDS)} | {"√": "\\sqrt", "∛": "\\cbrt"}
_DECORATED = frozenset(("overline", "overrightarrow", "angle", "triangle", "mathcal", "mathbb", "mathfrak", "vec"))
_CALLED = frozenset("fghFGH")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_ENCLOSED = {"\\lfloor": ("\\rfloor", "floor"), "\\lceil": ("\\rceil", "ceil")}
_STACKED = {"\\over": "/", "\\choose": "binomial"}
_PRODUCTS = frozenset(("*", "\\cdot", "\\times"))
_CLOSING = frozenset((",", ")", "]", "}", "|", "&", "\\\\", "", *_RELATIONS, *_STACKED))


class Unreadable(ValueError):
    """A text is no mathematical expression, or none that has a value."""


def parse(tokens: Tokens, is_wide: bool = False, is_strict: bool = False) -> Tree:
    """Return the tree of an answer in plain LaTeX. Raises Unreadable.

    `is_wide`: a quotient ends where a factor without a sign begins, so that `1/2x` is half of x and not `1/(2x)`.
    `is_strict`: what may mean something else, such as `1/2x`, `xy`, `x^23` and `2\\frac{1}{2}`, is not read.
    """
    if len(tokens) > MAX_LENGTH:
        raise Unreadable
    parser = _Parser(tokens, is_wide, is_strict)
    tree = parser.sum() if is_strict else parser.relation()
    parser.expect("")
    return tree


def is_variable(token: str) -> bool:
    """Return whether a token is one letter or the command of a Greek one, as in `x` and `\\alpha`."""
    return token[1:] in _NAMES if token[0] == "\\" else len(token) == 1 and token.isascii() and token.isalpha()


def _factors(tokens: Tokens) -> Iterator[str]:
    """Yield the tokens of an expression, in which a run of letters is a name or a product, and no space counts."""
    for token in tokens:
        if token in _NAMED:
            yield _NAMED[token]
        elif not token.isalpha():
            if token != SPACE:
                yield token.partition("}{")[0] + "}" if "}{" in token else token
        elif len(token) > MAX_LETTERS or not token.isascii():
            raise Unreadable
        else:
            yield from token


class _Parser:
    """Reads tokens by recursive descent. Its methods return trees, and raise Unreadable."""

    def __init__(self, tokens: Tokens, is_wide: bool, is_strict: bool) -> None:
        self.tokens = [*_factors(tokens), ""]  # "" marks the end
        self.place = 0
        self.depth = 0
        self.is_wide = is_wide
        self.is_strict = is_strict
        self.bars = 0  # open absolute values
        self.integrals = 0  # integrals whose differential has not come

    @property
    def next(self) -> str:
        return self.tokens[self.place]

    def take(self) -> str:
        token = self.next
        self.place += 1
        return token

    def expect(self, token: str) -> None:
        if self.take() != token:
            raise Unreadable

    def skips(self, token: str) -> bool:
        is_next = self.next == token and token != ""
        self.place += is_next
        return is_next

    def relation(self) -> Tree:
        """Read sides with signs of relations between them, such as `1 < x \\le 2`."""
        first = self.tokens[self.place : self.place + 2]
        sides = [self.sum()]
        is_call = first[0].isalpha() and first[1:] == ["("] and self.tokens[self.place - 1] == ")" and self.next == "="
        if is_call and isinstance(sides[0], tuple) and sides[0][:2] == ("*", first[0]):
            sides = [("call", *sides[0][1:])]
        while self.next in _RELATIONS:
            sides.extend((_RELATIONS[self.take()], self.sum()))
        return sides[0] if len(sides) == 1 else ("relation", *sides)

    def sum(self) -> Tree:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable
        terms: list[Tree] = []
        while True:
            sign = self.take() if self.next in ("+", "-") else "+"
            term = self.product()
            terms.append(term if sign == "+" else (sign, term))
            if self.next not in ("+", "-"):
                break
        found = terms[0] if len(terms) == 1 else ("+", *terms)
        if self.next in _STACKED:
            found = (_STACKED[self.take()], found, self.sum())
        self.depth -= 1
        return found

    def product(self) -> Tree:
        """Read a product or quotient. Factors may follow each other without a sign."""
        found = self.signless()
        is_ratio = False
        while True:
            if self.next in _PRODUCTS:
                self.take()
                found = ("*", found, self.signed(self.signless))
            elif self.next in ("/", ":"):
                is_ratio, had_ratio = self.take() == ":", is_ratio
                if is_ratio and (had_ratio or self.is_strict):
                    raise Unreadable
                found = ("/", found, self.signed(self.power if self.is_wide or self.is_strict else self.signless))
            elif self.is_wide and self.begins_a_factor():
                found = ("*", found, self.signless())
            elif self.is_strict and self.begins_a_factor():
                raise Unreadable
            else:
                return found

    def signed(self, read: Callable[[], Tree]) -> Tree:
        is_negative = self.skips("-")
        found = read()
        return ("-", found) if is_negative else found

    def signless(self) -> Tree:
        """Read factors that follow each other without a sign, such as `2x\\sqrt{3}`, or a mixed number."""
        found = self.mixed_number() or self.power()
        while self.begins_a_factor():
            if self.is_strict and self.tokens[self.place - 1].isalpha() and (self.next.isalpha() or self.next == "("):
                raise Unreadable
            if self.next[0].isdigit() and (self.is_strict or self.tokens[self.place - 1] not in ("!", "i")):
                raise Unreadable
            found = ("*", found, self.power())
        return found

    def mixed_number(self) -> Tree | None:
        """Read `2 1/3` and `2\\frac{1}{3}`. None: the next tokens are no such number."""
        whole, top, sign, bottom = (*self.tokens[self.place : self.place + 4], "", "", "", "")[:4]
        if not whole.isdecimal():
            return None
        if not self.is_strict and sign == "/" and top.isdecimal() and bottom.isdecimal() and int(top) < int(bottom):
            self.place += 4
            return ("+", Fraction(whole), ("/", Fraction(top), Fraction(bottom)))
        if top != "\\frac":
            return None
        self.take()
        part = self.power()
        if self.is_strict:
            raise Unreadable
        return ("+" if _is_proper(part) else "*", Fraction(whole), part)

    def begins_a_factor(self) -> bool:
        token = self.next
        if token == "|":
            return self.bars == 0
        if token in _CLOSING or token in _PRODUCTS or token in ("+", "-", "/", ":", "^", "_", "!"):
            return False
        if self.integrals and token == "d" and self.tokens[self.place + 1][:1].isalpha():
            return False
        return token not in ("\\rfloor", "\\rceil") and not token.startswith("\\end")

    def power(self) -> Tree:
        base = self.primary()
        if self.skips("!"):
            base = ("factorial", base)
            if self.next == "!":
                raise Unreadable
        if self.next != "^":
            return base
        self.take()
        if self.next == "\\circ" and not self.is_strict:
            self.take()
            return ("*", base, ("/", "\\pi", Fraction(180)))
        if self.is_strict and self.next != "{" and (len(self.next) > 1 or self.next == "-"):
            raise Unreadable
        exponent = self.argument()
        if self.next == "^":
            raise Unreadable
        return ("^", base, exponent)

    def argument(self) -> Tree:
        """Read the content of braces, or the one number, letter or command without them."""
        if self.next == "{":
            return self.within("{", "}")
        if self.skips("-"):
            return ("-", self.argument())
        if self.next == "(":
            return self.within("(", ")")
        if self.next[:1].isalnum() or self.next[1:] in _NAMES or self.next in ("\\pi", "\\infty", "\\frac", "\\sqrt"):
            return self.primary()
        raise Unreadable

    def within(self, opening: str, closing: str) -> Tree:
        self.expect(opening)
        bars, self.bars = self.bars, 0
        found = self.sum()
        self.bars = bars
        self.expect(closing)
        return found

    def primary(self) -> Tree:
        token = self.take()
        if token.lstrip(".")[:1].isdecimal():
            return self.number(token.replace(",", ""))
        if token.isalpha():
            return self.name(token)
        if token in _BRACKETS:
            self.place -= 1
            return self.within(token, _BRACKETS[token])
        if token == "|":
            self.bars += 1
            found = self.sum()
            self.bars -= 1
            self.expect("|")
            return ("abs", found)
        if token in _ENCLOSED:
            closing, kind = _ENCLOSED[token]
            self.place -= 1
            return (kind, self.within(token, closing))
        return self.command(token)

    def number(self, digits: str) -> Fraction:
        """Read a number, or the period of a repeating decimal behind its other digits, as in `0.1\\overline{6}`."""
        ends_in_point = "." not in digits and self.skips(".")
        if self.next != "\\overline" or not (ends_in_point or "." in digits):
            if ends_in_point and (self.next[:1] in ("(", ".") or self.next[:1].isalnum()):
                raise Unreadable
            return Fraction(digits)
        self.take()
        self.expect("{")
        period = self.take()
        self.expect("}")
        if not period.isdecimal():
            raise Unreadable
        unit = Fraction(1, 10 ** len(digits.partition(".")[2]))
        return Fraction(digits) + unit * Fraction(int(period), 10 ** len(period) - 1)

    def name(self, name: str) -> Tree:
        """Read a name with its index and primes, such as `a_{n+1}` and `f''`, or a call of f, g or h."""
        while self.skips("'"):
            name += "'"
        if self.skips("_"):
            name += f"_{self.index()}"
            if self.next == "_":
                raise Unreadable
        if self.next == "(" and name[0] in _CALLED:
            return ("call", name, self.primary())
        return self.combination() if name == "C" and self.next == "(" else name

    def index(self) -> str:
        start = self.place
        token = self.take()
        while token not in ("}", "") and self.tokens[start] == "{":
            token = self.take()
        if token != "}" and not token[-1:].isalnum():
            raise Unreadable
        return "".join(self.tokens[start : self.place]).strip("{}")

    def combination(self) -> Tree:
        """Read `C(n, k)`, or the product `C(n)`."""
        self.expect("(")
        top = self.sum()
        found: Tree = ("binomial", top, self.sum()) if self.skips(",") else ("*", "C", top)
        self.expect(")")
        return found

    def command(self, token: str) -> Tree:
        name = token[1:]
        if token in ("\\pi", "\\infty"):
            return token
        if name in _NAMES or name.startswith("mathbb{"):
            return self.name(token)
        if name in _DECORATED:
            return self.name(f"{token} {self.argument()}")
        if name in FUNCTIONS:
            return self.function(name)
        if name in ("sum", "prod"):
            return self.repeated(name)
        if name in CALLED_WORDS and self.next == "(":
            return (name, self.primary())
        if name.startswith("begin{") and name.endswith(("matrix}", "array}")):
            return self.matrix(name)
        reader = getattr(self, f"read_{name}", None)
        if reader is None:
            raise Unreadable
        found: Tree = reader()
        return found

    def read_binom(self) -> Tree:
        return ("binomial", self.argument(), self.argument())

    def read_sqrt(self) -> Tree:
        degree: Tree = self.within("[", "]") if self.next == "[" else Fraction(2)
        return ("root", degree, self.argument())

    def read_cbrt(self) -> Tree:
        return ("root", Fraction(3), self.argument())

    def read_frac(self) -> Tree:
        top = self.argument()
        bottom = self.argument()
        if top == "d" and isinstance(bottom, tuple) and bottom[:2] == ("*", "d") and isinstance(bottom[2], str):
            return ("derivative", bottom[2], self.product())
        return ("/", top, bottom)

    def function(self, name: str) -> Tree:
        """Read a function with its argument in brackets, or with the factors that follow, as in `\\sin 2x`."""
        base: Tree | None = None
        exponent: Tree | None = None
        if name == "log" and self.skips("_"):
            base = self.argument()
        if self.skips("^"):
            exponent = self.argument()
        if name == "log" and base is None and self.skips("_"):
            base = self.argument()
        if self.next == "(":
            argument = self.primary()
            if self.next == "!":
                raise Unreadable
        else:
            is_negative = self.skips("-")
            argument = self.power()
            while self.begins_a_factor() and self.next != "(" and self.next[1:] not in FUNCTIONS and self.next != "|":
                argument = ("*", argument, self.power())
            argument = ("-", argument) if is_negative else argument
        is_inverse = exponent == ("-", Fraction(1)) and f"arc{name}" in FUNCTIONS
        found: Tree = (f"arc{name}" if is_inverse else name, argument)
        if base is not None:
            found = ("/", ("ln", argument), ("ln", base))
        return found if exponent is None or is_inverse else ("^", found, exponent)

    def bounds(self) -> tuple[Tree, Tree]:
        """Read the index below and the power above a sign, in any order."""
        found: dict[str, Tree] = {}
        while self.next in ("_", "^"):
            sign = self.take()
            if sign == "_" and self.skips("{"):
                found[sign] = self.relation()
                self.expect("}")
            else:
                found[sign] = self.argument()
        if len(found) != 2:
            raise Unreadable
        return found["_"], found["^"]

    def repeated(self, kind: str) -> Tree:
        low, high = self.bounds()
        if not isinstance(low, tuple) or low[0] != "relation" or low[2:3] != ("=",) or not isinstance(low[1], str):
            raise Unreadable
        return (kind, low[1], low[3], high, self.product())

    def read_int(self) -> Tree:
        low, high = self.bounds()
        self.integrals += 1
        body: Tree = Fraction(1) if self.next == "d" else self.sum()
        self.integrals -= 1
        self.expect("d")
        return ("integral", self.take(), low, high, body)

    def read_lim(self) -> Tree:
        self.expect("_")
        self.expect("{")
        name = self.take()
        self.expect("\\to")
        place = self.sum()
        self.expect("}")
        return ("limit", name, place, self.product())

    def matrix(self, name: str) -> Tree:
        rows: list[list[Tree]] = [[]]
        end = f"\\end{name.removeprefix('begin')}"
        bars, self.bars = self.bars, 0
        while True:
            rows[-1].append(self.sum())
            token = self.take()
            if token == "\\\\" and self.next != end:
                rows.append([])
            elif token == end or (token == "\\\\" and self.skips(end)):
                break
            elif token != "&":
                raise Unreadable
        self.bars = bars
        if len({len(row) for row in rows}) > 1:
            raise Unreadable
        kind = "determinant" if name == "begin{vmatrix}" else "matrix"
        return (kind, *(("row", *row) for row in rows))


def _is_proper(tree: Tree) -> bool:
    """Return whether a tree is a fraction of whole numbers between 0 and 1, as in the mixed number `2\\frac{1}{3}`."""
    if not isinstance(tree, tuple) or tree[0] != "/":
        return False
    _, top, bottom = tree
    return isinstance(top, Fraction) and isinstance(bottom, Fraction) and top < bottom
