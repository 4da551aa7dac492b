"""Environments of the library `verifiers`: their loop, their dataset, their rubric's reward."""

from __future__ import annotations

import asyncio
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from brorl_graders.base.errors import ConfigError
from brorl_graders.environments.protocol import Action, Step
from brorl_graders.environments.registry import make_environment

from graders.tests.support.names import allow_also

HAS_LIBRARY = find_spec("verifiers") is not None
needs_library = pytest.mark.skipif(not HAS_LIBRARY, reason="needs the library verifiers, below 0.4")

# As its authors write one, over a dataset made here.
SECOND_TRY = """
import verifiers as vf
from datasets import Dataset


class SecondTry(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": "No."}]

    @vf.stop
    async def is_right(self, state):
        steps = state["trajectory"]
        return bool(steps) and state["answer"] in str(steps[-1]["completion"])


def is_right(completion, answer):
    return float(answer in str(completion[-1]))


def load_environment(num_examples=10):
    rows = [{"question": f"{number} + 1 =", "answer": str(number + 1)} for number in range(num_examples)]
    return SecondTry(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[is_right]), max_turns=2)
"""


@pytest.mark.skipif(HAS_LIBRARY, reason="the library is there")
def test_without_the_library_there_is_one_message() -> None:
    allow_also(environments=[("verifiers", {"environment": "second-try"})])
    with pytest.raises(ConfigError, match=r"pip install 'verifiers<0\.4'"):
        make_environment("verifiers", {"environment": "second-try"})


@needs_library
def test_its_rollout_is_an_episode_and_its_rubric_the_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "second_try.py").write_text(SECOND_TRY)
    monkeypatch.syspath_prepend(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    settings = {"environment": "second-try", "arguments": {"num_examples": 7}}
    allow_also(environments=[("verifiers", settings)])

    async def play(*texts: str) -> tuple[Any, list[Step]]:
        episode = make_environment("verifiers", settings)
        task = episode.task(16)
        first = await episode.reset(task, 0)  # type: ignore[misc]
        steps = [await episode.step(Action(text)) for text in texts]  # type: ignore[misc]
        episode.close()
        return first, steps

    first, steps = asyncio.run(play("5", "3"))
    assert first == ({"role": "user", "content": "2 + 1 ="},)
    assert steps == [Step(({"role": "user", "content": "No."},)), Step(reward=1.0, terminated=True)]
    _, (step,) = asyncio.run(play("3"))
    assert step == Step(reward=1.0, terminated=True)
    assert signal.getsignal(signal.SIGTERM) is handler


@needs_library
def test_an_environment_that_is_not_installed_is_one_message() -> None:
    allow_also(environments=[("verifiers", {"environment": "no-such-env"})])
    with pytest.raises(ConfigError, match="no-such-env cannot be loaded"):
        make_environment("verifiers", {"environment": "no-such-env"})
