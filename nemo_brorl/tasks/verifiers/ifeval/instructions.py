"""All verifiable instructions by their public names, those that are refused, and what their arguments must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nemo_brorl.tasks.verifiers.ifeval.constraints import CONSTRAINTS, RELATIONS
from nemo_brorl.tasks.verifiers.ifeval.ifbench_counts import COUNTS
from nemo_brorl.tasks.verifiers.ifeval.ifbench_formats import FORMATS
from nemo_brorl.tasks.verifiers.ifeval.ifbench_tasks import TASKS
from nemo_brorl.tasks.verifiers.ifeval.ifbench_words import WORDS
from nemo_brorl.tasks.verifiers.payload import is_list, is_number

INSTRUCTIONS: dict[str, Callable[..., bool]] = {
    **CONSTRAINTS,
    **COUNTS,
    **WORDS,
    **FORMATS,
    **TASKS,
}

# Instructions of IFBench that are not judged here: name -> why.
REFUSED: dict[str, str] = {
    "ratio:stop_words": "which words are stop words is a list of NLTK's, which has to be downloaded",
    "words:start_verb": "it needs a tagger of parts of speech",
    "words:odd_even_syllables": "it needs a dictionary of syllables",
}

# What an argument must be; those not named here are texts.
NUMBERS = (  # and those that begin with num_
    "frequency",
    "let_frequency",
    "capital_frequency",
    "nth_paragraph",
    "min_words",
    "max_words",
    "N",
    "small_n",
    "n",
    "m",
    "n_start",
    "n_end",
    "percentage",
)
LISTS = ("keywords", "forbidden_words")


def wrong_argument(name: str, value: Any) -> str | None:
    """What is wrong with the value of an argument; None: nothing."""
    if name.endswith("relation"):
        is_right = value in RELATIONS
        wanted = " or ".join(RELATIONS)
    elif name.startswith("num_") or name in NUMBERS:
        is_right = is_number(value) and value >= 0
        wanted = "a number from 0"
    elif name in LISTS:
        is_right = is_list(value) and all(isinstance(item, str) for item in value)
        wanted = "a list of texts"
    elif name == "options":
        is_right = is_list(value) or isinstance(value, str)
        wanted = "a list of texts, or a text"
    else:
        is_right = isinstance(value, str) and len(value) > 0
        wanted = "a text"
    return None if is_right else f"write {wanted}"
