"""Recognise the layout of public data sets by the columns of a file, where the settings name none."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.prompts.columns import ABSENT, final_answer, value_at
from nemo_brorl.prompts.find_files import SPLIT_WORDS
from nemo_brorl.prompts.row_formats import PRESETS, RowFormat
from nemo_brorl.prompts.row_questions import OTHER_ROLES

PROMPTS = ("prompt", "problem", "question", "query", "instruction", "input", "question_content", "text")
ANSWERS = (
    *("answer", "expected_answer", "final_answer", "ground_truth", "target", "label", "output", "solution", "answers"),
    *("answerkey", "correct answer", "correct", "completion", "response", "canonical_solution", "chosen"),
    *("reference", "reference_answer", "ideal", "gold", "gold_answer"),
)
OPTIONS = ("choices", "options")
TALKS = ("messages", "conversations", "conversation")
# Columns that a question may need, and that no recognised layout joins to it.
COMPANIONS = (*OPTIONS, "context", "passage", "body", "input", "document", "article", "image", "images")
TESTS = ("public_test_cases", "input_output", "test_cases", "tests")
MARK = re.compile(r"^####", re.MULTILINE)  # GSM8K's mark of the final answer
MATHEMATICS = re.compile(r"[\d\\]")


class Shape(NamedTuple):
    """A recognised layout of rows."""

    like: str  # public data set with such rows
    formats: tuple[RowFormat, ...]

    def __str__(self) -> str:
        last = self.formats[-1]
        return (
            f"rows as of {self.like} (prompt {last.prompt}, answer {last.answer or 'none'}, verifier {last.verifier})"
        )


def recognise(config: SourceConfig, rows: Sequence[Mapping[str, Any]]) -> Shape | None:
    """Return the layout of a file by its first rows, or None if the settings name one, or none is recognised."""
    columns = config.columns
    if config.preset != "plain" or columns.prompt is not None or columns.answer is not None or not rows:
        return None
    names = {name.lower(): name for name in reversed(list(rows[0]))}
    return _with_options(names, rows) or (None if {"prompt", "answer"} <= rows[0].keys() else _like(names, rows))


def unread_companions(rows: Sequence[Mapping[str, Any]], formats: Sequence[RowFormat]) -> list[str]:
    """Return the columns that a question may need and no layout reads. A column `prompt` is taken as whole."""
    read = set().union(*(layout.columns for layout in formats))
    there = rows[0] if rows and "prompt" not in read else ()
    return [name for name in there if name.lower() in COMPANIONS and name not in read]


def splits_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of splits, such as train and test, that rows of one file have in a column `split`."""
    return sorted({row["split"] for row in rows if row.get("split") in SPLIT_WORDS})


def _with_options(names: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Shape | None:
    """Return the layout of questions with options in a column of their own, which the prompt then shows."""
    prompt, answer, options = _first(names, PROMPTS), _first(names, ANSWERS), _first(names, OPTIONS)
    if not (prompt and answer and options):
        return None
    path = next((path for path in (options, f"{options}.text") if isinstance(value_at(rows[0], path), list)), None)
    if path is None:
        return None
    return Shape("MMLU and ARC", (RowFormat(prompt, answer, "multiple_choice", {"choices": f"{path}?"}),))


def _like(names: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Shape | None:
    if {"prompt", "instruction_id_list"} <= names.keys():
        return Shape("IFEval", PRESETS["ifeval"])
    if {"prompt", "reward_model"} <= names.keys():
        mathematics, code = PRESETS["eurus_2"]
        return Shape("Eurus-2 and DAPO", (code, replace(mathematics, when=None)))
    prompt, tests = _first(names, PROMPTS), _first(names, TESTS)
    if prompt and tests:
        return Shape("LiveCodeBench", (_programs(prompt, tests, names),))
    answer = _first(names, ANSWERS)
    is_problem, asked = "problem" in names, names.get("problem", prompt)
    is_solved = answer == names.get("solution") and (is_problem or _are_solutions(answer, rows))
    if asked and answer and (is_problem or is_solved):
        path = f"final:{answer}" if is_solved else answer
        return Shape("DeepScaleR and NuminaMath", (RowFormat(asked, path, "math"),))
    if "question" in names and answer:
        return _asked_directly(names["question"], answer, rows)
    if talk := _first(names, TALKS):
        return _conversations(talk, answer, rows)
    if {"prompt", "answer"} <= names.keys():
        return Shape("prompts with answers", (RowFormat(names["prompt"], names["answer"], "exact_match"),))
    return None


def proposal(lacking: Collection[str], there: Sequence[str], where: str) -> str:
    """Return settings that name the columns of prompt and answer, taken from the columns that are there.

    "" if none of them is known: then they may be no names at all.
    """
    names = {name.lower(): name for name in there}
    found = {}
    for column, known in (("prompt", PROMPTS), ("answer", ANSWERS)):
        found[column] = _first(names, known)
        names.pop((found[column] or "").lower(), None)
    if not any(found.values()):
        return ""
    # With one column left, it must be the other one.
    only = next(iter(names.values())) if len(names) == 1 else ""
    settings = [f"{where}.columns.{column}={_written(found[column] or only)}" for column in lacking if column in found]
    return " ".join(sorted(settings, reverse=True))


def _written(name: str) -> str:
    """Return a column's name as a shell and Hydra take it."""
    return name if re.fullmatch(r"[A-Za-z_][\w./-]*", name, re.ASCII) else f"'\"{name}\"'"


def _first(names: Mapping[str, str], wanted: Sequence[str]) -> str | None:
    return next((names[name] for name in wanted if name in names), None)


def _programs(prompt: str, tests: str, names: Mapping[str, str]) -> RowFormat:
    payload = {"tests": f"json:{tests}"}
    if "metadata" in names:
        payload["fn_name"] = f"{names['metadata']}.func_name?"
    start = names.get("starter_code")
    return RowFormat(prompt, None, "code", payload, start_path=start and f"{start}?")


def _are_solutions(answer: str | None, rows: Sequence[Mapping[str, Any]]) -> bool:
    texts = [str(row.get(answer or "")) for row in rows]
    return sum(final_answer(text) not in (ABSENT, text.strip()) for text in texts) > len(rows) / 2


def _asked_directly(question: str, answer: str, rows: Sequence[Mapping[str, Any]]) -> Shape:
    answers = [row.get(answer) for row in rows]
    num_marked = sum(isinstance(text, str) and MARK.search(text) is not None for text in answers)
    if num_marked > len(rows) / 2:
        return Shape("GSM8K", (RowFormat(question, f"final:{answer}", "math"),))
    return Shape("questions with answers", (RowFormat(question, answer, _verifier_of(answers)),))


def _conversations(messages: str, answer: str | None, rows: Sequence[Mapping[str, Any]]) -> Shape | None:
    is_shared = value_at(rows[0], f"{messages}.-1.from") is not ABSENT
    role, content = ("from", "value") if is_shared else ("role", "content")
    roles = [value_at(row, f"{messages}.-1.{role}") for row in rows]
    if sum(OTHER_ROLES.get(role, role) == "assistant" for role in roles) > len(rows) / 2:
        answer = f"final:{messages}.-1.{content}"
        answers = [value_at(row, answer) for row in rows]
        return Shape("conversations", (RowFormat(f"asked:{messages}", answer, _verifier_of(answers)),))
    if answer is None:
        return None
    answers = [row.get(answer) for row in rows]
    return Shape("conversations with answers", (RowFormat(messages, answer, _verifier_of(answers)),))


def _verifier_of(answers: Sequence[Any]) -> str:
    """Return the verifier for answers: math where each has a digit or a formula, else exact_match."""
    found = [str(answer) for answer in answers if answer is not None and answer is not ABSENT]
    return "math" if all(MATHEMATICS.search(text) for text in found) else "exact_match"
