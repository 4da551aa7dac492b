"""Agents as the backend has them: their first request is the prompt, and many wait in one process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from brorl_graders.environments.host import EpisodeHost, HostLimits
from brorl_graders.environments.protocol import EpisodeStep

from graders.tests.support.agents import PLACE
from graders.tests.support.names import allow_also
from nemo_brorl.config.data import DataConfig
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.prompts.sources import make_source
from nemo_brorl.prompts.stream import PromptStream
from nemo_brorl.scoring.turn_tokens import check_environment
from tests.support.names import allow_source
from tests.support.source_tree import ROOT
from tests.unit.scoring.test_turn_tokens import turns

pytestmark = pytest.mark.slow

OURS = load_tokenizer(ROOT / "models" / "sums")


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
    stream = prompts("use_tool", "qwen2.5")
    (prompt,) = stream.take_prompts(1)
    text = stream.tokenizer.backend.decode(list(prompt.token_ids), skip_special_tokens=False)
    assert '"name": "add"' in text
    assert text.endswith("2 + 3 =<|im_end|>\n<|im_start|>assistant\n")
    json.dumps(prompt.payload)
    with pytest.raises(ModelError, match="has no place for tools"):
        prompts("use_tool", None).take_prompts(1)


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
