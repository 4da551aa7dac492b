"""Which version sampled which tokens, and how rollouts become requests, over an engine whose tokens are put there by
hand."""

from __future__ import annotations

import sys
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.generation.chunk_task import RolloutTask
from nemo_brorl.generation.lean_requests import Sampled
from nemo_brorl.generation.vllm_requests import VllmRequests
from nemo_brorl.types import Sampling
from tests.support.source_tree import ROOT

SAMPLING = Sampling(1.0, 1.0, 5)


class FakeRequest:
    """vLLM's Request, as far as siblings are made of it."""

    num_hashed = 0  # prompts that were hashed

    def __init__(
        self, identity: str, token_ids: list[int], params: Any, pooling: None, arrival_time: float = 0
    ) -> None:
        self.request_id, self.sampling_params, self.arrival_time = identity, params, arrival_time
        self.block_hashes: list[tuple[int, ...]] = []
        self._block_hasher = None

    @classmethod
    def checked(cls, request: Any) -> FakeRequest:
        cls.num_hashed += 1
        made = cls(request.request_id, request.token_ids, request.params, None)
        made.block_hashes = [tuple(request.token_ids)]
        return made


@pytest.fixture(autouse=True)
def names_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are imported; vLLM itself takes ten seconds."""
    kinds = Enum("kinds", "FINAL_ONLY DELTA")
    sampling = {"SamplingParams": SimpleNamespace, "RequestOutputKind": kinds}
    for module, names in (
        ("vllm", {}),
        ("vllm.sampling_params", sampling),
        ("vllm.v1", {}),
        ("vllm.v1.request", {"Request": FakeRequest}),
    ):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**names))
    monkeypatch.setattr(FakeRequest, "num_hashed", 0)


class FakeEngine:
    """As much of vllm.LLMEngine as is used: `say` gives a request tokens, which the next step puts out."""

    def __init__(self) -> None:
        self.model_config = SimpleNamespace(
            get_vocab_size=lambda: 10, get_num_experts=lambda: 4, tokenizer=str(ROOT / "models" / "sums")
        )
        self.requests: dict[str, FakeRequest] = {}
        self.outputs: list[Any] = []
        core = SimpleNamespace(preprocess_add_request=self.preprocess, add_request=self.add)
        self.engine_core = SimpleNamespace(engine_core=core, get_output=self.get_output, abort_requests=self.abort)
        self.input_processor = SimpleNamespace(process_inputs=self.check)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def check(self, identity: str, prompt: dict[str, Any], params: Any, supported_tasks: tuple[str, ...]) -> Any:
        return SimpleNamespace(request_id=identity, token_ids=prompt["prompt_token_ids"], params=params)

    def preprocess(self, request: Any) -> tuple[FakeRequest, int]:
        return FakeRequest.checked(request), 0

    def add(self, request: FakeRequest, wave: int) -> None:
        self.requests[request.request_id] = request

    def say(self, identity: str, tokens: list[int], reason: str | None = None) -> None:
        output = SimpleNamespace(
            request_id=identity,
            new_token_ids=tokens,
            new_logprobs=SimpleNamespace(logprobs=np.full((len(tokens), 1), -1.0, np.float32)),
            prefill_stats=None,
            routed_experts=None,
            finish_reason=reason,
        )
        self.outputs.append(output)

    def get_output(self) -> Any:
        outputs, self.outputs = self.outputs, []
        return SimpleNamespace(outputs=outputs)

    def abort(self, identities: list[str]) -> None:
        for identity in identities:
            del self.requests[identity]


def task(row: int = 0, token_ids: list[int] | None = None, has_next_turn: bool = False) -> RolloutTask:
    return RolloutTask(row, [1] if token_ids is None else token_ids, 7 + row, 5, has_next_turn)


def test_a_rollout_names_the_versions_that_sampled_a_token_of_it() -> None:
    engine = FakeEngine()
    requests = VllmRequests(engine)
    requests.set_version(4)
    first, second, third = requests.add(["a", "b", "c"], [task()] * 3, SAMPLING)
    engine.say(first, [3, 3])
    requests.step()
    requests.set_version(5)  # nothing of b or c was sampled under 4
    engine.say(second, [2])
    requests.step()
    requests.set_version(6)
    engine.say(first, [3], "stop")
    engine.say(second, [], "length")
    ended = dict(requests.step())
    assert (ended["a"].versions, ended["a"].token_ids, ended["a"].is_stopped) == ([4, 6], [3, 3, 3], True)
    assert (ended["b"].versions, ended["b"].is_stopped) == ([5], False)
    cut = requests.so_far(third)
    assert (cut.versions, cut.has_ended) == ([], False)


def test_a_name_can_be_used_again_once_its_rollout_is_over() -> None:
    engine = FakeEngine()
    requests = VllmRequests(engine)
    for version in (1, 2):
        requests.set_version(version)
        (identity,) = requests.add(["a"], [task()], SAMPLING)
        engine.say(identity, [1])
        requests.step()
        assert requests.so_far(identity).versions == [version]
        engine.say(identity, [1])  # under way as the rollout is aborted
        requests.abort([identity, "one that has ended"])
        assert requests.step() == []
        assert requests.num_tokens(identity) is None
    assert engine.requests == {}


def test_a_prompt_is_checked_and_hashed_once_for_all_its_rollouts() -> None:
    engine = FakeEngine()
    prompt, resumed = [1, 2], [1, 2, 3]
    tasks = [task(0, prompt), task(1, prompt), task(2, resumed), task(3, prompt)]
    identities = VllmRequests(engine).add(list("abcd"), tasks, SAMPLING)
    assert FakeRequest.num_hashed == 3  # of a and b together, of c, of d
    assert list(engine.requests) == identities
    made = [engine.requests[identity] for identity in identities]
    assert [request.sampling_params.seed for request in made] == [7, 8, 9, 10]
    assert [request.block_hashes for request in made] == [[(1, 2)], [(1, 2)], [(1, 2, 3)], [(1, 2)]]
    assert made[0].block_hashes is not made[1].block_hashes


def test_tokens_that_the_lean_scheduler_keeps_are_counted_and_cut_with_the_others() -> None:
    engine = FakeEngine()
    kept = Sampled(np.array([5, 6], np.int32), np.array([-0.5, -0.25], np.float32))
    lean: Any = SimpleNamespace(num_unreported=lambda identity: 2, unreported=lambda identity: kept)
    requests = VllmRequests(engine, lean)
    (identity,) = requests.add(["a"], [task()], SAMPLING)
    engine.say(identity, [4])
    requests.step()
    assert requests.num_tokens(identity) == 3
    cut = requests.so_far(identity)
    assert (cut.token_ids, cut.log_probs) == ([4, 5, 6], [-1.0, -0.5, -0.25])


def ids_of(text: str) -> list[int]:
    return load_tokenizer(ROOT / "models" / "sums", is_tried=True).encode(text)


@pytest.mark.parametrize("last", [None, "length"])
def test_a_stop_string_ends_a_rollout_and_keeps_the_tokens_that_were_sampled(last: str | None) -> None:
    engine = FakeEngine()
    requests = VllmRequests(engine)
    stopping = Sampling(1.0, 1.0, 50, stop_strings=("4 apples.", "never"))
    stopped, other = requests.add(["a", "b"], [task(), task(1)], stopping)
    sampled = ids_of("It is 4 apples. Next")
    length = len(ids_of("It is 4 apples."))
    assert sampled[:length] == ids_of("It is 4 apples.")
    ended: list[tuple[str, Any]] = []
    for number, token in enumerate(sampled):
        if stopped in engine.requests and not ended:
            engine.say(stopped, [token], last if number == length - 1 else None)
        ended += requests.step()
    ((name, result),) = ended
    assert (name, result.token_ids, result.is_stopped, result.has_ended) == ("a", sampled[:length], True, True)
    assert result.log_probs == [-1.0] * length
    assert requests.num_tokens(stopped) is None
    assert requests.num_tokens(other) == 0


def test_tokens_behind_a_stop_string_of_one_step_are_dropped() -> None:
    engine = FakeEngine()
    requests = VllmRequests(engine)
    (identity,) = requests.add(["a"], [task()], Sampling(1.0, 1.0, 50, stop_strings=("7",)))
    engine.say(identity, ids_of("3 7 5"))
    ((_, result),) = requests.step()
    assert (result.token_ids, len(result.log_probs)) == (ids_of("3 7"), len(ids_of("3 7")))
    assert identity not in engine.requests


def test_further_stop_tokens_reach_the_engine_and_stop_strings_need_every_step() -> None:
    engine = FakeEngine()
    requests = VllmRequests(engine)
    names = requests.add(["a", "b"], [task(), task(1)], Sampling(1.0, 1.0, 50, stop_tokens=("<|im_start|>",)))
    assert engine.requests[names[0]].sampling_params.stop_token_ids == [1, 2]
    assert engine.requests[names[1]].sampling_params.output_kind.name == "FINAL_ONLY"
    (name,) = requests.add(["c"], [task()], Sampling(1.0, 1.0, 50, stop_strings=("x",)))
    assert engine.requests[name].sampling_params.stop_token_ids == []
    assert engine.requests[name].sampling_params.output_kind.name == "DELTA"


def test_blocks_of_generated_tokens_are_cached_from_the_first_rollout_with_turns_on() -> None:
    lean: Any = SimpleNamespace()
    requests = VllmRequests(FakeEngine(), lean)
    requests.add(["a"], [task()], SAMPLING)
    assert not lean.caches_generated
    requests.add(["b"], [task(has_next_turn=True)], SAMPLING)
    requests.add(["c"], [task()], SAMPLING)
    assert lean.caches_generated
