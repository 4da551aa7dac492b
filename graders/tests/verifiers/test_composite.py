"""Composition of verifiers, and verifiers by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from brorl_graders.base.errors import ConfigError, DataError
from brorl_graders.base.verdicts import Verdicts
from brorl_graders.verifiers.composite import Part, combine_scores, judge_by_parts
from brorl_graders.verifiers.registry import check_name, check_payload, judge, names_in, score_of

from graders.tests.support.bad_verifiers import HALF, MISBEHAVE
from graders.tests.support.names import allow_also

PARTS = [
    {"verifier": "format", "weight": 1, "options": {"structure": "answer"}},
    {"verifier": "exact_match", "weight": 3},
]
GOOD, BARE_FORMAT, WRONG = "so <answer>42</answer>", "so <answer>41</answer>", "42"


def scores(mode: str, parts: list[dict[str, Any]] = PARTS) -> list[float]:
    payload = {"answer": "42", "mode": mode, "parts": parts}
    check_payload("composite", payload)
    return [judge("composite", payload, response)[0] for response in (GOOD, BARE_FORMAT, WRONG)]


def test_the_modes_put_scores_together() -> None:
    assert scores("sum") == [1.0, 0.25, 0.0]
    assert scores("product") == [1.0, 0.0, 0.0]
    assert scores("all") == [1.0, 0.0, 0.0]


def test_a_part_that_rounding_keeps_a_millionth_below_one_is_right() -> None:
    assert combine_scores("all", [1.0, 1.0], [1.0, 0.9999995]) == 1.0
    assert combine_scores("all", [1.0, 1.0], [1.0, 0.9999]) == 0.0


def test_weights_are_exponents_of_a_product() -> None:
    allow_also(verifiers=[HALF])
    half = {"verifier": HALF, "weight": 2}
    assert scores("product", [half, PARTS[1]]) == [0.25, 0.0, 0.0]
    assert scores("all", [half]) == [0.0, 0.0, 0.0]
    assert scores("sum", [half, {"verifier": "exact_match", "weight": 2}]) == [0.75, 0.25, 0.25]


def test_a_gate_that_is_closed_spares_the_rest() -> None:
    allow_also(verifiers=[MISBEHAVE])
    gate, fails = {"verifier": "exact_match"}, {"verifier": MISBEHAVE}
    payload = {"answer": "42", "mode": "product", "parts": [gate, fails]}
    assert judge("composite", payload, "raise") == (0.0, "exact_match 0")
    with pytest.raises(LookupError):
        judge("composite", payload, "raise <answer>42</answer>")


def test_a_composition_says_what_each_of_its_parts_gave_and_said() -> None:
    """Of two instructions one is followed: no comma, but no "P.S." at the end."""
    names = ["punctuation:no_comma", "detectable_content:postscript"]
    options = {"instruction_id_list": names, "kwargs": [{}, {"postscript_marker": "P.S."}]}
    unasked = {"verifier": "format", "weight": 0, "options": {"structure": "answer"}}
    parts = [PARTS[1], {"verifier": "instruction_following", "options": options}, unasked]
    payload = {"answer": "42", "parts": parts}
    check_payload("composite", payload)
    score, reason = judge("composite", payload, GOOD)
    assert score == (3 * 1.0 + 1 * 0.5) / 4
    assert reason == "exact_match 1; instruction_following 0.5 not followed: detectable_content:postscript"


def test_parts_are_known_before_anything_is_scored() -> None:
    assert names_in("composite", {"parts": PARTS}) == ["format", "exact_match"]
    assert names_in("math", {"answer": "1"}) == ["math"]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "'parts' is None"),
        ({"parts": []}, "'parts' is .."),
        ({"parts": [{"verifier": "math"}]}, "verifier math: 'answer' is None"),
        ({"parts": [{"verifier": "maths"}]}, "unknown verifier 'maths'"),
        ({"parts": [{"verifier": "exact_match", "weight": -1}], "answer": "1"}, "weight -1"),
        ({"parts": [{"verifier": "exact_match", "weight": float("nan")}], "answer": "1"}, "weight nan"),
        ({"parts": [{"verifier": "exact_match", "weight": float("inf")}], "answer": "1"}, "weight inf"),
        ({"parts": [{"verifier": "exact_match", "weight": 10**400}], "answer": "1"}, "weight 1000"),
        ({"parts": [{"verifier": "exact_match", "weight": 0}], "answer": "1"}, "add up to 0"),
        ({"parts": [{"verifier": "exact_match", "wieght": 1}], "answer": "1"}, "a part has wieght"),
        ({"parts": [{"verifier": "composite"}]}, "composite itself"),
        ({"parts": PARTS, "mode": "max", "answer": "1"}, "choose sum, product, all"),
    ],
)
def test_a_payload_that_cannot_be_scored_is_refused(payload: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_payload("composite", payload)


def test_a_users_own_verifier_is_named_by_its_import_path() -> None:
    allow_also(verifiers=[HALF])
    check_payload(HALF, {"whatever": 1})
    assert score_of(HALF)({}, "x") == 0.5
    for name in ("maths", "math:", ":score", "my module:score", "math.score", ""):
        with pytest.raises(ConfigError, match="unknown verifier"):
            check_name(name)


def test_no_part_is_asked_about_a_text_that_is_decided_and_a_part_that_fails_fails_the_whole() -> None:
    scores = {"first": {"a": 0.5, "b": 0.0, "c": None}, "second": {"a": 1.0}}
    asked: list[tuple[str, list[str]]] = []

    def judge_part(part: Part, texts: Sequence[str]) -> Verdicts:
        asked.append((part.verifier, list(texts)))
        own = scores[part.verifier]
        return Verdicts([own[text] for text in texts], {place: f"of {text}" for place, text in enumerate(texts)})

    payload = {"mode": "product", "parts": [{"verifier": "first"}, {"verifier": "second"}]}
    verdicts = judge_by_parts(payload, ["a", "b", "c"], judge_part)
    assert asked == [("first", ["a", "b", "c"]), ("second", ["a"])]
    assert verdicts.scores == [0.5, 0.0, None]
    assert verdicts.reasons == {0: "first 0.5 of a; second 1 of a", 1: "first 0 of b", 2: "of c"}
