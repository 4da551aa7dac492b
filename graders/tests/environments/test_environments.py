"""The environments of the package, played in their processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any, ClassVar

import pytest
from brorl_graders.base.errors import ConfigError
from brorl_graders.environments.child import read_outcome
from brorl_graders.environments.episode_process import Batch, EpisodeProcesses, Kind, Turn
from brorl_graders.environments.judged import VerifyAndRetry
from brorl_graders.environments.mastermind import Mastermind
from brorl_graders.environments.protocol import Action, EpisodeOutcome, EpisodeStep
from brorl_graders.environments.registry import make_environment
from brorl_graders.environments.tool_calls import ANY_FORMAT
from brorl_graders.processes.fork_server import ForkServer

from graders.tests.support.names import allow_also

SUM = {"text": "2 + 2 =", "verifier": "exact_match", "payload": {"answer": "4"}}
RIGHT, WRONG = "<answer>4</answer>", "<answer>5</answer>"
TRAITS = "brorl_graders.environments.registry:find_traits"
PLAYED = (
    ("verify_and_retry", {}),
    ("verify_and_retry", {"feedback": "No: {question}", "retry_discount": 0.5}),
    ("verify_and_retry", {"retry_discount": 0.5}),
    ("verify_and_retry", {"max_turns": 1}),
    ("calculator", {}),
    ("calculator", {"max_turns": 3}),
    ("python", {}),
    ("python", {"seconds": 0.5}),
)


@pytest.fixture(scope="module")
def processes() -> Iterator[EpisodeProcesses]:
    allow_also(environments=PLAYED)
    fork_server = ForkServer()
    yield EpisodeProcesses(fork_server, 2, (8000, ANY_FORMAT))
    fork_server.close()


def play(
    processes: EpisodeProcesses, name: str, task: dict[str, Any], *actions: str, **settings: Any
) -> list[EpisodeOutcome]:
    """Play one episode in a process of its own, and return the outcome of each turn."""
    is_open, is_async, *_ = processes.fork_server.call_function(TRAITS, (name, task))
    episode = f"{name} {actions} {settings}"
    process = processes.find_free(Kind(name, is_open, is_async, owner=episode))
    assert process is not None
    outcomes = []
    for number in range(1, len(actions) + 1):
        step = EpisodeStep(episode, name, settings, task, 0, actions[:number])
        process.send_turn(number, Turn(step, Batch([None], 1), 0, seconds=20.0))
        raw = None
        while raw is None:
            wait([process.channel])
            raw = process.channel.receive()
        answered, outcome = read_outcome(raw)
        assert answered == number
        outcomes.append(outcome)
    processes.end(process)
    return outcomes


def call(tool: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def told(outcome: EpisodeOutcome) -> list[str]:
    return [message["content"] for message in outcome.observation]


def test_a_wrong_answer_may_be_tried_again(processes: EpisodeProcesses) -> None:
    told_more = {"feedback": "No: {question}", "retry_discount": 0.5}
    first, second = play(processes, "verify_and_retry", SUM, WRONG, RIGHT, **told_more)
    assert (first.observation, first.reward) == (({"role": "user", "content": "No: 2 + 2 ="},), 0.0)
    assert (second.has_ended, second.truncated, second.reward) == (True, False, 0.5)
    (at_once,) = play(processes, "verify_and_retry", SUM, RIGHT, retry_discount=0.5)
    assert at_once.reward == 1.0
    assert play(processes, "verify_and_retry", SUM, WRONG, WRONG)[1].reward == 0.0
    assert play(processes, "verify_and_retry", SUM, WRONG, max_turns=1)[0].has_ended


def test_an_answer_that_rounding_keeps_a_millionth_below_one_is_right() -> None:
    class Rounding(VerifyAndRetry):
        def score(self, text: str) -> float:
            return 0.9999995

    step = Rounding(max_turns=2, retry_discount=0.5).step(Action("4"))
    assert (step.terminated, step.reward) == (True, 0.9999995)


def test_a_wrong_answer_may_be_tried_again_though_retries_earn_nothing() -> None:
    class Wrong(VerifyAndRetry):
        question: ClassVar = SUM

        def score(self, text: str) -> float:
            return 0.0

    environment = Wrong(max_turns=3, retry_discount=0.0)
    assert [environment.step(Action("5")).terminated for _ in range(3)] == [False, False, True]


def test_a_librarys_scorer_judges_behind_walls_in_a_process_of_its_task(processes: EpisodeProcesses) -> None:
    entry = {"question": "2 + 2 =", "answer": "4", "metadata": {"source_dataset": "chain_sum"}}
    payload = {**entry, "dataset": "chain_sum", "config": {}}
    task = {"text": "2 + 2 =", "verifier": "reasoning_gym", "payload": payload}
    outcomes = play(processes, "verify_and_retry", task, WRONG, RIGHT)
    assert [outcome.error for outcome in outcomes] == ["", ""]
    assert outcomes[1].reward == 1.0


def test_the_calculator_is_exact_and_its_results_are_tool_messages(processes: EpisodeProcesses) -> None:
    two = call("calculator", expression="2 * (3 + 4)") + call("calculator", expression="1/3")
    first, wrong, last = play(processes, "calculator", SUM, two, call("calculator", expression="import os"), RIGHT)
    assert told(first) == ["14", "1/3"]
    assert {message["role"] for message in first.observation} == {"tool"}
    assert told(wrong) == ["error: that is no arithmetic expression"]
    assert (last.reward, last.has_ended) == (1.0, True)


def test_a_malformed_call_is_told_and_counted_and_takes_a_turn(processes: EpisodeProcesses) -> None:
    turns = ["<tool_call>2 + 2</tool_call>", call("abacus"), call("calculator", expression=3)]
    outcomes = play(processes, "calculator", SUM, *turns, max_turns=3)
    assert [outcome.info for outcome in outcomes] == [{"tool_error": True}] * 3
    assert told(outcomes[0])[0].startswith("error: the tool call '2 + 2' is not JSON")
    assert told(outcomes[1]) == ["error: there is no tool 'abacus', there is calculator"]
    assert (outcomes[2].has_ended, outcomes[2].truncated) == (True, True)


def test_python_keeps_names_between_calls_of_an_episode_and_nothing_else(processes: EpisodeProcesses) -> None:
    turns = [
        call("python", code="a = 20\nprint('set')"),
        call("python", code="a += 1\na * 2"),
        call("python", code="a = 0\n1 / 0"),
        call("python", code="print(a)"),
        RIGHT,
    ]
    outcomes = play(processes, "python", SUM, *turns)
    assert [told(outcome) for outcome in outcomes[:4]] == [
        ["set\n"],
        ["42\n"],
        ["ZeroDivisionError: division by zero\n\nerror: failed"],
        ["21\n"],
    ]
    assert outcomes[4].reward == 1.0
    looks = call("python", code="print('a' in globals(), __import__('os').listdir('.'))")
    (other,) = play(processes, "python", SUM, looks)
    assert told(other) == ["False []\n"]


def test_python_that_does_not_end_is_told_so(processes: EpisodeProcesses) -> None:
    hanging = call("python", code="while True: pass")
    first, second = play(processes, "python", SUM, hanging, call("python", code="6 * 7"), seconds=0.5)
    assert told(first) == ["error: timed out"]
    assert told(second) == ["42\n"]


def test_mastermind_counts_letters_in_place_and_elsewhere() -> None:
    game = Mastermind(length=4, num_letters=6, max_turns=4, consolation=0.5)
    assert "ABCDEF" in str(game.reset({"secret": "AABC"}, 0))
    said = [game.step(Action(f"<answer>{guess}</answer>")) for guess in ("ABAD", "A A B C D")]
    assert [step.observation for step in said] == [
        "1 in place, 2 elsewhere.",
        "That is no guess: write 4 of the letters ABCDEF in <answer> tags.",
    ]
    won = game.step(Action("<answer>a a b c</answer>"))
    assert (won.reward, won.terminated) == (1.0, True)
    lost = game.step(Action("<answer>AADD</answer>"))
    assert (lost.reward, lost.terminated) == (0.25, True)


def test_codes_are_drawn_with_their_seed() -> None:
    secrets = [Mastermind(length=3, num_letters=2).task(seed)["secret"] for seed in range(100)]
    assert secrets[0] == Mastermind(length=3, num_letters=2).task(0)["secret"]
    assert len(set(secrets)) == 8


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mastermind", {"num_letters": 99}, "num_letters=99.*2 to 10 letters"),
        ("verify_and_retry", {"max_turns": 0}, "max_turns=0: set 1 or more"),
    ],
)
def test_a_setting_out_of_range_is_said(name: str, settings: dict[str, Any], message: str) -> None:
    allow_also(environments=[(name, settings)])
    with pytest.raises(ConfigError, match=message):
        make_environment(name, settings)


def test_what_needs_questions_says_so() -> None:
    allow_also(environments=[("calculator", {})])
    with pytest.raises(ConfigError, match="Calculator draws no tasks of its own"):
        make_environment("calculator", {}).task(0)
    with pytest.raises(ConfigError, match="needs questions that a verifier scores"):
        make_environment("calculator", {}).reset({"secret": "A"}, 0)
