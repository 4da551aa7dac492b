"""Count answers of data files that are probably no answers: worked solutions, and a table's marks of missing values."""

from __future__ import annotations

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.questions import Question

log = get_logger(__name__)

MISSING_MARKS = ("nan", "none", "null", "n/a", "na", "<na>", "nat")
LONG_ANSWER = 30  # words; a longer text is a solution, which no response equals


class AnswerCensus:
    """Counts over the answers of a data file's questions."""

    def __init__(self) -> None:
        self.num = 0
        self.num_missing = 0
        self.num_solutions = 0  # long answers that a response would have to equal
        self.marks: set[str] = set()

    def add(self, question: Question) -> None:
        self.num += 1
        answer = question.payload.get("answer")
        if not isinstance(answer, str):
            return
        if answer.strip().lower() in MISSING_MARKS:
            self.num_missing += 1
            self.marks.add(answer.strip())
        is_long = len(answer.split()) > LONG_ANSWER or "\n" in answer.strip()
        self.num_solutions += is_long and question.verifier == "exact_match"

    def judge(self, path: str, where: str, is_verifier_chosen: bool) -> None:
        """Warn of answers that mark missing values, and raise DataError if most answers are worked solutions.

        Where the settings choose the verifier (`is_verifier_chosen`), solutions are taken as they are.
        """
        if self.num_missing:
            marks = ", ".join(repr(mark) for mark in sorted(self.marks))
            log.warning(
                "%s: the answer of %d of %d questions is %s, as a table marks a missing value: leave these rows out if "
                "they have no answer",
                path,
                self.num_missing,
                self.num,
                marks,
            )
        if self.num_solutions > self.num / 2 and not is_verifier_chosen:
            raise DataError(
                f"{path}: {self.num_solutions} of {self.num} answers are worked solutions, of over {LONG_ANSWER} words "
                "or several lines, and a response would have to equal one. Set "
                f"{where}.columns.answer=final:COLUMN {where}.verifier=math to compare final answers, or "
                f"{where}.verifier=exact_match to compare whole texts"
            )
