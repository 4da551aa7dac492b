"""Several verifiers for one response, put together: a weighted mean, a product, or all of them.

`payload["parts"]` is a list of `{"verifier": name, "weight": number, "options": {…}}`. Every part sees the rest of the
payload, so that they share the row's `answer`, and its own `options` on top. Modes: `sum` is the mean weighted by
`weight` (1 if not given); `product` multiplies the scores, each to the power of its weight, so that a part with score 0
(a gate) takes everything; `all` is 1 when every part scores 1. A part that fails fails the whole. Parts are scored in
order; after one that takes everything, no further one is, so a cheap gate stands first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nemo_brorl.tasks.verifiers.payload import Answer, Payload, Score, check_choice
from nemo_brorl.types import SUCCESS_REWARD

MODES = ("sum", "product", "all")


def part_payload(payload: Payload, part: Mapping[str, Any]) -> dict[str, Any]:
    """What one part sees."""
    shared = {key: value for key, value in payload.items() if key not in ("parts", "mode")}
    return {**shared, **part.get("options", {})}


def check(payload: Payload, check_part: Callable[[str, Payload], Iterator[str]]) -> Iterator[str]:
    """What is wrong with a payload; `check_part` says it of a part's verifier and payload."""
    yield from check_choice(payload, "mode", MODES)
    parts = payload.get("parts")
    if not isinstance(parts, (list, tuple)) or not parts or not all(isinstance(part, Mapping) for part in parts):
        yield f"'parts' is {parts!r}; write a list of {{verifier: NAME, weight: NUMBER, options: {{…}}}}"
        return
    for part in parts:
        yield from _wrong_part(payload, part, check_part)
    if sum(part.get("weight", 1.0) for part in parts if isinstance(part.get("weight", 1.0), (int, float))) <= 0:
        yield "the weights of 'parts' add up to 0; give at least one part a weight above 0"


def score(payload: Payload, response: str, score_of: Callable[[str], Score]) -> float:
    """The parts' scores put together; `score_of` finds a verifier's function."""
    mode = payload.get("mode", MODES[0])
    total, product = 0.0, 1.0
    weights = [float(part.get("weight", 1.0)) for part in payload["parts"]]
    for part, weight in zip(payload["parts"], weights, strict=True):
        if weight == 0:
            continue
        value = float(score_of(part["verifier"])(part_payload(payload, part), response))
        total += weight * value
        product *= max(value, 0.0) ** weight if mode == "product" else float(value >= SUCCESS_REWARD)
        if mode != "sum" and product == 0:
            return 0.0
        if not math.isfinite(value):
            return value
    return total / sum(weights) if mode == "sum" else product


def answer(payload: Payload, response: str, answer_of: Callable[[str], Answer | None]) -> str | None:
    """That of the first part whose verifier knows of one."""
    for part in payload["parts"]:
        if (read := answer_of(part["verifier"])) is not None:
            return read(part_payload(payload, part), response)
    return None


def _wrong_part(
    payload: Payload, part: Mapping[str, Any], check_part: Callable[[str, Payload], Iterator[str]]
) -> Iterator[str]:
    if unknown := set(part) - {"verifier", "weight", "options"}:
        yield f"a part has {', '.join(sorted(unknown))}; it takes verifier, weight and options"
    weight, options = part.get("weight", 1.0), part.get("options", {})
    if not isinstance(weight, (int, float)) or isinstance(weight, bool) or weight < 0:
        yield f"weight {weight!r} of a part; write a number from 0"
    if not isinstance(options, Mapping):
        yield f"options {options!r} of a part; write an object"
    elif part.get("verifier") == "composite":
        yield "a part is composite itself; write its parts here"
    else:
        yield from check_part(str(part.get("verifier")), part_payload(payload, part))
