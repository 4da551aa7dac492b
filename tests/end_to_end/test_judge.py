"""The judge against a real vLLM engine: its client, vLLM's server and a model that writes the score.

The model adds like a careless pupil (models/sums), so it is asked for a sum, and the sum is the score. By greedy
decoding it forgets the ten of 7 + 8 and says -1 of the first response, 0 of the second; of the third it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from brorl_graders.base.settings import Endpoint
from brorl_graders.services.service_client import check_endpoint

from graders.tests.support.names import allow_also
from nemo_brorl.config.rewards import RewardsConfig, ServicesConfig
from nemo_brorl.core.errors import ServiceError
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.scoring.turns import ResponseScores
from nemo_brorl.scoring.worker import VerifierWorker
from nemo_brorl.types import ChunkArrays
from tests.support.source_tree import ROOT
from tests.support.vllm_server import VllmServer, serving_model

pytestmark = pytest.mark.end_to_end

MODEL = ROOT / "models" / "sums"
PROMPT = ({"role": "user", "content": "Write a sum."},)
CARRIES = "7 + 8 - 9 + 4 - 6 + 5"
EASY = "1 + 0 + 0 + 0 + 0 - 1"
SILENT = "1 + 0"
REQUESTS, READ, WRITTEN = "vllm:request_success_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with serving_model(MODEL, tmp_path_factory.mktemp("judge") / "log") as running:
        yield running


@pytest.fixture
def endpoint(server: VllmServer) -> Endpoint:
    """The judge, as settings give it."""
    return Endpoint(
        name="judge",
        url=server.url,
        model="judge",
        template="State the final answer to the following arithmetic problem: {response} =",
        score_pattern=r"<answer>(-?\d+)</answer>",
        range=[-2, 2],
        max_tokens=80,
    )


@pytest.fixture
def worker(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[VerifierWorker]:
    """What a run's actor for verifiers is made of. A failure ends the run after two attempts, unless a test says what
    it does."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    other = replace(endpoint, name="other", model="other")
    allow_also(endpoints=[endpoint, other])
    settings = ServicesConfig(max_attempts=2, backoff_s=0.001, on_failure=getattr(request, "param", "stop"))
    made = VerifierWorker(str(MODEL), 5.0, ("judge", "other"), 0, RewardsConfig(services=settings))
    yield made
    made.close()


def judged(worker: VerifierWorker, texts: Sequence[str], judge: str = "judge") -> ResponseScores:
    tokenizer = load_tokenizer(MODEL)
    ids = [tokenizer.encode(text) for text in texts]
    offsets = np.cumsum([0, *map(len, ids)])
    data = ChunkArrays(np.concatenate(ids).astype(np.int32), np.zeros(offsets[-1], np.float32), offsets)
    return worker.score(judge, {}, data, PROMPT)


def test_the_engine_is_asked_once_for_each_answer_of_a_large_group_and_its_words_are_the_score(
    server: VllmServer, worker: VerifierWorker
) -> None:
    before = {name: server.counted(name) for name in (REQUESTS, READ, WRITTEN)}
    scores = judged(worker, [CARRIES, EASY] * 128)
    again = judged(worker, [EASY, CARRIES] * 128)
    assert scores.rewards.tolist() == [0.25, 0.5] * 128  # -1 and 0 between -2 and 2
    assert again.rewards.tolist() == [0.5, 0.25] * 128
    assert scores.reasons is not None
    assert scores.reasons[0] == "7+8=5-9=-4+4=0-6=-6+5=-1<answer>-1</answer>"
    assert scores.usage is not None
    assert again.usage is not None
    assert (scores.usage["responses"], scores.usage["asked"], scores.usage["requests"]) == (256, 2, 2)
    assert (again.usage["responses"], again.usage["asked"], again.usage["requests"]) == (256, 0, 0)
    assert server.counted(REQUESTS) - before[REQUESTS] == 2
    assert scores.usage["prompt_tokens"] == server.counted(READ) - before[READ] > 0
    assert scores.usage["completion_tokens"] == server.counted(WRITTEN) - before[WRITTEN] > 0


@pytest.mark.parametrize("worker", ["fail"], indirect=True)
def test_an_engine_that_writes_no_score_is_asked_again_then_named_and_has_cost_its_tokens(
    server: VllmServer, worker: VerifierWorker
) -> None:
    before = {name: server.counted(name) for name in (REQUESTS, READ)}
    scores = judged(worker, [SILENT] * 4)
    assert scores.rewards.tolist() == [0, 0, 0, 0]
    assert scores.num_failed == 4
    assert scores.reasons is not None
    assert scores.reasons[0] == f"{server.url}/chat/completions: no score in what it said: ''"
    assert server.counted(REQUESTS) - before[REQUESTS] == 2
    assert scores.usage is not None
    assert scores.usage["prompt_tokens"] == server.counted(READ) - before[READ] > 0


def test_a_model_that_the_engine_does_not_hold_is_refused_at_once_in_its_own_words(worker: VerifierWorker) -> None:
    with pytest.raises(ServiceError, match=r"status 404: .*The model `other` does not exist"):
        judged(worker, [EASY], "other")


def test_an_engine_that_goes_away_in_mid_run_ends_it_with_the_reason(
    server: VllmServer, worker: VerifierWorker, endpoint: Endpoint
) -> None:
    check_endpoint(endpoint)
    assert judged(worker, [EASY]).rewards.tolist() == [0.5]
    server.kill()
    with pytest.raises(ServiceError) as failure:
        judged(worker, [EASY, CARRIES])
    said = str(failure.value)
    assert f"no reward is made up for it: {server.url}/chat/completions: ConnectError" in said
    assert "The same command goes on from where this step began" in said
    assert judged(worker, [EASY]).rewards.tolist() == [0.5], "what it said before is known"
