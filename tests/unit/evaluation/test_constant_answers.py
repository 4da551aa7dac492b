"""Constants that a task pays for are named before a run starts; what the answer's frequency explains is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brorl_graders.answers import is_reference
from brorl_graders.grading import Pool

from graders.tests.support.bad_verifiers import MISBEHAVE
from graders.tests.support.names import allow_also
from nemo_brorl.config.data import SourceConfig, TaskConfig
from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.core.errors import DataError
from nemo_brorl.evaluation.constant_answers import CONSTANTS, check_constants, paid_constants
from nemo_brorl.prompts.questions import Question

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    allow_also(verifiers=[MISBEHAVE])
    made = Pool(60.0)
    yield made
    made.close()


def question(verifier: str, **payload: Any) -> Question:
    return Question("toy", verifier, "?", payload)


def test_there_are_twenty_different_constants() -> None:
    assert len(set(CONSTANTS)) == len(CONSTANTS) == 20


def test_a_task_that_pays_for_one_answer_is_named(pool: Pool) -> None:
    either = [{"verifier": "exact_match"}, {"verifier": "exact_match", "options": {"answer": "0"}, "weight": 3}]
    asked = [question("composite", answer=str(number), parts=either) for number in (5, 6, 7, 0)]
    (paid,) = paid_constants([asked], pool, max_reward=0.5)
    assert (paid.constant, paid.expected, paid.num_questions) == ("0", 0.25, 4)
    assert paid.reward == (0.75 + 0.75 + 0.75 + 1.0) / 4
    assert str(paid) == "toy pays 0.81 on average for the answer '0', which is right for 25% of 4 questions"
    assert paid_constants([asked], pool, max_reward=0.57) == []


def test_a_task_of_yes_and_no_is_not(pool: Pool) -> None:
    asked = [question("exact_match", answer=answer) for answer in ("yes", "yes", "yes", "no")]
    letters = [question("multiple_choice", answer=0, choices=["Rome", "Oslo"]) for _ in range(4)]
    numbers = [question("math", answer="1"), question("math", answer="0")]
    assert paid_constants([asked, letters, numbers], pool, max_reward=0.1) == []


def test_what_has_no_answer_is_passed_over(pool: Pool) -> None:
    any_text = question("instruction_following", instruction_id_list=["punctuation:no_comma"], kwargs=[{}])
    own = question("composite", answer="1", parts=[{"verifier": MISBEHAVE}, {"verifier": "exact_match"}])
    assert paid_constants([[any_text], [], [own]], pool, max_reward=0.0) == []


def test_a_reference_is_a_text_or_an_options_letter_or_number() -> None:
    payload = {"answer": 1, "choices": ["Rome", "Oslo"]}
    assert [constant for constant in CONSTANTS if is_reference(payload, constant)] == ["1", "2"]
    assert is_reference({"answer": "Oslo", "choices": ["Rome", "Oslo", "Oslo city"]}, "B")
    assert is_reference({"answer": ["Yes", "yeah"]}, "yes")
    assert not is_reference({"answer": None}, "None")


def test_the_settings_warn_refuse_or_look_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "2+2?", "answer": "4"}\n{"prompt": "1+2?", "answer": "3"}\n', encoding="utf-8")
    always = {"mode": "sum", "parts": [{"verifier": "exact_match", "options": {"answer": "24"}}]}
    source = SourceConfig(source="jsonl", path=str(path), verifier="composite", verifier_options=always)
    settings = RewardsConfig()
    (paid,) = check_constants([source], settings)
    assert paid.constant == "24"
    settings.constant_answers = "refuse"
    with pytest.raises(DataError, match="pays 1.00 on average for the answer '24'.*rewards.constant_answers=warn"):
        check_constants([source], settings)
    settings.constant_answers = "off"
    assert check_constants([source], settings) == []


def test_generated_tasks_are_tried_one_by_one_until_the_time_is_spent() -> None:
    source = SourceConfig(source="reasoning_gym", tasks=[TaskConfig("coin_flip"), TaskConfig("no_such_task")])
    assert check_constants([source], RewardsConfig(), budget_s=-0.0) == []
