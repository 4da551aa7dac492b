"""Every task of the installed Reasoning Gym: it loads, renders, scores its own answer as right and an empty one not,
and repeats itself.

The lists of exceptions are exact: a task that gets better upstream fails here too, and is then taken off its list.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from brorl_graders.base.payload import SUCCESS_REWARD
from brorl_graders.verifiers import reasoning_gym
from tokenizers import Tokenizer, models

from nemo_brorl.config.data import TaskConfig
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.prompts.questions import Question
from nemo_brorl.prompts.reasoning_gym import HASH_ORDERED, ReasoningGymSource

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of tasks that parse an empty answer
]

NUM_QUESTIONS = 2
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# Tasks that write no answer into their questions; these three have one among what the scorer reads ...
ANSWER_IN_METADATA: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "graph_color": lambda metadata: json.dumps(metadata["possible_answer"]),
    "propositional_logic": lambda metadata: str(metadata["example_answer"]),
    "rubiks_cube": lambda metadata: str(metadata["example_correct_answer"]),
}
# ... and these have none: they can be trained on, but the warm-up has nothing to imitate.
WITHOUT_ANSWER = {
    "boxnet": "any plan of moves is simulated; the task does not look for one itself",
    "rush_hour": "any sequence of moves is simulated; the task does not solve its board",
}

PRINT_DIGESTS = (
    "import json, sys; from tests.unit.prompts.test_reasoning_gym_tasks import digests; print('\\n' + "
    "json.dumps(digests(sys.argv[1:])))"
)


def task_names() -> list[str]:
    from reasoning_gym.factory import DATASETS

    return sorted(set(DATASETS) - {"composite"})  # refused by name: data.tasks is one


@cache
def questions(name: str) -> tuple[Question, ...]:
    source = ReasoningGymSource([TaskConfig(name)], 0.1, "train", seed=1)
    return tuple(source.question(index) for index in range(NUM_QUESTIONS))


def digests(names: list[str]) -> dict[str, str]:
    """A hash of each task's questions and payloads."""
    written = {
        name: json.dumps([[item.text, dict(item.payload)] for item in questions(name)], sort_keys=True)
        for name in names
    }
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in written.items()}


def digests_elsewhere(names: list[str]) -> dict[str, str]:
    """The same in another process, with another hash of texts."""
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [sys.executable, "-W", "ignore", "-c", PRINT_DIGESTS, *names]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return dict(json.loads(printed.splitlines()[-1]))


def own_answer(name: str, question: Question) -> str | None:
    if name in ANSWER_IN_METADATA:
        return ANSWER_IN_METADATA[name](question.payload["metadata"])
    return question.payload["answer"]


def complaints(name: str, tokenizer: ChatTokenizer) -> Iterator[str]:
    for question in questions(name):
        if tokenizer.render(question.text) != f"<|user|>{question.text}<|end|><|assistant|>":
            yield f"{name}: the template does not render {question.text[:80]!r}"
        if json.loads(json.dumps(question.payload)) != question.payload:
            yield f"{name}: the payload is not JSON"
        answer = own_answer(name, question)
        if answer is None and name not in WITHOUT_ANSWER:
            yield f"{name}: no answer"
        if answer is not None and reasoning_gym.score(question.payload, f"<answer>{answer}</answer>") < SUCCESS_REWARD:
            yield f"{name}: its own answer {answer!r} is not right"
        if any(
            reasoning_gym.score(question.payload, empty) >= 0.1
            for empty in ("", "<answer></answer>", "<answer> </answer>")
        ):
            yield f"{name}: an empty answer earns something"


def test_every_task_loads_renders_and_scores_its_own_answer_as_right_and_an_empty_one_not() -> None:
    tokenizer = ChatTokenizer(Tokenizer(models.WordLevel({"?": 0}, unk_token="?")), TEMPLATE, {})
    names = task_names()
    assert len(names) > 100
    assert [complaint for name in names for complaint in complaints(name, tokenizer)] == []


def test_the_tasks_without_answers_are_those_listed() -> None:
    without = {name for name in (*WITHOUT_ANSWER, *ANSWER_IN_METADATA) if questions(name)[0].payload["answer"] is None}
    assert without == {*WITHOUT_ANSWER, *ANSWER_IN_METADATA}


def test_questions_are_the_same_in_another_process_but_for_the_tasks_listed() -> None:
    names = [
        name for name in task_names() if name != "codeio"
    ]  # draws from Python's global random: not even in the same process
    here, there = digests(names), digests_elsewhere(names)
    assert {name for name in names if here[name] != there[name]} <= set(HASH_ORDERED)
    assert digests_elsewhere(list(HASH_ORDERED)) == {
        name: there[name] for name in HASH_ORDERED
    }  # PYTHONHASHSEED makes them repeat
