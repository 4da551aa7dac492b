"""What a worker finds in the responses of a chunk that may speak against their rewards."""

from __future__ import annotations

from collections import Counter
from typing import Any

from brorl_graders.base import payload
from brorl_graders.base.verdicts import LATE, Verdicts

from nemo_brorl.scoring.evidence import MAX_EXAMPLE, MAX_PAID, evidence_of
from nemo_brorl.types import PaidAnswer, RewardEvidence

TEXT = "<answer>{}</answer>"


def look(verifier: str, payload: dict[str, Any], scored: dict[str, float | str], **counts: int) -> RewardEvidence:
    """`scored`: a response to its score, or to why its verifier failed."""
    texts = list(scored)
    scores = [None if isinstance(score, str) else score for score in scored.values()]
    reasons = {index: score for index, score in enumerate(scored.values()) if isinstance(score, str)}
    return evidence_of(verifier, payload, texts, Verdicts(scores, reasons), Counter(texts) + Counter(counts))


def test_answers_that_earned_are_counted_and_told_from_the_reference() -> None:
    found = look("exact_match", {"answer": ["yes", "y e s"]}, {TEXT.format("yes"): 1.0, TEXT.format("0"): 1.0, "": 0.0})
    assert found == RewardEvidence(0, 0, 0, (PaidAnswer("yes", 1, True), PaidAnswer("0", 1, False)))


def test_a_mathematical_reference_is_known_in_another_spelling() -> None:
    found = look("math", {"answer": "\\frac{1}{2}"}, {"\\boxed{\\frac12}": 1.0, "\\boxed{7}": 1.0})
    assert [paid.is_reference for paid in found.paid] == [True, False]


def test_an_option_is_known_by_its_letter() -> None:
    payload = {"answer": "Oslo", "choices": ["Rome", "Oslo"]}
    found = look("multiple_choice", payload, {"Answer: B": 1.0, "The answer is Oslo.": 1.0})
    assert found.paid == (PaidAnswer("B", 2, True),)


def test_a_reward_without_an_answer_and_failures_are_counted_with_their_copies() -> None:
    scored: dict[str, float | str] = {"twice": 1.0, "slow": f"{LATE} 5 s", "raises": "ValueError: 1"}
    found = look("exact_match", {"answer": "1"}, scored, twice=1, raises=2)
    assert (found.num_without_answer, found.num_late, found.num_raised) == (2, 1, 3)
    assert found.example in ("twice", "slow")


def test_verifiers_without_answers_and_low_rewards_are_no_evidence() -> None:
    assert look("graders.tests.support.bad_verifiers:half", {}, {"x": 1.0}) == RewardEvidence(0, 0, 0)
    assert look("exact_match", {"answer": "1"}, {TEXT.format("2"): 0.1}) == RewardEvidence(0, 0, 0)


def test_it_stays_small() -> None:
    scored = {TEXT.format(f"{number}" * 500): 1.0 for number in range(50)} | {"x" * 9999: 1.0}
    found = look("exact_match", {"answer": "1"}, dict(scored))
    assert len(found.paid) == MAX_PAID
    assert len(found.example) == MAX_EXAMPLE
    assert len(str(found)) < 2000


def test_without_a_setting_the_full_mark_is_that_of_built_in_verifiers() -> None:
    assert payload.lowest_right(payload.full_mark({})) == payload.SUCCESS_REWARD
