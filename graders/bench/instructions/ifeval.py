"""Arguments and responses for IFEval's instructions, drawn by seed, close to the limit between followed and not."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any

from graders.bench.instructions.prose import plain, prose, sentence, sentences

Drawn = tuple[dict[str, Any], str]  # arguments of an instruction, and a response to it
RELATIONS = ("at least", "less than")
ABSENT = ["volcano", "quarterly", "zebra crossing", "map"]
MARKERS = ["P.S.", "P.P.S"]
PHRASES = ["Any other questions?", "Is there anything else I can help with?", "That is all you need to know."]
LANGUAGES = {
    "en": "The meeting begins at nine and everybody brings a short report about the week.",
    "de": "Die Sitzung beginnt um neun Uhr, und alle bringen einen kurzen Bericht über die Woche mit.",
    "fr": "La réunion commence à neuf heures et chacun apporte un petit rapport sur la semaine.",
    "es": "La reunión empieza a las nueve y todos traen un breve informe sobre la semana.",
    "it": "La riunione comincia alle nove e ognuno porta una breve relazione sulla settimana.",
    "pt": "A reunião começa às nove horas e todos trazem um pequeno relatório sobre a semana.",
    "pl": "Spotkanie zaczyna się o dziewiątej i każdy przynosi krótki raport o minionym tygodniu.",
    "fi": "Kokous alkaa kello yhdeksän ja jokainen tuo lyhyen raportin kuluneesta viikosta.",
    "sw": "Mkutano unaanza saa tatu asubuhi na kila mtu analeta ripoti fupi kuhusu wiki hii.",
    "vi": "Cuộc họp bắt đầu lúc chín giờ và mọi người mang theo một báo cáo ngắn về tuần này.",
    "ru": "Собрание начинается в девять часов, и каждый приносит короткий отчёт о неделе.",
    "bg": "Срещата започва в девет часа и всеки носи кратък доклад за седмицата.",
    "ar": "يبدأ الاجتماع في الساعة التاسعة ويحضر الجميع تقريرا قصيرا عن الأسبوع.",
    "fa": "جلسه ساعت نه شروع می‌شود و همه یک گزارش کوتاه درباره هفته می‌آورند.",
    "he": "הישיבה מתחילה בשעה תשע וכולם מביאים דוח קצר על השבוע.",
    "hi": "बैठक नौ बजे शुरू होती है और सभी लोग सप्ताह के बारे में एक छोटी रिपोर्ट लाते हैं।",
    "th": "การประชุมเริ่มเวลาเก้าโมงและทุกคนนำรายงานสั้นเกี่ยวกับสัปดาห์มาด้วย",
    "ko": "회의는 아홉 시에 시작하고 모두가 이번 주에 대한 짧은 보고서를 가져옵니다.",
}


def near(draw: Random, count: int) -> int:
    return max(1, count + draw.choice([-2, -1, 0, 0, 1, 2]))


def existence(draw: Random) -> Drawn:
    text = prose(draw)
    words = draw.sample(re.findall(r"\w{3,}", text) or ["tea"], 1)
    other = draw.choice([*ABSENT, "THE", "book", "men", "is"])
    return {"keywords": draw.choice([words, [*words, other]])}, text


def frequency(draw: Random) -> Drawn:
    text = prose(draw) + " " + prose(draw)
    keyword = draw.choice(re.findall(r"\w+", text))
    count = near(draw, text.lower().count(keyword.lower()))
    return {"keyword": keyword, "frequency": count, "relation": draw.choice(RELATIONS)}, text


def forbidden(draw: Random) -> Drawn:
    text = prose(draw)
    word = draw.choice(re.findall(r"\w+", text))
    words = [draw.choice([word, word[:-1] or "x", word.upper(), *ABSENT]), draw.choice(ABSENT)]
    return {"forbidden_words": words}, text


def letters(draw: Random) -> Drawn:
    text = sentences(draw, draw.randint(1, 5))
    letter = draw.choice("aeiourstqzE")
    count = near(draw, text.lower().count(letter.lower()))
    return {"letter": letter, "let_frequency": count, "let_relation": draw.choice(RELATIONS)}, text


def language(draw: Random) -> Drawn:
    spoken = draw.choice(list(LANGUAGES))
    requested = draw.choice([spoken, spoken, spoken, draw.choice(list(LANGUAGES))])
    return {"language": requested}, draw.choice(["", "1. ", "**", "- "]) + LANGUAGES[spoken]


def number_sentences(draw: Random) -> Drawn:
    text = prose(draw)
    count = len(re.findall(r"[.!?…]+\W*(?:\s|$)", text))
    return {"num_sentences": near(draw, count), "relation": draw.choice(RELATIONS)}, text


def number_words(draw: Random) -> Drawn:
    text = prose(draw)
    return {"num_words": near(draw, len(text.split())), "relation": draw.choice(RELATIONS)}, text


def paragraphs(draw: Random) -> Drawn:
    count = draw.randint(2, 5)
    parts = [sentences(draw, draw.randint(1, 3)) for _ in range(count)]
    text = draw.choice(["\n\n***\n\n", "\n***\n", " *** ", "\n* * *\n", "***", "\n\n"]).join(parts)
    text = draw.choice(["", "", "***\n"]) + text + draw.choice(["", "", "\n***", "\n***\n"])
    return {"num_paragraphs": draw.choice([count, count, count + 1])}, text


def nth_paragraph(draw: Random) -> Drawn:
    count = draw.randint(2, 5)
    parts = [sentences(draw, draw.randint(1, 3)) for _ in range(count)]
    nth = draw.randint(1, count)
    word = draw.choice(["weekend", "President", "Then"])
    parts[nth - 1] = (
        draw.choice(["", "", "", "**", '"', "So "]) + word + draw.choice([" ", ", ", "'s ", "-"]) + "it is."
    )
    text = draw.choice(["\n\n", "\n\n", "\n\n", "\n\n\n", "\n"]).join(parts)
    return {"num_paragraphs": count, "nth_paragraph": nth, "first_word": word.lower()}, text


def blanks(draw: Random) -> Drawn:
    count = draw.randint(1, 5)
    forms = ["[name]", "[your address]", "[X]", "[]", "[[date]]", "[a](b)"]
    text = " and ".join(draw.choice(forms) for _ in range(count))
    return {"num_placeholders": near(draw, count)}, f"Dear {text}, {sentence(draw)}"


def postscript(draw: Random) -> Drawn:
    written = draw.choice(["P.S.", "P.S.", "P.P.S", "P.P.S.", "p. s.", "P. P. S.", "PS:", "**P.S.**", "(P.S.", "P.S"])
    text = f"{prose(draw)}{draw.choice([chr(10), chr(10) * 2, ' '])}{written} {sentence(draw)}"
    return {"postscript_marker": draw.choice(MARKERS)}, text


def bullets(draw: Random) -> Drawn:
    count = draw.randint(1, 6)
    mark = draw.choice(["* ", "* ", "- ", "  * ", "* **Point:** ", "1. ", "• ", "*"])
    lines = [mark + sentence(draw) for _ in range(count)]
    extra = draw.choice(["", "", "", "---\n", "**Note**\n", "*\n"])
    return {"num_bullets": draw.choice([count, count, count + 1])}, extra + "\n".join(lines)


def constrained(draw: Random) -> Drawn:
    said = draw.choice(["My answer is yes.", "My answer is no.", "My answer is maybe."])
    forms = [
        said,
        said,
        f"**{said}**",
        f"{sentence(draw)} {said}",
        said[:-1],
        said.upper(),
        f"{said} My answer is no.",
        "Yes.",
    ]
    return {}, draw.choice(forms)


def highlights(draw: Random) -> Drawn:
    count = draw.randint(1, 5)
    forms = ["*{}*", "**{}**", "**{}**", "**{}**", "***{}***", "_{}_", "* {} *", "**{}:**"]
    lines = [draw.choice(forms).format("some words") + " " + sentence(draw) for _ in range(count)]
    return {"num_highlights": near(draw, count)}, draw.choice(["\n", " ", "\n* "]).join(lines)


def sections(draw: Random) -> Drawn:
    count = draw.randint(1, 5)
    name = draw.choice(["Section", "SECTION", "PARAGRAPH", "Day", "Audience"])
    form = draw.choice(["{} {}\n", "{} {}: ", "**{} {}**\n", "{}{} ", "{}\n{}\n", "# {} {}\n", "{} #{}\n", "{}-{} "])
    lines = [form.format(name, number) + sentence(draw) for number in range(1, count + 1)]
    return {"section_spliter": name, "num_sections": near(draw, count)}, "\n\n".join(lines)


def json_format(draw: Random) -> Drawn:
    value = draw.choice(['{"a": [1, 2]}', '{\n  "b": "x"\n}', '["a"]', '{"a": NaN}', "{'a': 1}", '{"a": 1,}', '"text"'])
    forms = [
        "{}",
        "```json\n{}\n```",
        "```\n{}\n```",
        "```JSON\n{}\n```",
        "```json\n{}",
        "{}\n```",
        "```javascript\n{}\n```",
    ]
    return {}, draw.choice(forms).replace("{}", value)


def title(draw: Random) -> Drawn:
    said = draw.choice(
        ["<<Ode to Joy>>", "<<x>>", "**<<A title>>**", "<< >>", "<Ode>", "<<Ode", "«Ode»", "<<a\nb>>", "<<<Ode>>>"]
    )
    return {}, f"{said}\n\n{prose(draw)}"


def two_responses(draw: Random) -> Drawn:
    first = sentences(draw, 2)
    second = draw.choice([sentences(draw, 2), sentences(draw, 3), first])
    between = draw.choice(
        ["\n******\n", "\n\n******\n\n", "******", "\n***\n", "\n*****\n", "\n************\n", "\n\n******\n"]
    )
    around = draw.choice(["", "", "******\n", "Response 1:\n"])
    return {}, f"{around}{first}{between}{second}{draw.choice(['', '', chr(10) + '******'])}"


def repeat_prompt(draw: Random) -> Drawn:
    prompt = draw.choice(["Write a poem about rain.", "What is 2 + 2?\nExplain it. ", 'List 3 uses of "tea"'])
    repeated = draw.choice(
        [prompt, prompt, prompt.strip(), prompt.upper(), f"**{prompt}**", f'"{prompt}"', prompt[:-2], f"Sure: {prompt}"]
    )
    return {"prompt_to_repeat": prompt}, f"{repeated}\n\n{prose(draw)}"


def end_checker(draw: Random) -> Drawn:
    phrase = draw.choice(PHRASES)
    end = draw.choice(["{}", "{}", "{}", "**{}**", '"{}"', "{} Bye.", "“{}”", "{}\n", "{}."]).format(phrase)
    return {"end_phrase": phrase}, f"{prose(draw)}\n{end}"


def capital_words(draw: Random) -> Drawn:
    forms = [
        "NASA",
        "I",
        "A",
        "IT'S",
        "COVID-19",
        "**BOLD**",
        "U.S.",
        "AT&T",
        "TCP/IP",
        "(CEO)",
        "USA,",
        "R2D2",
        "ÉTÉ",
        "DON'T",
        "A.M.",
    ]
    words = draw.sample(forms, draw.randint(0, 5))
    text = " ".join([*words, *sentences(draw, 1).split()])
    count = len(re.findall(r"(?<!\w)[A-Z][A-Z0-9]*(?!\w)", text))
    return {"capital_frequency": near(draw, count), "capital_relation": draw.choice(RELATIONS)}, text


def cased(change: Callable[[str], str]) -> Callable[[Random], Drawn]:
    """Return a function that draws texts whose letters are all changed by `change`, for example to upper case.

    Some of the texts end with words that are not changed.
    """

    def build(draw: Random) -> Drawn:
        text = draw.choice([LANGUAGES["en"], LANGUAGES["de"], prose(draw), prose(draw), prose(draw), "ok"])
        last = draw.choice(["", "", " Mr. x"])
        return {}, change(text) + last

    return build


def no_comma(draw: Random) -> Drawn:
    texts = [prose(draw), plain(draw, 3)]
    texts.append(prose(draw).replace(",", draw.choice([";", "，", "、"])))
    return {}, draw.choice(texts)


def quotation(draw: Random) -> Drawn:
    forms = ['"{}"', '"{}"', "“{}”", "'{}'", '"{}', '{}"', '**"{}"**', '```\n"{}"\n```', '"{}"\n', '"{}".', '""{}""']
    return {}, draw.choice(forms).replace("{}", prose(draw))


BUILDERS: dict[str, Callable[[Random], Drawn]] = {
    "keywords:existence": existence,
    "keywords:frequency": frequency,
    "keywords:forbidden_words": forbidden,
    "keywords:letter_frequency": letters,
    "language:response_language": language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph,
    "detectable_content:number_placeholders": blanks,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": bullets,
    "detectable_format:constrained_response": constrained,
    "detectable_format:number_highlighted_sections": highlights,
    "detectable_format:multiple_sections": sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_checker,
    "change_case:capital_word_frequency": capital_words,
    "change_case:english_capital": cased(str.upper),
    "change_case:english_lowercase": cased(str.lower),
    "punctuation:no_comma": no_comma,
    "startend:quotation": quotation,
}
