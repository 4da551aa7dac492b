"""Answers of responses, as the verifiers of a prompt read them, and the prompt's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from brorl_graders.base.answer import last_answer, read_answer
from brorl_graders.base.payload import Payload, accepted_answers
from brorl_graders.processes.child import VERIFIER_ERRORS
from brorl_graders.verifiers.math.answer import find_answer, place_of
from brorl_graders.verifiers.multiple_choice import right_letter
from brorl_graders.verifiers.registry import answer_reader, names_in

# In which a verifier reads its own reference.
FORMS = ("<answer>{}</answer>", "\\boxed{{{}}}", "The answer is {}.")


class Answers:
    """Reads the answers of responses to one prompt."""

    def __init__(self, reader: Callable[[str], str | None], payload: Payload) -> None:
        self._reader = reader
        self._payload = payload

    def read(self, text: str) -> str | None:
        """Return a response's answer; None: it gives none. Raises whatever its verifier raises."""
        return self._reader(text)

    def read_or_blank(self, text: str) -> str | None:
        """Return a response's answer, and "" where reading it fails."""
        try:
            return self.read(text)
        except VERIFIER_ERRORS:
            return ""

    def references(self) -> set[str]:
        """Return the prompt's own answers, as they are written and as the verifier reads them."""
        payload = self._payload
        if payload.get("answer") is None:
            return set()
        if payload.get("choices"):
            letter = right_letter(payload["answer"], payload["choices"])
            return set() if letter is None else {letter}
        found: set[str] = set()
        for reference in accepted_answers(payload):
            found.add(reference)
            for form in FORMS:
                answer = self.read_or_blank(form.format(reference))
                if answer is not None:
                    found.add(answer)
        return found


def answers_of(verifier: str, payload: Payload) -> Answers | None:
    """Return what reads answers to a prompt; None where its verifiers know of none, as of programs."""
    reader = answer_reader(verifier, payload)
    if reader is None:
        return None
    return Answers(reader, payload)


def is_reference(payload: Payload, text: str) -> bool:
    """Return whether a text is a question's own answer, as it is written or as the letter of an option."""
    if payload.get("answer") is None:
        return False
    accepted = [answer.strip().casefold() for answer in accepted_answers(payload)]
    if text.casefold() in accepted:
        return True
    choices = payload.get("choices") or ()
    if not choices:
        return False
    return right_letter(payload["answer"], choices) == text


class Reading(NamedTuple):
    """Where an answer was looked for in a response, and what was there."""

    place: str  # tags, boxed, last, anywhere; "": the verifier looks for no answer
    found: str | None
    accepted: tuple[str, ...]  # the prompt's own answers
    elsewhere: str | None  # what the response states as its answer in words


def reading_of(verifier: str, payload: Payload, response: str, place: str | None) -> Reading:
    """Return what the verifiers of a prompt read of a response. `place`: where they look, but for `math`, which says it
    in the payload; None: nowhere."""
    if "math" in names_in(verifier, payload):
        place = place_of(payload)
        found = find_answer(response, place)
    else:
        found = read_answer(payload, response)
    accepted = tuple(accepted_answers(payload)) if "answer" in payload else ()
    return Reading(place or "", found, accepted, last_answer(response))
