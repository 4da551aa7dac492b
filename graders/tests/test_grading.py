"""Grades: rewards, reasons, and failures apart from rewards of 0."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
import threading
import tomllib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from brorl_graders.base.errors import ConfigError, DataError, ResourceError
from brorl_graders.base.extras import EXTRAS
from brorl_graders.base.verdicts import Verdicts
from brorl_graders.grading import Grade, Pool, grade

from graders.tests.support.places import CODE_PATH


def test_right_and_wrong_responses_are_graded_in_their_order() -> None:
    with Pool() as pool:
        grades = pool.grade("math", {"answer": "72"}, ["It is \\boxed{72}.", "It is \\boxed{71}.", "No idea."])
    assert [one.reward for one in grades] == [1.0, 0.0, 0.0]
    assert not any(one.failed for one in grades)


class LateProcesses:
    """Processes in which the first response misses the deadline and the second earns nothing."""

    def judge(self, verifier: str, payload: Mapping[str, Any], responses: Sequence[str]) -> Verdicts:
        return Verdicts([None, 0.0], {0: "has not ended after 1 s"})

    def load(self, verifier: str) -> None:
        pass

    def child_pids(self) -> list[int]:
        return []

    def close(self) -> None:
        pass


def test_a_response_that_met_its_deadline_has_failed_and_one_that_is_wrong_has_not() -> None:
    late, wrong = Pool(processes=LateProcesses()).grade("exact_match", {"answer": "7"}, ["…", "8"])
    assert late == Grade(0.0, "has not ended after 1 s", failed=True)
    assert wrong == Grade(0.0, "", failed=False)


@pytest.mark.parametrize(
    ("verifier", "payload", "response", "answer", "reference"),
    [
        ("math", {"answer": "#### 72"}, "So it is \\boxed{\\frac12}.", "\\frac12", "72"),
        ("math", {"answer": ["7", "\\boxed{8}"]}, "No idea.", None, "7 or 8"),
        ("math", {"answer": 72, "extract": "tags"}, "\\boxed{3} <answer>7 m</answer>", "7 m", "72"),
        ("multiple_choice", {"answer": "Paris", "choices": ["Rome", "Paris"]}, "Answer: A", "A", "B"),
        ("exact_match", {"answer": "a  b"}, "<answer>a c</answer>", "a c", "a  b"),
        ("format", {"structure": "think_answer"}, "<think>a</think><answer>7</answer>", None, None),
        (
            "composite",
            {
                "answer": "7",
                "structure": "answer",
                "parts": [{"verifier": "format"}, {"verifier": "math", "options": {"extract": "last"}}],
            },
            "The answer is 6.\nThat is \\boxed{5}.",
            "6",
            "7",
        ),
    ],
)
def test_a_grade_has_what_was_read_out_of_response_and_reference(
    verifier: str, payload: dict[str, Any], response: str, answer: str | None, reference: str | None
) -> None:
    with Pool(processes=1) as pool:
        [one] = pickle.loads(pickle.dumps(pool.grade(verifier, payload, [response])))
    assert (one.answer, one.reference) == (answer, reference)


def test_a_grade_that_read_nothing_has_no_answer() -> None:
    with Pool(processes=1) as pool:
        [odd] = pool.grade("math", {"answer": "7"}, [None])  # type: ignore[list-item]
    assert (odd.answer, odd.reference) == (None, "7")
    assert (Grade(0.0, "", True).answer, Grade(0.0, "", True).reference) == (None, None)


def test_a_wrong_payload_and_an_unknown_verifier_are_errors() -> None:
    with Pool() as pool:
        with pytest.raises(DataError, match="answer"):
            pool.grade("exact_match", {}, ["7"])
        with pytest.raises(ConfigError, match="unknown verifier 'maths'"):
            pool.grade("maths", {"answer": "7"}, ["7"])


def test_a_file_is_graded_by_the_graders_alone(tmp_path: Path) -> None:
    rows = [
        {"verifier": "exact_match", "payload": {"answer": "7"}, "response": "<answer>7</answer>"},
        {"verifier": "exact_match", "payload": {"answer": "7"}, "response": "8"},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "brorl_graders", str(file)]
    environment = {**os.environ, "PYTHONPATH": CODE_PATH}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    grades = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["reward"] for one in grades] == [1.0, 0.0]
    assert [(one["answer"], one["reference"]) for one in grades] == [("7", "7"), (None, "7")]


CALCULATOR = "brorl_graders.environments.judged:Calculator"
GRADE_CASES = f"""
import json, sys
from brorl_graders import BroRLError, Endpoint, Names, Pool, make_environment, use_names
from brorl_graders.base.names import fingerprint

judge = Endpoint("judge", "http://127.0.0.1:9")
use_names(Names(endpoints={{"judge": judge}}, environments={{"{CALCULATOR}": (fingerprint({{}}),)}}))
found = {{}}
with Pool(processes=1) as pool:
    for name, (verifier, payload, *responses) in json.load(sys.stdin).items():
        try:
            found[name] = [[one.reward, one.reason] for one in pool.grade(verifier, payload, responses)]
        except BroRLError as error:
            found[name] = str(error)
try:
    make_environment("{CALCULATOR}", {{}})
except BroRLError as error:
    found["environment"] = str(error)
print(json.dumps(found))
"""
WITHOUT_EXTRAS = {
    "number": ["math", {"answer": "1/2"}, "\\boxed{0.5}", "It is 3."],
    "word": ["math", {"answer": "Tuesday"}, "\\boxed{Tuesday}", "\\boxed{Monday}"],
    "group": ["math", {"answer": "1, 2"}, "\\boxed{2, 1}", "\\boxed{(1,3)}"],
    "letter": ["multiple_choice", {"answer": "C"}, "Answer: C", "Answer: D"],
    "program": ["code", {"tests": ["assert f(1) == 2"]}, "```python\ndef f(x): return x + 1\n```", "?"],
    "instruction": [
        "instruction_following",
        {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        "Good morning.",
        "Well, well.",
    ],
}
WITH_EXTRAS = {
    "math": ["math", {"answer": "(x+1)^2"}, "\\boxed{x^2+2x+1}"],
    "ifeval": ["format", {"language": "en"}, "This is plain English"],
    "reasoning-gym": [
        "reasoning_gym",
        {"dataset": "gcd", "config": {}, "answer": "1", "question": "?", "metadata": {}},
        "1",
    ],
    "services": ["judge", {"answer": "7"}, "7"],
}


def test_numbers_words_groups_letters_and_programs_need_no_extra_and_an_error_names_the_one_to_install(
    tmp_path: Path,
) -> None:
    # Verifiers may read folders of this name only
    folder = tmp_path / "site-packages"
    folder.mkdir()
    for name in [*EXTRAS, "numpy"]:
        missing = f"raise ModuleNotFoundError(\"No module named '{name}'\", name={name!r})\n"
        (folder / f"{name}.py").write_text(missing)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), CODE_PATH))}
    command = [sys.executable, "-c", GRADE_CASES]
    cases = json.dumps({**WITHOUT_EXTRAS, **WITH_EXTRAS})
    done = subprocess.run(command, input=cases, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    for name in WITHOUT_EXTRAS:
        assert [reward for reward, _ in found[name]] == [1.0, 0.0], name
    for extra in (*WITH_EXTRAS, "environments"):
        assert f"pip install 'brorl-graders[{extra}]'" in str(found.get(extra) or found["environment"])


def test_each_library_is_in_the_extra_that_its_error_names() -> None:
    declared = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    extras = declared["project"]["optional-dependencies"]
    for library, extra in EXTRAS.items():
        assert library.replace("_", "-") in extras[extra]
        assert extra in extras["all"][0]


def test_a_row_that_cannot_be_graded_is_one_message(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"verifier": "exact_match"}\n')
    command = [sys.executable, "-m", "brorl_graders", str(file)]
    environment = {**os.environ, "PYTHONPATH": CODE_PATH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "line 1: 'payload'" in done.stderr


def test_one_response_is_graded_without_a_pool() -> None:
    assert grade("exact_match", {"answer": "7"}, "<answer>7</answer>") == (1.0, "", False)


class Unreadable:
    """A value that can neither be sent nor shown."""

    def __reduce__(self) -> str:
        raise RuntimeError("not to be sent")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


ODD: tuple[Any, ...] = (
    None,
    7,
    0.5,
    True,
    b"7",
    {"role": "assistant", "content": "7"},
    [{"role": "assistant", "content": "7"}],
    lambda: "7",
    threading.Lock(),
    array("d", [7.0]),
    (number for number in range(7)),
    Unreadable(),
)


def test_each_odd_response_and_payload_fails_alone_and_the_pool_grades_the_next() -> None:
    payload = {"answer": "7"}
    right = "<answer>7</answer>"
    with Pool(processes=1) as pool:
        for odd in ODD:
            failed, next_to_it = pool.grade("exact_match", payload, [odd, right])
            assert failed.failed and type(odd).__name__ in failed.reason
            assert next_to_it.reward == 1.0
            if not isinstance(odd, dict):
                [failed] = pool.grade("exact_match", odd, [right])
                assert failed.failed and "give a mapping" in failed.reason
        for odd in (lambda: "7", threading.Lock(), Unreadable()):
            [failed] = pool.grade("exact_match", {**payload, "more": odd}, [right])
            assert failed.failed and "cannot be sent to a process" in failed.reason
            with pytest.raises(DataError):
                pool.grade("exact_match", {"answer": odd}, [right])
        assert pool.grade("exact_match", payload, [right])[0].reward == 1.0


class Raising(Mapping[str, Any]):
    """A mapping that cannot be read."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("not to be read")

    def __iter__(self) -> Any:
        raise RuntimeError("not to be read")

    def __len__(self) -> int:
        return 1


def test_responses_are_a_list_or_what_can_be_read_as_one() -> None:
    payload = {"answer": "7"}
    right = "<answer>7</answer>"
    with Pool(processes=1) as pool:
        for responses in (None, 7, right, right.encode(), {"role": "assistant", "content": right}):
            with pytest.raises(DataError, match="give a list of texts"):
                pool.grade("exact_match", payload, responses)  # type: ignore[arg-type]
        for more in ((text for text in (right, "8")), (right, "8")):
            assert [one.reward for one in pool.grade("exact_match", payload, more)] == [1.0, 0.0]  # type: ignore[arg-type]
        [failed] = pool.grade("exact_match", Raising(), [right])
        assert failed.failed and "cannot be read" in failed.reason
        for name in (None, 7, ["exact_match"], b"exact_match"):
            with pytest.raises(ConfigError, match="name of a verifier"):
                pool.grade(name, payload, [right])  # type: ignore[arg-type]
        rows = [{"verifier": name, "payload": payload, "response": right} for name in (None, {}, "exact_match")]
        assert [one.failed for one in pool.grade_rows(rows)] == [True, True, False]


def test_rows_of_several_prompts_are_graded_in_their_order_and_a_wrong_row_fails_alone() -> None:
    rows: list[Any] = [
        {"verifier": "exact_match", "payload": {"answer": "7"}, "response": "<answer>7</answer>"},
        {"verifier": "exact_match", "payload": {"answer": "8"}, "response": "<answer>7</answer>"},
        {"verifier": "exact_match", "payload": {}, "response": "7"},
        {"verifier": "maths", "payload": {"answer": "7"}, "response": "7"},
        {"response": "7"},
        None,
        {"verifier": "multiple_choice", "payload": {"answer": "C"}, "response": "Answer: C"},
    ]
    with Pool(processes=2) as pool:
        grades = pool.grade_rows(iter(rows))
    assert [one.reward for one in grades] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert [one.failed for one in grades] == [False, False, True, True, True, True, False]
    assert "'maths'" in grades[3].reason and "needs verifier" in grades[5].reason


def test_a_coroutine_waits_for_grades() -> None:
    with Pool(processes=1) as pool:
        [one] = asyncio.run(pool.agrade("exact_match", {"answer": "7"}, ["<answer>7</answer>"]))
    assert one.reward == 1.0


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "2"])
def test_a_number_of_processes_that_is_none_is_refused(number: Any) -> None:
    with pytest.raises(ConfigError, match="whole number from 1"):
        Pool(processes=number)


def test_a_forked_process_is_told_to_make_its_own_pool() -> None:
    with Pool(processes=1) as pool:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                pool.grade("exact_match", {"answer": "7"}, ["7"])
            except ResourceError as error:
                os.write(writer, str(error).encode())
            finally:
                os._exit(0)
        os.close(writer)
        os.waitpid(child, 0)
        with open(reader) as file:
            assert "was forked: make a pool here" in file.read()
