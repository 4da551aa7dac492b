"""Remember the questions and answers that outlasted their deadline, so that no other response waits for them again.

A question is a verifier with a payload. When one of its responses takes long, a short trial response is scored, and the
question's other responses wait. If the trial misses the deadline too, the question's reference is to blame, and every
response to it fails at once. Otherwise only the answer that took too long is remembered. Verifiers that use files, the
network or processes may be slow by chance. They have no trial, and nothing of them is remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from brorl_graders.base.verdicts import LATE
from brorl_graders.processes.child import VERIFIER_ERRORS
from brorl_graders.processes.child_process import Question, ScoringTask
from brorl_graders.verifiers.registry import answer_reader

TRIAL = "<think>A trial.</think>\n<answer>\\boxed{17+\\sqrt{2}}</answer>"  # an answer wherever verifiers look for one
MAX_QUESTIONS = 4096


@dataclass
class _Known:
    """Results of one question: of its trial, and of answers that took too long."""

    is_on_trial: bool = True
    error: str = ""  # reason why the trial response was not scored; "": it was
    seconds: float = 0.0  # time of the trial response, most of which a process needs to read the question
    late: set[str] = field(default_factory=set)


class TimeOuts:
    """Questions of one pool that had a slow response. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[Question, _Known] = {}

    def needs_trial(self, task: ScoringTask) -> bool:
        """Return whether the question of a task, which has a slow response, has had no trial yet."""
        return task.isolation.is_closed and not task.is_trial and task.question not in self._known

    def begin_trial(self, task: ScoringTask) -> ScoringTask:
        """Return a task that scores the trial response to the question of another task."""
        if len(self._known) >= MAX_QUESTIONS:
            del self._known[next(question for question, known in self._known.items() if not known.is_on_trial)]
        self._known[task.question] = _Known()
        return task.trial(TRIAL)

    def end_trial(self, trial: ScoringTask, error: str, seconds: float) -> None:
        """Store why a process did not finish the trial response, or "" if it did, and how long it took."""
        known = self._known[trial.question]
        known.is_on_trial = False
        known.error = error
        known.seconds = seconds

    def reading_s(self, task: ScoringTask) -> float:
        """Return about how long a process takes to read the question of a task, 0 if that is not known to be long."""
        known = self._known.get(task.question) if self._known else None
        return 0.0 if known is None else known.seconds

    def is_on_trial(self, task: ScoringTask) -> bool:
        """Return whether the responses of a task must wait for the trial of their question."""
        known = self._known.get(task.question) if self._known else None
        return known is not None and known.is_on_trial and not task.is_trial

    def add(self, task: ScoringTask, index: int) -> None:
        """Remember the answer of a text that has missed its deadline."""
        task.num_late += 1
        if task.question in self._known:
            self._known[task.question].late.add(_answer(task, index))

    def reason(self, task: ScoringTask, index: int) -> tuple[str, bool] | None:
        """Return why a text would not be scored in time, and whether its reference is to blame, or None."""
        if task.is_hopeless:
            return (
                f"the verifier {LATE} {task.timeout_s:g} s on {task.num_late} other responses, and scored none",
                False,
            )
        known = self._known.get(task.question) if self._known else None
        if known is None or task.is_trial:
            return None
        if known.error:
            return f"a trial response {known.error}, so the payload is to blame", True
        if known.late and _answer(task, index) in known.late:
            return f"{LATE} {task.timeout_s:g} s", False
        return None


def _answer(task: ScoringTask, index: int) -> str:
    """Return the answer in a text, or the text where the verifier's score depends on more."""
    text = task.texts[index]
    try:
        reader = None if task.verifier == "composite" else answer_reader(task.verifier, task.payload)
        return (reader and reader(text)) or text
    except VERIFIER_ERRORS:
        return text
