"""Combine several verifiers for one response, by a weighted mean, a product, or the rule that all must succeed.

Parts are scored in order. A part that fails makes the composition fail. Put a cheap gate first: after a part with score
0, the modes `product` and `all` skip the remaining parts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from brorl_graders.base.payload import SUCCESS_REWARD, Key, Payload, check_choices, is_list, is_number
from brorl_graders.base.verdicts import Verdicts

MODES = ("sum", "product", "all")
PART_KEYS = ("verifier", "weight", "options")
KEYS = (
    Key(
        "parts",
        "list of `{verifier: NAME, weight: NUMBER, options: {…}}`. `weight` is 1 by default. A part's payload is the "
        "rest of the payload, overridden by the part's `options`",
        is_required=True,
    ),
    Key(
        "mode",
        "`sum`: mean of the parts' scores, weighted by `weight`; `product`: product of the parts' scores, each to the "
        "power of its weight; `all`: 1 if every part scores 1, else 0",
        MODES,
    ),
)
REASONS_BETWEEN = "; "


class Part(NamedTuple):
    """One verifier of a composition."""

    verifier: str
    weight: float
    payload: dict[str, Any]  # shared payload with this part's options on top


JudgePart = Callable[[Part, Sequence[str]], Verdicts]


def parts_of(payload: Payload) -> list[Part]:
    """Return the verifiers that a composition combines, in order, with their weights and payloads.

    Options of a verifier that are no JSON object count as none: `check` reports them.
    """
    shared = {key: value for key, value in payload.items() if key not in ("parts", "mode")}
    parts = []
    for given in payload.get("parts", ()):
        options = given.get("options")
        part = Part(
            verifier=str(given.get("verifier")),
            weight=given.get("weight", 1.0),
            payload={**shared, **options} if isinstance(options, Mapping) else shared,
        )
        parts.append(part)
    return parts


def check(payload: Payload) -> Iterator[str]:
    """Yield what is wrong with the payload of a composition of several verifiers.

    What the combined verifiers themselves need is not checked.
    """
    yield from check_choices(payload, KEYS)
    parts: Any = payload.get("parts")
    if not is_list(parts) or not all(isinstance(part, Mapping) for part in parts):
        yield f"'parts' is {parts!r}; write a list of {{verifier: NAME, weight: NUMBER, options: {{…}}}}"
        return
    wrong: list[str] = []
    for part in parts:
        wrong.extend(_wrong_part(part))
    yield from wrong
    if wrong:
        return
    weights = [part.get("weight", 1.0) for part in parts]
    if sum(weights) == 0:
        yield "the weights of 'parts' add up to 0; give at least one part a weight above 0"


def judge_by_parts(payload: Payload, texts: Sequence[str], judge_part: JudgePart) -> Verdicts:
    """Score texts of responses by the verifiers of a composition, and return the combined verdicts.

    `judge_part` scores texts by one part, which is a verifier with its weight. Parts are asked in order, and only about
    texts that are still undecided. The reason of a score lists the scores of the parts that were asked.
    """
    mode = payload.get("mode", MODES[0])
    weights: list[float] = []
    part_scores: list[list[float]] = [[] for _ in texts]
    part_reasons: list[list[str]] = [[] for _ in texts]
    failures: dict[int, str] = {}
    of_response: set[int] = set()
    undecided = list(range(len(texts)))
    for part in parts_of(payload):
        if part.weight <= 0 or not undecided:
            continue
        weights.append(float(part.weight))
        verdicts = judge_part(part, [texts[index] for index in undecided])
        still_undecided = []
        of_response.update(undecided[place] for place in verdicts.of_response)
        for index, score, reason in zip(undecided, verdicts.scores, _reasons(verdicts), strict=True):
            if score is None:
                failures[index] = reason
                continue
            part_scores[index].append(score)
            part_reasons[index].append(describe_score(part.verifier, score, reason))
            if not _is_decided(mode, weights, part_scores[index]):
                still_undecided.append(index)
        undecided = still_undecided
    scores: list[float | None] = []
    for index, own in enumerate(part_scores):
        scores.append(None if index in failures else combine_scores(mode, weights, own))
    reasons = {index: failures.get(index, REASONS_BETWEEN.join(own)) for index, own in enumerate(part_reasons)}
    return Verdicts(scores, reasons, of_response)


def _reasons(verdicts: Verdicts) -> list[str]:
    return [verdicts.reasons.get(index, "") for index in range(len(verdicts.scores))]


def _is_decided(mode: str, weights: Sequence[float], scores: Sequence[float]) -> bool:
    """Return whether a composition's score is final, so that no further verifier of the composition can change it."""
    if not math.isfinite(scores[-1]):
        return True
    return mode != "sum" and combine_scores(mode, weights, scores) == 0


def describe_score(verifier: str, score: float, reason: str) -> str:
    """Return the text by which a composition reports the score and the reason of one of its verifiers."""
    return f"{verifier} {score:g} {reason}".rstrip()


def combine_scores(mode: str, weights: Sequence[float], scores: Sequence[float]) -> float:
    """Return the combined score of a response from the scores and weights of a composition's verifiers.

    `scores` may be shorter than `weights`: verifiers after one that decided the result were not asked.
    """
    total = 0.0
    product = 1.0
    for weight, score in zip(weights, scores, strict=False):
        total += weight * score
        if mode == "product":
            product *= max(score, 0.0) ** weight
        elif not score >= SUCCESS_REWARD:  # NaN is no success
            product = 0.0
        if mode != "sum" and product == 0:
            return 0.0
        if not math.isfinite(score):
            return score
    if mode == "sum":
        return total / sum(weights)
    return product


def _wrong_part(part: Mapping[str, Any]) -> Iterator[str]:
    unknown = sorted(set(part).difference(PART_KEYS))
    if unknown:
        yield f"a part has {', '.join(unknown)}; it takes verifier, weight and options"
    weight = part.get("weight", 1.0)
    if not is_number(weight) or not 0 <= weight <= sys.float_info.max:
        yield f"weight {weight!r} of a part; write a number from 0"
    options = part.get("options", {})
    if not isinstance(options, Mapping):
        yield f"options {options!r} of a part; write an object"
    if part.get("verifier") == "composite":
        yield "a part is composite itself; write its parts here"
