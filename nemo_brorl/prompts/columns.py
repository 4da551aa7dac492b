r"""Columns named by paths into a row: `extra_info.index`, `messages.0.content`.

A path into a text reads the text as JSON first (`reward_model.ground_truth.inputs`). `json:PATH` reads the text at its
end as JSON. `final:PATH` takes the final answer out of a worked solution: its last box (`\boxed{4}`), or else what
follows its last `####` or "answer is". `asked:PATH` takes all messages of a conversation but the last. `PATH?` may be
missing. In a list, `-1` is the last item.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from brorl_graders import boxed_answers
from brorl_graders.base.foreign import DIGITS, LARGE, read_json

ABSENT = object()
INDEX = re.compile(r"-?\d{1,6}")
MAX_FINAL = 200  # longest final answer in characters; longer text is prose
_MARK = re.compile(r"(?:####|\banswer\s*(?:is|:|=))[ :]*", re.IGNORECASE)


def column_of(path: str) -> str:
    """Return the column of a data file in which a path such as `extra_info.index` starts, here `extra_info`."""
    column, _, _ = _bare(path).partition(".")
    return column


def is_optional(path: str) -> bool:
    """Return whether a row of a data file may lack the value at a path, as a `?` at the path's end says."""
    return path.endswith("?")


def value_at(row: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path such as `extra_info.index` in a row of a data file, or ABSENT if there is none."""
    value: Any = row
    for word in _bare(path).split("."):
        if isinstance(value, str):
            value = _as_json(value)
        if isinstance(value, Mapping) and word in value:
            value = value[word]
        elif isinstance(value, list) and INDEX.fullmatch(word) and -len(value) <= int(word) < len(value):
            value = value[int(word)]
        else:
            return ABSENT
    if path.startswith("asked:"):
        value = _as_json(value) if isinstance(value, str) else value
        return value[:-1] if isinstance(value, list) else ABSENT
    if not isinstance(value, str):
        return value
    if path.startswith("json:"):
        return _as_json(value)
    if path.startswith("final:"):
        return final_answer(value)
    return value


def final_answer(solution: str) -> Any:
    """Return the final answer of a worked solution, or ABSENT if it has none.

    It is the contents of the solution's LaTeX boxes, or else the rest of the line after its last mark, such as `####`
    or "answer is". A text without boxes and marks is an answer itself. Answers without a box have at most 200
    characters.
    """
    solution = solution.rpartition("</think>")[2]
    # Boxes come first, because a solution may say "the answer is" in between but boxes only its end.
    boxes = boxed_answers(solution)
    if boxes:
        return ", ".join(box.content for box in boxes)
    answer = solution.strip()
    marks = list(_MARK.finditer(solution))
    if marks:
        behind = solution[marks[-1].end() :].strip()
        lines = behind.splitlines()
        answer = lines[0].strip().rstrip(".") if lines else ""
    if 0 < len(answer) <= MAX_FINAL:
        return answer
    return ABSENT


def _bare(path: str) -> str:
    unmarked = path.removesuffix("?")
    return unmarked.removeprefix("json:").removeprefix("final:").removeprefix("asked:")


def _as_json(text: str) -> Any:
    try:
        return read_json(text, digits=DIGITS, most_bytes=LARGE)
    except ValueError:
        return ABSENT


def shown(value: Any) -> str:
    """Return a value from a row of a data file as text, shortened to 80 characters, for an error message."""
    if value is ABSENT:
        return "missing"
    return f"{value!r:.80}"
