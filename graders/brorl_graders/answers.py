"""Read the answers of responses as a prompt's verifiers read them, and the prompt's reference answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from brorl_graders.base.answer import boxed_answers, last_answer, read_answer
from brorl_graders.base.payload import Payload, accepted_answers
from brorl_graders.processes.child import VERIFIER_ERRORS
from brorl_graders.verifiers.math.finding import find_answer, in_boxes, place_of
from brorl_graders.verifiers.math.statement import is_prose, stated_answer
from brorl_graders.verifiers.multiple_choice import letter_of_number, right_letter
from brorl_graders.verifiers.registry import answer_reader, answering_part, names_in

# Responses in which `Answers.references` gives the verifier its own reference to read.
FORMS = ("<answer>{}</answer>", "\\boxed{{{}}}", "The answer is {}.")


class Answers:
    """A reader of answers for one prompt, which reads them as the prompt's verifier does."""

    def __init__(self, reader: Callable[[str], str | None], payload: Payload) -> None:
        self._reader = reader
        self._payload = payload

    def read(self, text: str) -> str | None:
        """Return the answer in a response, or None when it gives none.

        Raises the errors of the prompt's verifier.
        """
        return self._reader(text)

    def read_or_blank(self, text: str) -> str | None:
        """Return a response's answer, or "" where the verifier fails to read it."""
        try:
            return self.read(text)
        except VERIFIER_ERRORS:
            return ""

    def references(self) -> set[str]:
        """Return the prompt's reference answers, as they are written and as the verifier reads them."""
        payload = self._payload
        if payload.get("answer") is None:
            return set()
        if payload.get("choices"):
            letter = right_letter(payload["answer"], payload["choices"])
            return set() if letter is None else {letter}
        answers: set[str] = set()
        for reference in accepted_answers(payload):
            answers.add(reference)
            for form in FORMS:
                answer = self.read_or_blank(form.format(reference))
                if answer is not None:
                    answers.add(answer)
        return answers


def answers_of(verifier: str, payload: Payload) -> Answers | None:
    """Return a reader of the answers in responses to a prompt, or None when the prompt's verifiers read no answers.

    For example, a verifier of programs reads none.
    """
    reader = answer_reader(verifier, payload)
    if reader is None:
        return None
    return Answers(reader, payload)


def is_reference(payload: Payload, text: str) -> bool:
    """Return whether a text is a question's reference answer: as written, or an option's letter or number from 1."""
    if payload.get("answer") is None:
        return False
    accepted = [answer.strip().casefold() for answer in accepted_answers(payload)]
    if text.casefold() in accepted:
        return True
    choices = payload.get("choices") or ()
    if not choices:
        return False
    return right_letter(payload["answer"], choices) in (text, letter_of_number(text, choices))


def answer_in(verifier: str, payload: Payload, response: Any) -> str | None:
    """Return the answer that a prompt's verifier reads in a response, as it is written there, or None."""
    part = answering_part(verifier, payload)
    if part is None or not isinstance(response, str):
        return None
    name, own, reader = part
    try:
        return find_answer(response, place_of(own)) if name == "math" else reader(own, response)
    except VERIFIER_ERRORS:
        return None


def reference_in(verifier: str, payload: Payload) -> str | None:
    """Return the right answers that a prompt's verifier reads in its payload, with "or" between them, or None."""
    part = answering_part(verifier, payload)
    if part is None or part.payload.get("answer") is None:
        return None
    if part.verifier == "multiple_choice":
        return right_letter(part.payload["answer"], part.payload.get("choices") or ())
    accepted = accepted_answers(part.payload)
    return " or ".join(map(_mathematical, accepted) if part.verifier == "math" else accepted)


def _mathematical(reference: str) -> str:
    """Return the answer in a reference of the verifier `math`, which may be a text that states the answer."""
    boxes = boxed_answers(reference)
    if boxes:
        return in_boxes(boxes)
    return (is_prose(reference) and stated_answer(reference)) or reference


class Reading(NamedTuple):
    """One response's answer, the location where it was read, and the answers that would be right."""

    place: str  # location of the answer: tags, boxed, last, anywhere; "": none is read
    found: str | None
    accepted: tuple[str, ...]  # reference answers of the prompt
    elsewhere: str | None  # answer that the response gives in words, as in "the answer is 7"


def reading_of(verifier: str, payload: Payload, response: str, place: str | None) -> Reading:
    """Return the answer that the verifiers of a prompt read in a response, with its location and the right answers.

    `place` names the location of the answer: tags, boxed or last. It is None when the verifiers read no answer. The
    verifier `math` reads the location from the payload instead.
    """
    if "math" in names_in(verifier, payload):
        place = place_of(payload)
        found = find_answer(response, place)
    else:
        found = read_answer(payload, response)
    accepted = tuple(accepted_answers(payload)) if "answer" in payload else ()
    return Reading(place or "", found, accepted, last_answer(response))
