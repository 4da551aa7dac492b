"""Reward functions with the arguments and results of other frameworks, called as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from brorl_graders.base.errors import ConfigError
from brorl_graders.base.payload import score_and_reason
from brorl_graders.verifiers.reward_functions import NoScoreError, scoring

PAYLOAD = {"question": "3 + 4?", "prompt": "3 + 4?", "answer": "7", "difficulty": 2}


def scored(function: Callable[..., Any], payload: Any = PAYLOAD, response: str = "It is 7.") -> tuple[float, str]:
    return score_and_reason(scoring(function)(payload, response))


def test_trl_functions_get_lists_of_one_with_every_column() -> None:
    seen: dict[str, Any] = {}

    def reward(completions: Any, **kwargs: Any) -> list[float]:
        seen.update(kwargs)
        return [1.0 if "7" in text else 0.0 for text in completions]

    assert scored(reward) == (1.0, "")
    assert scored(reward, response="It is 8.") == (0.0, "")
    assert seen == {"prompts": ["3 + 4?"], "question": ["3 + 4?"], "answer": ["7"], "difficulty": [2]}


def test_trl_functions_of_conversations_get_messages() -> None:
    def reward(prompts: Any, completions: Any, answer: Any) -> list[bool]:
        said = zip(prompts, completions, answer, strict=True)
        return [prompt[-1]["role"] == "user" and done[0]["content"].endswith(right) for prompt, done, right in said]

    payload = {**PAYLOAD, "prompt": [{"role": "user", "content": "3 + 4?"}]}
    assert scored(reward, payload, "So 7") == (1.0, "")


def test_verl_functions_get_their_four_arguments() -> None:
    def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> Any:
        return {"score": float(ground_truth in solution_str), "from": data_source, "index": extra_info["index"]}

    row = {"data_source": "sums", "reward_model": {"ground_truth": "7"}, "extra_info": {"index": 3}}
    assert scored(compute_score, {**PAYLOAD, **row, "answer": "8"}) == (1.0, "from sums, index 3")

    def shorter(solution_str: str, ground_truth: str) -> float:
        return float(ground_truth in solution_str)

    def longer(solution_str: str, **others: Any) -> float:
        return float(others["extra_info"]["difficulty"])

    assert scored(shorter) == (1.0, "")
    assert scored(longer) == (2.0, "")


@pytest.mark.parametrize(
    "result",
    [0.5, np.float32(0.5), np.array(0.5), np.array([0.5]), [0.5], (0.5,), {"score": 0.5}, [{"score": np.float64(0.5)}]],
)
def test_a_result_may_be_a_number_a_mapping_or_a_list_of_one(result: Any) -> None:
    assert scored(lambda payload, response: result) == (0.5, "")


def test_a_reason_stays_with_its_score() -> None:
    assert scored(lambda payload, response: (np.float32(0.25), "a quarter")) == (0.25, "a quarter")
    assert scored(lambda payload, response: ({"score": 1}, "all")) == (1.0, "all")


def test_coroutine_functions_are_awaited_in_one_loop() -> None:
    loops = []

    async def waits(completions: Any, **kwargs: Any) -> list[float]:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return [1.0]

    score = scoring(waits)
    assert [score(PAYLOAD, "7"), score(PAYLOAD, "8")] == [1.0, 1.0]
    assert loops[0] is loops[1]


@pytest.mark.parametrize("result", [None, [None], {"score": None}, (None, "not mine")])
def test_none_is_no_score(result: Any) -> None:
    with pytest.raises(NoScoreError):
        scored(lambda payload, response: result)


@pytest.mark.parametrize("result", [[], [1.0, 0.0], {"acc": 1.0}, "0.5", (1.0, 2.0, 3.0), object()])
def test_any_other_result_is_refused(result: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        scored(lambda payload, response: result)


def test_other_arguments_are_refused_with_those_that_are_known() -> None:
    for function in (lambda prompt, reply, extra: 1.0, lambda data_source, solution_str, rubric: 1.0, lambda: 1.0):
        with pytest.raises(ConfigError, match=r"completions, \*\*columns.*solution_str"):
            scoring(function)


@pytest.mark.parametrize("first", ["response", "completion", "answer", "ground_truth", "prompts"])
def test_a_first_argument_that_expects_no_row_is_refused_before_it_gets_one(first: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def right({first}, other): return float(other in {first})", scope)
    with pytest.raises(ConfigError, match=f"its first argument, {first}, gets the row of data"):
        scoring(scope["right"])


def test_a_column_that_the_row_lacks_is_named_with_those_that_it_has() -> None:
    def reward(completions: Any, ground_truth: Any, **columns: Any) -> list[float]:
        return [1.0]

    with pytest.raises(TypeError, match="takes ground_truth, and the row has answer, difficulty, prompt, question"):
        scored(reward)
