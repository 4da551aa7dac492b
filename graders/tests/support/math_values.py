"""Mathematical values drawn by kind, each with the notations that models use and with near values."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import NamedTuple


class MathAnswer(NamedTuple):
    """One value: ways to write it, and ways to write near values."""

    kind: str
    same: list[str]  # LaTeX or plain; the first is one that data sets use as reference
    other: list[str]
    is_latex: bool = True  # also right in dollars and boxes


def whole(rng: Random) -> MathAnswer:
    number = rng.choice([rng.randint(-20, 99), rng.randint(1000, 99999), rng.randint(10**6, 10**9)])
    sign = "-" if number < 0 else ""
    grouped = f"{abs(number):,}"
    same = [
        f"{number}",
        f"{number}.",
        f"{number}.0",
        f"{sign}{grouped}",
        sign + grouped.replace(",", "{,}"),
        sign + grouped.replace(",", "\\,"),
        sign + grouped.replace(",", "\\!,\\!") if abs(number) < 1000 else sign + grouped.replace(",", "{,}"),
        f"\\mathbf{{{number}}}",
        f"x = {number}",
        f"{number}".replace("-", "−"),
        f"\\frac{{{2 * number}}}{{2}}",
        f"{number}\\text{{ apples}}",
    ]
    other = [f"{number + 1}", f"{-number - 1}", f"{number}.5", f"{number}0{number}", f"\\frac{{{number}}}{{3}}+1"]
    return MathAnswer("whole number", same, other)


def fraction(rng: Random) -> MathAnswer:
    top, bottom = rng.randint(1, 60), rng.choice([3, 7, 11, 13, 17, 19])
    value = Fraction(top * bottom + rng.randint(1, bottom - 1), bottom)
    a, b = value.numerator, value.denominator
    integer, rest = divmod(a, b)
    same = [
        f"\\frac{{{a}}}{{{b}}}",
        f"\\dfrac{{{a}}}{{{b}}}",
        f"\\tfrac{{{2 * a}}}{{{2 * b}}}",
        f"{a}/{b}",
        f"{a} / {b}",
        f"\\left(\\frac{{{a}}}{{{b}}}\\right)",
        f"{integer}\\frac{{{rest}}}{{{b}}}",
        f"{integer} {rest}/{b}",
        f"{integer} + \\frac{{{rest}}}{{{b}}}",
        f"\\frac{{-{a}}}{{-{b}}}",
        f"y = \\frac{{{a}}}{{{b}}}",
        f"\\displaystyle\\frac{{{a}}}{{{b}}}",
        f"{float(value):.9f}",
    ]
    other = [f"\\frac{{{b}}}{{{a}}}", f"-\\frac{{{a}}}{{{b}}}", f"{a + 1}/{b}", f"{float(value):.2f}", f"{integer}"]
    return MathAnswer("fraction", same, other)


def decimal(rng: Random) -> MathAnswer:
    cents = rng.randint(1, 9999) * 10 + rng.choice([1, 3, 7, 9])
    value = Fraction(cents, 1000)
    text = f"{float(value):.3f}"
    same = [
        text,
        f"{text}0",
        f"{text}.",
        f"\\frac{{{cents}}}{{1000}}",
        f"x={text}",
        f"{float(value) * 10:.2f} \\times 10^{{-1}}",
    ]
    if value < 1:
        same.append(text[1:])
    other = [f"{float(value) + 0.01:.3f}", f"{float(value):.1f}", f"{cents}", f"-{text}"]
    return MathAnswer("decimal", same, other)


def repeating(rng: Random) -> MathAnswer:
    digit = rng.choice([1, 2, 4, 5, 7, 8])
    value = Fraction(digit, 9)
    same = [
        f"\\frac{{{value.numerator}}}{{{value.denominator}}}",
        f"0.\\overline{{{digit}}}",
        f"0.\\bar{{{digit}}}",
        f"0.\\dot{{{digit}}}",
        f"0.{str(digit) * 3}\\ldots",
        f"0.{str(digit) * 4}...",
        f"0.({digit})",
        f"{float(value):.8f}",
    ]
    return MathAnswer("repeating decimal", same, ["0", f"0.{digit}", f"0.{digit}{digit}", f"0.\\overline{{0{digit}}}"])


def scientific(rng: Random) -> MathAnswer:
    mantissa, exponent = rng.randint(101, 999) / 100, rng.choice([-34, -19, -12, -5, 3, 5, 8, 12, 23])
    same = [
        f"{mantissa} \\times 10^{{{exponent}}}",
        f"{mantissa}\\times10^{{{exponent}}}",
        f"{mantissa} \\cdot 10^{{{exponent}}}",
        f"{mantissa}e{exponent}",
        f"{mantissa}E{exponent:+d}",
        f"{mantissa} * 10^{exponent}",
        f"{mantissa} × 10^{{{exponent}}}",
        f"{mantissa} x 10^{exponent}",
        f"{mantissa * 10:.1f} \\times 10^{{{exponent - 1}}}",
    ]
    if 0 < exponent < 13:
        same.append(str(round(mantissa * 100) * 10 ** (exponent - 2)))
    other = [
        f"{mantissa} \\times 10^{{{exponent + 1}}}",
        f"{mantissa + 0.1:.2f} \\times 10^{{{exponent}}}",
        f"{mantissa}",
        "0",
        "0.0000001",
        "10^{-50}",
    ]
    return MathAnswer("scientific notation", same, other)


def root(rng: Random) -> MathAnswer:
    a, c, b = rng.randint(2, 9), rng.choice([2, 3, 5, 6, 7]), rng.randint(1, 20)
    same = [
        f"{a}\\sqrt{{{c}}}",
        f"{a}\\sqrt{c}",
        f"{a}√{c}",
        f"{a} \\cdot \\sqrt{{{c}}}",
        f"\\sqrt{{{a * a * c}}}",
        f"{a}*sqrt({c})",
        f"x = {a}\\sqrt{{{c}}}",
        f"\\sqrt{{{c}}} \\cdot {a}",
        f"{a} \\sqrt {{{c}}}",
    ]
    if rng.random() < 0.5:
        same = [f"{text.removeprefix('x = ')} + {b}" for text in same]
        return MathAnswer("root", same, [f"{a}\\sqrt{{{c}}} - {b}", f"{a + 1}\\sqrt{{{c}}} + {b}", f"{a * c + b}"])
    return MathAnswer(
        "root", same, [f"{a + 1}\\sqrt{{{c}}}", f"{a}\\sqrt{{{c + 1}}}", f"{a * c}", f"-{a}\\sqrt{{{c}}}"]
    )


def with_pi(rng: Random) -> MathAnswer:
    a, b = rng.randint(2, 30), rng.choice([1, 2, 3, 5, 7])
    if b == 1 or a % b == 0:
        same = [f"{a * b}\\pi", f"{a * b} \\pi", f"{a * b}π", f"\\pi \\cdot {a * b}", f"{a * b}\\cdot\\pi"]
        return MathAnswer("pi", same, [f"{a * b}", f"{a * b + 1}\\pi", f"{a * b}\\pi^2", "3.14"])
    same = [
        f"\\frac{{{a}\\pi}}{{{b}}}",
        f"\\frac{{{a}}}{{{b}}}\\pi",
        f"{a}\\pi/{b}",
        f"\\dfrac{{{a} \\pi}}{{{b}}}",
        f"{a}π/{b}",
    ]
    return MathAnswer("pi", same, [f"\\frac{{{a}\\pi}}{{{b + 1}}}", f"\\frac{{{a}}}{{{b}}}", f"{a}\\pi"])


def percent(rng: Random) -> MathAnswer:
    number = rng.randint(1, 99)
    same = [
        f"{number}\\%",
        f"{number}%",
        f"{number} \\%",
        f"{number}",
        f"{number}\\text{{ percent}}",
        f"{number} percent",
    ]
    same += [f"{number / 100}", f"\\frac{{{number}}}{{100}}"]
    return MathAnswer("percent", same, [f"{number + 1}\\%", f"{number / 1000}", f"{number * 100}"])


def with_unit(rng: Random) -> MathAnswer:
    number = rng.randint(2, 400)
    symbol, word, wrong = rng.choice(
        [
            ("cm", "centimeters", "km"),
            ("m", "meters", "s"),
            ("kg", "kilograms", "g"),
            ("km/h", "kilometers per hour", "km"),
            ("cm^2", "square centimeters", "cm^3"),
            ("s", "seconds", "m"),
            ("m/s^2", "meters/second^2", "m/s"),
            ("hours", "hours", "minutes"),
        ]
    )
    base, caret, power = symbol.partition("^")
    same = [
        f"{number} \\text{{ {symbol}}}" if not caret or "/" in base else f"{number} \\text{{ {base}}}^{power}",
        f"{number}\\ \\mathrm{{{symbol}}}",
        f"{number} {symbol}",
        f"{number} {word}",
        f"{number}\\,\\text{{{word}}}",
        f"{number}",
        f"{number}~\\text{{{word}}}",
    ]
    return MathAnswer(
        "unit", same, [f"{number + 1} {symbol}", f"{number} \\text{{ {wrong}}}", f"{number * 10}\\text{{ {symbol}}}"]
    )


def several(rng: Random) -> MathAnswer:
    a, b, c = sorted(rng.sample(range(-9, 30), 3))
    kind = rng.choice(["tuple", "interval", "set", "list"])
    if kind == "tuple":
        same = [
            f"({c}, {a}, {b})",
            f"({c},{a},{b})",
            f"\\left({c}, {a}, {b}\\right)",
            f"( {c} , {a} , {b} )",
            f"(x,y,z) = ({c},{a},{b})",
        ]
        return MathAnswer(
            kind, same, [f"({a}, {c}, {b})", f"({c}, {a})", f"{c}", f"\\{{{a}, {b}, {c}\\}}", f"({c},{a},{b + 1})"]
        )
    if kind == "interval":
        same = [
            f"[{a}, {b})",
            f"\\left[{a}, {b}\\right)",
            f"[{a},{b})",
            f"\\left[ {a} ,\\, {b} \\right)",
            f"x \\in [{a},{b})",
        ]
        return MathAnswer(kind, same, [f"({a}, {b})", f"[{a}, {b}]", f"[{a}, {b + 1})", f"{a}", f"[{a},\\infty)"])
    if kind == "set":
        same = [
            f"\\{{{a}, {b}, {c}\\}}",
            f"\\left\\{{{c}, {a}, {b}\\right\\}}",
            f"{a}, {b}, {c}",
            f"\\{{{b},{a},{c}\\}}",
        ]
        return MathAnswer(kind, same, [f"\\{{{a}, {b}\\}}", f"\\{{{a}, {b}, {c + 1}\\}}", f"{a}", f"({a}, {b}, {c})"])
    same = [
        f"{a}, {b}",
        f"{b},{a}",
        f"{a} \\text{{ and }} {b}",
        f"{a}\\text{{ or }}{b}",
        f"x = {a} \\text{{ or }} x = {b}",
        f"\\{{{a},{b}\\}}",
    ]
    return MathAnswer(kind, same, [f"{a}", f"{b}", f"{a}, {b}, {c}", f"{a}, {c}"])


def polynomial(rng: Random) -> MathAnswer:
    a, b = rng.randint(2, 9), rng.randint(1, 9)
    same = [f"{a}x+{b}", f"{a}x + {b}", f"{b}+{a}x", f"{a} x+{b}", f"{a}\\cdot x+{b}", f"y = {a}x+{b}"]
    return MathAnswer("expression", same, [f"{a + 1}x+{b}", f"{a}x-{b}", f"{a}x^2+{b}", f"{a}+{b}", f"{a}x"])


def words(rng: Random) -> MathAnswer:
    word, wrong = rng.choice(
        [("Yes", "No"), ("true", "false"), ("even", "odd"), ("Tuesday", "Monday"), ("Alice", "Bob")]
    )
    same = [
        word,
        f"\\text{{{word}}}",
        word.upper(),
        word.lower(),
        f"\\textbf{{{word.lower()}}}",
        f"\\text{{{word.capitalize()}.}}",
    ]
    return MathAnswer("word", same, [wrong, f"\\text{{{wrong}}}", f"not {word}", "5"], is_latex=False)


VALUES: list[Callable[[Random], MathAnswer]] = [
    whole,
    fraction,
    decimal,
    repeating,
    scientific,
    root,
    with_pi,
    percent,
    with_unit,
    several,
    polynomial,
    words,
]
