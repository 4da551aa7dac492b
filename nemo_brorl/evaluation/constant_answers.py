"""Find constant answers that a task gives rewards for, before a run starts: a policy would learn only those.

Twenty short answers are scored on some questions of each task, as in training. A constant is reported if its mean
reward exceeds the share of questions that it answers. So a task of yes and no is not blamed for rewarding "yes".
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from brorl_graders import Pool, answers_of, is_open, is_reference

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.environment_source import DRAWN
from nemo_brorl.prompts.file_source import formats_of
from nemo_brorl.prompts.file_tables import first_rows
from nemo_brorl.prompts.find_files import find_files
from nemo_brorl.prompts.questions import BadRow, Question
from nemo_brorl.prompts.reasoning_gym import VERIFIER, ReasoningGymSource, expanded
from nemo_brorl.prompts.row_formats import columns_of
from nemo_brorl.prompts.row_questions import is_wanted, question_of
from nemo_brorl.scoring.grader_settings import deadlines_of

CONSTANTS = (
    "",
    "0",
    "1",
    "2",
    "-1",
    "10",
    "24",
    "1/2",
    "x",
    "nan",
    "inf",
    "yes",
    "no",
    "True",
    "False",
    "None",
    "A",
    "C",
    "[]",
    "I do not know",
)
# Responses with the answer where verifiers look for it.
FORMS = (
    "<think>I think.</think>\n<answer>{}</answer>",
    "<answer>{}</answer>",
    "\\boxed{{{}}}",
)
NUM_QUESTIONS = 6  # questions of each task
FIRST_ROWS = 20  # rows of a file to read, some of which may hold no question
BUDGET_S = 10.0


class Paid(NamedTuple):
    """A constant answer that a task gives rewards for."""

    task: str
    constant: str
    reward: float  # mean reward over the questions
    expected: float  # share of the questions whose reference answer it is
    num_questions: int

    def __str__(self) -> str:
        return (
            f"{self.task} pays {self.reward:.2f} on average for the answer {self.constant!r}, "
            f"which is right for {self.expected:.0%} of {self.num_questions} questions"
        )


def paid_constants(
    tasks: Iterable[Sequence[Question]],
    pool: Pool,
    max_reward: float,
) -> list[Paid]:
    """Return for each task the constant answer that earns too much reward, if there is one.

    Too much is a mean reward that exceeds the share of questions whose reference answer it is by more than
    `max_reward`. Of several, the one that exceeds its share most is returned. Skipped are questions without answers,
    programs and instructions, and questions of a user's own verifier. Raises the errors of `Pool.judge`.
    """
    overpaid = []
    for questions in tasks:
        answered = [question for question in questions if _can_be_tried(question)]
        if not answered:
            continue
        best = max(_pays(answered, pool), key=_excess)
        if _excess(best) > max_reward:
            overpaid.append(best)
    return overpaid


def _can_be_tried(question: Question) -> bool:
    """Return whether a question's verifier extracts answers, and needs neither a sandbox nor a user's own code."""
    verifier = question.verifier
    has_answers = answers_of(verifier, question.payload) is not None
    return has_answers and not is_open(verifier, question.payload)


def _excess(paid: Paid) -> float:
    return paid.reward - paid.expected


def _pays(questions: Sequence[Question], pool: Pool) -> list[Paid]:
    totals = dict.fromkeys(CONSTANTS, 0.0)
    num_right = dict.fromkeys(CONSTANTS, 0)
    texts = []
    for constant in CONSTANTS:
        texts += [form.format(constant) for form in FORMS]
    for question in questions:
        scores = pool.judge(question.verifier, question.payload, texts).scores
        for index, constant in enumerate(CONSTANTS):
            start = index * len(FORMS)
            own_scores = scores[start : start + len(FORMS)]
            # The best form counts, because a policy would find it.
            totals[constant] += max(score or 0.0 for score in own_scores)
            num_right[constant] += is_reference(question.payload, constant)
    num = len(questions)
    constants = []
    for constant in CONSTANTS:
        paid = Paid(
            task=questions[0].task,
            constant=constant,
            reward=totals[constant] / num,
            expected=num_right[constant] / num,
            num_questions=num,
        )
        constants.append(paid)
    return constants


def check_constants(
    sources: Iterable[SourceConfig],
    rewards: RewardsConfig,
    budget_s: float = BUDGET_S,
) -> list[Paid]:
    """Return the constant answers that the tasks of these sources of questions give rewards for.

    Generates questions for at most `budget_s` seconds for each source. Raises DataError if there are such answers and
    the setting `rewards.constant_answers` refuses them.
    """
    if rewards.constant_answers == "off":
        return []
    overpaid: list[Paid] = []
    with Pool(deadlines_of(rewards)) as pool:
        for source in sources:
            tasks = some_questions(source, NUM_QUESTIONS, budget_s)
            overpaid += paid_constants(tasks, pool, rewards.max_constant_reward)
    if overpaid and rewards.constant_answers == "refuse":
        sentences = "; ".join(map(str, overpaid))
        raise DataError(
            f"{sentences}: a policy would learn to say just that. Leave the task out, choose another verifier, "
            f"or set rewards.constant_answers=warn"
        )
    return overpaid


def some_questions(
    source: SourceConfig,
    num: int,
    budget_s: float,
) -> Iterator[list[Question]]:
    """Yield at most `num` questions of each Reasoning Gym task, or the first questions of a file.

    Stops after `budget_s` seconds of generating questions. Raises the source's DataError.
    """
    if source.source == DRAWN:
        return
    if source.source != "reasoning_gym":
        yield _of_files(source)
        return
    spent_s = 0.0
    # Some of a hundred tasks take seconds for a question, so the last tasks may not be tested.
    for task in expanded(source.tasks):
        if spent_s > budget_s:
            return
        start = time.monotonic()
        tasks = ReasoningGymSource(
            [task],
            held_out_fraction=0.0,
            split="train",
            seed=0,
            verifier=source.verifier or VERIFIER,
            options=source.verifier_options,
        )
        questions = [tasks.question(index) for index in range(num)]
        spent_s += time.monotonic() - start
        yield questions


def _of_files(source: SourceConfig) -> list[Question]:
    assert source.path is not None, "the settings were checked"
    files = find_files(source.source, source.path, source.dataset_split)
    formats = formats_of(source, files)
    found = []
    for row in first_rows(files[0], columns_of(formats, source.verifier_options), FIRST_ROWS):
        if isinstance(row, BadRow) or not is_wanted(row, source.only):
            continue
        question = question_of(row, formats, "", source.verifier_options)
        if not isinstance(question, BadRow):
            found.append(question)
    return found
