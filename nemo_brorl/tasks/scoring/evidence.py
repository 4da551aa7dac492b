"""Evidence against rewards: what a worker finds in the responses of a chunk that the watch over a run wants to know.

It stays small, whatever the number of responses: counts, the answers that earned most often, and one example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_brorl.tasks.scoring.child import VERIFIER_ERRORS
from nemo_brorl.tasks.scoring.process_pool import LATE, Verdicts
from nemo_brorl.tasks.verifiers.multiple_choice import right_letter
from nemo_brorl.tasks.verifiers.payload import Answer, Payload, accepted_answers
from nemo_brorl.tasks.verifiers.registry import answer_reader
from nemo_brorl.types import PaidAnswer, RewardEvidence

EARNS = 0.5  # a response earns from here on
MAX_PAID = 4  # answers that are named
MAX_ANSWER = 80  # characters
MAX_EXAMPLE = 400
FORMS = ("<answer>{}</answer>", "\\boxed{{{}}}", "The answer is {}.")  # in which a verifier reads its own reference


def evidence_of(
    verifier: str,
    payload: Mapping[str, Any],
    texts: Sequence[str],
    verdicts: Verdicts,
    counts: Mapping[str, int],
) -> RewardEvidence:
    """What speaks against the rewards of different `texts`; `counts` says how many responses each one is."""
    read = answer_reader(verifier, payload)
    example = ""
    num_without_answer = 0
    num_late = 0
    num_raised = 0
    paid: Counter[str] = Counter()
    for index, text in enumerate(texts):
        score = verdicts.scores[index]
        if score is None:
            is_late = LATE in verdicts.reasons[index]
            num_late += counts[text] * is_late
            num_raised += counts[text] * (not is_late)
            example = example or text
        elif score >= EARNS and read is not None:
            answer = _answer(read, payload, text)
            if answer is None:
                num_without_answer += counts[text]
                example = text
            else:
                paid[answer] += counts[text]
    references = _references(read, payload)
    most_frequent = []
    for answer, num in paid.most_common(MAX_PAID):
        most_frequent.append(PaidAnswer(answer[:MAX_ANSWER], num, answer in references))
    return RewardEvidence(
        num_without_answer,
        num_late,
        num_raised,
        tuple(most_frequent),
        example[:MAX_EXAMPLE],
    )


def _answer(read: Answer, payload: Payload, text: str) -> str | None:
    """The response's answer; "" where reading it fails, which is no evidence."""
    try:
        return read(payload, text)
    except VERIFIER_ERRORS:
        return ""


def _references(read: Answer | None, payload: Payload) -> set[str]:
    """The prompt's own answers, as its verifier reads them."""
    if read is None or payload.get("answer") is None:
        return set()
    if payload.get("choices"):
        letter = right_letter(payload["answer"], payload["choices"])
        return set() if letter is None else {letter}
    found: set[str] = set()
    for reference in accepted_answers(payload):
        found.add(reference)
        for form in FORMS:
            answer = _answer(read, payload, form.format(reference))
            if answer is not None:
                found.add(answer)
    return found
