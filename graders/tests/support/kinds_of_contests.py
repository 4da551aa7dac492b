"""Kinds of numbers and quantities that contests and physics ask for, as reasoning models write them."""

from __future__ import annotations

from random import Random

from graders.tests.support.drawn import Drawn

# Each list of forms is read as a whole, and would take a page with one form a line.
# fmt: off


def three_digits_of_a_contest(rng: Random) -> Drawn:
    n = rng.randint(2, 99)
    right = [f"{n:03d}", f"{n}", f"\\text{{{n:03d}}}", f"0{n}", f"\\mathbf{{{n:03d}}}", f"{n:03d}."]
    wrong = [f"{n}0", f"{n}.5", f"0.{n:03d}", f"{n + 1:03d}", f"1{n:02d}", f"m+n = {n + 1}", f"00{n}0"]
    return Drawn([f"{n:03d}", f"{n}"], right, wrong)


def sums_in_the_box(rng: Random) -> Drawn:
    m, n = rng.randint(2, 40), rng.randint(41, 99)
    total = m + n
    right = [f"{m} + {n} = {total}", f"{m}+{n}", f"{m} + {n} =\\ {total}", f"S = {m} + {n} = {total}"]
    said = [f"So the fraction is $\\frac{{{m}}}{{{n}}}$ and $m+n = {m}+{n} = \\boxed{{{total}}}$.",
        f"Thus, $m = {m}$, $n = {n}$, and the answer is ${m} + {n} = \\boxed{{{total}}}$.",
        f"Hence $m+n=\\boxed{{{total}}}$, where $m={m}$ and $n={n}$."]
    wrong = [f"\\frac{{{m}}}{{{n}}}", f"{m} + {n} = {total + 1}", f"m + n = {m} + {n}= {total - 1}", f"{m}, {n}",
        f"m={m}, n={n}", f"{m} + {n + 1}"]
    return Drawn([f"{total}"], right, wrong, said, [f"So $m+n = \\boxed{{{total + 1}}}$, where $m={m}$ and $n={n}$."])


def notes_of_a_calculator(rng: Random) -> Drawn:
    a, b = rng.randint(3, 19), rng.randint(3, 19)
    n = a * b
    said = [f"She has {a}*{b}=<<{a}*{b}={n}>>{n} eggs.\n#### {n}",
        f"So he pays {a} * {b} = $<<{a}*{b}={n}>>{n}.\n#### {n}",
        f"Each day {a} x {b} = {n} miles.\nThe answer is {n}.", f"Total: {a} × {b} = **{n}**",
        f"He needs {a} * {b} = {n} minutes.",
        f"First, {a}*2=<<{a}*2={2 * a}>>{2 * a}.\nThen {n}-0=<<{n}-0={n}>>{n}.\n#### {n}"]
    missaid = [f"She has {a}*{b}=<<{a}*{b}={n}>>{n} eggs.\n#### {n + 1}", f"So {a} * {b} = {n + 2}.",
        f"He gets {a} * {b} = {n} and gives away 2.\n#### {n - 2}"]
    return Drawn([f"{n}"], [], [], said, missaid)


def thousands_with_narrow_spaces(rng: Random) -> Drawn:
    a, b = rng.randint(2, 999), rng.randint(100, 999)
    right = [f"{a}{{,}}{b}", f"{a}\\,{b}", f"{a}\\;{b}", f"{a},\\!{b}", f"{a},{b}.00", f"\\text{{{a},{b}}}",
        f"{a}\u202f{b}",
        f"{a}\\ {b}", f"{a},{b}.0"]
    wrong = [f"{a}.{b}", f"{a}, {b}", f"{a};{b}", f"{a}{{,}}{b}0", f"{a}\\cdot {b}", f"({a},{b})", f"{a} + {b}"]
    return Drawn([f"{a}{b}", f"{a},{b}"], right, wrong)


def rounded_decimals(rng: Random) -> Drawn:
    text = f"{rng.randint(1, 90)}.{rng.choice(['14', '37', '52', '86', '91'])}"
    other = text[:-1] + ("5" if text[-1] != "5" else "8")
    right = [f"\\approx {text}", f"≈ {text}", f"{text} \\text{{ (rounded to two decimal places)}}",
        f"{text} \\text{{ (to 2 decimal places)}}", f"x \\approx {text}", f"{text}\\text{{ (approximately)}}",
        f"\\text{{approximately }} {text}", f"about {text}"]
    said = [f"The answer is approximately {text}.", f"So the length is about {text} cm.", f"**Answer:** ≈ {text}",
        f"Rounded to the nearest hundredth, the answer is {text}."]
    wrong = [f"\\approx {other}", f"{text} \\pm 1", f"x > {text}", f"about {other}", f"{text[:-1]}", f"-{text}"]
    return Drawn([text], right, wrong, said, [f"The answer is less than {text}.", f"The answer is about {other}."])


def fractions_with_their_decimals(rng: Random) -> Drawn:
    top = rng.choice([1, 3, 5, 7])
    value = top / 8
    right = [f"\\frac{{{top}}}{{8}} = {value}", f"\\frac{{{top}}}{{8}} \\text{{ or }} {value}",
        f"\\frac{{{top}}}{{8}} ({value})",
        f"\\frac{{{top}}}{{8}} = {value} = {100 * value}\\%", f"{value} = \\frac{{{top}}}{{8}}", f"{top}/8 = {value}",
        f"\\frac{{{top}}}{{8}} \\approx {value:.2f}", f"{value} \\text{{ or }} \\frac{{{top}}}{{8}}"]
    wrong = [f"\\frac{{{top}}}{{8}} = {value + 0.125}", f"\\frac{{{top}}}{{8}} \\text{{ or }} {value + 0.125}",
        f"{top}/9 = {value}", f"\\frac{{8}}{{{top}}} = {value}", f"\\frac{{{top}}}{{8}}, {value + 1}"]
    return Drawn([f"\\frac{{{top}}}{{8}}", f"{value}"], right, wrong)


def factored_numbers(rng: Random) -> Drawn:
    a, b, p = rng.randint(2, 6), rng.randint(2, 4), rng.choice([5, 7, 11, 13])
    n = 2**a * 3**b * p
    right = [f"2^{a} \\cdot 3^{b} \\cdot {p}", f"2^{{{a}}} \\times 3^{{{b}}} \\times {p}",
        f"3^{b}\\cdot 2^{a}\\cdot {p}", f"{n}",
        f"2^{a} * 3^{b} * {p}", f"{n} = 2^{a} \\cdot 3^{b} \\cdot {p}", f"2^{{{a}}}·3^{{{b}}}·{p}",
        f"2^{a}(3^{b})({p})"]
    wrong = [f"2^{a} \\cdot 3^{b}", f"2^{a} + 3^{b} + {p}", f"2^{a + 1} \\cdot 3^{b} \\cdot {p}", f"2, 3, {p}",
        f"{n + 1} = 2^{a} \\cdot 3^{b} \\cdot {p}", f"2^{{{a}}}, 3^{{{b}}}, {p}"]
    return Drawn([f"2^{a} \\cdot 3^{b} \\cdot {p}"], right, wrong)


def negative_fractions(rng: Random) -> Drawn:
    a, b = rng.sample([2, 3, 5, 7, 11, 13, 17], 2)
    right = [f"\\frac{{-{a}}}{{{b}}}", f"-{a}/{b}", f"\\frac{{{a}}}{{-{b}}}", f"−{a}⁄{b}",
        f"-\\left(\\frac{{{a}}}{{{b}}}\\right)",
        f"\\dfrac{{-{a}}}{{{b}}}", f"(-{a})/{b}", f"\\text{{-}}\\frac{{{a}}}{{{b}}}", f"- \\frac{{{a}}}{{{b}}}",
        f"x = -\\frac{{{a}}}{{{b}}}", f"-\\frac{a if a < 10 else f'{{{a}}}'}{b if b < 10 else f'{{{b}}}'}",
        f"-{{{a} \\over {b}}}"]
    wrong = [f"\\frac{{{a}}}{{{b}}}", f"-\\frac{{{b}}}{{{a}}}", f"\\frac{{-{a}}}{{-{b}}}", f"1-\\frac{{{a}}}{{{b}}}",
        f"\\pm\\frac{{{a}}}{{{b}}}", f"--{a}/{b}"]
    return Drawn([f"-\\frac{{{a}}}{{{b}}}"], right, wrong)


def lengths_in_powers_of_ten(rng: Random) -> Drawn:
    m = rng.randint(11, 98) / 10
    right = [f"{m}e-7 m", f"{m} \\times 10^{{-7}}~\\mathrm{{m}}", f"{m * 100:.0f} \\text{{ nm}}", f"{m} × 10⁻⁷ m",
        f"{m} \\times 10^{{-7}} \\text{{ meters}}", f"\\lambda = {m} \\times 10^{{-7}} \\text{{ m}}",
        f"{m * 100:.0f}\\,\\mathrm{{nm}}", f"{m / 10:.2f}\\ \\mu\\text{{m}}", f"{m}\\cdot10^{{-7}}\\,\\text{{m}}"]
    wrong = [f"{m}e-6 m", f"{m * 100:.0f} \\mu m", f"{m} \\times 10^{{7}} \\text{{ m}}",
        f"{m} \\times 10^{{-7}} \\text{{ s}}",
        f"{m} \\text{{ m}}", f"{m * 10:.0f} \\text{{ nm}}", f"{m} \\times 10^{{-7}} \\text{{ cm}}"]
    return Drawn([f"{m} \\times 10^{{-7}} \\text{{ m}}"], right, wrong)


def speeds_with_a_name(rng: Random) -> Drawn:
    v = f"{rng.randint(2, 90)}.5"
    right = [f"v = {v}\\ \\text{{m/s}}", f"v \\approx {v} \\, \\mathrm{{m/s}}", f"{v} m s⁻¹",
        f"{v}\\,\\frac{{\\text{{m}}}}{{\\text{{s}}}}",
        f"v_0 = {v} \\, \\text{{m/s}}", f"{v}\\ \\text{{m}}\\cdot\\text{{s}}^{{-1}}",
        f"{v}\\ \\mathrm{{m \\cdot s^{{-1}}}}",
        f"{v} \\text{{ meters per second}}", f"{v} \\frac{{m}}{{s}}", f"v={v}"]
    said = [f"The speed is approximately {v} m/s.", f"The final velocity is **{v} m/s**.",
        f"$v = {v}\\,\\text{{m/s}}$ upward."]
    wrong = [f"v = {v} \\text{{ km/s}}", f"{v} \\text{{ m}}", f"{v} \\frac{{\\text{{s}}}}{{\\text{{m}}}}",
        f"v = {v[:-1]}0 \\text{{ m/s}}",
        f"{v} \\text{{ m/s}}^2", f"{v} km/h", f"-{v} \\text{{ m/s}}"]
    return Drawn([f"{v} \\text{{ m/s}}", f"{v}\\ \\mathrm{{m/s}}"], right, wrong, said,
        [f"The speed is about {v} cm/s."])


def temperatures(rng: Random) -> Drawn:
    t = rng.randint(11, 95)
    right = [f"{t}°C", f"{t} ℃", f"{t}\\,^{{\\circ}}\\mathrm{{C}}", f"{t} degrees Celsius", f"{t}^\\circ C",
        f"{t}^\\circ",
        f"{t} °C", f"{t}\\text{{ °C}}", f"T = {t}^\\circ\\text{{C}}", f"{t}"]
    wrong = [f"{t}°F", f"{t + 1}°C", f"{t} K", f"-{t}°C", f"{t}\\,^{{\\circ}}\\mathrm{{F}}", f"{t} degrees Fahrenheit"]
    return Drawn([f"{t}^\\circ\\text{{C}}", f"{t}^{{\\circ}} \\mathrm{{C}}"], right, wrong)


def resistances(rng: Random) -> Drawn:
    r = rng.randint(11, 98) / 10
    ohms = f"{r * 1000:.0f}"
    right = [f"{ohms} Ω", f"{r} kΩ", f"{r}\\,\\mathrm{{k\\Omega}}", f"{ohms}\\ \\Omega", f"{r}\\ \\text{{k}}\\Omega",
        f"R = {r}\\ \\text{{k}}\\Omega", f"{ohms} ohms", f"{r} \\text{{ kiloohms}}", f"{r} \\times 10^3\\ \\Omega"]
    wrong = [f"{r} Ω", f"{r} MΩ", f"{ohms} kΩ", f"{r} kV", f"{ohms} \\text{{ V}}", f"{r} \\mathrm{{m\\Omega}}"]
    return Drawn([f"{r}\\ \\text{{k}}\\Omega", f"{r} \\text{{ k}}\\Omega"], right, wrong)


def angles_in_radians(rng: Random) -> Drawn:
    n = rng.choice([3, 4, 5, 6, 8, 9, 10, 12])
    right = [f"\\frac{{\\pi}}{{{n}}}\\text{{ radians}}", f"π/{n} rad", f"\\dfrac{{1}}{{{n}}}\\pi",
        f"\\frac{{\\pi}}{{{n}}} \\text{{ rad}}",
        f"\\theta = \\frac{{\\pi}}{{{n}}}", f"\\frac{{\\pi}}{{{n}}}\\,\\mathrm{{rad}}", f"pi/{n}",
        f"\\frac{{\\pi}}{{{n}}}"]
    wrong = [f"\\frac{{\\pi}}{{{n + 1}}}", f"\\frac{{{n}}}{{\\pi}}", f"\\frac{{2\\pi}}{{{n}}} \\text{{ radians}}",
        f"\\frac{{1}}{{{n}}}",
        f"-\\frac{{\\pi}}{{{n}}}", f"\\pm\\frac{{\\pi}}{{{n}}}"]
    return Drawn([f"\\frac{{\\pi}}{{{n}}}"], right, wrong)


def volumes_with_pi(rng: Random) -> Drawn:
    n = rng.randint(3, 99)
    right = [f"{n}π cm³", f"{n}\\pi\\ \\mathrm{{cm}}^{{3}}", f"{n}\\pi \\text{{ cubic centimeters}}",
        f"{n}\\pi \\text{{ cm}}^3",
        f"V = {n}\\pi \\text{{ cm}}^3", f"{n}\\pi\\,\\text{{cm}}^{{3}}", f"{n}π cubic cm", f"{n}\\pi",
        f"{n}\\pi ~ cm^3"]
    wrong = [f"{n}\\pi \\text{{ cm}}^2", f"{n + 1}\\pi \\text{{ cm}}^3", f"{n} \\text{{ cm}}^3",
        f"{n}\\pi^3 \\text{{ cm}}",
        f"{n}\\pi \\text{{ m}}^3", f"{n}\\pi^2 \\text{{ cm}}^3"]
    return Drawn([f"{n}\\pi \\text{{ cm}}^3", f"{n}\\pi\\ \\text{{cm}}^3"], right, wrong)


def probabilities(rng: Random) -> Drawn:
    a, b = rng.choice([5, 7, 11, 13]), rng.choice([36, 48, 64, 100])
    f = f"\\frac{{{a}}}{{{b}}}"
    right = [f"P = {f}", f"P(A)={a}/{b}", f"\\mathbb{{P}} (A) = {f}", f"{a} out of {b}", f"{f} \\approx {a / b:.3f}",
        f"{f} \\approx {100 * a / b:.1f}\\%",
        f"P(X > 3) = {f}", f"\\Pr(X=3) = {f}", f"P(A \\cap B) = {f}", f"P(A|B) = {f}", f"\\mathbb{{P}}(A) = {f}"]
    said = [f"The probability is {a}/{b}.", f"So the probability that both are red is ${f}$.",
        f"$P(\\text{{both red}}) = {f}$",
        f"Thus the probability is $\\boxed{{{f}}}$, or about {100 * a / b:.1f}%."]
    wrong = [f"P = \\frac{{{a + 1}}}{{{b}}}", f"1 - {f}", f"P(A) = {a}", f"{f} \\approx {a / b + 0.2:.3f}",
        f"P(A) > {f}", f"\\frac{{{b}}}{{{a}}}"]
    return Drawn([f], right, wrong, said, [f"The probability is 1 - {a}/{b}.", f"The probability is at most {a}/{b}."])


def ratios_of_named_things(rng: Random) -> Drawn:
    a, b = rng.choice([(3, 5), (2, 7), (4, 9), (5, 8), (7, 12)])
    right = [f"\\text{{boys}} : \\text{{girls}} = {a} : {b}", f"a:b = {a}:{b}", f"{a}∶{b}",
        f"{a}:{b} \\text{{ (boys to girls)}}",
        f"\\text{{{a}:{b}}}", f"x:y={a}:{b}", f"{a} \\text{{ : }} {b}", f"{a}:{b} \\text{{ respectively}}"]
    said = [f"The ratio is {a}:{b}.", f"So the ratio of boys to girls is **{a}:{b}**.",
        f"The ratio of boys to girls is {a} to {b}."]
    wrong = [f"a:b = {b}:{a}", f"{a}:{b + 1}", f"{a + b}", f"{b}:{a}", f"a:b = {a}:{a + b}", f"{a}-{b}"]
    return Drawn([f"{a}:{b}"], right, wrong, said, [f"The ratio is {b}:{a}.",
        f"The ratio of boys to all is {a}:{a + b}."])


ALL = [
    *(three_digits_of_a_contest, sums_in_the_box, notes_of_a_calculator, thousands_with_narrow_spaces),
    *(rounded_decimals, fractions_with_their_decimals, factored_numbers, negative_fractions),
    *(lengths_in_powers_of_ten, speeds_with_a_name, temperatures, resistances, angles_in_radians),
    *(volumes_with_pi, probabilities, ratios_of_named_things),
]
