"""Constants that a task pays for, tried before a run starts: a policy finds them, and learns nothing else.

Twenty short answers are scored on some questions of each task, as training would score them. One that earns more than
its being the reference explains, on average, is named: what a task of yes and no pays for "yes" is no fault of its
verifier.
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
from nemo_brorl.prompts.file_tables import first_rows
from nemo_brorl.prompts.find_files import find_files
from nemo_brorl.prompts.questions import BadRow, Question
from nemo_brorl.prompts.reasoning_gym import VERIFIER, ReasoningGymSource, expanded
from nemo_brorl.prompts.row_formats import columns_of, row_formats
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
# Where verifiers look for an answer.
FORMS = (
    "<think>I think.</think>\n<answer>{}</answer>",
    "<answer>{}</answer>",
    "\\boxed{{{}}}",
)
NUM_QUESTIONS = 6  # of each task
FIRST_ROWS = 20  # of a file, of which some may be no questions
BUDGET_S = 10.0


class Paid(NamedTuple):
    """A constant that a task pays for."""

    task: str
    constant: str
    reward: float  # mean over the questions
    expected: float  # share of the questions that it is the reference answer of
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
    """The constant that pays most of each task where that is more than `max_reward` above what is expected. Questions
    without answers, programs and instructions, and those of a user's own verifier are passed over. Raises as
    `Pool.judge`."""
    found = []
    for questions in tasks:
        answered = [question for question in questions if _can_be_tried(question)]
        if not answered:
            continue
        best = max(_pays(answered, pool), key=_excess)
        if _excess(best) > max_reward:
            found.append(best)
    return found


def _can_be_tried(question: Question) -> bool:
    """Whether its verifier knows of answers, and needs neither a sandbox nor what a user's own may reach."""
    verifier = question.verifier
    has_answers = answers_of(verifier, question.payload) is not None
    return has_answers and not is_open(verifier, question.payload)


def _excess(paid: Paid) -> float:
    return paid.reward - paid.expected


def _pays(questions: Sequence[Question], pool: Pool) -> list[Paid]:
    """What each constant earns."""
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
            # A policy would find the form that pays.
            totals[constant] += max(score or 0.0 for score in own_scores)
            num_right[constant] += is_reference(question.payload, constant)
    num = len(questions)
    found = []
    for constant in CONSTANTS:
        paid = Paid(
            task=questions[0].task,
            constant=constant,
            reward=totals[constant] / num,
            expected=num_right[constant] / num,
            num_questions=num,
        )
        found.append(paid)
    return found


def check_constants(
    sources: Iterable[SourceConfig],
    rewards: RewardsConfig,
    budget_s: float = BUDGET_S,
) -> list[Paid]:
    """Constants that the tasks of these sources pay for (`rewards.constant_answers`). Questions of generated tasks are
    made for `budget_s` seconds a source. Raises DataError where they pay and the settings refuse it."""
    if rewards.constant_answers == "off":
        return []
    found: list[Paid] = []
    with Pool(deadlines_of(rewards)) as pool:
        for source in sources:
            tasks = some_questions(source, NUM_QUESTIONS, budget_s)
            found += paid_constants(tasks, pool, rewards.max_constant_reward)
    if found and rewards.constant_answers == "refuse":
        sentences = "; ".join(map(str, found))
        raise DataError(
            f"{sentences}: a policy would learn to say just that. Leave the task out, choose another verifier, "
            f"or write rewards.constant_answers=warn"
        )
    return found


def some_questions(
    source: SourceConfig,
    num: int,
    budget_s: float,
) -> Iterator[list[Question]]:
    """At most `num` questions of each Reasoning Gym task, until `budget_s` seconds have been spent on making them, or
    the first ones of a file. Raises DataError as the source does."""
    if source.source == DRAWN:
        return
    if source.source != "reasoning_gym":
        yield _of_files(source)
        return
    spent_s = 0.0
    # Of a hundred tasks some take seconds a question: those that come late are not tried.
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
    formats = row_formats(source)
    files = find_files(source.source, source.path, source.dataset_split)
    found = []
    for row in first_rows(files[0], columns_of(formats), FIRST_ROWS):
        if isinstance(row, BadRow) or not is_wanted(row, source.only):
            continue
        question = question_of(row, formats, "", source.verifier_options)
        if not isinstance(question, BadRow):
            found.append(question)
    return found
