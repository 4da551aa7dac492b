"""Verifier of a response's form: structure, language and repetition, of which the payload must name at least one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from brorl_graders.base.answer import boxed_answers
from brorl_graders.base.payload import Key, Payload, check_choice, check_choices, is_blank, is_number
from brorl_graders.verifiers.ifeval import texts

SCORINGS = ("all", "fraction")
DEFAULT_NGRAM = 8
KEYS = (
    Key(
        "structure",
        "parts of the response, with each tag once and no tag empty. `think_answer`: `<think>…</think>` and "
        "`<answer>…</answer>` only; `think`: `<think>…</think>`, then text; `answer`: one `<answer>…</answer>` at the "
        "end; `boxed`: one `\\boxed{}`, with at most 40 characters after it",
    ),
    Key("is_think_open", "`true` if the chat template opens `<think>`, so that responses begin inside it", (), "false"),
    Key("language", "ISO 639 code of the response's language, apart from code blocks and LaTeX"),
    Key(
        "max_repetition",
        "largest share of word n-grams that repeat an earlier one. In scripts without spaces, and in runs of more than "
        "40 characters, each character counts as a word",
    ),
    Key("repetition_ngram", "words of an n-gram", (), str(DEFAULT_NGRAM)),
    Key("scoring", "`all`: 1 if every check holds, else 0; `fraction`: share of checks that hold", SCORINGS),
)
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
# A Japanese, Chinese or Korean character, or a word.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\s\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
MAX_AFTER_BOX = 40  # characters, such as `$.` or "Done."
_NOT_PROSE = re.compile(  # a formula that is opened twice and closed once begins at the second opening
    r"```.*?(?:```|\Z)|\$\$.*?\$\$|\$[^$\n]*\$|\\\[(?:(?!\\\[).)*?\\\]|\\\((?:(?!\\\().)*?\\\)|</?\w{1,20}>"
    r"|\\boxed\{[^{}]*\}",
    re.DOTALL,
)


def check(payload: Payload) -> Iterator[str]:
    """Yield what is wrong with the payload of a check of response formats."""
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
    yield from check_choices(payload, KEYS)


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value < 1


def _is_language_code(code: object) -> bool:
    return isinstance(code, str) and code.replace("-", "").isalpha()


def score(payload: Payload, response: str) -> float:
    """Return 1.0 if a response satisfies every check that the payload names, else 0.0.

    With `scoring: fraction` it is the share of the checks that the response satisfies.
    """
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
    """Load the model that identifies the language of a text."""
    texts.load_languages()


def has_structure(response: str, structure: str, is_think_open: bool = False) -> bool:
    """Return whether a response has the tags or box of a structure (a key of `STRUCTURES`), each once and not empty.

    `is_think_open`: the chat template already opened `<think>`, so the response may begin inside it.
    """
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
    """Return the share of word n-grams of a text that repeat an earlier one, from 0 to below 1.

    That is 1 − different n-grams / n-grams. A text with fewer than two n-grams has 0.
    """
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
