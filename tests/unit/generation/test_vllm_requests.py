"""Which version sampled which tokens, over an engine whose tokens are put there by hand."""

from __future__ import annotations

import sys
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_brorl.generation.chunk_task import RolloutTask
from nemo_brorl.generation.vllm_requests import VllmRequests
from nemo_brorl.types import Sampling


@pytest.fixture(autouse=True)
def names_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The three that are imported; vLLM itself takes ten seconds."""
    one = Enum("one", "FINAL_ONLY ABORT")
    for module, names in (("vllm", {}), ("vllm.sampling_params", {"SamplingParams": dict, "RequestOutputKind": one}),
                          ("vllm.v1", {}), ("vllm.v1.engine", {"FinishReason": one})):  # fmt: skip
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**names))


class FakeEngine:
    """As much of vllm.LLMEngine as is used; `tokens` by id."""

    def __init__(self) -> None:
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 10, get_num_experts=lambda: 4)
        self.tokens: dict[str, list[int]] = {}
        self.ending: list[str] = []
        self.output_processor = SimpleNamespace(request_states={})

    def add_request(self, name: str, prompt: dict[str, Any], params: Any) -> str:
        tokens = self.tokens["id " + name] = []
        self.output_processor.request_states["id " + name] = SimpleNamespace(
            detokenizer=SimpleNamespace(num_output_tokens=lambda: len(tokens)),
            make_request_output=lambda *args: output_of(name, tokens, "abort"),
        )
        return "id " + name

    def step(self) -> list[Any]:
        outputs = [output_of(identity.removeprefix("id "), self.tokens[identity], "stop") for identity in self.ending]
        self.abort_request(self.ending)
        self.ending = []
        return outputs

    def abort_request(self, identities: list[str], internal: bool = True) -> None:
        for identity in identities:
            self.output_processor.request_states.pop(identity, None)


def output_of(name: str, tokens: list[int], reason: str) -> Any:
    completion = SimpleNamespace(
        finish_reason=reason,
        token_ids=list(tokens),
        logprobs=SimpleNamespace(logprobs=[-1.0] * len(tokens)),
        routed_experts=None,
    )
    return SimpleNamespace(finished=True, request_id=name, outputs=[completion], num_cached_tokens=0)


def test_a_rollout_names_the_versions_that_sampled_a_token_of_it() -> None:
    engine = FakeEngine()
    requests = VllmRequests(engine)
    requests.set_version(4)
    first, second, third = (requests.add(name, RolloutTask(0, [1], 7, 5), Sampling(1.0, 1.0, 5)) for name in "abc")
    engine.tokens[first] += [3, 3]
    requests.set_version(5)  # nothing of b or c was sampled under 4
    engine.tokens[second] += [2]
    requests.set_version(6)
    engine.tokens[first] += [3]
    engine.ending = [first, second]
    ended = dict(requests.step())
    assert (ended["a"].versions, ended["a"].token_ids) == ([4, 6], [3, 3, 3])
    assert ended["b"].versions == [5]
    cut = requests.so_far(third)
    assert (cut.versions, cut.has_ended) == ([], False)


def test_a_name_can_be_used_again_once_its_rollout_is_over() -> None:
    engine = FakeEngine()
    requests = VllmRequests(engine)
    for version in (1, 2):
        requests.set_version(version)
        identity = requests.add("a", RolloutTask(0, [1], 7, 5), Sampling(1.0, 1.0, 5))
        engine.tokens[identity] += [1]
        assert requests.so_far(identity).versions == [version]
        requests.abort([identity, "one that has ended"])
        assert requests.num_tokens(identity) is None
