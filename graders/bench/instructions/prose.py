"""Text as models write it, drawn by seed: sentences of many kinds, paragraphs, and common decorations of a response."""

from __future__ import annotations

from random import Random

SUBJECTS = ["the river", "our teacher", "a small bakery", "Dr. Smith", "NASA", "Emma", "the committee", "she", "they"]
VERBS = ["opens", "remembers", "doesn't follow", "can't leave", "rebuilds", "carefully measures", "praises", "is near"]
OBJECTS = [
    "the old bridge",
    "a well-known recipe",
    "3.5 tons of sand",
    "Prof. Lee's book",
    "1,000 letters",
    "the U.S. market",
    "bread, butter and tea",
    "it",
]
ENDS = [
    "",
    " before 5 p.m. today",
    ", but nobody knows why",
    " (and that is fine)",
    " — or so they say",
    "; it's late, isn't it",
    " in 1999",
    " for all of us",
]
MARKS = [".", ".", ".", ".", "?", "!", "?!", "...", '."', ".)", "…"]
WHOLE = [
    "I think this is great.",
    'He said, "I don\'t know."',
    "“Why not?” she asked.",
    "We tried; we failed: so what?",
    "E.g. apples, pears, etc. are fruit.",
    "Mr. J. R. Brown met Mrs. Jones at 10 a.m. sharp.",
    "The CEO of IBM said GDP grew 2.5% in Q3.",
    "Is it 10:30 or 11?",
    "Who are you, and what do you want?",
    "Wait... what?",
    "Visit example.com for more.",
    "It is **very** important!",
    "Café menus cost 20–30 € each.",
    "That's all! 🎉",
    "Both of them told everyone something about whom they liked.",
    "McDonald loves JavaScript and/or iPhone apps.",
]
GENERIC = [
    "",
    " \n",
    "...",
    "Sorry, I can't help with that.",
    "Yes",
    "1",
    "null",
    '{"answer": "yes"}',
    "```python\nprint('a - b')\n```",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "- one\n- two\n- three",
    "* one\n* two\n  - three",
    "1. First\n2. Second\n3. Third",
    "# Title\n\nText *with* stars.\n\n---\n\n> Quote",
    "これは日本語の文です。とても短いです。",
    "Hmm. Hmm? Hmm!",
    "**Bold**",
    "a",
    "As requested, my response follows all of your instructions.",
    "P.S. nothing",
]


def sentence(draw: Random) -> str:
    """Draw a random sentence, with its end mark, for a made-up response."""
    if draw.random() < 0.3:
        return draw.choice(WHOLE)
    subject = draw.choice(SUBJECTS)
    words = f"{subject} {draw.choice(VERBS)} {draw.choice(OBJECTS)}{draw.choice(ENDS)}"
    return words[0].upper() + words[1:] + draw.choice(MARKS)


def sentences(draw: Random, count: int) -> str:
    return " ".join(sentence(draw) for _ in range(count))


def plain(draw: Random, count: int, mark: str = ".") -> str:
    """Draw random sentences without punctuation inside them, joined by blanks."""
    lines = []
    for _ in range(count):
        words = [draw.choice(["We", "Cats", "Old men"]), draw.choice(["see", "like"]), draw.choice(["tea", "two dogs"])]
        lines.append(" ".join(words) + mark)
    return " ".join(lines)


def prose(draw: Random) -> str:
    """Draw a random response of one to four paragraphs, in one of several layouts such as a list."""
    parts = [sentences(draw, draw.randint(1, 4)) for _ in range(draw.randint(1, 4))]
    layout = draw.randrange(7)
    if layout == 0:
        parts = [f"- {part}" for part in parts]
    elif layout == 1:
        parts = [f"{number}. **Point {number}:** {part}" for number, part in enumerate(parts, 1)]
    elif layout == 2:
        parts.insert(0, "## On Bridges and Bread")
    elif layout == 3:
        parts.append("```\nx = 1\n```")
    return draw.choice(["\n\n", "\n\n", "\n", " "]).join(parts)


def dress_up(draw: Random, text: str) -> str:
    """Return a text in a random form in which it may appear in a response, for example quoted or in a code block.

    Half of the texts are returned unchanged.
    """
    if draw.random() < 0.5:
        return text
    forms = [
        text + "\n",
        text + "  \n\n",
        "\n" + text,
        f"Sure! Here you go:\n{text}",
        f"Here it is:\n\n{text}\n\nI hope this helps!",
        f"**{text}**",
        f"```\n{text}\n```",
        f'"{text}"',
        f"“{text}”",
        f"# Answer\n\n{text}",
        text.replace("'", "’").replace(" - ", " — "),
        text.replace("\n", "\r\n"),
        text.replace("\n\n", "\n\n\n"),
        text.upper(),
        text.lower(),
        text.rstrip(".!?"),
        f"{text} 😀",
        f"{text}\nDone.",
        f"- {text}",
        f"It isn't simple. {text}",
        text[: len(text) * 3 // 4],
    ]
    return draw.choice(forms)
