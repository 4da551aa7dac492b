"""Children that score texts: what a hanging, crashing or greedy verifier costs others, and what is left of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from brorl_graders.base.errors import ResourceError
from brorl_graders.base.payload import Deadlines, check_timeout
from brorl_graders.base.verdicts import LATE
from brorl_graders.processes.child_process import BATCH, MAX_ASIDE, ScoringTask
from brorl_graders.processes.process_pool import ProcessPool
from brorl_graders.processes.time_outs import TimeOuts

from graders.tests.support.bad_verifiers import MISBEHAVE, SLOW
from graders.tests.support.names import allow_also

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _named() -> None:
    allow_also(verifiers=[MISBEHAVE, SLOW])


@pytest.fixture
def patient(_named: None) -> Iterator[ProcessPool]:
    pool = ProcessPool(Deadlines(600.0))
    yield pool
    pool.close()


@pytest.fixture
def strict(_named: None) -> Iterator[ProcessPool]:
    pool = ProcessPool(Deadlines(0.5))
    yield pool
    pool.close()


def is_alive(process: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_the_end(process: int) -> bool:
    deadline = time.monotonic() + 60
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(process)


def test_others_are_scored_while_a_verifier_hangs(patient: ProcessPool, tmp_path: Path) -> None:
    payload = {"log": str(tmp_path / "log")}
    with ThreadPoolExecutor(MAX_ASIDE + 1) as threads:
        hanging = [
            threads.submit(patient.score, MISBEHAVE, payload, ["hang", "fine in its batch"]) for _ in range(MAX_ASIDE)
        ]
        assert patient.score(MISBEHAVE, payload, [f"fine {number}" for number in range(2 * BATCH)]) == [1.0] * (
            2 * BATCH
        )
        assert not any(future.done() for future in hanging)
        patient.close()  # which ends what hangs
        assert all(isinstance(future.exception(), ResourceError) for future in hanging)


def test_each_verifier_has_its_own_deadline_and_a_payload_may_say_another(tmp_path: Path) -> None:
    pool = ProcessPool(Deadlines(0.5, {SLOW: 600.0}))
    try:
        assert pool.score(SLOW, {}, ["1"]) == [1.0]
        assert pool.score(SLOW, {"timeout_s": 0.5}, ["3600"]) == [None]
        assert pool.score(MISBEHAVE, {"log": str(tmp_path / "log")}, ["hang"]) == [None]
        assert pool.num_failures == 2
    finally:
        pool.close()


def test_the_parts_of_a_composite_verifier_add_up_and_the_payload_comes_first() -> None:
    deadlines = Deadlines(5, {"code": 20})
    parts = [{"verifier": "format"}, {"verifier": "code"}, {"verifier": "math", "options": {"timeout_s": 2}}]
    assert deadlines.seconds("composite", {"parts": parts}) == 5 + 20 + 2
    assert deadlines.seconds("composite", {"parts": parts, "timeout_s": 60}) == 60
    assert Deadlines(5, {"composite": 9}).seconds("composite", {"parts": parts}) == 9
    assert [deadlines.seconds(name, {}) for name in ("code", "math")] == [20, 5]


@pytest.mark.parametrize("value", [0, -1, "5", True, float("inf"), float("nan")])
def test_a_deadline_that_is_none_is_refused(value: object) -> None:
    (message,) = check_timeout({"timeout_s": value})
    assert repr(value) in message


def test_every_hang_of_a_batch_costs_its_own_text_only(strict: ProcessPool, tmp_path: Path) -> None:
    texts = [("hang" if number % 10 == 3 else "fine") + f" {number}" for number in range(2 * BATCH)]
    scores = strict.score(MISBEHAVE, {"log": str(tmp_path / "log")}, texts)
    assert scores == [None if number % 10 == 3 else 1.0 for number in range(2 * BATCH)]
    assert strict.num_failures == sum(score is None for score in scores)


def test_a_program_that_a_verifier_started_goes_with_it(strict: ProcessPool, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert strict.score(MISBEHAVE, {"log": str(log)}, ["program, then hang"]) == [None]
    assert wait_for_the_end(int(log.read_text()))


def test_a_greedy_verifier_is_replaced(strict: ProcessPool, tmp_path: Path) -> None:
    assert strict.score(MISBEHAVE, {"log": str(tmp_path / "log")}, ["memory", "fine"]) == [None, 1.0]


def test_a_child_that_is_killed_while_it_is_idle_costs_nothing(strict: ProcessPool, tmp_path: Path) -> None:
    payload = {"log": str(tmp_path / "log")}
    assert strict.score(MISBEHAVE, payload, ["fine"]) == [1.0]
    (child,) = strict.child_pids()
    os.kill(child, 9)
    assert wait_for_the_end(child)
    assert strict.score(MISBEHAVE, payload, ["fine 1", "fine 2"]) == [1.0, 1.0]


def test_when_the_fork_server_is_killed_the_next_job_has_another(strict: ProcessPool, tmp_path: Path) -> None:
    payload = {"log": str(tmp_path / "log")}
    assert strict.score(MISBEHAVE, payload, ["fine"]) == [1.0]
    (child,) = strict.child_pids()
    fork_server = int(Path(f"/proc/{child}/stat").read_text().split()[3])
    os.kill(fork_server, 9)
    assert wait_for_the_end(child)
    scores = []
    for _ in range(3):  # the first may still meet the old one
        try:
            scores.append(strict.score(MISBEHAVE, payload, ["fine"]))
        except ResourceError:
            continue
    assert scores[-2:] == [[1.0], [1.0]]


def test_closing_leaves_no_process(tmp_path: Path) -> None:
    pool = ProcessPool(Deadlines(600.0))
    pool.score(MISBEHAVE, {"log": str(tmp_path / "log")}, ["fine"])
    (child,) = pool.child_pids()
    pool.close()
    assert wait_for_the_end(child)
    with pytest.raises(ResourceError, match="closed"):
        pool.score(MISBEHAVE, {}, ["fine"])


# SymPy takes minutes for it
ENDLESS = "\\int_0^\\infty \\frac{\\sin(x^2)\\ln(x)}{1+x^4}dx"


def test_a_reference_that_does_not_end_fails_all_of_its_responses_by_one_trial_and_no_other_prompt(
    strict: ProcessPool,
) -> None:
    texts = [f"It is \\boxed{{x^{number}+1}}." for number in range(2, 2 * BATCH)]
    for _ in range(2):
        verdicts = strict.judge("math", {"answer": ENDLESS}, texts)
        assert {verdicts.is_own(index) for index in range(len(texts))} == {True}
        assert all("so the payload is to blame" in reason for reason in verdicts.reasons.values())
    assert strict.num_failures == 2 * len(texts)
    assert strict.score("math", {"answer": "7"}, ["\\boxed{7}", "\\boxed{8}"]) == [1.0, 0.0]


def test_a_reference_that_takes_long_to_read_fails_none_of_its_responses(patient: ProcessPool) -> None:
    texts = [f"It is \\boxed{{x^{number}+1}}." for number in range(2, 3 * BATCH)]
    verdicts = patient.judge("math", {"answer": "\\sum_{k=1}^{2024} k\\cdot k!"}, texts)
    assert verdicts.scores == [0.0] * len(texts)
    assert patient.num_failures == 0


def test_an_answer_that_does_not_end_fails_alone(patient: ProcessPool) -> None:
    payload = {"answer": "x+7", "form": "any", "timeout_s": 2}
    slow = [f"{words} \\boxed{{{ENDLESS}}}" for words in ("It is", "So it is", "Thus it is", "Hence it is")]
    verdicts = patient.judge("math", payload, [*slow, "\\boxed{7+x}"])
    assert verdicts.scores == [None, None, None, None, 1.0]
    assert verdicts.of_response == {0, 1, 2, 3}


def test_an_answer_that_was_late_is_known_in_other_words_and_to_another_question_not() -> None:
    known = TimeOuts()
    texts = ["It is \\boxed{x+7}.", "So it is \\boxed{x + 7}.", "It is \\boxed{x+8}."]
    task, other = (ScoringTask("math", {"answer": answer}, texts, 10.0) for answer in ("1", "2"))
    assert known.needs_trial(task)
    trial = known.begin_trial(task)
    assert known.is_on_trial(task) and not known.needs_trial(task)
    known.add(task, 0)
    known.end_trial(trial, "", 2.0)
    assert [known.reason(task, index) for index in range(3)] == [(f"{LATE} 10 s", False)] * 2 + [None]
    assert [known.reason(other, index) for index in range(3)] == [None] * 3
    assert (known.reading_s(task), known.reading_s(other)) == (2.0, 0.0)


def test_a_function_that_is_late_for_every_response_is_not_tried_on_all_of_them(strict: ProcessPool) -> None:
    verdicts = strict.judge(SLOW, {}, ["3600"] * 4 * MAX_ASIDE)
    assert set(verdicts.scores) == {None}
    assert any("scored none" in reason for reason in verdicts.reasons.values())
    assert strict.score(SLOW, {}, ["0"]) == [1.0]
