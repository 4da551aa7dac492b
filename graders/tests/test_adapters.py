"""Other frameworks call the adapters by these signatures. scripts/test_adapters.sh runs the frameworks themselves."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from brorl_graders import adapters
from brorl_graders.adapters import Reward, compute_score, openenv_rubric, openrlhf_reward, serve, verifiers_reward
from brorl_graders.base.errors import ConfigError, ResourceError

RIGHT, WRONG = "So it is \\boxed{7}.", "It is 8."


@pytest.fixture(scope="module", autouse=True)
def _the_pool_ends_with_the_module() -> Iterator[None]:
    yield
    adapters.shared_pool().close()
    adapters._pools.clear()


def test_trl_gets_none_for_a_failed_grade_and_columns_of_what_was_read() -> None:
    logged: dict[str, list[Any]] = {}
    completions = [RIGHT, WRONG, None, [{"role": "assistant", "content": [{"type": "text", "text": RIGHT}]}], RIGHT]
    rewards = Reward("math", {"answer": "solution"}, {"extract": "anywhere"})(
        prompts=["?"] * 5,
        completions=completions,
        completion_ids=[[1]] * 5,
        solution=["7", "7", "7", 7, "\x00"],
        trainer_state=object(),
        log_extra=logged.__setitem__,
        log_metric=print,
    )
    assert rewards == [1.0, 0.0, None, 1.0, None]
    assert logged["math_answer"] == ["7", "8", "", "7", ""]
    assert logged["math_reference"] == ["7", "7", "7", "7", ""]
    assert "give a text" in logged["math_reason"][2]


def test_a_reward_can_be_pickled_and_names_a_missing_column_and_an_unknown_verifier() -> None:
    reward = pickle.loads(pickle.dumps(Reward("multiple_choice")))
    assert reward.__name__ == "multiple_choice"
    assert reward(prompts=["?"], completions=["Answer: C"], answer=["C"]) == [1.0]
    with pytest.raises(ConfigError, match="no answer, but solution"):
        reward(prompts=["?"], completions=["C"], solution=["C"])
    with pytest.raises(ConfigError, match="unknown verifier 'maths'"):
        Reward("maths")


def test_a_pool_of_the_adapters_is_made_again_after_a_fork() -> None:
    assert Reward()(prompts=["?"], completions=[RIGHT], answer=["7"]) == [1.0]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = int(Reward()(prompts=["?"], completions=[RIGHT], answer=["7"]) != [1.0])
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_verl_gets_the_same_keys_for_every_response_of_a_source_it_knows() -> None:
    found = [compute_score("openai/gsm8k", text, "7", {"num_turns": 1}) for text in (RIGHT, WRONG, "")]
    assert [one["score"] for one in found] == [1.0, 0.0, 0.0]
    assert {tuple(one) for one in found} == {("score", "acc", "failed", "answer", "reference", "reason")}
    program = "```python\nprint(int(input()) + 1)\n```"
    tests = json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})
    assert compute_score("taco", program, tests)["score"] == 1.0
    assert compute_score("mine", RIGHT, "7", verifier="math", extract="boxed")["score"] == 1.0
    with pytest.raises(ConfigError, match=r"data_source=mine.*reward_kwargs\.verifier"):
        compute_score("mine", RIGHT, "7")


def test_verl_finds_the_function_in_the_file_whose_path_the_module_prints() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "brorl_graders.adapters"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    program = "import runpy, sys; print(runpy.run_path(sys.argv[1])['compute_score'].__name__)"
    # As verl loads it: the module is in no table of modules
    loader = (
        "import importlib.util as u, sys; s = u.spec_from_file_location('custom', sys.argv[1]);"
        "m = u.module_from_spec(s); s.loader.exec_module(m); print(m.compute_score.__name__)"
    )
    for code in (program, loader):
        command = [sys.executable, "-c", code, done.stdout.strip()]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert shown.stdout.strip() == "compute_score"


def test_verifiers_gets_an_error_for_a_failed_grade() -> None:
    graded = verifiers_reward(Reward())
    task = SimpleNamespace(data={"answer": "7", "prompt": "?"})
    for reply, reward in ((RIGHT, 1.0), (WRONG, 0.0)):
        assert asyncio.run(graded(task, SimpleNamespace(last_reply=reply))) == reward  # type: ignore[arg-type]
    with pytest.raises(ResourceError, match="could not be graded"):
        asyncio.run(graded(task, SimpleNamespace(last_reply=None)))  # type: ignore[arg-type]


def test_openrlhf_grades_the_response_without_the_prompt() -> None:
    reward_func = openrlhf_reward(Reward())
    prompt = "What is \\boxed{8} - 1?"
    assert reward_func([prompt + RIGHT], [prompt], ["7"]) == {
        "rewards": 1.0,
        "scores": 1.0,
        "extra_logs": {"failed": 0.0},
    }
    assert reward_func([f"{prompt}{prompt} {WRONG}", "cut", prompt], [prompt] * 3, ["8"] * 3) == {
        "rewards": [1.0, 0.0, 0.0],
        "scores": [1.0, 0.0, 0.0],
        "extra_logs": {"failed": [0.0, 1.0, 0.0]},
    }


class Rubric:
    """As OpenEnv's: a call is a call of `forward`."""

    forward: Callable[[Any, Any], float | None]

    def __call__(self, action: Any, observation: Any) -> float | None:
        return self.forward(action, observation)


def test_openenv_gets_none_for_a_failed_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("openenv.core.rubrics")
    monkeypatch.setattr(module, "Rubric", Rubric, raising=False)
    monkeypatch.setitem(sys.modules, "openenv.core.rubrics", module)
    for name in ("openenv", "openenv.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    rubric = openenv_rubric(Reward(), text="said")
    seen = SimpleNamespace(metadata={"answer": "7"})
    assert [rubric(SimpleNamespace(said=text), seen) for text in (RIGHT, WRONG, None)] == [1.0, 0.0, None]


def test_nemo_gym_gets_its_request_back_with_a_reward() -> None:
    def post(path: str, body: Any) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
        connection.request("POST", path, body if isinstance(body, str) else json.dumps(body))
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())

    def request(*texts: str) -> dict[str, Any]:
        thoughts = {"type": "reasoning", "summary": []}
        messages = [{"type": "message", "content": [{"type": "output_text", "text": text}]} for text in texts]
        return {
            "responses_create_params": {"input": []},
            "response": {"output": [thoughts, *messages]},
            "expected_answer": "7",
        }

    with serve(Reward("math", {"answer": "expected_answer"}), 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert post("/seed_session", {}) == (200, {})
            for texts, reward, is_masked in (((WRONG, RIGHT), 1.0, False), ((WRONG,), 0.0, False), ((), 0.0, True)):
                status, reply = post("/verify", request(*texts))
                assert (status, reply["reward"], reply["mask_sample"]) == (200, reward, is_masked)
                assert reply["response"] == request(*texts)["response"]
            for body in ("[", "7", "{}", "[" * 100_000, {"response": {"output": 7}}, {"response": {"output": [7]}}):
                assert post("/verify", body)[0] == 422
        finally:
            server.shutdown()
            thread.join()
