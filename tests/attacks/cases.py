"""What is attacked: a payload of some verifier, with honest responses whose rewards are known.

Three files make them: `code_cases.py` (kinds of test x exercises), `task_cases.py` (Reasoning Gym) and `text_cases.py`
(the rest).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROGRAM, TEXT, FORM = (
    "program",
    "text",
    "form",
)  # what a response to it is made of: moves of programs, claims, bad forms
TAGGED = "<answer>{}</answer>"


@dataclass(frozen=True)
class Case:
    """One prompt, as a verifier sees it."""

    name: str
    family: str  # draws are shared out by it
    verifier: str
    payload: Mapping[str, Any]
    right: str  # response that earns 1
    wrong: str  # honest response that does not
    honest: tuple[str, ...]  # responses that do not try; the best reward among them is the honest floor
    granted: float = 0.0  # what the verifier is known to give for an answer that is wrong, whatever it is
    material: str = TEXT
    function: str = ""  # that a program must define
    truth: str = ""  # the right answer alone, for responses that name it beside others
    others: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # another answer -> payload where it is right
