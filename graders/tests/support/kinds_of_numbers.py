"""Kinds of answers that are numbers, quantities or words for them, each with right and wrong ways to write it."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

from graders.tests.support.drawn import Drawn

# Each list of forms is read as a whole, and would take a page with one form a line.
# fmt: off


def _frac(value: Fraction) -> str:
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _proper(rng: Random) -> Fraction:
    bottom = rng.choice([3, 5, 7, 9, 11, 13, 17, 21])
    top = rng.choice([top for top in range(1, bottom) if math.gcd(top, bottom) == 1])
    return Fraction(top, bottom)


def mixed_numbers(rng: Random) -> Drawn:
    rest, whole = _proper(rng), rng.randint(2, 20)
    a, b = rest.numerator, rest.denominator
    total = _frac(whole + rest)
    right = [f"{whole}\\frac{{{a}}}{{{b}}}", f"{whole} {a}/{b}", f"{whole}\\text{{ and }}\\frac{{{a}}}{{{b}}}"]
    right += [f"{whole} \\dfrac{{{a}}}{{{b}}}", f"{whole} and {a}/{b}", f"{whole}+\\frac{{{a}}}{{{b}}}"]
    wrong = [f"{whole}\\cdot\\frac{{{a}}}{{{b}}}", f"{whole + 1}\\frac{{{a}}}{{{b}}}", f"\\frac{{{a}}}{{{b}}}",
        f"{whole}"]
    return Drawn([total, f"{whole}\\frac{{{a}}}{{{b}}}"], right, wrong)


def old_fractions(rng: Random) -> Drawn:
    value = _proper(rng)
    a, b = value.numerator, value.denominator
    right = [f"{{{a} \\over {b}}}", f"^{{{a}}}/_{{{b}}}", f"{a}/{b}", f"\\frac {{{a}}} {{{b}}}",
        f"\\frac{{\\,{a}\\,}}{{{b}}}"]
    right += [f"\\frac{{{a}}}{{{b}}}\\;", f"{a} \\div {b}", f"\\cfrac{{{a}}}{{{b}}}", f"{{}}^{{{a}}}/_{{{b}}}",
        f"({a})/({b})"]
    return Drawn([_frac(value)], right, [f"{{{b} \\over {a}}}", f"^{{{a}}}", f"{a}{b}", f"\\frac{{{a}}}{{{b}}}^2",
        f"{a}//{b}"])


def minus_forms(rng: Random) -> Drawn:
    number = rng.randint(2, 999)
    right = [f"{{-}}{number}", f"−{number}", f"- {number}", f"-{number}", f"\\mathbf{{-{number}}}",
        f"negative {number}"]
    right += [f"(-{number})", f"\\text{{negative }}{number}", f"–{number}"]
    return Drawn([f"-{number}"], right, [f"{number}", f"--{number}", f"+{number}", f"1-{number}", f"\\pm {number}"])


def currency(rng: Random) -> Drawn:
    units, cents = rng.randint(3, 5000), rng.choice(["00", "20", "75", "05"])
    text = f"{units}.{cents}"
    right = [f"\\${text}", f"\\$ {text}", f"{text} dollars", f"\\text{{\\${text}}}", f"${text}",
        f"{text}\\text{{ dollars}}"]
    right += [f"\\${units:,}.{cents}", f"USD {text}", f"{text} USD"]
    said = [f"The answer is ${text}.", f"**Answer:** ${text}", f"#### ${text}", f"She pays **${text}**."]
    wrong = [f"\\${units + 1}.{cents}", f"{text}\\text{{ cents}}", f"\\${text} \\text{{ million}}", f"{text} euros"]
    return Drawn([f"\\${text}"], right, wrong, said)


def percents(rng: Random) -> Drawn:
    number = rng.randint(2, 97)
    right = [f"{number}\\%", f"{number}%", f"{number} percent", f"{number}\\text{{ percent}}", f"\\text{{{number}\\%}}"]
    right += [f"{number} \\%", f"{number / 100}", f"{number} per cent", f"{number}\\,\\%"]
    wrong = [f"{number}\\%\\%", f"{number + 1}\\%", f"{number / 1000}\\%", f"{number}\\% \\text{{ less}}",
        f"100-{number}"]
    return Drawn([f"{number}\\%"], right, wrong)


UNITS = [
    ("m/s^2", "\\mathrm{m/s^2}", "m\\,s^{-2}", "m/s"),
    ("km/h", "\\text{km per hour}", "km\\cdot h^{-1}", "km"),
    ("g/cm^3", "\\mathrm{g/cm^3}", "g\\,cm^{-3}", "g/cm^2"),
    ("N\\cdot m", "\\text{N m}", "N\\,m", "N/m"),
    ("mol/L", "\\text{mol/L}", "mol\\,L^{-1}", "mol"),
    ("J/(kg\\cdot K)", "\\text{J/(kg K)}", "J\\,kg^{-1}\\,K^{-1}", "J/kg"),
]


def compound_units(rng: Random) -> Drawn:
    number, (plain, text, power, other) = rng.randint(2, 500), rng.choice(UNITS)
    right = [f"{number}\\,\\mathrm{{{power}}}", f"{number} \\mathrm{{{plain}}}", f"{number} \\text{{ }}{text}",
        f"{number}"]
    right += [f"{number} \\ {text}", f"{number}~\\mathrm{{{plain}}}"]
    wrong = [f"{number} \\mathrm{{{other}}}", f"{number + 1}\\ \\mathrm{{{plain}}}", f"{number}\\mathrm{{\\,{other}}}"]
    return Drawn([f"{number} \\text{{ {plain}}}", f"{number}\\ \\mathrm{{{plain}}}"], right, wrong)


RARE_UNITS = [("atm", "bar"), ("cal", "J"), ("mL", "L"), ("GB", "MB"), ("lx", "lm"), ("tsp", "tbsp"), ("psi", "Pa")]
RARE_UNITS += [("mmHg", "kPa"), ("oz", "lb"), ("acres", "hectares"), ("knots", "mph"), ("kWh", "kJ"), ("rad", "s")]


def units_of_the_kitchen_and_the_laboratory(rng: Random) -> Drawn:
    number, (unit, other) = rng.randint(2, 500), rng.choice(RARE_UNITS)
    right = [f"{number} \\text{{ {unit}}}", f"{number} {unit}", f"{number}\\,\\mathrm{{{unit}}}",
        f"\\text{{{number} {unit}}}"]
    wrong = [f"{number} \\text{{ {other}}}", f"{number} {other}", f"{number + 1} {unit}", f"\\text{{{number} {other}}}"]
    return Drawn([f"{number} \\text{{ {unit}}}"], [*right, f"{number}"], wrong)


CONVERTED = [("hours", "minutes", 60), ("m", "cm", 100), ("kg", "g", 1000), ("km", "m", 1000), ("minutes", "seconds",
    60)]
CONVERTED += [("feet", "inches", 12), ("L", "mL", 1000), ("days", "hours", 24), ("weeks", "days", 7), ("dollars",
    "cents", 100)]


def converted_units(rng: Random) -> Drawn:
    number, (large, small, factor) = rng.randint(2, 40), rng.choice(CONVERTED)
    right = [f"{number * factor} \\text{{ {small}}}", f"{number * factor} {small}", f"{number} {large}", f"{number}"]
    wrong = [f"{number} \\text{{ {small}}}", f"{number * factor} {large}", f"{number * factor + 1} {small}"]
    return Drawn([f"{number} \\text{{ {large}}}"], right, wrong)


NOUNS = ["apples", "marbles", "students", "ways", "red balls", "birds", "people", "clips", "eggs", "boxes", "pages",
    "trees"]


def counted_nouns(rng: Random) -> Drawn:
    number, noun = rng.randint(2, 5000), rng.choice(NOUNS)
    right = [f"{number} {noun}", f"{number}\\text{{ {noun}}}", f"\\text{{{number} {noun}}}", f"{number:,} {noun}"]
    said = [f"So there are {number} {noun} in total.", f"**{number} {noun}** are left.",
        f"The answer is {number} {noun}."]
    said += [f"They have \\boxed{{{number}}} {noun} altogether.", f"In the end we count **{number}** {noun}."]
    wrong = [f"{number + 1} {noun}", f"{number} dozen {noun}", f"more than {number} {noun}",
        f"{number}\\text{{ more {noun}}}"]
    return Drawn([f"{number}"], right, wrong, said, [f"The answer is half of {number} {noun}."])


def numbers_in_text_commands(rng: Random) -> Drawn:
    number, unit = rng.randint(2, 900), rng.choice(["km", "cm", "kg", "hours", "apples", "meters"])
    right = [f"\\text{{{number} {unit}}}", f"\\text{{{number}}}", f"\\mathrm{{{number}\\ {unit}}}",
        f"\\textbf{{{number}}}"]
    right += [f"\\mathbf{{{number}}}", f"\\text{{{number}}} \\text{{ {unit}}}", f"\\textbf{{{number} {unit}}}"]
    wrong = [f"\\text{{{number + 1} {unit}}}", f"\\text{{not {number}}}", f"\\text{{{number} or {number + 2}}}"]
    return Drawn([f"{number}"], right, wrong)


def si_commands(rng: Random) -> Drawn:
    drawn = rng.choice([("kg", "\\kilogram", "g"), ("m", "\\meter", "s"), ("J", "\\joule", "N"), ("cm",
        "\\centi\\meter", "km")])
    number, (unit, word, other) = rng.randint(2, 900), drawn
    right = [f"\\SI{{{number}}}{{{unit}}}", f"\\qty{{{number}}}{{{unit}}}", f"{number}\\,\\mathrm{{{unit}}}"]
    right += [f"\\SI{{{number}}}{{{word}}}", f"\\num{{{number}}}"]
    return Drawn([f"{number} \\text{{ {unit}}}"], right, [f"\\SI{{{number}}}{{{other}}}",
        f"\\SI{{{number + 1}}}{{{unit}}}"])


def durations(rng: Random) -> Drawn:
    hours, minutes = rng.randint(2, 11), rng.randint(5, 55)
    reference = f"{hours} \\text{{ hours }} {minutes} \\text{{ minutes}}"
    right = [f"{hours} hours {minutes} minutes", f"{hours} hours and {minutes} minutes",
        f"{hours}\\text{{ h }}{minutes}\\text{{ min}}"]
    right += [f"\\text{{{hours} hours and {minutes} minutes}}", f"{60 * hours + minutes} minutes",
        f"{hours} h {minutes} min"]
    wrong = [f"{hours} hours {minutes + 1} minutes", f"{hours} hours", f"{minutes} minutes",
        f"{hours} minutes {minutes} hours"]
    return Drawn([reference, f"{hours} hours {minutes} minutes"], right, wrong)


def times_of_day(rng: Random) -> Drawn:
    hour, minute = rng.randint(1, 11), rng.randint(10, 59)
    right = [f"{hour}:{minute} PM", f"{hour}:{minute} p.m.", f"{hour}:{minute}\\text{{ PM}}", f"{hour}:{minute} pm"]
    right += [f"\\text{{{hour}:{minute} PM}}", f"{hour}:{minute}\\,\\text{{p.m.}}"]
    wrong = [f"{hour}:{minute} AM", f"{hour}:{minute + 1 if minute < 59 else 10} PM", f"\\frac{{{hour}}}{{{minute}}}",
        f"{minute}:{hour} PM"]
    return Drawn([f"{hour}:{minute} \\text{{ PM}}", f"{hour}:{minute} PM"], right, wrong)


MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October"]
MONTHS += ["November", "December"]


def dates(rng: Random) -> Drawn:
    month, day = rng.choice(MONTHS), rng.randint(1, 28)
    ending = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd"}.get(day, "th")
    right = [f"{month} {day}", f"{day} {month}", f"\\text{{{month} {day}}}", f"{month} {day}{ending}",
        f"\\text{{{day} {month}}}"]
    right += [f"the {day}{ending} of {month}", f"{month}\\ {day}"]
    other = MONTHS[(MONTHS.index(month) + 1) % 12]
    return Drawn([f"{month} {day}", f"\\text{{{month} }}{day}"], right, [f"{other} {day}", f"{month} {day + 1}",
        f"{day}", month])


def dates_in_digits(rng: Random) -> Drawn:
    year, month, day = rng.randint(1900, 2020), rng.randint(1, 9), rng.randint(10, 28)
    text = f"{year}-0{month}-{day}"
    wrong = [f"{year}-{day:02d}-0{month}", str(year - month - day), f"{year}-0{month}-{day + 1}", f"{year}"]
    return Drawn([text], [text, f"\\text{{{text}}}", f"\\texttt{{{text}}}"], wrong)


def ratios_of_two(rng: Random) -> Drawn:
    a, b = rng.sample([2, 3, 5, 7, 8, 9, 11, 13], 2)
    if math.gcd(a, b) > 1:
        a, b = 7, 11
    right = [f"{a}:{b}", f"{a} : {b}", f"{a} to {b}", f"{a}\\colon {b}", f"{a}\\text{{ to }}{b}", f"{2 * a}:{2 * b}"]
    right += [f"\\frac{{{a}}}{{{b}}}", f"{a}/{b}", f"{a}\\,:\\,{b}", f"\\text{{{a} to {b}}}"]
    return Drawn([f"{a}:{b}"], right, [f"{b}:{a}", f"{a}:{b + 1}", f"{a}{b}", f"{a}, {b}", f"{b} to {a}", f"{a}:{b}:1"])


def ratios_of_three(rng: Random) -> Drawn:
    a, b, c = rng.sample([2, 3, 5, 7, 11, 13], 3)
    right = [f"{a}:{b}:{c}", f"{a} : {b} : {c}", f"{2 * a}:{2 * b}:{2 * c}", f"{a} to {b} to {c}",
        f"{a}\\colon {b}\\colon {c}"]
    return Drawn([f"{a}:{b}:{c}"], right, [f"{a}:{c}:{b}", f"{a}/{b}/{c}", f"{a}:{b}", f"{a}:{b}:{c + 1}",
        f"{a},{b},{c}", f"{a * b}:{c}"])


def numerals_of_a_base(rng: Random) -> Drawn:
    base, digits = rng.randint(4, 9), "".join(rng.choice("123") for _ in range(rng.randint(3, 6)))
    name = ["four", "five", "six", "seven", "eight", "nine"][base - 4]
    right = [f"{digits}_{base}", f"{digits}_{{{base}}}", f"({digits})_{base}", f"{digits} (base {base})",
        f"{digits} base {base}"]
    right += [f"{digits}_{{\\text{{{name}}}}}", f"{digits}\\text{{ (base {base})}}", f"{digits}_{{({base})}}",
        f"{digits} in base {base}"]
    wrong = [f"{digits}_{base + 1}", f"{digits[::-1]}1_{base}", f"{int(digits, base)}_{base}",
        f"{digits} (base {base + 1})"]
    return Drawn([f"{digits}_{base}", f"{digits}_{{{base}}}"], right, wrong)


SMALL = ["two", "three", "four", "five", "six", "seven", "eight", "nine"]


def numbers_in_words(rng: Random) -> Drawn:
    tens, ones = rng.choice(["twenty", "thirty", "forty", "fifty", "sixty", "ninety"]), rng.choice(SMALL)
    number = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60,
        "ninety": 90}[tens] + SMALL.index(ones) + 2
    right = [f"{tens}-{ones}", f"{tens} {ones}", f"\\text{{{tens}-{ones}}}", f"{tens.capitalize()}-{ones}",
        f"**{tens}-{ones}**"]
    other = "two" if ones != "two" else "five"
    wrong = [f"{tens}-{other}", f"{tens} times {ones}", f"minus {tens}-{ones}", f"{tens} hundred",
        f"half of {tens}-{ones}"]
    return Drawn([f"{number}"], right, wrong)


def scales(rng: Random) -> Drawn:
    number, (name, factor) = rng.randint(2, 90), rng.choice([("million", 10**6), ("billion", 10**9), ("thousand",
        1000)])
    right = [f"{number} {name}", f"{number}\\text{{ {name}}}", f"{number * factor:,}", f"{number * factor}",
        f"\\text{{{number} {name}}}"]
    right += [f"{number}.0 {name}", f"{number} \\times 10^{{{len(str(factor)) - 1}}}"]
    return Drawn([f"{number * factor}"], right, [f"{number}", f"{number + 1} {name}", f"{number} dozen",
        f"{number} hundred"])


def dozens(rng: Random) -> Drawn:
    number = rng.randint(2, 30)
    right = [f"{number} dozen", f"{12 * number}", f"{number}\\text{{ dozen}}", f"{number} dozens",
        f"{number} dozen eggs"]
    return Drawn([f"{12 * number}"], right, [f"{number}", f"{number + 1} dozen", f"{number} pairs", f"{number} score"])


def groups_of_other_locales(rng: Random) -> Drawn:
    a, b, c = rng.randint(1, 99), rng.randint(100, 999), rng.randint(100, 999)
    number = f"{a}{b}{c}"
    right = [f"{a}.{b}.{c}", f"{a} {b} {c}", f"{a},{b},{c}", f"{a}'{b}'{c}", f"{a}\\,{b}\\,{c}", f"{a}{{,}}{b}{{,}}{c}",
        f"{a}_{b}_{c}"]
    if a < 10:
        right.append(f"{a}{str(b)[0]},{str(b)[1:]},{c}")
    return Drawn([number], right, [f"{a}.{b},{c}", f"{a}.{b}", f"{a},{b}", f"{a}.{c}.{b + 1 if b < 999 else 100}",
        f"({a},{b},{c})"])


def comma_or_point(rng: Random) -> Drawn:
    a, b = rng.randint(1, 9), rng.choice([2, 4, 5, 6, 8])
    if a == b:
        a += 1
    return Drawn([f"{a}.{b}"], [f"{a}.{b}", f"{a}.{b}0", _frac(Fraction(10 * a + b, 10))], [f"{a},{b}", f"{b}.{a}",
        f"{a}{b}", f"{a}. {b}"])


def repeating_decimals(rng: Random) -> Drawn:
    fixed, digit = rng.randint(0, 9), rng.choice([1, 2, 3, 4, 5, 6, 7, 8])
    value = Fraction(fixed, 10) + Fraction(digit, 90)
    right = [f"0.{fixed}\\overline{{{digit}}}", f"0.{fixed}\\bar{{{digit}}}", f"0.{fixed}{str(digit) * 3}\\ldots"]
    right += [f"0.{fixed}{str(digit) * 4}…", f"0.{fixed}({digit})", f"0.{fixed}\\dot{{{digit}}}",
        f"0.{fixed}{str(digit) * 3}..."]
    return Drawn([_frac(value)], right, [f"0.{fixed}{digit}", f"0.\\overline{{{fixed}{digit + 1}}}",
        f"\\overline{{0.{fixed}{digit}}}"])


def scientific_notation(rng: Random) -> Drawn:
    mantissa, power = rng.randint(101, 989) / 100, rng.choice([-19, -7, -5, 5, 8, 11, 23])
    right = [f"{mantissa}\\times 10^{{{power}}}", f"{mantissa}e{power}", f"{mantissa} x 10^{power}",
        f"{mantissa}*10^({power})"]
    right += [f"{mantissa}·10^{{{power}}}", f"{mantissa}\\cdot{{10}}^{{{power}}}", f"{mantissa}E{power}",
        f"{mantissa} × 10^{power}"]
    wrong = [f"{mantissa}\\times 10^{{{-power}}}", f"{mantissa}", f"{mantissa + 1:.2f}e{power}",
        f"{mantissa}\\times 10^{{{power + 1}}}"]
    return Drawn([f"{mantissa} \\times 10^{{{power}}}"], right, wrong)


def tiny_and_huge_numbers(rng: Random) -> Drawn:
    n = rng.randint(200, 3000)
    right = [f"\\frac{{1}}{{{n}!}}", f"1/{n}!", f"\\dfrac{{1}}{{{n}!}}", f"\\frac{{{n + 1}}}{{{n + 1}!}}",
        f"\\frac{{2}}{{2\\cdot {n}!}}"]
    return Drawn([f"\\frac{{1}}{{{n}!}}"], right, [f"\\frac{{1}}{{{n + 1}!}}", "0", f"\\frac{{2}}{{{n}!}}", f"{n}!",
        f"\\frac{{1}}{{{n}}}!"])


def large_powers(rng: Random) -> Drawn:
    n, k = rng.randint(60, 400), rng.choice([2, 3, 5, 7])
    right = [f"{k}^{{{n}}}", f"{k}**{n}", f"{k}^({n})", f"{k}\\cdot {k}^{{{n - 1}}}",
        f"{k * k}^{{{n // 2}}}" if n % 2 == 0 else f"{k}^{{{n}}}"]
    right += [f"({k})^{{{n}}}", str(k**n)]
    return Drawn([f"{k}^{{{n}}}"], right, [f"{k}^{{{n + 1}}}", f"{k}^{{{n}}}+1", f"{k}\\cdot {n}", f"{n}^{k}"])


def degrees(rng: Random) -> Drawn:
    number = rng.randint(5, 175)
    right = [f"{number}^\\circ", f"{number}^{{\\circ}}", f"{number}°", f"{number}\\text{{ degrees}}",
        f"{number} degrees", f"{number}"]
    right += [f"{number}\\degree", f"{number}^{{o}}", f"{number}\\,^\\circ"]
    return Drawn([f"{number}^\\circ", f"{number}^{{\\circ}}"], right, [f"{number}'", f"{number}''",
        f"{number + 1}^\\circ", f"{number}^2", f"{180 + number}°"])


def binomials(rng: Random) -> Drawn:
    n, k = rng.randint(6, 14), rng.randint(2, 4)
    right = [f"\\binom{{{n}}}{{{k}}}", f"C({n},{k})", f"{{{n} \\choose {k}}}", f"{{}}^{{{n}}}C_{{{k}}}",
        f"\\dbinom{{{n}}}{{{k}}}"]
    right += [f"{n}C{k}", f"C_{{{n}}}^{{{k}}}", f"\\binom{{{n}}}{{{n - k}}}", f"C({n}, {k})", f"_{{{n}}}C_{{{k}}}"]
    wrong = [f"\\binom{{{n + 1}}}{{{k}}}", f"C({n},{k + 1})" if n != 2 * k + 1 else f"C({n + 1},{k})", f"({n},{k})",
        f"P({n},{k})"]
    return Drawn([f"{math.comb(n, k)}"], right, wrong)


def factorials(rng: Random) -> Drawn:
    n = rng.randint(5, 12)
    right = [f"{n}!", f"{math.factorial(n)}", f"{math.factorial(n):,}", f"{n}\\cdot {n - 1}!",
        f"{n}! = {math.factorial(n)}"]
    return Drawn([f"{math.factorial(n)}"], right, [f"{n}", f"{n}!!", f"{n + 1}!", f"({n}!)!", f"{n - 1}!", f"!{n}"])


def degrees_of_functions(rng: Random) -> Drawn:
    name, angle, value = rng.choice(
        [("sin", 30, "\\frac{1}{2}"), ("cos", 60, "\\frac{1}{2}"), ("tan", 45, "1"), ("sin", 60,
            "\\frac{\\sqrt{3}}{2}")]
    )
    right = [f"\\{name} {angle}^\\circ", f"\\{name}({angle}^\\circ)", f"\\{name} {angle}^\\circ = {value}", value]
    right += [f"\\{name}({angle}°)", f"\\{name}\\left({angle}^{{\\circ}}\\right)"]
    return Drawn([value], right, [f"\\{name} {angle}", f"\\{name} {angle + 7}^\\circ", f"{angle}^\\circ", f"\\{name}"])


ALL = [
    *(mixed_numbers, old_fractions, minus_forms, currency, percents, compound_units, converted_units, counted_nouns),
    *(units_of_the_kitchen_and_the_laboratory, numbers_in_text_commands, si_commands, durations, times_of_day, dates),
    *(dates_in_digits, ratios_of_two, ratios_of_three, numerals_of_a_base, numbers_in_words, scales, dozens),
    *(groups_of_other_locales, comma_or_point, repeating_decimals, scientific_notation, tiny_and_huge_numbers),
    *(large_powers, degrees, binomials, factorials, degrees_of_functions),
]
