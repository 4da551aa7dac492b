"""Agents by OpenAI's client: what they ask is observed, what the model says is their answer, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from brorl_graders.environments import tool_calls
from brorl_graders.environments.agent import Agent, AgentError, result_in
from brorl_graders.environments.endpoint import RequestError, open_conversation
from brorl_graders.environments.protocol import Action, EpisodeStep, Step, TurnSize
from brorl_graders.environments.registry import make

from nemo_brorl.config.data import DataConfig
from nemo_brorl.core.errors import ConfigError, ModelError
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.prompts.sources import make_source
from nemo_brorl.prompts.stream import PromptStream
from nemo_brorl.scoring.host import EpisodeHost, HostLimits
from nemo_brorl.scoring.turn_tokens import check_environment
from tests.support.agents import ADD, PLACE
from tests.support.names import allow_also, allow_source
from tests.support.source_tree import ROOT
from tests.unit.scoring.test_turn_tokens import QWEN25, turns

pytestmark = pytest.mark.slow

OURS = load_tokenizer(ROOT / "models" / "sums")
QUESTION = {"text": "2 + 2 =", "verifier": "exact_match", "payload": {"answer": "4"}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
GO = {"role": "user", "content": "go"}
WELL = {"role": "assistant", "content": "well"}


def played(name: str, actions: Sequence[Action], module: str = PLACE, **task: Any) -> tuple[Any, list[Step]]:
    """First observation, and the steps until the agent's end."""
    settings = {"run": module + name}
    allow_also(environments=[("agent", settings)])

    async def play() -> tuple[Any, list[Step]]:
        agent = make("agent", settings)
        assert isinstance(agent, Agent)
        try:
            first = await agent.reset(task, 7)
            steps = [await agent.step(action) for action in actions]
        finally:
            agent.close()
        return first, steps

    return asyncio.run(play())


def test_requests_are_observations_and_the_models_turns_are_their_answers() -> None:
    first, steps = played("count", [Action("ab"), Action("cde")], turns=2)
    assert first == ({"role": "system", "content": "Count."}, {"role": "user", "content": "1"})
    assert steps[0] == Step(({"role": "user", "content": "2 after ab"},))
    assert steps[1] == Step(reward=5.0, terminated=True)


def test_a_function_that_blocks_has_a_thread_of_its_own() -> None:
    before = threading.active_count()
    first, steps = played("count_in_a_thread", [Action("ab"), Action("cde")], turns=2)
    assert first == ({"role": "user", "content": "1"},)
    assert [step.reward for step in steps] == [0.0, 5.0]
    played("count_in_a_thread", [], turns=2)  # given up while it waits
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() == before


def test_a_command_finds_the_endpoint_in_its_environment() -> None:
    async def play() -> list[Step]:
        agent = Agent(command=f"{sys.executable} {ROOT / 'examples' / 'agent.py'}")
        assert await agent.reset(QUESTION, 0) == ({"role": "user", "content": "2 + 2 ="},)
        steps = [await agent.step(Action(f"<answer>{number}</answer>")) for number in (5, 4)]
        agent.close()
        return steps

    assert asyncio.run(play()) == [Step(({"role": "user", "content": "No."},)), Step(reward=1.0, terminated=True)]


def test_the_last_line_of_a_command_is_its_result() -> None:
    assert result_in('thinking\n{"reward": 0.5}\n') == 0.5
    assert result_in('{"answer": "4"}') == "4"
    assert result_in("42") is result_in("") is result_in("{") is None


def test_an_answer_or_nothing_is_scored_by_the_questions_verifier() -> None:
    answer = "<answer>4</answer>"
    _, (step,) = played("stream", [Action(answer)], **QUESTION)
    assert step == Step(reward=1.0, terminated=True)
    with pytest.raises(ValueError, match="has no verifier that scores"):
        played("stream", [Action(answer)])


def test_calls_of_tools_reach_the_agent_as_calls() -> None:
    calls = tool_calls.parse(CALL, "hermes", [ADD])
    turns = [Action(f"I add. {CALL}", calls), Action("5", size=TurnSize(10, 1, False))]
    first, steps = played("use_tool", turns)
    assert first == ({"role": "user", "content": "2 + 3 ="},)
    assert steps[0] == Step(({"role": "tool", "content": "5", "tool_call_id": "call_0_0"},))
    assert steps[1] == Step(reward=1.0, terminated=True)


def test_a_call_that_is_wrong_stays_text_and_is_counted() -> None:
    _, (step,) = played("use_tool", [Action("<tool_call>5", tool_error="it is not JSON")])
    assert step == Step(reward=0.0, terminated=True, info={"tool_error": True})


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"messages": [GO]}, "message 1 was {.*well.*} and is gone: every request repeats"),
        ({"messages": [GO, {**WELL, "content": "bad"}, GO]}, "message 1 was .*well.* and is now .*bad"),
        ({"messages": [{**GO, "content": "stop"}, WELL, GO]}, "message 0 was .*go.* and is now .*stop"),
        ({"messages": [GO, WELL]}, "the last message is the assistant's"),
        ({"messages": [GO, WELL, WELL, GO]}, "that the model has not written"),
        ({"messages": []}, "a list of messages"),
        ({"messages": [GO, WELL, {"role": "user", "content": [{"type": "image_url"}]}]}, "is no text"),
        ({"messages": [GO, WELL, {"role": "fool", "content": ""}]}, "roles system, developer"),
        ({"tools": [ADD]}, "the tools are others"),
        ({"n": 2}, "n=2 cannot be had from a model in training: leave it out"),
        ({"stop": ["."]}, "stop="),
        ({"logprobs": True}, "logprobs=True"),
        ({"tool_choice": "required"}, "tool_choice="),
    ],
)
def test_what_does_not_continue_the_conversation_is_refused(second: dict[str, Any], reason: str) -> None:
    with pytest.raises(AgentError, match=f"(?s)BadRequestError: Error code: 400.*{reason}"):
        played("ask_as_told", [Action("well")], request=second)


def test_what_says_how_to_sample_is_passed_over() -> None:
    more = {"temperature": 0, "max_tokens": 5, "seed": 3, "tool_choice": "auto", "n": 1}
    _, steps = played("ask_as_told", [Action("well"), Action("4")], request=more, **QUESTION)
    assert steps[-1].terminated


def test_two_requests_at_once_are_refused_and_a_repeated_one_shares_the_answer() -> None:
    async def repeat() -> list[Any]:
        conversation = await open_conversation()
        asked = [asyncio.create_task(conversation.ask({"messages": [GO]})) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="waits for its answer: ask one after the other"):
            await conversation.ask({"messages": [WELL, GO]})
        conversation.answer(Action("well", size=TurnSize(12, 5, True)))
        answers = [answer for _, answer in await asyncio.gather(*asked)]
        conversation.close()
        return answers

    first, second = asyncio.run(repeat())
    assert first == second
    assert first["choices"][0]["finish_reason"] == "length"
    assert first["usage"] == {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}


def test_another_token_is_refused() -> None:
    _, (step,) = played("pretend", [Action("well")])
    assert step.reward == 1.0


def test_the_endpoint_listens_on_loopback_only_while_it_is_needed() -> None:
    async def look() -> tuple[int, list[str], int]:
        conversation = await open_conversation()
        server = conversation.server
        assert server._listening is not None
        hosts = [end.getsockname()[0] for end in server._listening.sockets]
        async with httpx.AsyncClient() as client:
            without = await client.post(f"{server.base_url}/chat/completions", json={"messages": [GO]})
        conversation.close()
        async with httpx.AsyncClient() as client:
            try:
                await client.get(f"{server.base_url}/models")
            except httpx.ConnectError:
                return without.status_code, hosts, 0
        return without.status_code, hosts, 1

    assert asyncio.run(look()) == (401, ["127.0.0.1"], 0)


def test_what_an_agent_raises_is_the_reason_and_not_its_token() -> None:
    with pytest.raises(AgentError, match="LookupError: my key is …"):
        played("tell_the_token", [Action("well")])
    with pytest.raises(AgentError, match="SystemExit: 3"):
        played("exit_early", [Action("well")])
    with pytest.raises(AgentError, match="ended without asking"):
        played("say_nothing", [])


def test_the_pages_agent_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    _, source = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "page_agent.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    _, steps = played("run", [Action("5"), Action("4")], module="page_agent:", **QUESTION)
    assert steps == [Step(({"role": "user", "content": "No."},)), Step(reward=1.0, terminated=True)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "write either run, package.module:function, or command"),
        ({"run": PLACE + "count", "command": "true"}, "write either run"),
        ({"run": PLACE + "nobody"}, "cannot be imported"),
        ({"run": PLACE + "count", "max_turns": 0}, "write 1 or more"),
        ({"run": PLACE + "count", "turns": 3}, "turns"),
    ],
)
def test_what_is_wrong_with_the_settings_is_one_message(settings: dict[str, Any], message: str) -> None:
    allow_also(environments=[("agent", settings)])
    with pytest.raises(ConfigError, match=message):
        make("agent", settings)


def prompts(name: str, template: str | None) -> PromptStream:
    chosen = turns(template)[0] if template else OURS
    own = DataConfig(
        source="environment", environment=PLACE + "Tasks", environment_settings={"run": PLACE + name},
        max_prompt_tokens=2000, held_out_fraction=0.0,
    )  # fmt: skip
    allow_source(own)
    check_environment(own, chosen)
    return PromptStream(make_source(own, "train", 0), chosen, own)


def test_the_first_request_is_the_prompt_with_the_tools_it_names() -> None:
    assert QWEN25
    stream = prompts("use_tool", "qwen2.5")
    (prompt,) = stream.take(1)
    text = stream.tokenizer.backend.decode(list(prompt.token_ids), skip_special_tokens=False)
    assert '"name": "add"' in text
    assert text.endswith("2 + 3 =<|im_end|>\n<|im_start|>assistant\n")
    json.dumps(prompt.payload)
    with pytest.raises(ModelError, match="has no place for tools"):
        prompts("use_tool", None).take(1)


@pytest.fixture(scope="module")
def host() -> Iterator[EpisodeHost]:
    runs = ("count", "tell_the_token", "exit_early", "count_in_a_thread")
    allow_also(environments=[("agent", {"run": PLACE + run}) for run in runs])
    host = EpisodeHost(HostLimits(step_s=60.0))
    yield host
    host.close()


def turn(episode: str, *actions: str, run: str = "count", **task: Any) -> EpisodeStep:
    return EpisodeStep(episode, "agent", {"run": PLACE + run}, {"turns": 3, **task}, 7, actions)


def test_many_agents_wait_in_one_process_and_those_of_a_lost_one_are_started_again(host: EpisodeHost) -> None:
    names = [str(number) for number in range(12)]
    first = host.step([turn(name, "a" * int(name)) for name in names])
    assert [outcome.observation[0]["content"] for outcome in first[:2]] == ["2 after ", "2 after a"]
    assert len(host.process_ids()) <= 2
    for process in host.process_ids():
        os.kill(process, 9)
    deadline = time.monotonic() + 10
    while host.process_ids() and time.monotonic() < deadline:
        time.sleep(0.01)
    second = host.step([turn(name, "a" * int(name), "b") for name in names])
    assert {outcome.error for outcome in second} == {""}
    third = host.step([turn(name, "a" * int(name), "b", "c") for name in names])
    assert [outcome.reward for outcome in third] == [float(int(name) + 2) for name in names]
    assert all(outcome.has_ended for outcome in third)


def test_an_agent_that_fails_costs_its_own_trajectory(host: EpisodeHost) -> None:
    runs = ["tell_the_token", "exit_early", "count_in_a_thread"]
    outcomes = host.step([turn(run, "well", run=run) for run in runs])
    reasons = [outcome.error for outcome in outcomes]
    assert reasons == [
        "AgentError: LookupError: my key is …",
        "AgentError: SystemExit: 3",
        "",
    ]
