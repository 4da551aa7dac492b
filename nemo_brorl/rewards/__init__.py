"""Verifiers: from a response's text to its raw reward. One file each, named in `VERIFIERS`; `pool.py` runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nemo_brorl.rewards import exact_match, reasoning_gym

Score = Callable[[Mapping[str, Any], str], float]

# key of Prompt.verifier -> function of the prompt's payload and the response's text. They import their libraries when called.
VERIFIERS: dict[str, Score] = {
    "reasoning_gym": reasoning_gym.score,
    "exact_match": exact_match.score,
}
