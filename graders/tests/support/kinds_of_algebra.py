"""Kinds of answers that are expressions, sets, relations or names, each with right and wrong ways to write it."""

from __future__ import annotations

import math
from random import Random

from graders.tests.support.drawn import Drawn

# Each list of forms is read as a whole, and would take a page with one form a line.
# fmt: off


def functions_in_plain_text(rng: Random) -> Drawn:
    a, b = rng.randint(2, 19), rng.choice([3, 5, 7, 11, 13, 17, 19])
    right = [f"{a} ln({b})", f"{a}ln({b})", f"{a}\\ln({b})", f"{a}*ln({b})", f"{a} ln {b}", f"{a}\\ln{{{b}}}",
        f"{a}\\,\\ln {b}"]
    return Drawn([f"{a}\\ln {b}"], right, [f"{a}\\ln {b + 1}", f"{a + 1} ln({b})", f"{a}\\log_{{10}} {b}", f"ln({a})",
        f"{a}({b})"])


def sines(rng: Random) -> Drawn:
    a, b = rng.randint(2, 12), rng.randint(2, 9)
    right = [f"{a} sin({b}x)", f"{a}\\sin({b}x)", f"{a}sin({b}x)", f"{a}\\sin\\left({b}x\\right)",
        f"{a} \\cdot \\sin {b}x"]
    right += [f"{a}*sin({b}*x)", f"{a}\\sin{{{b}x}}", f"\\sin({b}x)\\cdot {a}"]
    wrong = [f"{a}\\cos {b}x", f"{a}\\sin {b + 1}x", f"{a}\\sin {b}y", f"{a}\\sin^2 {b}x", f"{a} arcsin({b}x)"]
    return Drawn([f"{a}\\sin {b}x", f"{a}\\sin({b}x)"], right, wrong)


def logarithms(rng: Random) -> Drawn:
    base, number = rng.choice([2, 3, 5, 7]), rng.choice([6, 10, 11, 13, 15, 17])
    right = [f"log_{base}({number})", f"\\log_{{{base}}}{{{number}}}", f"\\log_{base}({number})",
        f"log_{base} {number}"]
    right += [f"\\frac{{\\ln {number}}}{{\\ln {base}}}", f"\\log_{{{base}}}\\left({number}\\right)",
        f"\\frac{{\\log {number}}}{{\\log {base}}}"]
    return Drawn([f"\\log_{base} {number}"], right, [f"\\log_{number} {base}", f"\\log_{base} {number + 1}",
        f"\\log {base * number}", f"\\ln {number}"])


def arctangents(rng: Random) -> Drawn:
    a = rng.randint(2, 30)
    right = [f"\\arctan({a})", f"arctan({a})", f"\\tan^{{-1}}({a})", f"\\arctan {a}", f"\\arctan{{{a}}}", f"arctan {a}"]
    right += [f"\\operatorname{{arctan}}({a})", f"\\tan^{{-1}} {a}"]
    return Drawn([f"\\arctan {a}", f"\\arctan({a})"], right, [f"\\tan {a}", f"\\arctan {a + 1}",
        f"\\frac{{1}}{{\\tan {a}}}", f"arcsin({a})"])


def pi_in_plain_text(rng: Random) -> Drawn:
    a = rng.randint(2, 60)
    right = [f"{a}pi", f"{a}*pi", f"{a} pi", f"{a}π", f"{a}\\pi", f"{a} \\cdot \\pi", f"{a} * π", f"{a}\\,\\pi",
        f"\\pi({a})"]
    return Drawn([f"{a}\\pi"], right, [f"{a + 1}pi", f"{a}p", f"{a}\\pi^2", f"{a}", f"{a}+pi", f"{a}/pi",
        f"3.14*{a + 1}"])


def fractions_of_pi(rng: Random) -> Drawn:
    b = rng.choice([3, 4, 5, 6, 7, 12])
    a = rng.choice([a for a in (5, 7, 11, 13) if math.gcd(a, b) == 1])
    right = [f"\\frac{{{a}\\pi}}{{{b}}}", f"{a}π/{b}", f"{a}pi/{b}", f"\\frac{{{a}}}{{{b}}}\\pi", f"({a}/{b})π",
        f"{a}*pi/{b}"]
    right += [f"\\frac{{{a}}}{{{b}}} \\cdot \\pi", f"\\tfrac{{{a}\\pi}}{{{b}}}", f"{a}\\pi/{b}"]
    return Drawn([f"\\frac{{{a}\\pi}}{{{b}}}"], right, [f"\\frac{{{a}}}{{{b}\\pi}}", f"{b}π/{a}", f"{a}π", f"{a}/{b}",
        f"-{a}pi/{b}"])


def upright_e(rng: Random) -> Drawn:
    a = rng.randint(3, 30)
    right = [f"\\mathrm{{e}}^{{{a}}}", f"\\operatorname{{e}}^{{{a}}}", f"exp({a})", f"\\exp({a})", f"e^({a})",
        f"e^{{{a}}}", f"e**{a}"]
    right += [f"\\text{{e}}^{{{a}}}", f"\\exp\\left({a}\\right)", f"{{e}}^{{{a}}}", f"\\exp {a}"]
    return Drawn([f"e^{{{a}}}"], right, [f"e^{{{a + 1}}}", f"{a}e", f"e_{{{a}}}", f"e^{{-{a}}}", f"\\ln {a}", f"{a}^e",
        f"2.7^{{{a}}}"])


def complex_numbers(rng: Random) -> Drawn:
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    right = [f"{a}+{b}\\mathrm{{i}}", f"{a}+{b}i", f"{b}i+{a}", f"{a} + {b} i", f"{a}+{b}\\operatorname{{i}}",
        f"{a} + {b}\\cdot i"]
    right += [f"{a}+i{b}", f"{a}+{b}\\text{{i}}", f"{a}+{b}*i", f"z = {a}+{b}i"]
    return Drawn([f"{a}+{b}i"], right, [f"{a}-{b}i", f"{b + 1}+{a}i", f"{a}+{b}", f"{a + b}i", f"{a}+{b}x",
        f"({a},{b})", f"-{a}+{b}i"])


def products_of_e(rng: Random) -> Drawn:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    right = [f"{a}xe^({b}x)", f"{a}x\\mathrm{{e}}^{{{b}x}}", f"{a}x e^{{{b}x}}", f"{a}x\\exp({b}x)", f"{a}*x*e^({b}*x)"]
    right += [f"{a}x\\cdot e^{{{b}x}}", f"{a}e^{{{b}x}}x"]
    return Drawn([f"{a}xe^{{{b}x}}"], right, [f"{a}xe^{{{b + 1}x}}", f"{a}e^{{{b}x}}", f"{a}x^2e^{{{b}x}}",
        f"{a}x+e^{{{b}x}}", f"{a}xe^{{{b}}}"])


def nested_roots(rng: Random) -> Drawn:
    a, b = rng.randint(6, 30), rng.choice([2, 3, 5, 7])
    right = [f"√({a}+√{b})", f"sqrt({a}+sqrt({b}))", f"\\sqrt{{{a}+\\sqrt{b}}}", f"√({a} + √{b})",
        f"\\sqrt{{\\sqrt{{{b}}}+{a}}}"]
    return Drawn([f"\\sqrt{{{a}+\\sqrt{b}}}"], right, [f"\\sqrt{{{a}-\\sqrt{b}}}", f"√{a}+√{b}", f"\\sqrt{{{a + b}}}",
        f"{a}+√{b}", f"\\sqrt{{{a}\\sqrt{b}}}"])


def roots(rng: Random) -> Drawn:
    a, b = rng.randint(2, 9), rng.choice([2, 3, 5, 7, 11])
    right = [f"{a}\\sqrt{b}" if b < 10 else f"{a}\\sqrt{{{b}}}", f"{a}√{b}", f"{a} sqrt({b})", f"\\sqrt{{{a * a * b}}}",
        f"{a}*sqrt({b})"]
    right += [f"{a}\\sqrt{{{b}}} \\approx {a * math.sqrt(b):.2f}", f"\\frac{{{a * b}}}{{\\sqrt{{{b}}}}}",
        f"{a}\\cdot {b}^{{1/2}}"]
    wrong = [f"\\pm {a}\\sqrt{{{b}}}", f"{a}\\sqrt{{{b + 1}}}", f"\\sqrt{{{a * b}}}", f"-{a}√{b}",
        f"{a}\\sqrt[3]{{{b}}}", f"{a}+√{b}"]
    return Drawn([f"{a}\\sqrt{{{b}}}"], right, wrong)


def congruences(rng: Random) -> Drawn:
    m = rng.randint(7, 40)
    a = rng.randint(1, m - 1)
    right = [f"x\\equiv {a}\\mod {m}", f"x ≡ {a} (mod {m})", f"x\\equiv {a} \\pmod {{{m}}}",
        f"x \\equiv {a} \\bmod {m}", f"{a} mod {m}"]
    right += [f"x\\equiv {a}\\ (\\text{{mod }} {m})", f"{a} \\pmod{{{m}}}", f"x \\equiv {a} (\\mathrm{{mod}}\\ {m})"]
    return Drawn([f"x\\equiv {a}\\pmod{{{m}}}"], right, [f"x\\equiv {a}\\pmod{{{m + 1}}}",
        f"x\\equiv {m - a + 1 if 2 * a != m + 1 else a + m // 2}\\pmod{{{m}}}", f"{m}", f"x = {m}"])


def chemical_formulas(rng: Random) -> Drawn:
    n = rng.randint(2, 12)
    right = [f"C{n}H{2 * n + 2}O2", f"\\mathrm{{C_{{{n}}}H_{{{2 * n + 2}}}O_2}}",
        f"\\text{{C}}_{{{n}}}\\text{{H}}_{{{2 * n + 2}}}\\text{{O}}_{{2}}"]
    right += [f"C_{{{n}}}H_{{{2 * n + 2}}}O_2", f"\\ce{{C{n}H{2 * n + 2}O2}}"]
    wrong = [f"C{n}H{2 * n + 1}O2", f"C{n + 1}H{2 * n + 2}O2", f"C{n}O2", f"c{n}h{2 * n + 2}o2", f"C{n}H{2 * n + 2}O3"]
    return Drawn([f"\\mathrm{{C_{{{n}}}H_{{{2 * n + 2}}}O_2}}"], right, wrong)


def columns_as_vectors(rng: Random) -> Drawn:
    a, b, c = rng.sample(range(1, 20), 3)
    right = [f"({a},{b},{c})", f"\\langle {a},{b},{c}\\rangle", f"\\begin{{bmatrix}}{a}\\\\{b}\\\\{c}\\end{{bmatrix}}",
        f"({a}, {b}, {c})"]
    right += [f"\\begin{{pmatrix}} {a} \\\\ {b} \\\\ {c} \\end{{pmatrix}}", f"\\left({a},{b},{c}\\right)^T",
        f"⟨{a}, {b}, {c}⟩"]
    wrong = [f"({b},{a},{c})", f"\\begin{{pmatrix}}{a}\\\\{c}\\\\{b}\\end{{pmatrix}}", f"\\{{{a},{b},{c}\\}}",
        f"({a},{b})", f"({a},{b},{c + 1})"]
    return Drawn([f"\\begin{{pmatrix}}{a}\\\\{b}\\\\{c}\\end{{pmatrix}}"], right, wrong)


def matrices(rng: Random) -> Drawn:
    a, b, c, d = rng.sample(range(1, 20), 4)
    right = [f"\\begin{{{name}}}{a}&{b}\\\\{c}&{d}\\end{{{name}}}" for name in ("pmatrix", "bmatrix")]
    right += [f"\\begin{{bmatrix}} {a} & {b} \\\\ {c} & {d} \\end{{bmatrix}}",
        f"A = \\begin{{pmatrix}}{a}&{b}\\\\{c}&{d}\\end{{pmatrix}}"]
    right += [f"\\left(\\begin{{array}}{{cc}}{a}&{b}\\\\{c}&{d}\\end{{array}}\\right)",
        f"\\begin{{pmatrix}}{a}&{b}\\cr {c}&{d}\\end{{pmatrix}}"]
    wrong = [f"\\begin{{pmatrix}}{a}&{c}\\\\{b}&{d}\\end{{pmatrix}}",
        f"\\begin{{pmatrix}}{a}&{b}\\\\{c}&{d}\\end{{pmatrix}}^T",
        f"\\begin{{vmatrix}}{a}&{b}\\\\{c}&{d}\\end{{vmatrix}}"]
    wrong += [f"\\begin{{pmatrix}}{a}&{b}\\\\{c}&{d + 1}\\end{{pmatrix}}", f"({a},{b},{c},{d})",
        f"\\begin{{pmatrix}}{a}&{b}\\end{{pmatrix}}"]
    return Drawn([f"\\begin{{pmatrix}}{a}&{b}\\\\{c}&{d}\\end{{pmatrix}}"], right, wrong)


def intervals(rng: Random) -> Drawn:
    a = rng.randint(-20, 5)
    b = a + rng.randint(2, 30)
    right = [f"]{a},{b}]", f"({a}, {b}]", f"\\left({a},{b}\\right]", f"x\\in({a},{b}]", f"{a} < x \\le {b}",
        f"{a}<x≤{b}", f"({a};{b}]"]
    right += [f"\\{{x : {a} < x \\le {b}\\}}", f"x > {a} \\text{{ and }} x \\le {b}", f"x \\in ({a}, {b}]",
        f"\\left]{a},{b}\\right]"]
    wrong = [f"({a},{b})", f"[{a},{b}]", f"{a} \\le x \\le {b}", f"({a},{b + 1}]", f"({b},{a}]", f"2x > {2 * a}",
        f"x \\le {b}", f"{a}, {b}"]
    return Drawn([f"({a},{b}]"], right, wrong)


def half_lines(rng: Random) -> Drawn:
    a = rng.randint(-20, 20)
    right = [f"[{a}, ∞)", f"[{a},\\infty)", f"[{a},+\\infty)", f"x\\ge {a}", f"[{a}, \\text{{infinity}})", f"x ≥ {a}",
        f"[{a},\\infty[", f"x >= {a}"]
    right += [f"[{a}, infinity)", f"{a} \\le x", f"\\{{x \\mid x \\geq {a}\\}}", f"x\\in[{a},\\infty)",
        f"x \\geqslant {a}"]
    wrong = [f"({a},\\infty)", f"x>{a}", f"x\\le {a}", f"2x+1\\ge {2 * a + 1}", f"x-{abs(a) + 1}\\ge {a - abs(a) - 1}",
        f"[{a},100)", f"{a}", "\\infty"]
    return Drawn([f"[{a},\\infty)"], right, wrong)


def unions(rng: Random) -> Drawn:
    a = rng.randint(-20, 5)
    b = a + rng.randint(2, 30)
    right = [f"x<{a}\\text{{ or }}x>{b}", f"(-\\infty,{a})\\text{{ or }}({b},\\infty)", f"(-∞, {a}) ∪ ({b}, ∞)",
        f"x < {a} or x > {b}"]
    right += [f"x\\in(-\\infty,{a})\\cup({b},\\infty)", f"({b},\\infty)\\cup(-\\infty,{a})", f"x < {a} \\lor x > {b}",
        f"x<{a}, x>{b}"]
    wrong = [f"{a}<x<{b}", f"x\\le {a}\\text{{ or }}x\\ge {b}", f"(-\\infty,{a}]\\cup({b},\\infty)", f"(-\\infty,{b})",
        f"x<{a}\\text{{ and }}x>{b}"]
    return Drawn([f"(-\\infty,{a})\\cup({b},\\infty)"], right, wrong)


def all_but_one(rng: Random) -> Drawn:
    a = rng.randint(-30, 30)
    right = [f"x\\ne {a}", f"x \\neq {a}", f"x<{a}\\text{{ or }}x>{a}", f"\\mathbb{{R}}\\setminus\\{{{a}\\}}",
        f"x ≠ {a}", f"(-\\infty,{a})\\cup({a},\\infty)"]
    right += [f"\\mathbb{{R}} \\backslash \\{{{a}\\}}", f"x \\in \\mathbb{{R}}, x \\ne {a}"]
    wrong = [f"x={a}", f"x\\ne {a + 1}", "\\mathbb{R}", f"{a}", f"x>{a}", f"\\{{{a}\\}}",
        f"(-\\infty,{a}]\\cup({a},\\infty)"]
    return Drawn([f"(-\\infty,{a})\\cup({a},\\infty)"], right, wrong)


def sets(rng: Random) -> Drawn:
    a, b, c = rng.sample(range(-9, 30), 3)
    right = [f"\\{{{c},{a},{b}\\}}", f"{a}, {b}, {c}", f"{a}, {b} \\text{{ and }} {c}",
        f"\\left\\{{{b}, {a}, {c}\\right\\}}", f"{{{a}, {b}, {c}}}"]
    right += [f"x\\in\\{{{a},{b},{c}\\}}", f"x={a}, x={b}, x={c}", f"{a}, {b}, and {c}", f"x={a},{b},{c}"]
    wrong = [f"\\{{{a},{b}\\}}", f"({a},{b},{c})", f"\\{{{a},{b},{c},{a + b + 50}\\}}", f"[{a},{c}]",
        f"\\{{{a},{b},{c + 31}\\}}", f"\\{{\\{{{a},{b},{c}\\}}\\}}"]
    return Drawn([f"\\{{{a},{b},{c}\\}}"], right, wrong)


def lists(rng: Random) -> Drawn:
    a, b, c = rng.sample(range(2, 60), 3)
    right = [f"{a}, {b}, and {c}", f"{a}, {b}, {c}", f"{a},{b}\\text{{ and }}{c}", f"{a}, {b}\\text{{, and }}{c}",
        f"{c}, {b} and {a}"]
    right += [f"\\text{{{a}, {b} and {c}}}", f"{a}; {b}; {c}", f"x_1={a}, x_2={b}, x_3={c}",
        f"{a} & {b} & {c}".replace(" &", ",")]
    wrong = [f"{a}, {b}", f"{a}, {b} \\text{{ or maybe }} {c}", f"{a}, {b}, not {c}", f"{a}+{b}+{c}",
        f"{a}, {b}, {c}, 77", f"({a}, {c}, {b})"]
    return Drawn([f"{a}, {b}, {c}"], right, [*wrong, f"{a}{b}{c}"])


def multisets(rng: Random) -> Drawn:
    a, b = rng.sample(range(2, 30), 2)
    right = [f"{a},{a},{b}", f"{a}, {b}, {a}", f"{a}, {a}, {b}", f"{a}, {a} \\text{{ and }} {b}"]
    return Drawn([f"{a},{a},{b}"], right, [f"{a},{b},{b}", f"{a},{b}", f"{a},{a}", f"{a},{a},{a},{b}", f"{b}"])


def sequences_with_dots(rng: Random) -> Drawn:
    a, d = rng.randint(1, 9), rng.randint(2, 9)
    terms = f"{a}, {a + d}, {a + 2 * d}"
    right = [f"{terms}, …", f"{terms}, \\dots", f"{terms}, \\ldots", f"{terms}, ...", f"{terms},\\cdots"]
    return Drawn([f"{terms}, \\ldots"], right, [terms, f"{a}, {a + d}, \\dots",
        f"{a}, {a + d}, {a + 2 * d + 1}, \\dots", f"\\dots, {terms}"])


def plus_minus(rng: Random) -> Drawn:
    a, b = rng.randint(1, 20), rng.choice([2, 3, 5, 7, 11])
    right = [f"{a}\\pm\\sqrt{{{b}}}", f"{a}+\\sqrt{{{b}}}, {a}-\\sqrt{{{b}}}", f"x={a}\\pm\\sqrt{{{b}}}", f"{a} ± √{b}",
        f"{a}-\\sqrt{{{b}}}\\text{{ and }}{a}+\\sqrt{{{b}}}"]
    right += [f"x={a}+\\sqrt{{{b}}}\\text{{ or }}x={a}-\\sqrt{{{b}}}", f"\\{{{a}-\\sqrt{{{b}}},{a}+\\sqrt{{{b}}}\\}}"]
    return Drawn([f"{a}\\pm\\sqrt{{{b}}}"], right, [f"{a}+\\sqrt{{{b}}}", f"{a}\\pm\\sqrt{{{b + 1}}}",
        f"\\pm\\sqrt{{{b}}}", f"\\pm {a}+\\sqrt{{{b}}}", f"{a}, \\sqrt{{{b}}}"])


def points(rng: Random) -> Drawn:
    a, b = rng.sample(range(-9, 20), 2)
    right = [f"({a},{b})", f"({a}, {b})", f"(x,y)=({a},{b})", f"P({a},{b})", f"P = ({a}, {b})", f"x={a}, y={b}",
        f"\\left({a},{b}\\right)", f"({a};{b})"]
    right += [f"\\text{{the point }}({a},{b})", f"x = {a} \\text{{ and }} y = {b}", f"(x, y) = ({a}, {b})",
        f"\\langle {a}, {b}\\rangle"]
    wrong = [f"({b},{a})", f"({a},{b + 1})", f"x={b}, y={a}", f"\\{{{a},{b}\\}}", f"{a}", f"[{a},{b}]", f"({a},{b},0)",
        f"y={b}"]
    return Drawn([f"({a},{b})"], right, wrong)


def several_named_parts(rng: Random) -> Drawn:
    a, b, c = rng.sample(range(2, 40), 3)
    right = [f"a={a},b={b},c={c}", f"a={a}, b={b}, c={c}", f"a = {a}, b = {b} \\text{{ and }} c = {c}",
        f"c={c}, a={a}, b={b}", f"a={a};b={b};c={c}"]
    right += [f"(a,b,c)=({a},{b},{c})", f"a={a},\\ b={b},\\ c={c}"]
    wrong = [f"a={b},b={a},c={c}", f"a={a},b={b}", f"a={a},b={b},c={c + 1}", f"(a,b,c)=({b},{a},{c})",
        f"b={a},a={b},c={c}"]
    return Drawn([f"a={a}, b={b}, c={c}"], right, wrong)


def names_before_values(rng: Random) -> Drawn:
    a = rng.randint(5, 900)
    right = [f"x={a}", f"n = {a}", f"f(3)={a}", f"AB={a}", f"\\text{{Area}}={a}", f"P(A)={a}", f"\\mathbb{{E}}[X]={a}",
        f"a_{{10}}={a}", f"S_n={a}", f"|AB|={a}", f"f'(2)={a}"]
    right += [f"\\angle ABC = {a}", f"d(A,B)={a}", f"V_{{\\text{{max}}}}={a}", f"\\overline{{AB}}={a}",
        f"\\text{{Total cost}} = {a}", f"[ABC]={a}"]
    wrong = [f"3x={a}", f"x^2={a}", f"2={a}", f"x+1={a}", f"a=4={a}", f"{a}=x^2", f"x\\ne {a}", f"x>{a}", f"a+b={a}",
        f"3={a}", f"-x={a}", f"\\frac{{x}}{{2}}={a}"]
    return Drawn([f"{a}"], right, wrong)


def chains_of_equations(rng: Random) -> Drawn:
    a, b = rng.randint(3, 90), rng.randint(3, 90)
    right = [f"{a}+{b}={a + b}", f"x={a}+{b}={a + b}", f"{a + b}={a}+{b}", f"x=2\\cdot\\frac{{{a + b}}}{{2}}={a + b}",
        f"S={a}+{b} = {a + b}"]
    right += [f"\\frac{{{2 * (a + b)}}}{{2}}={a + b}", f"n = {a + b + 1} - 1 = {a + b}"]
    wrong = [f"{a}+{b + 1}={a + b}", f"x={a}\\text{{ because }}y={a + b}", f"{a}={a + b}", f"x={a + b}={a}",
        f"{a}+{b}={a + b}+1", f"x={a}\\text{{ so }}y={a + b}"]
    return Drawn([f"{a + b}"], right, wrong)


def letter_case(rng: Random) -> Drawn:
    one, other = rng.choice([("k", "m"), ("a", "b"), ("n", "r"), ("p", "q")])
    right = [f"{one}^2+{other}", f"{other}+{one}^2", f"{one}\\cdot {one}+{other}", f"{one}^{{2}} + {other}"]
    wrong = [f"{one.upper()}^2+{other}", f"{one}^2+{other.upper()}", f"{other}^2+{one}", f"{one}^2-{other}",
        f"{one}^2{other}"]
    return Drawn([f"{one}^2+{other}"], right, wrong)


def angles_and_triangles(rng: Random) -> Drawn:
    a, b, c = rng.sample("BDEFGKPQR", 3)
    sign = rng.choice(["\\angle", "\\triangle"])
    right = [f"{sign} {a}{b}{c}", f"{sign}{{{a}{b}{c}}}",
        f"{sign} {a} {b} {c}" if sign == "none" else f"{sign}\\,{a}{b}{c}", f"\\text{{}}{sign} {a}{b}{c}"]
    wrong = [f"{sign} {b}{a}{c}", f"{sign} {a}{b}Z", f"{sign} {a}{c}{b}", f"{a}{b}",
        f"{sign} {a.lower()}{b.lower()}{c.lower()}"]
    return Drawn([f"{sign} {a}{b}{c}"], right[:3], wrong)


def primes_of_functions(rng: Random) -> Drawn:
    a = rng.randint(2, 9)
    right = [f"f'({a})", f"f^{{\\prime}}({a})", f"f'\\left({a}\\right)", f"f' ({a})", f"f’({a})", f"f^\\prime({a})"]
    return Drawn([f"f'({a})"], right, [f"f({a})", f"f''({a})", f"f'({a + 1})", f"g'({a})", f"f{a}"])


def derivatives(rng: Random) -> Drawn:
    a = rng.randint(2, 9)
    right = [f"y'={a}x", f"y' = {a}x", f"y^{{\\prime}}={a}x", f"\\frac{{dy}}{{dx}}={a}x", f"y'={a}\\cdot x"]
    return Drawn([f"y'={a}x"], right, [f"y={a}x", f"y''={a}x", f"y'={a}", f"y'={a + 1}x", f"y'=x^{a}"])


def factorials_of_letters(rng: Random) -> Drawn:
    n = rng.choice("nkmr")
    right = [f"{n}!", f"({n})!", f"{n}\\cdot({n}-1)!", f"{n}({n}-1)!", f"{n} !"]
    return Drawn([f"{n}!"], right, [f"{n}", f"{n}!!", f"({n}+1)!", f"!{n}", f"{n}^{n}", f"2{n}!"])


def decorated_numbers(rng: Random) -> Drawn:
    a = rng.randint(12, 99)
    wrong = [f"{a}^*", f"\\hat {a}", f"{a}^T", f"\\hat{{{a}}}", f"{a}'", f"\\sqrt{{{a}}}", f"\\overline{{{a}}}",
        f"{a}_i", f"|{a}|^x", f"{a}!", f"{a}^\\dagger", f"\\vec{{{a}}}"]
    return Drawn([f"{a}"], [f"{a}", f"\\mathbf{{{a}}}", f"\\boldsymbol{{{a}}}", f"\\underline{{{a}}}",
        f"\\textbf{{{a}}}", f"\\mathbf {a}", f"**{a}**"], wrong)


def marks_on_letters(rng: Random) -> Drawn:
    a = rng.choice("ABMPQ")
    right = [f"{a}^T", f"{a}^{{T}}", f"{a}^{{\\mathrm{{T}}}}", f"\\mathbf{{{a}}}^T", f"{{{a}}}^T", f"{a}^\\top"]
    return Drawn([f"{a}^T"], right, [a, f"{a}^*", f"{a}^{{-1}}", f"{a}T", f"{a}^{{TT}}", f"{a}_T", f"{a}^t{a}"])


def products_that_do_not_commute(rng: Random) -> Drawn:
    a, b = rng.choice([("A", "v"), ("B", "w"), ("M", "u"), ("P", "x")])
    right = [f"\\mathbf{{{a}}}\\times\\mathbf{{{b}}}", f"\\mathbf{{{a}}} \\times \\mathbf{{{b}}}",
        f"\\bm{{{a}}}\\times\\bm{{{b}}}"]
    wrong = [f"\\mathbf{{{b}}}\\times\\mathbf{{{a}}}", f"\\mathbf{{{b}}}\\cdot\\mathbf{{{a}}}",
        f"\\mathbf{{{a}}}+\\mathbf{{{b}}}", f"\\mathbf{{{a}}}"]
    return Drawn([f"\\mathbf{{{a}}}\\times\\mathbf{{{b}}}"], right, wrong)


def polynomials(rng: Random) -> Drawn:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    right = [f"x^2+{a + b}x+{a * b}", f"(x+{a})(x+{b})", f"(x + {b})(x + {a})", f"x**2 + {a + b}*x + {a * b}",
        f"x² + {a + b}x + {a * b}", f"y=x^2+{a + b}x+{a * b}"]
    wrong = [f"x^2+{a + b}x", f"(x+{a})(x-{b})", f"x^2+{a * b + a + b}", f"X^2+{a + b}X+{a * b}",
        f"x^2+{a + b}x+{a * b}=0", f"(x+{a}),(x+{b})"]
    return Drawn([f"x^2+{a + b}x+{a * b}"], right, wrong)


def fractions_of_polynomials(rng: Random) -> Drawn:
    a, b = rng.sample(range(2, 12), 2)
    right = [f"\\frac{{x+{a}}}{{x-{b}}}", f"(x+{a})/(x-{b})", f"\\frac{{{a}+x}}{{x-{b}}}",
        f"1+\\frac{{{a + b}}}{{x-{b}}}", f"\\dfrac{{x + {a}}}{{x - {b}}}", f"-\\frac{{x+{a}}}{{{b}-x}}"]
    return Drawn([f"\\frac{{x+{a}}}{{x-{b}}}"], right, [f"\\frac{{x-{b}}}{{x+{a}}}", f"\\frac{{x+{a}}}{{x+{b}}}",
        f"x+{a}/x-{b}", f"\\frac{{{a}}}{{-{b}}}", f"x+{a}"])


def antiderivatives(rng: Random) -> Drawn:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    right = [f"{a}x^3+{b}x+C", f"{a}x^{{3}} + {b}x + C", f"{b}x+{a}x^3+C", f"F(x)={a}x^3+{b}x+C",
        f"{a}x^3+{b}x+C \\text{{, where }} C \\text{{ is a constant}}"]
    right += [f"{a}x^3+{b}x+\\text{{C}}", f"y={a}x^3+{b}x+C"]
    return Drawn([f"{a}x^3+{b}x+C"], right, [f"{a + 1}x^3+{b}x+C", f"{3 * a}x^2+{b}", f"{a}x^3-{b}x+C", f"{a}x^3+C",
        f"\\int ({3 * a}x^2+{b})dx", f"{a}x^2+{b}x+C"])


def lines(rng: Random) -> Drawn:
    a, b = rng.randint(2, 9), rng.randint(1, 20)
    right = [f"y={a}x+{b}", f"y = {a}x + {b}", f"y-{b}={a}x", f"{a}x-y+{b}=0", f"{a}x - y = -{b}", f"y={b}+{a}x",
        f"{2 * a}x-2y+{2 * b}=0"]
    return Drawn([f"y={a}x+{b}"], right, [f"y={a}x-{b}", f"y={b + 1}x+{a + 1}", f"y={a}x", f"x={a}y+{b}", f"y>{a}x+{b}",
        f"{a}x+y+{b}=0"])


def functions_of_other_arguments(rng: Random) -> Drawn:
    a, b = rng.randint(2, 9), rng.randint(1, 9)
    right = [f"f(t)={a}t^2+{b}", f"f(x)={a}x^2+{b}", f"f(x) = {b} + {a}x^2", f"f(u)={a}u^{{2}}+{b}",
        f"f(x)={a}x^2+{b}\\text{{ for all }}x", f"{a}x^2+{b}"]
    wrong = [f"f(t)={a}x^2+{b + 1}", f"g(x)={a}x^2-{b}", f"f(x)={a}x+{b}", f"f(t)={a}t+{b}",
        f"f(x)={a}x^2+{b} \\text{{ or }} f(x)=0"]
    return Drawn([f"f(x)={a}x^2+{b}"], right, wrong)


def qualified_answers(rng: Random) -> Drawn:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    right = [f"({a},{b})\\text{{ only}}", f"({a}, {b})", f"\\text{{only }}({a},{b})",
        f"\\text{{only the pair }}({a},{b})", f"({a},{b}) \\text{{ (only)}}"]
    return Drawn([f"({a},{b})"], right, [f"({a},{b + 1})\\text{{ only}}", f"\\text{{not }}({a},{b})",
        f"\\text{{all but }}({a},{b})", f"({a},{b})\\text{{ or }}(1,1)"])


def questions_restated(rng: Random) -> Drawn:
    a, b = rng.randint(2, 30), rng.randint(2, 9)
    right = [f"x>{a}", f"({a},\\infty)", f"x \\in ({a},\\infty)", f"{a}<x", f"({a},+\\infty)"]
    wrong = [f"{b}x>{a * b}", f"x-{b}>{a - b}", f"{b}x+1>{a * b + 1}", f"x+{b}>{a + b}",
        f"\\frac{{x}}{{{b}}}>\\frac{{{a}}}{{{b}}}", f"-x<-{a}", f"{b}({a}-x)<0"]
    return Drawn([f"({a},\\infty)", f"x>{a}"], right, wrong)


def equations_restated(rng: Random) -> Drawn:
    a, b = rng.sample(range(2, 20), 2)
    right = [f"{a},{b}", f"x={a}\\text{{ or }}x={b}", f"\\{{{a},{b}\\}}", f"x={a}, x={b}", f"x_1={a}, x_2={b}"]
    wrong = [f"x^2-{a + b}x+{a * b}=0", f"(x-{a})(x-{b})=0", f"(x-{a})(x-{b})", f"x={a}", f"x^2-{a + b}x=-{a * b}",
        f"x({a + b}-x)={a * b}"]
    return Drawn([f"{a}, {b}"], right, wrong)


def operations_left_to_do(rng: Random) -> Drawn:
    n = rng.randint(10, 99)
    total = n * (n + 1) // 2
    right = [f"{total}", f"{total:,}", f"\\frac{{{n}\\cdot {n + 1}}}{{2}}", f"\\sum_{{k=1}}^{{{n}}} k = {total}",
        f"1+2+\\cdots+{n}={total}"]
    wrong = [f"\\sum_{{k=1}}^{{{n}}}k", f"\\int_0^1 {total}\\,dx", f"\\lim_{{x\\to {total}}}x",
        f"\\frac{{d}}{{dx}}({total}x)", f"1+2+\\cdots+{n}", f"\\prod_{{k=1}}^1 {total}"]
    return Drawn([f"{total}"], right, wrong)


def closed_forms_of_sums(rng: Random) -> Drawn:
    n = rng.randint(20, 2500)
    right = [f"{n + 1}!-1", f"({n + 1})!-1", f"{n + 1}! - 1", f"-1+{n + 1}!", f"\\left({n + 1}\\right)!-1"]
    return Drawn([f"\\sum_{{k=1}}^{{{n}}} k\\cdot k!", f"{n + 1}!-1"], right, [f"{n + 1}!", f"{n}!-1", f"{n + 1}!+1",
        f"{n + 2}!-1", f"{n + 1}-1"])


def roots_of_inverses(rng: Random) -> Drawn:
    a = rng.choice("nmkx")
    right = [f"\\sqrt{{\\frac{{1}}{{{a}}}}}", f"1/\\sqrt{{{a}}}", f"{a}^{{-1/2}}", f"\\frac{{\\sqrt{{{a}}}}}{{{a}}}",
        f"\\frac{{1}}{{\\sqrt{{{a}}}}}", f"1/√{a}"]
    return Drawn([f"\\frac{{1}}{{\\sqrt{{{a}}}}}"], right, [f"\\sqrt{{{a}}}", f"\\frac{{1}}{{{a}}}",
        f"\\frac{{1}}{{\\sqrt{{{a}+1}}}}", f"-\\frac{{1}}{{\\sqrt{{{a}}}}}", f"\\frac{{1}}{{{a}^2}}"])


ALL = [
    *(functions_in_plain_text, sines, logarithms, arctangents, pi_in_plain_text, fractions_of_pi, upright_e),
    *(complex_numbers, products_of_e, nested_roots, roots, congruences, chemical_formulas, columns_as_vectors),
    *(matrices, intervals, half_lines, unions, all_but_one, sets, lists, multisets, sequences_with_dots, plus_minus),
    *(points, several_named_parts, names_before_values, chains_of_equations, letter_case, angles_and_triangles),
    *(primes_of_functions, derivatives, factorials_of_letters, decorated_numbers, marks_on_letters),
    *(products_that_do_not_commute, polynomials, fractions_of_polynomials, antiderivatives, lines),
    *(functions_of_other_arguments, qualified_answers, questions_restated, equations_restated),
    *(operations_left_to_do, closed_forms_of_sums, roots_of_inverses),
]
