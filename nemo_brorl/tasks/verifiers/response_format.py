"""How a response is written, whatever it says: thinking and answer where they belong, one language, no endless
repetition.

What is asked for is in the payload; nothing that is not asked for is looked at:

- `structure`: `think_answer`, a `<think>…</think>` and then an `<answer>…</answer>` and nothing else; `think`, a
`<think>…</think>`
  and then something; `answer`, one `<answer>…</answer>` at the end; `boxed`, one `\\boxed{}` at the end or near it.
  Each tag once. Where the chat template opens `<think>`, the response may begin inside it (`is_think_open: true`).
- `language`: an ISO 639 code that the response has to be in, its code blocks and LaTeX aside.
- `max_repetition`: the largest share of repeated word n-grams (`repetition_ngram` words, 8 if not given).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nemo_brorl.tasks.verifiers import language
from nemo_brorl.tasks.verifiers.answer import boxed_answers
from nemo_brorl.tasks.verifiers.payload import Payload, check_choice

SCORINGS = ("all", "fraction")  # 1 when everything that is asked for holds, else 0; the share of it
DEFAULT_NGRAM = 8
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_THINK = r"\s*<think>(?P<think>.*?)</think>\s*"
STRUCTURES = {
    "think_answer": re.compile(_THINK + r"<answer>(?P<answer>.*?)</answer>\s*", re.DOTALL),
    "think": re.compile(_THINK + r"(?P<answer>.*)", re.DOTALL),
    "answer": re.compile(r".*<answer>(?P<answer>.*?)</answer>\s*", re.DOTALL),
    "boxed": re.compile(r"(?P<answer>.*)", re.DOTALL),
}
MAX_AFTER_BOX = 40  # characters: `$.`, or "Done."
_NOT_PROSE = re.compile(
    r"```.*?(?:```|\Z)|\$\$.*?\$\$|\$[^$\n]*\$|\\\[.*?\\\]|\\\(.*?\\\)|</?\w+>|\\boxed\{[^}]*\}", re.DOTALL
)


def check(payload: Payload) -> Iterator[str]:
    """What is wrong with a payload."""
    asked = [name for name in ("structure", "language", "max_repetition") if payload.get(name) is not None]
    if not asked:
        yield "nothing is asked for; write structure, language or max_repetition"
    if "structure" in asked:
        yield from check_choice(payload, "structure", tuple(STRUCTURES))
    if "language" in asked and not (
        isinstance(payload["language"], str) and payload["language"].replace("-", "").isalpha()
    ):
        yield f"'language' is {payload['language']!r}; write an ISO 639 code such as en"
    share = payload.get("max_repetition", 0)
    if "max_repetition" in asked and not (isinstance(share, (int, float)) and 0 <= share < 1):
        yield f"'max_repetition' is {share!r}; write a share from 0 to below 1"
    size = payload.get("repetition_ngram", DEFAULT_NGRAM)
    if not (isinstance(size, int) and size >= 1):
        yield f"'repetition_ngram' is {size!r}; write a number of words from 1"
    yield from check_choice(payload, "scoring", SCORINGS)


def score(payload: Payload, response: str) -> float:
    """Whether, or with `scoring: fraction` how much of, what the payload asks for holds of the response."""
    held = []
    if (structure := payload.get("structure")) is not None:
        held.append(has_structure(response, structure, bool(payload.get("is_think_open", False))))
    if (code := payload.get("language")) is not None:
        prose = _NOT_PROSE.sub(" ", response)
        held.append(bool(prose.strip()) and language.is_in_language(prose, code))
    if (most := payload.get("max_repetition")) is not None:
        held.append(repeated_words(response, payload.get("repetition_ngram", DEFAULT_NGRAM)) <= most)
    return float(all(held)) if payload.get("scoring", SCORINGS[0]) == "all" else sum(held) / len(held)


def load() -> None:
    """Read the language model."""
    language.load()


def has_structure(response: str, structure: str, is_think_open: bool = False) -> bool:
    """Whether a response has the parts of a structure, each once and not empty."""
    if is_think_open and structure.startswith("think"):
        response = "<think>" + response
    found = STRUCTURES[structure].fullmatch(response)
    if found is None or not all(part.strip() for part in found.groupdict().values()):
        return False
    if any(response.count(tag) > 1 for tag in _TAGS) or any(
        tag in part for tag in _TAGS for part in found.groupdict().values()
    ):
        return False
    if structure != "boxed":
        return True
    boxes = boxed_answers(response)
    return len(boxes) == 1 and bool(boxes[0][0].strip()) and len(response) - boxes[0][2] <= MAX_AFTER_BOX


def repeated_words(text: str, ngram: int) -> float:
    """1 − different n-grams of words / n-grams; 0 for a text shorter than two of them."""
    words = text.split()
    grams = [tuple(words[start : start + ngram]) for start in range(len(words) - ngram + 1)]
    return 1.0 - len(set(grams)) / len(grams) if len(grams) > 1 else 0.0
