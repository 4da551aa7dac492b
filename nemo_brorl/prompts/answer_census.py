"""Count answers of data files that are probably no answers: worked solutions, and a table's marks of missing values."""

from __future__ import annotations

import re
from collections import Counter

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.columns import ABSENT, final_answer
from nemo_brorl.prompts.questions import Question

log = get_logger(__name__)

MISSING_MARKS = ("nan", "none", "null", "n/a", "na", "<na>", "nat")
LONG_ANSWER = 30  # words; a longer text is a solution, which no response equals
HOLDS_MORE = re.compile(r"\\boxed|####|answer|</think>", re.IGNORECASE)
# A whole number as tables write it that once had missing values, a sum's rounding, or LaTeX.
OTHERWISE_WRITTEN = re.compile(r"-?\d+\.(?:0|\d{12,})|.*(?:\$|\\[a-z]{3}).*", re.DOTALL)
FEW = 20  # equal answers that are no accident
MOST_COUNTED = 1000  # most questions whose answers are counted
MOST_EQUAL = 0.9  # share of answers that may be equal


class AnswerCensus:
    """Counts over the answers of a data file's questions."""

    def __init__(self) -> None:
        self.num = 0
        self.num_missing = 0
        self.num_solutions = 0  # long answers that a response would have to equal
        self.num_otherwise = 0  # answers that a response may write in other words
        self.otherwise = ""  # one of these
        self.marks: set[str] = set()
        self.first: Counter[str] = Counter()  # answers of the first questions

    def add(self, question: Question) -> None:
        self.num += 1
        answer = question.payload.get("answer")
        if self.num <= MOST_COUNTED and answer is not None and not question.payload.get("choices"):
            self.first[str(answer).strip()] += 1
        if isinstance(answer, float) and not answer.is_integer():
            answer = str(answer)
        if not isinstance(answer, str):
            return
        if answer.strip().lower() in MISSING_MARKS:
            self.num_missing += 1
            self.marks.add(answer.strip())
        if question.verifier != "exact_match":
            return
        is_long = len(answer.split()) > LONG_ANSWER or "\n" in answer.strip()
        holds_more = HOLDS_MORE.search(answer) and final_answer(answer) not in (ABSENT, answer.strip())
        self.num_solutions += bool(is_long or holds_more)
        if OTHERWISE_WRITTEN.fullmatch(answer.strip()):
            self.num_otherwise += 1
            self.otherwise = self.otherwise or answer.strip()

    def judge(self, path: str, where: str, column: str | None, is_verifier_chosen: bool) -> None:
        """Warn of answers that mark missing values, and raise DataError if most answers are worked solutions.

        `column` holds the answers. Where the settings choose the verifier (`is_verifier_chosen`), solutions are taken
        as they are.
        """
        text, num = next(iter(self.first.most_common(1)), ("", 0))
        if num >= FEW and num >= MOST_EQUAL * self.first.total():
            log.warning("%s: %d of %d answers are %r: a policy earns by it alone", path, num, self.first.total(), text)
        if self.num_otherwise > self.num / 2 and not is_verifier_chosen:
            log.warning(
                "%s: %d of %d answers are like %r, which a response would have to equal: set %s.verifier=math",
                path,
                self.num_otherwise,
                self.num,
                self.otherwise,
                where,
            )
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
                "or several lines, or hold more than the answer, and a response would have to equal one. Set "
                f"{where}.columns.answer=final:{(column or '').removeprefix('final:').removesuffix('?')} "
                f"{where}.verifier=math to compare final answers, or "
                f"{where}.verifier=exact_match to compare whole texts"
            )
