"""Evidence against rewards of a chunk, for the observer `brorl_lab.observers.reward_watch`.

It stays small for any number of responses: counts, the answers that were rewarded most often, and one example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from brorl_graders import full_mark
from brorl_graders.answers import answers_of
from brorl_graders.base.verdicts import LATE, Verdicts
from brorl_graders.environments.protocol import EpisodeOutcome

from nemo_brorl.types import PaidAnswer, RewardEvidence

# Smallest score of a rewarded response, as a share of the full mark: a part of the reward is learned, too.
EARNS = 0.5
MAX_PAID = 4  # number of rewarded answers that are named
MAX_ANSWER = 80  # characters
MAX_EXAMPLE = 400  # characters


def evidence_of(
    verifier: str,
    payload: Mapping[str, Any],
    texts: Sequence[str],
    verdicts: Verdicts,
    counts: Mapping[str, int],
) -> RewardEvidence:
    """Return signs that the rewards of responses are wrong: late or failed verifiers, and rewards without an answer.

    `texts` are the different texts of the responses, and `counts` gives the number of responses with each text.
    `verdicts` are the verifier's scores and reasons for the texts.
    """
    answers = answers_of(verifier, payload)
    mark = full_mark(payload)
    earning = min(EARNS * mark, mark)
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
        elif score >= earning and answers is not None:
            answer = answers.read_or_blank(text)
            if answer is None:
                num_without_answer += counts[text]
                example = text
            else:
                paid[answer] += counts[text]
    references = set() if answers is None else answers.references()
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


def evidence_of_episodes(outcomes: Sequence[EpisodeOutcome]) -> RewardEvidence:
    """Return signs that the rewards of an environment are wrong: environment steps that failed or were late."""
    errors = [outcome.error for outcome in outcomes if outcome.error]
    num_late = sum(LATE in error for error in errors)
    example = errors[0] if errors else ""
    return RewardEvidence(
        num_without_answer=0,
        num_late=num_late,
        num_raised=len(errors) - num_late,
        example=example[:MAX_EXAMPLE],
    )
