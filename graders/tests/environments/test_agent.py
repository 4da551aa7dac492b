"""Agents that use OpenAI's client: their requests are observations, and the model's turns answer them."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from brorl_graders.base.errors import ConfigError
from brorl_graders.environments import tool_calls
from brorl_graders.environments.agent import Agent, AgentError, read_result
from brorl_graders.environments.endpoint import ModelEndpoint, RequestError, open_conversation
from brorl_graders.environments.protocol import Action, Step, TurnSize
from brorl_graders.environments.registry import make_environment

from graders.tests.support.agents import ADD, PLACE
from graders.tests.support.names import allow_also
from graders.tests.support.play import agent_played

pytestmark = pytest.mark.slow

QUESTION = {"text": "2 + 2 =", "verifier": "exact_match", "payload": {"answer": "4"}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
GO = {"role": "user", "content": "go"}
WELL = {"role": "assistant", "content": "well"}


def played(name: str, actions: Sequence[Action], **task: Any) -> tuple[Any, list[Step]]:
    return agent_played({"run": PLACE + name}, actions, task)


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


def test_the_last_line_of_a_command_is_its_result() -> None:
    assert read_result('thinking\n{"reward": 0.5}\n') == 0.5
    assert read_result('{"answer": "4"}') == "4"
    assert read_result("42") is read_result("") is read_result("{") is None


FLOOD = """
import asyncio, resource, shlex, sys
from brorl_graders.environments.agent import Agent, ModelEndpoint
many = "import sys; [sys.stdout.write('x' * (1 << 20)) for _ in range(300)]; sys.stderr.write('y' * (1 << 25))"
command = [sys.executable, "-c", many + "; print(); print('{\\"reward\\": 0.5}')"]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
agent = Agent(command=shlex.join(command))
reward = asyncio.run(agent._run_command({}, ModelEndpoint("http://127.0.0.1:1/v1", "key")))
print(reward, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def test_a_command_that_prints_without_end_takes_little_memory_and_its_last_line_counts() -> None:
    done = subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, text=True, check=True)
    reward, mebibytes = done.stdout.split()
    assert reward == "0.5"
    assert int(mebibytes) < 100


def test_the_end_of_what_a_command_complains_is_its_reason() -> None:
    agent = Agent(command=shlex.join([sys.executable, "-c", "import sys; sys.exit('a' * 10_000_000 + 'z' * 1000)"]))
    with pytest.raises(AgentError, match="^exit code 1: z{1000}$"):
        asyncio.run(agent._run_command({}, ModelEndpoint("http://127.0.0.1:1/v1", "key")))


def test_a_request_that_is_too_deep_is_a_bad_request() -> None:
    deep = "[" * 100_000
    calls = [{"id": "1", "function": {"name": "f", "arguments": deep}}]
    bodies = (deep, json.dumps({"messages": [{"role": "assistant", "tool_calls": calls}]}), "{", "null")

    async def ask() -> list[int]:
        conversation = await open_conversation()
        headers = {"Authorization": f"Bearer {conversation.token}", "Content-Type": "application/json"}
        async with httpx.AsyncClient(headers=headers, trust_env=False) as client:
            url = f"{conversation.server.base_url}/chat/completions"
            answers = [await client.post(url, content=body) for body in bodies]
        conversation.close()
        return [answer.status_code for answer in answers]

    assert asyncio.run(ask()) == [400] * 4


def test_an_answer_or_nothing_is_scored_by_the_questions_verifier() -> None:
    answer = "<answer>4</answer>"
    _, (step,) = played("stream", [Action(answer)], **QUESTION)
    assert step == Step(reward=1.0, terminated=True)
    with pytest.raises(ValueError, match="has no verifier that scores"):
        played("stream", [Action(answer)])


def test_calls_of_tools_reach_the_agent_as_calls() -> None:
    calls = tool_calls.parse_calls(CALL, "hermes", [ADD])
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "set either run, package.module:function, or command"),
        ({"run": PLACE + "count", "command": "true"}, "set either run"),
        ({"run": PLACE + "nobody"}, "cannot be imported"),
        ({"run": PLACE + "count", "max_turns": 0}, "set 1 or more"),
        ({"run": PLACE + "count", "turns": 3}, "turns"),
    ],
)
def test_what_is_wrong_with_the_settings_is_one_message(settings: dict[str, Any], message: str) -> None:
    allow_also(environments=[("agent", settings)])
    with pytest.raises(ConfigError, match=message):
        make_environment("agent", settings)
