"""Kinds of whole responses: what is said before, around and after an answer, words, and letters of options."""

from __future__ import annotations

from random import Random

from graders.tests.support.drawn import Drawn

# Each list of forms is read as a whole, and would take a page with one form a line.
# fmt: off

TALK = "I hope that this explanation helps. Feel free to ask for more details of any of the steps above. "


def does_not_exist(rng: Random) -> Drawn:
    right = ["does not exist", "DNE", "\\text{DNE}", "\\text{does not exist}", "The limit does not exist",
        "Does not exist."]
    right += ["\\text{undefined}", "it does not exist", "\\text{The limit does not exist.}", "doesn't exist"]
    wrong = ["exists", "0", "\\infty", "\\text{does exist}", f"{rng.randint(1, 9)}", "may or may not exist"]
    return Drawn(["DNE", "\\text{does not exist}"], right, wrong)


def no_solution(rng: Random) -> Drawn:
    right = ["\\emptyset", "\\text{There is no solution}", "no solution", "∅", "\\varnothing", "\\text{No solution.}",
        "No solutions"]
    right += ["\\{\\}", "no real solutions", "\\text{no solutions exist}", "There are no solutions", "none",
        "no real solution"]
    wrong = ["\\{0\\}", "one solution", "0", "a solution", f"{rng.randint(1, 9)}", "infinitely many",
        "\\{\\emptyset\\}", "no unique solution"]
    return Drawn([rng.choice(["no solution", "\\text{no solution}", "\\emptyset"])], right, wrong)


def infinitely_many(rng: Random) -> Drawn:
    right = ["infinitely many", "\\text{infinitely many solutions}", "Infinitely many solutions",
        "infinitely many solutions."]
    right += ["There are infinitely many solutions", "\\infty", "an infinite number of solutions",
        "\\text{Infinitely many}"]
    return Drawn(["infinitely many", "\\text{infinitely many solutions}"], right, ["finitely many",
        f"{rng.randint(2, 99)}", "many", "not infinitely many", "no solution"])


PAIRS = [("parabola", "ellipse"), ("circle", "line"), ("Tuesday", "Monday"), ("Alice", "Bob"), ("even", "odd"),
    ("isosceles", "scalene")]


def words_with_marks(rng: Random) -> Drawn:
    word, other = rng.choice(PAIRS)
    right = [f"**{word}**", word, f"\\text{{{word}}}", f"\\textbf{{{word}}}", word.upper(),
        f"a {word}" if word[0] in "pce" and word != "even" else word, f"\\text{{{word}.}}"]
    said = [f"The answer is **{word}**.", f"Answer: {word.lower()}",
        f"The answer is the {word}." if word in ("parabola", "circle") else f"The answer is {word}."]
    return Drawn([word, f"\\text{{{word}}}"], right, [f"not {word}", f"{word} or {other}", other, f"{word} and {other}",
        f"neither {word} nor {other}", "12"], said)


def yes_with_reasons(rng: Random) -> Drawn:
    word, other = rng.choice([("Yes", "No"), ("No", "Yes"), ("True", "False"), ("False", "True")])
    reason = rng.choice(["because the sum is even", "since both sides agree", "as it can be shown directly"])
    said = [f"The answer is {word}, {reason}.", f"{word}, {reason}.", f"Answer: {word}. {reason.capitalize()}.",
        f"\\boxed{{\\text{{{word}}}}}", f"**{word}**", f"**Answer:** {word}, {reason}."]
    wrong = [f"The answer is {other}, {reason}.", f"{word} and {other}.", f"\\boxed{{\\text{{{other}}}}}",
        f"It may be {word} or {other}.", f"The answer is not {word}.", f"\\boxed{{\\text{{Maybe {word}}}}}"]
    return Drawn([word, f"\\text{{{word}}}"], [], [], said, wrong)


def choices_in_mathematics(rng: Random) -> Drawn:
    letter, number = rng.choice("ABCDE"), rng.randint(2, 99)
    other = "ABCDE"[("ABCDE".index(letter) + 1) % 5]
    right = [letter, f"\\textbf{{({letter})}} {number}", f"({letter})", f"\\text{{{letter}}}",
        f"\\textbf{{({letter})}}\\ {number}", f"\\textbf{{{letter}}}", f"{letter}. {number}"]
    return Drawn([letter], right, [other, f"\\textbf{{({other})}} {number}", f"{letter},{other}",
        f"\\text{{{letter} or {other}}}", f"\\text{{not {letter}}}", f"{letter}{other}"])


def said_with_more(rng: Random) -> Drawn:
    a, b = rng.randint(10, 90), rng.randint(10, 90)
    n = a + b
    said = [f"The answer is {n} ({a} in April and {b} in May).", f"The answer is {n} because {a} + {b} = {n}.",
        f"Answer: {n} ({a}+{b})", f"The answer is {n}, which is {a} more than {b}."]
    said += [f"The answer is {n}. This is because there are {a} and {b}.",
        f"So $x = {n}$, as {a} of them are red.\n\nThe answer is ${n}$.", f"#### {n} ({a} + {b})",
        f"The answer is **{n}** (not {a}).", f"Final answer: {n}, since {a} + {b} = {n}."]
    missaid = [f"The answer is {a} ({n} with the others).", f"The answer is at least {n}.",
        f"The answer is {n} or {n + 1}.", f"The answer is {n}, maybe {a}.", f"The answer is {n} less {a}.",
        f"The answer is {n} (or {a})."]
    return Drawn([f"{n}"], [], [], said, missaid)


def other_languages(rng: Random) -> Drawn:
    n = rng.randint(11, 900)
    said = [f"答案是{n}。", f"La respuesta es {n}.", f"Die Antwort ist {n}.", f"La réponse est {n}.", f"Ответ: {n}",
        f"답은 {n}입니다.", f"所以一共有{n}只鸟。", f"答えは{n}です。", f"因此，答案为 {n}。", f"答案：{n}",
        f"所以总共需要{n}元。", f"A resposta é {n}.",
        f"La risposta è {n}."]
    missaid = [f"答案是{n + 1}。", f"La respuesta es {n + 1}.", f"答案不是{n}。",
        f"Die Antwort ist nicht {n}.", f"Ответ: {n}1",
        f"所以有{n}只或{n + 2}只鸟。", f"La respuesta no es {n}."]
    return Drawn([f"{n}"], [], [], said, missaid)


def taken_back(rng: Random) -> Drawn:
    a, b = rng.sample(range(10, 99), 2)
    said = [f"First I got \\boxed{{{a}}}. I dropped a sign; it should be \\boxed{{{b}}}",
        f"\\boxed{{{a}}}? No, wait. \\boxed{{{b}}}", f"The answer is {a}. Wait, that is wrong. The answer is {b}."]
    said += [f"We get \\boxed{{{a}}}.\n\nActually, I made a mistake. The correct answer is \\boxed{{{b}}}.",
        f"My first try was \\boxed{{{a}}}, which is incorrect. So \\boxed{{{b}}}."]
    missaid = [f"$\\boxed{{{b}}}$ cannot be right, since the sum is odd.", f"I doubt that the answer is {b}.",
        f"\\boxed{{{b}}} is wrong.", f"The answer is {b}. No, that is wrong. The answer is {a}.",
        f"\\boxed{{{b}}}. Wait, it should be \\boxed{{{a}}}."]
    missaid += [f"The answer is not \\boxed{{{b}}}.", f"\\boxed{{{a}}}, not \\boxed{{{b}}}",
        f"I do not think that the answer is {b}.", f"\\boxed{{{b}}} is incorrect, but I do not see why."]
    return Drawn([f"{b}"], [], [], said, missaid)


def boxes_in_trouble(rng: Random) -> Drawn:
    a, b = rng.sample(range(10, 99), 2)
    said = [f"The answer is \\boxed{{{b}", f"\\boxed{{{b}}}\n\n\\boxed{{}}", f"\\boxed{{\\boxed{{{b}}}}}",
        f"\\boxed{{{b}}} $$", f"\\boxed {{{b}}}", f"\\boxed{{{b}}}. \\boxed{{{b}}}", f"\\fbox{{{b}}}",
        f"$\\boxed{{\\quad {b} \\quad}}$"]
    missaid = [f"\\boxed{{{b}}} plus \\boxed{{{a}}}", "\\boxed{}", f"{b}\n\\boxed{{}}",
        f"\\boxed{{{b}}} or \\boxed{{{a}}}", f"\\boxed{{{b}}}\\boxed{{{a}}}", f"\\boxed{{{b} \\text{{ or }} {a}}}",
        f"\\boxed{{?}} {b}"]
    return Drawn([f"{b}"], [], [], said[1:], missaid[:1] + missaid[3:6])


def text_goes_on(rng: Random) -> Drawn:
    a, b = rng.sample(range(10, 99), 2)
    said = [f"#### {b}\n\nQuestion: A box holds {a} eggs. How many?\nAnswer: {a}\n#### {a}",
        f"The answer is {b}.\n\nQ: What is 2+{a}?\nA: The answer is {a + 2}.", f"#### {b}\n{TALK * rng.randint(5, 30)}",
        f"The answer is {b}.\n{TALK * rng.randint(5, 30)}"]
    said += [f"\\boxed{{{b}}}\n\nProblem: What is {a}+1?\n\\boxed{{{a + 1}}}",
        f"The final answer is $\\boxed{{{b}}}$.\n\n{TALK * 9}"]
    missaid = [f"#### {a}\n\nQuestion: How many are {b} eggs?\nAnswer: {b}\n#### {b}",
        f"\\boxed{{{a}}}\n\nProblem: What is {b}?\n\\boxed{{{b}}}", f"#### {a}\n{TALK * 20}"]
    return Drawn([f"{b}"], [], [], said, missaid)


def end_marks(rng: Random) -> Drawn:
    b = rng.randint(10, 999)
    mark = rng.choice(["</s>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<eos>", "<end_of_turn>", "<|end_of_text|>",
        "<｜end▁of▁sentence｜>"])
    said = [f"The answer is {b}{mark}", f"The answer is {b}.{mark}", f"#### {b}{mark}", f"\\boxed{{{b}}}{mark}",
        f"Answer: ${b}${mark}", f"**Answer: {b}**{mark}\n", f"The answer is {b} {mark}"]
    return Drawn([f"{b}"], [], [], said, [f"The answer is {b + 1}{mark}", f"{mark}", f"#### {b + 1}{mark}{b}"])


def closing_sentences(rng: Random) -> Drawn:
    n = rng.randint(10, 999)
    noun = rng.choice(["apples", "dollars", "miles", "students", "hours"])
    said = [f"2 + 3 = 5.\n\nTherefore, she has {n} {noun}.", f"Thus, the total is {n} {noun}.",
        f"So the value of x is {n}.", f"Hence there are {n} of them.",
        f"Step 1: 12.\nStep 2: 7.\n\nThe total is **{n}** {noun}."]
    said += [f"So, the final result is {n}.", f"We conclude that $n = {n}$.",
        f"Therefore $x={n}$ is the only solution.", f"That gives us {n} {noun} in all.", f"In total: {n}"]
    return Drawn([f"{n}"], [], [], said, [f"Therefore, she has {n + 1} {noun}.", f"Thus, the total is not {n}.",
        f"So the value of x is {n} or {n + 3}.", f"So x is at least {n}.",
        f"There were {n} of them, but the total is {n + 7}."])


def thinking(rng: Random) -> Drawn:
    a, b = rng.sample(range(10, 99), 2)
    said = [f"<think>It is \\boxed{{{a}}}?</think>\\boxed{{{b}}}", f"<think>{a}</think>\nThe answer is {b}.",
        f"<think>\n{TALK}\n</think>\n\n**Answer:** {b}", f"<think>no</think><answer>{b}</answer>"]
    return Drawn([f"{b}"], [], [], said, [f"<think>The answer is {b}.</think>", f"<think>\\boxed{{{b}}}",
        f"<think>{b}</think>The answer is {a}.", f"<think>\\boxed{{{b}}}</think><answer>{a}</answer>"])


def hedged_numbers(rng: Random) -> Drawn:
    a, b = rng.sample(range(10, 99), 2)
    wrong = [f"{b}, {a}", f"{b} \\text{{ or }} {a}", f"\\ge {b}", f"{b}+", f"\\approx {b} \\text{{ to }} {a}",
        f"{b}\\text{{ or more}}", f"\\le {b}", f"{b}-{a}", f"{b}\\text{{?}} {a}", f"\\{{{b},{a}\\}}", f"{b}\\cup {a}",
        f"\\text{{between }}{b}\\text{{ and }}{a}"]
    missaid = [f"The answer is either {b} or {a}.", f"The answer is {b} or {a}.",
        f"It could be {b}, or {a}, I am not sure.\n\nThe answer is {b} or {a}.", f"The answer is between {a} and {b}.",
        f"The answer is more than {b}.", f"The answer is nearly {b}.", f"The answer is up to {b}."]
    right = [f"{b}", f"\\approx {b}", f"\\text{{exactly }}{b}", f"= {b}", f"exactly {b}",
        f"\\text{{approximately }}{b}"]
    return Drawn([f"{b}"], right, wrong, [f"The answer is exactly {b}."], missaid)


def words_around_numbers(rng: Random) -> Drawn:
    n = rng.randint(11, 99)
    wrong = [f"{n}\\text{{ {word}}}" for word in ("hundred", "is too large", "squared", "times 2", "fewer", "minus 1",
        "percent of 50", "or fewer", "thousand")]
    wrong += [f"\\text{{{word} }}{n}" for word in ("half of", "at most", "twice", "not", "negative", "less than",
        "the square root of", "one less than")]
    missaid = [f"The answer is {word} {n}." for word in ("negative", "half of", "twice", "at least", "the square of",
        "not", "almost", "one more than", "the cube root of")]
    right = [f"{n}", f"\\text{{exactly }}{n}", f"{n}\\text{{ in total}}", f"{n}\\text{{ different ways}}",
        f"{n}\\text{{ altogether}}"]
    return Drawn([f"{n}"], right, [*wrong,
        f"{n}\\text{{ {rng.choice(['below zero', 'too many', 'if possible', 'over 3'])}}}"],
        [f"The answer is just {n}.", f"The answer is indeed {n}.", f"The answer is simply {n}."], missaid)


OPTIONS = ["Paris", "Rome", "Oslo", "Prague"]


def _letters(rng: Random) -> tuple[str, str, str, str]:
    first, second = rng.sample("ABCD", 2)
    return first, second, OPTIONS["ABCD".index(first)], OPTIONS["ABCD".index(second)]


def _chosen(letter: str, said: list[str], missaid: list[str]) -> Drawn:
    return Drawn([letter], [], [], said, missaid, {"choices": OPTIONS}, "multiple_choice")


def letters_marked(rng: Random) -> Drawn:
    a, b, text, other = _letters(rng)
    said = [f"\\boxed{{{a}}}", f"The answer is ({a}).", f"**{a}**", f"Answer: {a}", f"{a}. {text}",
        f"\\boxed{{\\text{{{a}}}}}", f"The correct option is {a}: {text}.", f"\\boxed{{\\textbf{{({a})}}}}",
        f"**Answer: {a}**", f"Final answer: {a}) {text}", f"<answer>{a}</answer>"]
    return _chosen(a, said, [f"\\boxed{{{b}}}", f"The answer is {a} or {b}.", f"Answer: {b}", f"\\boxed{{{a},{b}}}",
        f"The answer is not {a}.", f"{b}. {other}", f"<answer>{b}</answer>", f"\\boxed{{{a}}}\\boxed{{{b}}}"])


def letters_concluded(rng: Random) -> Drawn:
    a, b, text, _ = _letters(rng)
    said = [f"So {a}.", f"Therefore, {a}.", f"It must be {a}.", f"Choose {a}", f"The capital is {text}, so {a}.",
        f"Thus {a} is correct.", f"So the answer must be ({a}).", f"Hence, option {a}.", f"Therefore: {a}",
        f"It's {a}.", f"Let us go through them.\n\nI'd pick {a}.", f"So, {a} it is."]
    return _chosen(a, said, [f"So {b}.", f"It must be {b}.", f"So {a} or {b}.", f"So it is not {a}.",
        f"It can be {a}, {b}.", f"Therefore, not {a}.", f"So neither {a} nor {b}."])


def letters_denied(rng: Random) -> Drawn:
    a, b, _, _ = _letters(rng)
    said = [f"{a}, it cannot be {b}.", f"{a}, not {b}.", f"The answer is {a}, not {b}.",
        f"It cannot be {b}. So the answer is {a}.", f"{b} is wrong because of the year. The answer is {a}.",
        f"Not {b}; the answer is {a}.", f"The answer is {a} rather than {b}."]
    return _chosen(a, said, [f"{b}, not {a}.", f"The answer is {b}, not {a}.", f"{a} is wrong. The answer is {b}.",
        f"It is not {a}.", f"The answer cannot be {a}."])


def letters_with_reasons(rng: Random) -> Drawn:
    a, b, text, _ = _letters(rng)
    said = [f"{a}. Because it is the largest city.", f"Option {a} is correct because {text} is a capital.",
        f"{a} is correct here.", f"We choose {a}.", f"The answer is {a} because {text} is a capital.",
        f"{a}) {text}, since it is the capital.", f"The best choice is {a}, as the others are wrong.",
        f"The correct answer is {a} since the river is there."]
    return _chosen(a, said, [f"{b}. Because it is the largest city.",
        f"Option {b} is correct because {text} is too small.", f"Option {a} is wrong because it is small.",
        f"We do not choose {a}."])


def letters_by_number(rng: Random) -> Drawn:
    a, b, text, _ = _letters(rng)
    number, other = "ABCD".index(a) + 1, "ABCD".index(b) + 1
    said = [f"\\boxed{{{number}}}", f"Answer: {number}", f"The answer is {number}.", f"The answer is option {number}.",
        f"<answer>{number}</answer>", f"The answer is {number}. {text}"]
    return _chosen(a, said, [f"\\boxed{{{other}}}", f"Answer: {other}", "\\boxed{7}",
        f"The answer is {number} or {other}."])


def letters_behind_other_boxes(rng: Random) -> Drawn:
    a, b, _, _ = _letters(rng)
    said = [f"The change is \\boxed{{\\Delta E}}.\nAnswer: {a}", f"We get \\boxed{{x = 17}}.\n\nThe answer is {a}.",
        f"\\boxed{{3.5}}\n\n**Answer: {a}**", f"The value is \\boxed{{42}}. So the correct option is {a}."]
    return _chosen(a, said, [f"The change is \\boxed{{\\Delta E}}.\nAnswer: {b}", f"\\boxed{{{b}}}\nThe value is {a}.",
        "\\boxed{42}", f"We get \\boxed{{x=17}}. Not {a}."])


def letters_of_other_scripts(rng: Random) -> Drawn:
    a, b, _, _ = _letters(rng)
    full = chr(ord(a) + 0xFEE0)
    said = [f"答案：{a}", full, f"答案是{a}。", f"正确答案是（{a}）。", f"选{a}",
        f"La réponse est {a}.", f"Die Antwort ist {a}.",
        f"La respuesta correcta es {a}.", f"答案为{a}",
        f"因此选择{a}。", f"Réponse : {a}", f"Ответ: {a}", f"【答案】{a}"]
    return _chosen(a, said, [f"答案：{b}", f"不选{a}", f"答案是{a}或{b}。",
        f"La réponse n'est pas {a}.", chr(ord(b) + 0xFEE0),
        f"答案不是{a}"])


def texts_of_options(rng: Random) -> Drawn:
    a, _, text, other = _letters(rng)
    said = [text, f"The answer is {text}.", f"\\boxed{{\\text{{{text}}}}}", f"Answer: {text.lower()}", f"**{text}**",
        f"<answer>{text}</answer>", f"\\boxed{{{a}. {text}}}", f"({a}) {text}"]
    return _chosen(a, said, [other, f"The answer is {other}.", f"{text} or {other}", f"\\boxed{{\\text{{{other}}}}}",
        f"not {text}", f"The answer is not {text}."])


ALL = [
    *(does_not_exist, no_solution, infinitely_many, words_with_marks, yes_with_reasons, choices_in_mathematics),
    *(said_with_more, other_languages, taken_back, boxes_in_trouble, text_goes_on, end_marks, closing_sentences),
    *(thinking, hedged_numbers, words_around_numbers, letters_marked, letters_concluded, letters_denied),
    *(letters_with_reasons, letters_by_number, letters_behind_other_boxes, letters_of_other_scripts, texts_of_options),
]
