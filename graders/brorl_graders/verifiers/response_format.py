"""How a response is written, whatever it says: thinking and answer where they belong, one language, no endless
repetition.

What is asked for is in the payload; nothing that is not asked for is looked at:

- `structure`: `think_answer`, a `<think>…</think>` and then an `<answer>…</answer>` and nothing else;
  `think`, a `<think>…</think>` and then something; `answer`, one `<answer>…</answer>` at the end;
  `boxed`, one `\\boxed{}` at the end or near it, and none before. Each tag once. Where the chat template opens
  `<think>`, the response may begin inside it (`is_think_open: true`).
- `language`: an ISO 639 code that the response has to be in, its code blocks and LaTeX aside.
- `max_repetition`: the largest share of repeated word n-grams (`repetition_ngram` words, 8 if not given). Characters of
  a script without blanks, and those of a run without one that no language has, count as words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from brorl_graders.base.answer import boxed_answers
from brorl_graders.base.payload import Payload, check_choice, is_blank, is_number
from brorl_graders.verifiers.ifeval import texts

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
_BOX = re.compile(r"\\f?boxed\s{0,4}\{")
MAX_WORD = 40  # characters
# A character of Japanese, Chinese or Korean, or a word.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\s\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
MAX_AFTER_BOX = 40  # characters: `$.`, or "Done."
_NOT_PROSE = re.compile(  # a formula that is opened twice before it is closed begins the second time
    r"```.*?(?:```|\Z)|\$\$.*?\$\$|\$[^$\n]*\$|\\\[(?:(?!\\\[).)*?\\\]|\\\((?:(?!\\\().)*?\\\)|</?\w{1,20}>"
    r"|\\boxed\{[^{}]*\}",
    re.DOTALL,
)


def check(payload: Payload) -> Iterator[str]:
    """What is wrong with a payload."""
    structure = payload.get("structure")
    code = payload.get("language")
    share = payload.get("max_repetition")
    if structure is None and code is None and share is None:
        yield "nothing is asked for; write structure, language or max_repetition"
    if structure is not None:
        yield from check_choice(payload, "structure", tuple(STRUCTURES))
    if code is not None and not _is_language_code(code):
        yield f"'language' is {code!r}; write an ISO 639 code such as en"
    if share is not None and not _is_share(share):
        yield f"'max_repetition' is {share!r}; write a share from 0 to below 1"
    size = payload.get("repetition_ngram", DEFAULT_NGRAM)
    if not isinstance(size, int) or size < 1:
        yield f"'repetition_ngram' is {size!r}; write a number of words from 1"
    yield from check_choice(payload, "scoring", SCORINGS)


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value < 1


def _is_language_code(code: object) -> bool:
    return isinstance(code, str) and code.replace("-", "").isalpha()


def score(payload: Payload, response: str) -> float:
    """Whether, or with `scoring: fraction` how much of, what the payload asks for holds of the response."""
    held = []
    structure = payload.get("structure")
    if structure is not None:
        is_think_open = bool(payload.get("is_think_open", False))
        held.append(has_structure(response, structure, is_think_open))
    code = payload.get("language")
    if code is not None:
        prose = _NOT_PROSE.sub(" ", response)
        has_words = bool(prose.strip())
        held.append(has_words and texts.is_in_language(prose, code))
    most = payload.get("max_repetition")
    if most is not None:
        ngram = payload.get("repetition_ngram", DEFAULT_NGRAM)
        held.append(repeated_words(response, ngram) <= most)
    if payload.get("scoring", SCORINGS[0]) == "all":
        return float(all(held))
    return sum(held) / len(held)


def load() -> None:
    """Read the language model."""
    texts.load_languages()


def has_structure(response: str, structure: str, is_think_open: bool = False) -> bool:
    """Whether a response has the parts of a structure, each once and not empty."""
    if is_think_open and structure.startswith("think"):
        response = "<think>" + response
    if any(response.count(tag) > 1 for tag in _TAGS):
        return False
    found = STRUCTURES[structure].fullmatch(response)
    if found is None:
        return False
    parts = list(found.groupdict().values())
    if any(map(is_blank, parts)):
        return False
    for tag in _TAGS:
        if any(tag in part for part in parts):
            return False
    if structure != "boxed":
        return True
    boxes = boxed_answers(response)
    if len(boxes) != 1 or len(_BOX.findall(response)) != 1:
        return False
    (box,) = boxes
    num_behind = len(response) - box.end
    return not is_blank(box.content) and num_behind <= MAX_AFTER_BOX


def repeated_words(text: str, ngram: int) -> float:
    """1 − different n-grams of words / n-grams; 0 for a text shorter than two of them."""
    words = _words(text)
    num_grams = len(words) - ngram + 1
    if num_grams < 2:
        return 0.0
    grams = set()
    for start in range(num_grams):
        gram = words[start : start + ngram]
        grams.add(tuple(gram))
    return 1.0 - len(grams) / num_grams


def _words(text: str) -> list[str]:
    words: list[str] = []
    for word in _WORD.findall(text):
        if len(word) > MAX_WORD:
            words.extend(word)
        else:
            words.append(word)
    return words
