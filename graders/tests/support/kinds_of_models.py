"""Kinds of formulas, closing words, output of code and letters, as reasoning models write them."""

from __future__ import annotations

from random import Random

from graders.tests.support.drawn import Drawn
from graders.tests.support.kinds_of_texts import OPTIONS

# Each list of forms is read as a whole, and would take a page with one form a line.
# fmt: off


def points_with_fractions(rng: Random) -> Drawn:
    a, b = rng.choice([(3, 5), (5, 7), (7, 9), (9, 3)])
    right = [f"({a / 2}, -{b / 4})", f"({a}/2, -{b}/4)", f"\\left(\\frac{{{a}}}{{2}}, \\frac{{-{b}}}{{4}}\\right)",
        f"x = \\frac{{{a}}}{{2}}, y = -\\frac{{{b}}}{{4}}",
        f"\\left( \\dfrac{{{a}}}{{2}},\\, -\\dfrac{{{b}}}{{4}} \\right)",
        f"\\left(\\frac{a}2, -\\frac{b}4\\right)", f"\\bigl(\\tfrac{{{a}}}{{2}}, -\\tfrac{{{b}}}{{4}}\\bigr)",
        f"(x, y) = \\left(\\frac{{{a}}}{{2}}, -\\frac{{{b}}}{{4}}\\right)"]
    wrong = [f"(-{b / 4}, {a / 2})", f"({a}/2, {b}/4)", f"\\left(\\frac{{{a}}}{{2}}, -\\frac{{{b}}}{{2}}\\right)",
        f"\\frac{{{a}}}{{2}}",
        f"\\left[\\frac{{{a}}}{{2}}, -\\frac{{{b}}}{{4}}\\right]", f"x = -\\frac{{{b}}}{{4}}, y = \\frac{{{a}}}{{2}}"]
    return Drawn([f"\\left(\\frac{{{a}}}{{2}}, -\\frac{{{b}}}{{4}}\\right)"], right, wrong)


def polar_coordinates(rng: Random) -> Drawn:
    r, n = rng.randint(2, 9), rng.choice([2, 3, 4, 6])
    right = [f"(r,\\theta) = ({r}, \\pi/{n})", f"({r}, π/{n})", f"\\left({r}, \\frac{{\\pi}}{{{n}}}\\right)",
        f"r = {r}, \\theta = \\frac{{\\pi}}{{{n}}}", f"\\left( {r},\\, \\frac{{1}}{{{n}}}\\pi \\right)",
        f"({r}, \\tfrac{{\\pi}}{{{n}}})",
        f"(r, \\theta) = \\left({r}, \\frac{{\\pi}}{{{n}}}\\right)"]
    wrong = [f"({r}, \\frac{{{n}}}{{\\pi}})", f"\\left({r + 1}, \\frac{{\\pi}}{{{n}}}\\right)",
        f"(\\frac{{\\pi}}{{{n}}}, {r})",
        f"\\left({r}, -\\frac{{\\pi}}{{{n}}}\\right)", f"({r}, \\pi)", f"{r} + \\frac{{\\pi}}{{{n}}}"]
    return Drawn([f"\\left({r}, \\frac{{\\pi}}{{{n}}}\\right)"], right, wrong)


def circles(rng: Random) -> Drawn:
    a, b, r = rng.randint(1, 9), rng.randint(1, 9), rng.randint(2, 9)
    left, right_side = f"(x-{a})^2+(y+{b})^2", r * r
    right = [f"(x - {a})^{{2}} + (y + {b})^{{2}} = {right_side}",
        f"x^2+y^2-{2 * a}x+{2 * b}y+{a * a + b * b}={right_side}",
        f"(y+{b})^2+(x-{a})^2={right_side}", f"{left}={r}^2",
        f"\\left(x-{a}\\right)^2+\\left(y+{b}\\right)^2={right_side}",
        f"{left}-{right_side}=0", f"{right_side}={left}"]
    wrong = [f"(x+{a})^2+(y-{b})^2={right_side}", f"{left}={r}", f"{left}={right_side + 1}", f"{left}<{right_side}",
        left,
        f"x^2+y^2={right_side}"]
    return Drawn([f"{left}={right_side}"], right, wrong)


def planes(rng: Random) -> Drawn:
    a, b, d = rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 20)
    right = [f"{a}x - {b}y + z = {d}", f"{2 * a}x-{2 * b}y+2z-{2 * d}=0", f"-{a}x+{b}y-z+{d}=0", f"z = {d}-{a}x+{b}y",
        f"{a}x-{b}y+z-{d} = 0", f"{a} x - {b} y + z - {d} = 0"]
    wrong = [f"{a}x+{b}y+z={d}", f"{a}x-{b}y+z+{d}=0", f"{a}x-{b}y=0", f"{a}x-{b}y+z", f"{a}x-{b}y+2z={d}",
        f"({a},-{b},1)"]
    return Drawn([f"{a}x-{b}y+z-{d}=0"], right, wrong)


def solutions_of_differential_equations(rng: Random) -> Drawn:
    a, b = rng.sample(range(2, 9), 2)
    right = [f"y = C_1 e^{{{a}x}} + C_2 e^{{-{b}x}}", f"y(x)=C_1e^{{{a}x}}+C_2e^{{-{b}x}}",
        f"y = c_1 e^{{{a}x}} + c_2 e^{{-{b}x}}",
        f"C_1 e^{{{a}x}} + C_2 e^{{-{b}x}}", f"y = C_{{1}} e^{{{a} x}} + C_{{2}} e^{{- {b} x}}",
        f"y = C_1 e^{{{a}x}} + C_2 e^{{-{b}x}}, \\text{{ where }} C_1, C_2 \\text{{ are constants}}"]
    wrong = [f"y = C_1 e^{{{b}x}} + C_2 e^{{-{a}x}}", f"y = C_1 e^{{{a}x}}", f"y = e^{{{a}x}} + e^{{-{b}x}}",
        f"y = C_1 C_2 e^{{{a - b}x}}",
        f"y' = C_1 e^{{{a}x}} + C_2 e^{{-{b}x}}", f"y = C_1 e^{{-{a}x}} + C_2 e^{{{b}x}}"]
    return Drawn([f"y = C_1 e^{{{a}x}} + C_2 e^{{-{b}x}}"], right, wrong)


def families_of_angles(rng: Random) -> Drawn:
    n = rng.choice([3, 4, 6])
    f = f"\\frac{{\\pi}}{{{n}}}"
    right = [f"x = {f} + 2n\\pi \\text{{ for }} n \\in \\mathbb{{Z}}", f"x = {f} + 2\\pi n, \\; n \\in \\mathbb{{Z}}",
        f"{f} + 2\\pi n",
        f"x = {f} + 2\\pi n \\text{{, where }} n \\text{{ is an integer}}", f"x = {f} + 2\\pi k, k \\in \\mathbb{{Z}}",
        f"x = {f} + 2\\pi n \\quad (n \\in \\mathbb{{Z}})", f"x = 2\\pi n + {f}, n \\in \\mathbb Z"]
    wrong = [f"x = {f} + \\pi n, n \\in \\mathbb{{Z}}", f"x = {f}", f"x = -{f} + 2\\pi n, n \\in \\mathbb{{Z}}",
        f"x = \\frac{{\\pi}}{{{n + 1}}} + 2\\pi n, n \\in \\mathbb{{Z}}", "x = 2\\pi n, n \\in \\mathbb{Z}"]
    return Drawn([f"x = {f} + 2\\pi n, n \\in \\mathbb{{Z}}"], right, wrong)


def piecewise_functions(rng: Random) -> Drawn:
    a, b = rng.sample(range(2, 12), 2)
    start, end = "\\begin{cases}", "\\end{cases}"
    right = [f"f(x) = {start} {a}x & x \\ge 0 \\\\ -{b}x & x < 0 {end}",
        f"{start} {a}x, & x \\geq 0 \\\\ -{b}x, & x < 0 {end}",
        f"{start} {a}x & \\text{{if }} x \\ge 0 \\\\ -{b}x & \\text{{if }} x < 0 {end}",
        f"{start} {a}x, & \\text{{if }} x \\ge 0, \\\\ -{b}x, & \\text{{if }} x < 0. {end}",
        f"{start} {a}x & \\text{{for }} x \\geq 0 \\\\ -{b}x & \\text{{for }} x < 0 \\\\ {end}"]
    wrong = [f"{start} {a}x & x < 0 \\\\ -{b}x & x \\ge 0 {end}", f"{start} {a}x & x \\ge 0 \\\\ {b}x & x < 0 {end}",
        f"{a}x",
        f"{start} {a}x & x \\ge 1 \\\\ -{b}x & x < 1 {end}", f"{start} {a}x & x > 0 \\\\ -{b}x & x \\le 0 {end}",
        f"{a}x, -{b}x"]
    return Drawn([f"{start} {a}x & x \\ge 0 \\\\ -{b}x & x < 0 {end}"], right, wrong)


def absolute_values(rng: Random) -> Drawn:
    a, name = rng.randint(2, 30), rng.choice("xtn")
    right = [f"\\left|{name}-{a}\\right|", f"|{a}-{name}|", f"\\lvert {name}-{a} \\rvert", f"\\vert {name}-{a}\\vert",
        f"abs({name}-{a})",
        f"\\sqrt{{({name}-{a})^2}}", f"\\left\\lvert {name} - {a} \\right\\rvert", f"\\mid {name}-{a} \\mid",
        f"|{name} - {a}|"]
    wrong = [f"{name}-{a}", f"|{name}+{a}|", f"|{name}|-{a}", f"-|{name}-{a}|", f"({name}-{a})", f"|{name}-{a}|^2",
        f"\\pm({name}-{a})"]
    return Drawn([f"|{name}-{a}|"], right, wrong)


def functional_equations(rng: Random) -> Drawn:
    a = rng.randint(2, 30)
    right = [f"f(x)={a}x, f(x)=-{a}x", f"f(x) = \\pm {a}x", f"f(x)={a}x \\text{{ or }} f(x)=-{a}x",
        f"f(x) = -{a}x \\text{{ and }} f(x)={a}x",
        f"f(x) = {a}x \\text{{ and }} f(x) = -{a}x \\text{{ for all real }} x", f"f(x) = {a}x, -{a}x",
        f"f(t)={a}t, f(t)=-{a}t"]
    wrong = [f"f(x)={a}x", f"f(x)={a}x, f(x)=0", f"f(x)=-{a}x", f"f(x)={a}x, f(x)=-{a}",
        f"f(x)={a + 1}x, f(x)=-{a + 1}x", f"\\pm {a}"]
    return Drawn([f"f(x)={a}x \\text{{ and }} f(x)=-{a}x", f"f(x)={a}x, f(x)=-{a}x"], right, wrong)


def lists_of_pairs(rng: Random) -> Drawn:
    a, b, c, d = rng.sample(range(1, 30), 4)
    right = [f"({c},{d}), ({a},{b})", f"({a},{b}) \\text{{ and }} ({c},{d})", f"\\{{({a},{b}),({c},{d})\\}}",
        f"(x,y) = ({a},{b}), ({c},{d})", f"(x,y) \\in \\{{({a},{b}),({c},{d})\\}}",
        f"(x, y) = ({a}, {b}) \\text{{ or }} ({c}, {d})",
        f"\\left({a}, {b}\\right), \\left({c}, {d}\\right)", f"({a}, {b}); ({c}, {d})", f"({a}, {b}) and ({c}, {d})"]
    wrong = [f"({a},{b})", f"({b},{a}), ({c},{d})", f"({a},{c}),({b},{d})", f"({a},{b},{c},{d})", f"{a},{b},{c},{d}",
        f"({a},{b}),({c},{d}),(0,0)"]
    return Drawn([f"({a},{b}),({c},{d})", f"({a}, {b}), ({c}, {d})"], right, wrong)


def numbers_described_in_words(rng: Random) -> Drawn:
    noun = rng.choice(["odd primes", "perfect squares", "even integers", "odd integers", "powers of two",
        "prime numbers"])
    other = rng.choice(["composite numbers", "multiples of three", "perfect cubes"])
    right = [f"all {noun}", f"\\text{{all {noun}}}", f"\\text{{All {noun}.}}", f"All {noun}",
        f"\\textbf{{all {noun}}}", f"**all {noun}**"]
    wrong = [f"all {other}", f"\\text{{no {noun}}}", f"\\text{{all {noun} and {other}}}", f"all {noun} except 3",
        f"not all {noun}", "3"]
    return Drawn([f"\\text{{all {noun}}}", f"all {noun}"], right, wrong)


def hexadecimal_numerals(rng: Random) -> Drawn:
    digits = rng.choice("123456789") + rng.choice("ABCDEF") + rng.choice("0123456789") + rng.choice("ABCDEF")
    right = [f"{digits.lower()}_{{16}}", f"\\text{{{digits}}}_{{16}}", f"({digits})_{{16}}", f"{digits} (base 16)",
        f"\\mathrm{{{digits}}}_{{16}}",
        f"{digits}_{{\\text{{hex}}}}", f"\\texttt{{{digits}}}_{{16}}", f"{digits}_{{16}}"]
    wrong = [f"{digits}_{{15}}", f"{digits[::-1]}1_{{16}}", f"{int(digits, 16)}_{{16}}", f"{digits}0_{{16}}",
        f"{digits[:-1]}_{{16}}"]
    return Drawn([f"{digits}_{{16}}"], right, wrong)


def lists_printed_by_code(rng: Random) -> Drawn:
    a, b, c = rng.sample(range(1, 60), 3)
    right = [f"[{a}, {b}, {c}]", f"[{a},{b},{c}]", f"`[{a}, {b}, {c}]`", f"\\texttt{{[{a}, {b}, {c}]}}",
        f"\\left[{a}, {b}, {c}\\right]"]
    said = [f"The output is `[{a}, {b}, {c}]`.", f"```\n[{a}, {b}, {c}]\n```",
        f"The final list is:\n\n```python\n[{a}, {b}, {c}]\n```",
        f"So the program prints **[{a}, {b}, {c}]**.", f"The answer is [{a}, {b}, {c}]"]
    wrong = [f"[{a}, {c}, {b}]", f"[{a}, {b}]", f"[{a}, {b}, {c}, {a}]", f"[{a}, {b}, {c + 60}]", f"[[{a}, {b}], {c}]",
        f"{a}{b}{c}"]
    return Drawn([f"[{a}, {b}, {c}]"], right, wrong, said, [f"The output is `[{a}, {c}, {b}]`.",
        f"```\n[{a}, {b}]\n```"])


def texts_printed_by_code(rng: Random) -> Drawn:
    word = rng.choice(["hello", "banana", "stressed", "python", "racecar", "window"])
    right = [f"'{word}'", f'"{word}"', f"`{word}`", word, f"\\text{{{word}}}", f"\\texttt{{{word}}}",
        f"\\text{{'{word}'}}",
        f'\\text{{"{word}"}}', f"`'{word}'`", f"``{word}''"]
    said = [f"The output is `{word}`.", f"It prints `'{word}'`.", f'The answer is "{word}".',
        f"The output is:\n\n```\n{word}\n```"]
    wrong = [word[::-1] if word != "racecar" else "racecars", word[:-1], f"{word} {word}", f"'{word}s'", f"not {word}",
        f"`{word[1:]}`"]
    return Drawn([word, f"'{word}'"], right, wrong, said, [f"The output is `{word[1:]}`.",
        f"It does not print `{word}`."])


def intervals_with_roots(rng: Random) -> Drawn:
    a, b = rng.randint(1, 9), rng.choice([2, 3, 5, 6, 7])
    right = [f"-\\frac{{{a}}}{{2}} \\le x < \\sqrt{{{b}}}",
        f"x \\in \\left[-\\frac{{{a}}}{{2}}, \\sqrt{{{b}}}\\right)", f"[-{a}/2, √{b})",
        f"\\left[-{a / 2}, \\sqrt{b}\\right)", f"\\left[-\\dfrac{{{a}}}{{2}},\\ \\sqrt{{{b}}}\\right)",
        f"\\{{x \\mid -\\frac{{{a}}}{{2}} \\leq x < \\sqrt{{{b}}}\\}}",
        f"x\\in\\bigl[-\\tfrac{{{a}}}{{2}},\\sqrt{{{b}}}\\bigr)"]
    wrong = [f"\\left(-\\frac{{{a}}}{{2}}, \\sqrt{{{b}}}\\right)", f"\\left[-\\frac{{{a}}}{{2}}, {b}\\right)",
        f"[{a}/2, √{b})",
        f"\\left[-\\frac{{{a}}}{{2}}, \\sqrt{{{b}}}\\right]", f"-\\frac{{{a}}}{{2}} \\le x", f"x < \\sqrt{{{b}}}"]
    return Drawn([f"\\left[-\\frac{{{a}}}{{2}}, \\sqrt{{{b}}}\\right)"], right, wrong)


def domains_with_holes(rng: Random) -> Drawn:
    a = rng.randint(-9, 5)
    b = a + rng.randint(2, 9)
    right = [f"x \\ge {a}, x \\ne {b}", f"x \\geq {a} \\text{{ and }} x \\neq {b}",
        f"x \\in [{a},\\infty) \\setminus \\{{{b}\\}}",
        f"[{a}, ∞) \\setminus \\{{{b}\\}}", f"[{a}, {b}) \\cup ({b}, \\infty)", f"[{a}, {b}) ∪ ({b}, ∞)",
        f"[{a},\\infty)\\backslash\\{{{b}\\}}",
        f"x \\in [{a}, {b}) \\cup ({b}, +\\infty)"]
    wrong = [f"[{a}, \\infty)", f"x \\ge {a}", f"x \\ne {b}", f"({a}, {b}) \\cup ({b}, \\infty)",
        f"[{a}, {b}] \\cup ({b}, \\infty)",
        f"x > {a}, x \\ne {b}", f"x \\ge {a}, x \\ne {b + 1}"]
    return Drawn([f"[{a},{b})\\cup({b},\\infty)"], right, wrong)


def areas_in_square_units(rng: Random) -> Drawn:
    a, b = rng.randint(2, 40), rng.choice([2, 3, 5, 7])
    s = f"{a}\\sqrt{{{b}}}"
    right = [f"\\text{{Area}} = {s} \\text{{ square units}}", f"{s} \\text{{ sq. units}}", f"{a}√{b} units²",
        f"{s}\\ \\text{{units}}^2",
        f"[ABC] = {s}", f"S_{{ABC}} = {s}", f"S_{{\\triangle ABC}}={s}", f"{s} \\text{{ square units}}", f"A = {s}",
        f"\\text{{Area of }} ABC = {s}"]
    said = [f"The area of the triangle is ${s}$ square units.", f"So the area is {a}√{b}.",
        f"Hence the area equals ${s}$."]
    wrong = [f"{a + 1}\\sqrt{{{b}}} \\text{{ square units}}", f"\\text{{Area}} = \\sqrt{{{a * b}}}", f"[ABC] = {a}",
        f"2[ABC] = {s}",
        f"S_{{ABC}} = {s} - 1", f"{a}\\sqrt{{{b + 6}}}"]
    return Drawn([s], right, wrong, said, [f"The area is half of ${s}$.", f"The area is ${s} + 1$ square units."])


def golden_ratios(rng: Random) -> Drawn:
    a, b = rng.choice([5, 13, 17, 21, 29]), rng.choice([1, 3, 5, 7])
    right = [f"\\frac{{-{b}+\\sqrt{{{a}}}}}{{2}}", f"(√{a}-{b})/2", f"\\frac{{\\sqrt{{{a}}} - {b}}}{{2}}",
        f"0.5(\\sqrt{{{a}}}-{b})",
        f"\\frac{{1}}{{2}}(\\sqrt{{{a}}}-{b})", f"\\frac{{\\sqrt{{{a}}}}}{{2}}-\\frac{{{b}}}{{2}}",
        f"(sqrt({a})-{b})/2",
        f"x = \\frac{{\\sqrt{{{a}}}-{b}}}{{2}}", f"\\frac12\\left(\\sqrt{{{a}}}-{b}\\right)",
        f"\\frac{{{b}-\\sqrt{{{a}}}}}{{-2}}"]
    wrong = [f"\\frac{{\\sqrt{{{a}}}+{b}}}{{2}}", f"\\frac{{{b}-\\sqrt{{{a}}}}}{{2}}", f"\\sqrt{{{a}}}-{b}/2",
        f"\\frac{{\\sqrt{{{a}}}-{b}}}{{4}}",
        f"\\frac{{-{b}\\pm\\sqrt{{{a}}}}}{{2}}", f"\\frac{{\\sqrt{{{a - b}}}}}{{2}}"]
    return Drawn([f"\\frac{{\\sqrt{{{a}}}-{b}}}{{2}}"], right, wrong)


def final_answers_in_markdown(rng: Random) -> Drawn:
    n, m = rng.randint(11, 99), rng.randint(100, 999)
    said = [f"So x = {m}.\n\n**Final Answer**\n\n\\boxed{{{n}}}", f"So the final answer is:\n\n$$\n\\boxed{{{n}}}\n$$",
        f"### Answer\n\\[\n\\boxed{{{n}}}\n\\]",
        f"\\boxed{{{n}}}.\n\n**Verification**: {n} = {n - 3} + 3, so {m} is left.",
        f"Thus, the answer is \\( \\boxed{{{n}}} \\). $\\blacksquare$",
        f"---\n\n**Answer**: \\(\\boxed{{{n}}}\\)", f"### Final Answer:\n{n}", f"**Final Answer: {n}**",
        f"✅ **Answer: {n}**",
        f"**Answer**\n\n{n}", f"### Answer: **{n}**", f"The answer is: **{n}** ✅", f"<b>Answer: {n}</b>",
        f"Answer = {n}"]
    missaid = [f"So x = {n}.\n\n**Final Answer**\n\n\\boxed{{{m}}}", f"### Final Answer:\n{m}",
        f"**Answer: {n + 1}** (not {n})"]
    return Drawn([f"{n}"], [], [], said, missaid)


def answers_in_json(rng: Random) -> Drawn:
    n = rng.randint(11, 999)
    said = [f'{{"answer": {n}}}', f'{{"answer": "{n}"}}', f'```json\n{{"answer": {n}}}\n```',
        f'{{"final_answer": "{n}"}}',
        f'{{"reasoning": "It has 3 parts.", "answer": "{n}"}}', f"{{'answer': {n}}}", f'{{\n  "answer": {n}\n}}']
    missaid = [f'{{"answer": {n + 1}}}', f'{{"answer": "{n}", "answer": "{n + 1}"}}',
        f'{{"reasoning": "It is {n}.", "answer": "{n + 2}"}}', "{}"]
    return Drawn([f"{n}"], [], [], said, missaid)


def daily_sentences(rng: Random) -> Drawn:
    n, a = rng.randint(11, 900), rng.randint(2, 9)
    said = [f"So she makes {a} * 2 = {2 * a} first.\nTherefore, Janet makes **${n}** every day.",
        f"He spent ${n} in total.",
        f"Therefore, Tom will be {n} years old.", f"Each of the {a} friends gets {n} marbles.",
        f"In {a} weeks, she earns ${n}.", f"After {a} days he has read {n} pages."]
    missaid = [f"He spent ${n + 1} in total.", f"In {n} weeks, she earns ${n + a}.",
        f"So they have {n + a} left after {n} days."]
    return Drawn([f"{n}"], [], [], said, missaid)


def solutions_concluded(rng: Random) -> Drawn:
    n, a = rng.randint(3, 90), rng.randint(2, 9)
    said = [f"So ${a}x = {a * n}$, and $x = {n}$.", f"Solving gives x = {n}.", f"which yields $x = {n}$",
        f"Dividing by {a}, we get $x = {n}$.",
        f"$x = \\frac{{{a * n}}}{{{a}}} = {n}$", f"We find that $x$ must be ${n}$.", f"Therefore, $x = {n}$.\n",
        f"The only integer that works is {n}.",
        f"So the smallest such $n$ is ${n}$.", f"Hence, the maximum value is ${n}$, attained at $x = {n}$."]
    missaid = [f"So ${a}x = {n}$, and $x = {n + a}$.", f"Solving gives x = {n} + y.", f"So $x$ cannot be ${n}$.",
        f"Therefore $x > {n}$."]
    return Drawn([f"{n}"], [], [], said, missaid)


def infinite_limits(rng: Random) -> Drawn:
    sign = rng.choice(["", "-"])
    word = "negative infinity" if sign else "infinity"
    right = [f"{sign}\\infty", f"{sign}∞", f"\\text{{{word}}}", word, f"\\lim_{{x\\to 3}} f(x) = {sign}\\infty",
        f"L = {sign}\\infty"]
    right += ["+\\infty", "+∞"] if not sign else ["- \\infty", "−∞"]
    said = [f"The limit is ${sign}\\infty$.", f"So the limit diverges to ${sign}\\infty$.", f"The answer is {word}."]
    opposite = "" if sign else "-"
    wrong = [f"{opposite}\\infty", "0", "\\pm\\infty", f"{rng.randint(1, 99)}", "finite", f"{opposite}∞"]
    return Drawn([f"{sign}\\infty"], right, wrong, said, [f"The limit is ${opposite}\\infty$.", "The limit is 1."])


def exact_cosines(rng: Random) -> Drawn:
    n = rng.choice([10, 15, 20, 25, 40, 50, 70])
    right = [f"\\cos({n}^\\circ)", f"cos {n}°", f"\\cos\\left(\\frac{{{n}\\pi}}{{180}}\\right)",
        f"\\sin {90 - n}^\\circ", f"\\cos{{{n}^\\circ}}",
        f"\\cos\\left({n}^{{\\circ}}\\right)", f"\\cos {n}°", f"cos({n}°)", f"\\cos ({n}^\\circ)"]
    wrong = [f"\\sin {n}^\\circ", f"\\cos {n}", f"\\cos {n + 1}^\\circ", f"-\\cos {n}^\\circ", f"\\cos^2 {n}^\\circ",
        f"{n}^\\circ", f"\\sec {n}^\\circ"]
    return Drawn([f"\\cos {n}^\\circ"], right, wrong)


def eigenvalues(rng: Random) -> Drawn:
    a, b = rng.sample(range(-9, 20), 2)
    right = [f"\\lambda_1 = {a}, \\lambda_2 = {b}", f"\\lambda = {a}, {b}", f"{a} \\text{{ and }} {b}",
        f"\\{{{a},{b}\\}}",
        f"\\lambda \\in \\{{{a}, {b}\\}}", f"λ = {a}, λ = {b}", f"\\lambda = {a} \\text{{ or }} \\lambda = {b}",
        f"\\lambda_{{1}} = {b}, \\quad \\lambda_{{2}} = {a}", f"λ₁ = {a}, λ₂ = {b}", f"\\lambda={a},\\ \\lambda={b}"]
    wrong = [f"\\lambda = {a}", f"\\lambda_1 = {a}, \\lambda_2 = {b + 30}", f"\\lambda = {a}, {b}, 77", f"{a}{b}",
        f"\\lambda = {a} + {b}i",
        f"({a}+{b})"]
    return Drawn([f"{a}, {b}"], right, wrong)


def double_roots(rng: Random) -> Drawn:
    n = rng.randint(2, 90)
    right = [f"x = {n} \\text{{ (double root)}}", f"x={n} \\text{{ (multiplicity 2)}}", f"x = {n} (double root)",
        f"x = {n}", f"x_1 = x_2 = {n}",
        f"{n} \\text{{ (with multiplicity 2)}}", f"x_{{1,2}} = {n}", f"x = {n}, {n}"]
    wrong = [f"x = {n + 1} \\text{{ (double root)}}", f"x = 2 \\text{{ (multiplicity {n})}}" if n != 2 else "x = 9",
        f"x = {n}, {n + 2}", f"x_1 = {n}, x_2 = -{n}",
        f"x^2 = {n}", f"x \\ne {n}"]
    return Drawn([f"{n}"], right, wrong)


def percentages_with_fractions(rng: Random) -> Drawn:
    whole = rng.randint(3, 90)
    right = [f"{whole}\\frac{{1}}{{2}}\\%", f"{whole}.5 %", f"{whole}.5 percent", f"{(10 * whole + 5) / 1000}",
        f"{whole} 1/2%",
        f"\\frac{{{2 * whole + 1}}}{{2}}\\%", f"{whole}.50\\%", f"\\text{{{whole}.5\\%}}",
        f"\\frac{{{2 * whole + 1}}}{{200}}", f"{whole}½%"]
    wrong = [f"{whole}\\%", f"\\frac{{{whole}}}{{2}}\\%", f"{whole}.6\\%", f"-{whole}.5\\%", f"{whole * 10 + 5}\\%",
        f"{whole + 1}\\frac{{1}}{{2}}\\%"]
    return Drawn([f"{whole}.5\\%"], right, wrong)


def sums_of_powers(rng: Random) -> Drawn:
    n, k = rng.choice("nmN"), rng.choice([2, 3, 4, 6])
    right = [f"\\frac{{1}}{{{k}}}{n}({n}+1)(2{n}+1)", f"{n}({n}+1)(2{n}+1)/{k}", f"\\frac{{2{n}^3+3{n}^2+{n}}}{{{k}}}",
        f"\\dfrac{{{n} ({n}+1) (2{n}+1)}}{{{k}}}", f"\\frac{{({n}+1)(2{n}+1){n}}}{{{k}}}",
        f"\\frac{{{n}({n} + 1)(2{n} + 1)}}{{{k}}}",
        f"\\frac{{{n}}}{{{k}}}({n}+1)(2{n}+1)", f"S_{n} = \\frac{{{n}({n}+1)(2{n}+1)}}{{{k}}}"]
    wrong = [f"\\frac{{{n}({n}+1)}}{{{k}}}", f"\\frac{{{n}({n}-1)(2{n}+1)}}{{{k}}}",
        f"\\frac{{{n}({n}+1)(2{n}+1)}}{{{k + 1}}}", f"{n}({n}+1)(2{n}+1)",
        f"\\frac{{{n}({n}+1)({n}+2)}}{{{k}}}"]
    return Drawn([f"\\frac{{{n}({n}+1)(2{n}+1)}}{{{k}}}"], right, wrong)


def powers_with_letters(rng: Random) -> Drawn:
    n, a = rng.choice("nkm"), rng.randint(1, 9)
    right = [f"2\\cdot 2^{n}-{a}", f"2^{{({n}+1)}}-{a}", f"2^({n}+1)-{a}", f"2^{{1+{n}}} - {a}", f"-{a}+2^{{{n}+1}}",
        f"2 \\times 2^{{{n}}} - {a}",
        f"2**({n}+1) - {a}", f"a_{n} = 2^{{{n}+1}}-{a}", f"2^{{{n} + 1}} - {a}", f"2(2^{n})-{a}"]
    wrong = [f"2^{n}+1-{a}", f"2^{{{n}}}-{a}", f"2^{{{n}-1}}-{a}", f"2^{{{n}+1}}+{a}", f"2^{{{n}+1-{a}}}",
        f"2^{{{n}+2}}-{a}"]
    return Drawn([f"2^{{{n}+1}}-{a}"], right, wrong)


def binomials_of_letters(rng: Random) -> Drawn:
    n, k = rng.choice("nmN"), rng.choice([2, 3, 4])
    b = f"{k}{n}"
    right = [f"\\dbinom{{{b}}}{{{n}}}", f"C({b}, {n})", f"{{{b} \\choose {n}}}", f"\\frac{{({b})!}}{{{n}!({b}-{n})!}}",
        f"\\binom {{{b}}} {{{n}}}",
        f"\\binom{{{b}}}{{{b}-{n}}}", f"C_{{{b}}}^{{{n}}}", f"\\tbinom{{{b}}}{{{n}}}",
        f"\\frac{{({b})!}}{{({b}-{n})!\\,{n}!}}"]
    wrong = [f"\\binom{{{n}}}{{{k}}}", f"\\frac{{({b})!}}{{{n}!}}", f"\\binom{{{b}}}{{{n}+1}}",
        f"\\binom{{{b}+1}}{{{n}}}", f"({b},{n})", f"\\frac{{{b}}}{{{n}}}"]
    return Drawn([f"\\binom{{{b}}}{{{n}}}"], right, wrong)


def whole_parts(rng: Random) -> Drawn:
    n, k = rng.choice("nmx"), rng.randint(2, 9)
    right = [f"\\left\\lfloor \\frac{{{n}}}{{{k}}} \\right\\rfloor", f"\\lfloor {n}/{k} \\rfloor", f"⌊{n}/{k}⌋",
        f"floor({n}/{k})",
        f"\\left\\lfloor\\dfrac{{{n}}}{{{k}}}\\right\\rfloor", f"\\lfloor \\tfrac{{{n}}}{{{k}}} \\rfloor",
        f"\\Big\\lfloor \\frac{{{n}}}{{{k}}} \\Big\\rfloor"]
    wrong = [f"\\left\\lceil \\frac{{{n}}}{{{k}}} \\right\\rceil", f"\\frac{{{n}}}{{{k}}}",
        f"\\left\\lfloor \\frac{{{n}+1}}{{{k}}} \\right\\rfloor",
        f"\\left\\lfloor \\frac{{{k}}}{{{n}}} \\right\\rfloor", f"\\left\\lfloor {n} \\right\\rfloor", f"⌈{n}/{k}⌉"]
    return Drawn([f"\\left\\lfloor \\frac{{{n}}}{{{k}}} \\right\\rfloor"], right, wrong)


def polar_forms_of_complex_numbers(rng: Random) -> Drawn:
    r = rng.choice([2, 4, 6, 8, 10])
    h = r // 2
    root = f"{h}\\sqrt{{3}}" if h > 1 else "\\sqrt{3}"
    right = [f"{h}+{root}i", f"{h} + i{root}", f"{r}\\left(\\cos\\frac{{\\pi}}{{3}}+i\\sin\\frac{{\\pi}}{{3}}\\right)",
        f"{r} e^{{\\frac{{\\pi i}}{{3}}}}",
        f"{r}e^{{i\\pi/3}}", f"{r}e^{{\\frac{{i\\pi}}{{3}}}}", f"{r}(\\cos 60^\\circ + i \\sin 60^\\circ)",
        f"z = {r}e^{{i\\pi/3}}", f"{r}\\exp(i\\pi/3)"]
    wrong = [f"{h}-{root}i", f"{root}+{h}i", f"{r}e^{{i\\pi/6}}", f"{r}e^{{-i\\pi/3}}", f"{r + 1}e^{{i\\pi/3}}",
        f"{r}e^{{\\pi/3}}", f"({h}, {root})"]
    return Drawn([f"{r}e^{{i\\pi/3}}"], right, wrong)


def _options(rng: Random) -> tuple[str, str, str, str]:
    a, b = rng.sample("ABCD", 2)
    return a, b, OPTIONS["ABCD".index(a)], OPTIONS["ABCD".index(b)]


def _chosen(letter: str, said: list[str], missaid: list[str]) -> Drawn:
    return Drawn([letter], [], [], said, missaid, {"choices": OPTIONS}, "multiple_choice")


def letters_after_long_reasoning(rng: Random) -> Drawn:
    a, b, text, other = _options(rng)
    said = [f"Therefore, the correct answer is **({a}) {text}**.", f"\\boxed{{\\text{{{a}. {text}}}}}",
        f"$\\boxed{{{a}}}$",
        f"\\boxed{{({a})\\ \\text{{{text}}}}}", f"### Final Answer: **{a}**", f"Answer: \\boxed{{{a}}}", f"ANSWER: {a}",
        f"The final answer is: $\\boxed{{{a}}}$. I hope it is correct.", f"### Final Answer\n\n**{a}) {text}**",
        f"Answer\n\n{a}",
        f"**Correct Answer: {a}**", f"The best answer is {a}.", f"**Answer:** {a}. {text}",
        f"So the answer is $\\text{{({a})}}$.",
        f"The answer is \\( {a} \\).", f"<answer>{a}. {text}</answer>", f"$$\\boxed{{\\mathbf{{{a}}}}}$$"]
    missaid = [f"Therefore, the correct answer is **({b}) {other}**.", f"$\\boxed{{{b}}}$",
        f"### Final Answer: **{b}**", f"ANSWER: {b}",
        f"The final answer is: $\\boxed{{{b}}}$. It is not {a}.", f"Answer: {b}\n\n({a} is wrong.)"]
    return _chosen(a, said, missaid)


def letters_left_over(rng: Random) -> Drawn:
    a, b, text, _ = _options(rng)
    rest = [letter for letter in "ABCD" if letter != a]
    listed = f"{rest[0]}, {rest[1]} and {rest[2]}"
    said = [f"Options {listed} are wrong, which leaves {a}.", f"Only {a} is correct.", f"Only option {a} fits.",
        f"This matches option {a}.",
        f"Thus, option {a} is the correct choice.", f"This corresponds to option ({a}).",
        f"So the correct statement is {a}.",
        f"We can rule out {listed}. The answer is {a}.", f"Option {a} ({text}) is correct."]
    missaid = [f"Only {b} is correct.", f"This matches option {b}.", f"Option {a} is not correct.",
        f"Only {a} is wrong.", f"We can rule out {a}."]
    return _chosen(a, said, missaid)


def letters_in_json(rng: Random) -> Drawn:
    a, b, text, _ = _options(rng)
    said = [f'{{"answer": "{a}"}}', f'```json\n{{"answer": "{a}"}}\n```',
        f'{{"reasoning": "It is the capital.", "answer": "{a}"}}',
        f"{{'answer': '{a}'}}", f'{{"answer": "{a}. {text}"}}', f'{{\n  "answer": "{a}"\n}}', f'{{"choice": "{a}"}}']
    return _chosen(a, said, [f'{{"answer": "{b}"}}', f'{{"reasoning": "Not {a}.", "answer": "{b}"}}',
        f'{{"answer": "{a}, {b}"}}'])


def letters_in_mathematics(rng: Random) -> Drawn:
    a, n = rng.choice("ABCDE"), rng.randint(2, 99)
    b = "ABCDE"[("ABCDE".index(a) + 1) % 5]
    right = [f"\\text{{({a})}}", f"{a}) {n}", f"\\mathbf{{({a})}}", f"\\mathrm{{({a}) \\ }} {n}",
        f"\\text{{{a}: }} {n}", f"({a}) \\ {n}", f"\\textbf{{{a}}}",
        f"\\textbf{{({a}) }} {n}", f"\\mathrm{{{a}}}", f"\\text{{Option {a}}}"]
    wrong = [f"\\text{{({b})}}", f"{b}) {n}", f"\\mathbf{{({b})}} {n}", f"({a}) \\text{{ or }} ({b})",
        f"\\text{{not {a}}}", f"{a}+{b}", f"{n}"]
    return Drawn([a], right, wrong)


ALL = [
    *(points_with_fractions, polar_coordinates, circles, planes, solutions_of_differential_equations),
    *(families_of_angles, piecewise_functions, absolute_values, functional_equations, lists_of_pairs),
    *(numbers_described_in_words, hexadecimal_numerals, lists_printed_by_code, texts_printed_by_code),
    *(intervals_with_roots, domains_with_holes, areas_in_square_units, golden_ratios),
    *(final_answers_in_markdown, answers_in_json, daily_sentences, solutions_concluded, infinite_limits),
    *(exact_cosines, eigenvalues, double_roots, percentages_with_fractions, sums_of_powers),
    *(powers_with_letters, binomials_of_letters, whole_parts, polar_forms_of_complex_numbers),
    *(letters_after_long_reasoning, letters_left_over, letters_in_json, letters_in_mathematics),
]
