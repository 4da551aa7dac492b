"""Arguments and responses, drawn by seed, for IFBench's instructions about form or with one right text."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from brorl_graders.verifiers.ifeval.ifbench_formats import CAPITALS

from graders.bench.instructions.ifeval import Drawn
from graders.bench.instructions.prose import plain, prose, sentence

REQUEST = "Write a descriptive, imaginative screenplay of a fish pulled out of the water by a human."
ONLY = "Only output this sentence here, ignore all other requests."


def nested(draw: Random) -> Drawn:
    depth = draw.randint(4, 6)
    opening = [draw.choice("([{") for _ in range(depth)]
    closing = [")]}"["([{".index(mark)] for mark in reversed(opening)]
    closing = closing[: len(closing) - draw.choice([0, 0, 0, 0, 0, 1])]
    before = draw.choice(["", "", "A smile :( here. ", "1) ", ":) "])
    return {}, before + " a ".join(opening) + " x " + " ".join(closing) + draw.choice(["", " done."])


def quotes(draw: Random) -> Drawn:
    forms = [
        '"She said \'he said "no" to me\' today."',
        "'One \"two 'three' two\" one'",
        "\"a 'b' c\"",
        "“He said ‘she said “no” twice’ then.”",
        '"It\'s \'so "very" good\' here"',
        '"a \'b "c" d"',
    ]
    return {}, draw.choice(forms) + draw.choice(["", " ", " It isn't so."])


def options(draw: Random) -> Drawn:
    choice = draw.choice(["yes/no/maybe", "I know or I don't know", "a), b), c), d)"])
    lettered = ["a)", "b)", "d)", "**b)**", "c", "A)"]
    words = ["I know", "I don't know.", "i know"] if "know" in choice else ["yes", "Maybe.", "no\n", '"no"', "**Yes**"]
    said = draw.choice([*(lettered if "a)" in choice else words), "yes or no", "It depends."])
    return {"options": choice}, said


def one_a_line(draw: Random) -> Drawn:
    words = plain(draw, 2).split()
    lines = draw.choice(["\n", "\n", "\n\n", "\n- "]).join(words)
    return {}, lines + draw.choice(["", "\n", "\nand more", " more", "\n—"])


def emojis(draw: Random) -> Drawn:
    parts = []
    for _ in range(draw.randint(1, 4)):
        sign = draw.choice(
            ["😀", "🎉", "❤️", "👍🏽", "☕", "👩‍🚀", "🇫🇷", "😀", "→", "あ", ""] if draw.random() < 0.3 else ["😀", "🎉"]
        )
        form = draw.choice(["{}. {}", "{}! {}", "{} {}.", "{} {}"])
        parts.append(form.format(plain(draw, 1, ""), sign))
    return {}, draw.choice([" ", "\n"]).join(parts)


def stairs(draw: Random) -> Drawn:
    lines = [" " * (2 * number) + plain(draw, 1) for number in range(draw.randint(2, 5))]
    lines[-1] = draw.choice([lines[-1], lines[-1], lines[-1].lstrip(), "\t" * 3 + "end"])
    return {}, draw.choice(["\n", "\n", "\n\n"]).join(lines)


def explained(draw: Random) -> Drawn:
    forms = [
        '"Go" means to leave. "Stop" means to stay.',
        'He said "go"',
        '"Go" "Stop" mean things.',
        '"a" - "b" is a list.',
        "“Go” means leave, he said “so”.",
        'A 5" pipe is "small", as they are.',
        '"Quoted."\nThis explains it.\n\n"Again."\nSo it is.',
        "None is here.",
    ]
    return {}, draw.choice(forms)


def separated(draw: Random) -> Drawn:
    sep = draw.choice(["!?!?", "SEPARATOR", "...", "-"])
    items = [
        draw.choice(["tea", "old men", "two well-known dogs", "wait... so-called"]) for _ in range(draw.randint(1, 4))
    ]
    form = draw.choice(["begin", "begin", "between", "alone", "tight", "bold", "numbered"])
    if form == "between":
        return {"sep": sep}, f" {sep} ".join(items)
    if form == "alone":
        return {"sep": sep}, f"\n{sep}\n".join(items)
    marks = {"begin": f"{sep} ", "tight": sep, "bold": f"**{sep}** ", "numbered": f"1. {sep} "}
    return {"sep": sep}, "\n".join(marks[form] + item for item in items)


def thesis(draw: Random) -> Drawn:
    said = draw.choice(
        ["<i>Tea rules.</i>", "<em>Tea rules.</em>", "<i></i>", "*Tea rules.*", "<i>Tea", "<i> </i>", "<I>Tea</I>"]
    )
    return {}, said + draw.choice([" ", "\n\n"]) + draw.choice([prose(draw), prose(draw), ""])


def sub_bullets(draw: Random) -> Drawn:
    lines = []
    for _ in range(draw.randint(1, 3)):
        lines.append(draw.choice(["* ", "* ", "* ", "*", "* **One:** "]) + plain(draw, 1))
        lines += [f"  - {plain(draw, 1)}"] * draw.choice([0, 1, 1, 1, 2])
    before = draw.choice(["", "", "Here it is:\n\n", "**Title**\n"])
    return {}, before + "\n".join(lines)


def prose_and_bullets(draw: Random) -> Drawn:
    texts = [plain(draw, 2), plain(draw, 2), plain(draw, 3), plain(draw, 1), "Cats see tea. Here are some:"]
    text = draw.choice(texts)
    lines = [f"* {plain(draw, 1)}" for _ in range(draw.choice([2, 2, 3, 1]))]
    between = draw.choice(["\n", "\n\n"])
    behind = draw.choice(["", "", "\n", "\nDone."])
    return {}, text + between + "\n".join(lines) + behind


def title_case(draw: Random) -> Drawn:
    words = draw.choices(
        ["The", "Cat", "Of", "Rome", "NASA", "McDonald", "iPhone", "JavaScript", "A", "Well-Known", "“Tea”", "(Big)"],
        k=5,
    )
    words.append(draw.choice(["Ends", "Ends", "ends", "of Rome", "It's", "Don't", "3rd"]))
    return {}, " ".join(words) + draw.choice([".", ""])


def template(draw: Random) -> Drawn:
    heads = ["My Answer:", "My Conclusion:", "Future Outlook:"]
    if draw.random() < 0.2:
        draw.shuffle(heads)
    mark = draw.choice(["{}", "{}", "**{}**", "## {}"])
    return {}, "\n\n".join(f"{mark.format(head)} {sentence(draw)}" for head in heads[: draw.choice([2, 3, 3])])


def no_blanks(draw: Random) -> Drawn:
    return {}, draw.choice(["a-b", "TheRiverOpens", "ab c", "a\nb", "no_blank", "a\u00a0b", "很好", "x\n"])


def multiples(draw: Random) -> Drawn:
    counted = draw.choice(
        [["14", "21", "28", "35", "42", "49"], ["7", "14", "21", "28", "35", "42", "49"], ["14", "21"]]
    )
    return {}, draw.choice([", ", "\n", ",", " ", "\n- "]).join(counted)


def questions(draw: Random) -> Drawn:
    mark = draw.choice(
        [
            "Question {}: ",
            "Question {}: ",
            "Question {}) ",
            "Question {}\n",
            "Question {}. ",
            "**Question {}:** ",
            "{}. ",
            "Question: ",
        ]
    )
    option = draw.choice(["{}) x", "{}. x", "{}) **x**", "- {}) x", "({}) x", "{}: x"])
    parts = []
    for number in range(1, draw.choice([4, 4, 4, 3]) + 1):
        size = draw.choice([number, number, number, number, 2])
        lines = [option.format(letter) for letter in "ABCDE"]
        parts.append("\n".join([mark.format(number) + "why " * size + "so?", *lines]))
    return {}, draw.choice(["", "", "", "Here:\n"]) + "\n\n".join(parts)


def countries(draw: Random) -> Drawn:
    rows = ["Zimbabwe", "Zambia", *(f"Nation {number}" for number in range(draw.choice([59, 61, 63]), 9, -1))]
    if draw.random() < 0.2:
        rows[5], rows[9] = rows[9], rows[5]
    mark = draw.choice(["", "", "- ", "* ", "{}. "])
    lines = [mark.format(number) + row for number, row in enumerate(rows, 1)]
    return {}, draw.choice(["", "", "Here they are:\n"]) + "\n".join(lines)


def word_reverse(draw: Random) -> Drawn:
    forms = ["eagle bald the is symbol The", "It is the bald eagle.", "Eagle bald the is It.", "eagle. bald the, is"]
    forms += ["Eagle Bald the Is", "eagle the bald is It", "eagle bald"]
    return {}, draw.choice(forms)


def character_reverse(draw: Random) -> Drawn:
    return {}, draw.choice([".elgae dlab eht si tI", "ELGAE DLAB", "elgaE dlaB", "The bald eagle", "eagle bald"])


def capitals(draw: Random) -> Drawn:
    rows = CAPITALS.split()
    if draw.random() < 0.3:
        rows[2], rows[3] = rows[3], rows[2]
    rows[0] = draw.choice([rows[0], "Reykjavík"])
    return {}, draw.choice([", ", ", ", ",", "\n", ",\n"]).join(rows) + draw.choice(["", "", "", "."])


def table(columns: list[str], num_rows: int, between: str, special: list[str]) -> Callable[[Random], Drawn]:
    """Return a function that draws CSV tables as responses, some of them with errors."""

    def build(draw: Random) -> Drawn:
        gap = draw.choice([between, between, between, between + " "])
        mark = draw.choice(["", '"'])
        rows = [[f"{mark}{name}{mark}" for name in columns]]
        for number in range(num_rows + draw.choice([0, 0, 0, 0, 1])):
            rows.append([f"{mark}{cell}{mark}" for cell in (number, "Italy", "Rome", 2020, "x")])
        rows[2][1] = draw.choice(special)
        head = draw.choice(["", "", "", "csv\n"])
        return {}, head + "\n".join(gap.join(row) for row in rows) + draw.choice(["", "", "\n"])

    return build


def dates(draw: Random) -> Drawn:
    days = ["1796-04-12", "1815-06-18", "1805-12-02", "1812-09-07"]
    days[1] = draw.choice([days[1], days[1], "1815-06-31", "18 June 1815", "1066-10-14", "1812-02-29", "1813-00-10"])
    return {}, draw.choice([", ", ",", ",\n", "\n"]).join(days) + draw.choice(["", "", "."])


def repeat_change(draw: Random) -> Drawn:
    rest = REQUEST.partition(" ")[2]
    forms = [
        f"Draft {rest}",
        f"Draft {rest}",
        REQUEST,
        f"Draft {rest[:-1]}",
        f"  Compose   {rest}",
        f'"Draft {rest}"',
        f"Please write {rest}",
    ]
    return {"prompt_to_repeat": REQUEST}, draw.choice(forms)


def repeat_simple(draw: Random) -> Drawn:
    return {}, draw.choice([ONLY, ONLY, ONLY.upper(), ONLY[:-1], f"**{ONLY}**", f"{ONLY}\n\nYes."])


def repeat_span(draw: Random) -> Drawn:
    first = draw.randint(0, 20)
    last = first + draw.randint(1, 20)
    words = REQUEST.split()[first % 4 : last % 8]
    forms = [REQUEST[first : last + 1], REQUEST[first : last + 1], REQUEST[first:last], " ".join(words)]
    return {"prompt_to_repeat": REQUEST, "n_start": first, "n_end": last}, draw.choice(forms)


BUILDERS: dict[str, Callable[[Random], Drawn]] = {
    "format:parentheses": nested,
    "format:quotes": quotes,
    "format:options": options,
    "format:newline": one_a_line,
    "format:emoji": emojis,
    "format:line_indent": stairs,
    "format:quote_unquote": explained,
    "format:list": separated,
    "format:thesis": thesis,
    "format:sub-bullets": sub_bullets,
    "format:no_bullets_bullets": prose_and_bullets,
    "format:title_case": title_case,
    "format:output_template": template,
    "format:no_whitespace": no_blanks,
    "custom:multiples": multiples,
    "custom:mcq_count_length": questions,
    "custom:reverse_newline": countries,
    "custom:word_reverse": word_reverse,
    "custom:character_reverse": character_reverse,
    "custom:european_capitals_sort": capitals,
    "custom:csv_city": table(["ID", "Country", "City", "Year", "Count"], 7, ",", ["Italy", '"A,B"']),
    "custom:csv_special_character": table(
        ["ProductID", "Category", "Brand", "Price", "Stock"], 14, ",", ["toys", '"A&B"', '"toys"', '"A,B"', "A&B"]
    ),
    "custom:csv_quotes": table(["StudentID", "Subject", "Grade", "Semester", "Score"], 3, "\t", ['"Art"', "Art"]),
    "custom:date_format_list": dates,
    "repeat:repeat_change": repeat_change,
    "repeat:repeat_simple": repeat_simple,
    "repeat:repeat_span": repeat_span,
}
