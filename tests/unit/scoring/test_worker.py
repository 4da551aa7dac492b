"""The verifier worker without Ray: deadlines, crashes, replacement, equal responses, services."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from brorl_graders.base.settings import Endpoint
from brorl_graders.base.verdicts import Verdicts
from brorl_lab.bases.initial_model import build_tokenizer

from graders.tests.support import bad_verifiers
from graders.tests.support.bad_verifiers import MISBEHAVE
from graders.tests.support.names import allow_also
from graders.tests.support.scoring_service import scores_by, serving
from nemo_brorl.config.rewards import RewardsConfig, ServicesConfig
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.scoring.pool import scored_chunk
from nemo_brorl.scoring.worker import VerifierWorker
from nemo_brorl.types import ChunkArrays, Prompt, RolloutChunk, RolloutRequest, Sampling


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_tokenizer(["hang crash raise nan fine good"], 280).save_pretrained(folder)
    return folder


@pytest.fixture
def worker(model_folder: Path) -> Iterator[VerifierWorker]:
    allow_also(verifiers=[MISBEHAVE])
    made = VerifierWorker(str(model_folder), timeout_s=0.5, verifiers=[MISBEHAVE], repetition_ngram=0)
    yield made
    made.close()


def arrays(folder: Path, *texts: str) -> ChunkArrays:
    ids = [load_tokenizer(folder).encode(text) for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in ids])]).astype(np.int64)
    return ChunkArrays(np.concatenate(ids).astype(np.int32), np.zeros(int(offsets[-1]), np.float32), offsets)


def test_a_hanging_and_a_crashing_response_cost_only_themselves(
    worker: VerifierWorker, model_folder: Path, tmp_path: Path
) -> None:
    worker.wait_ready()
    worker.score(MISBEHAVE, {"log": str(tmp_path / "log")}, arrays(model_folder, "fine"))
    (first_child,) = worker.child_pids()
    texts = ("fine", "hang", "good", "crash", "raise", "nan", "good one")
    rewards, num_failed, *_ = worker.score(MISBEHAVE, {"log": str(tmp_path / "log")}, arrays(model_folder, *texts))
    assert rewards.tolist() == [1, 0, 1, 0, 0, 0, 1]
    assert rewards.dtype == np.float32
    assert num_failed == 4
    children = set(worker.child_pids())
    usage = worker.score(MISBEHAVE, {"log": str(tmp_path / "log")}, arrays(model_folder, "hang", "crash")).usage
    assert usage is not None and usage["late_s"] >= 0.5
    assert not children & set(worker.child_pids())
    for child in (first_child, *children):
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def test_equal_responses_are_scored_once(worker: VerifierWorker, model_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    rewards, num_failed, *_ = worker.score(
        MISBEHAVE, {"log": str(log)}, arrays(model_folder, "fine", "good", "fine", "raise", "fine", "raise")
    )
    assert rewards.tolist() == [1, 1, 1, 0, 1, 0]
    assert num_failed == 2
    assert sorted(log.read_text().split()) == ["fine", "good"]


@pytest.mark.parametrize(
    ("verifier", "message"),
    [
        ("no.such.module:score", "cannot be imported .ModuleNotFoundError"),
        ("graders.tests.support.bad_verifiers:absent", "cannot be imported .AttributeError"),
        ("graders.tests.support.bad_verifiers:MISBEHAVE", "is a str and not a function"),
    ],
)
def test_a_verifier_that_cannot_be_imported_is_an_error_at_the_start(
    model_folder: Path, verifier: str, message: str
) -> None:
    allow_also(verifiers=[verifier])
    with pytest.raises(ConfigError, match=message):
        _load(model_folder, verifier)


@pytest.mark.parametrize(
    ("verifier", "message"),
    [
        ("maths", "unknown verifier 'maths'; choose "),
        (MISBEHAVE, "is not in the settings.* set rewards.verifiers="),
    ],
)
def test_a_name_that_no_setting_gives_is_an_error_at_the_start(model_folder: Path, verifier: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _load(model_folder, verifier)


@pytest.mark.slow
def test_a_service_is_asked_only_where_cheaper_parts_leave_something_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    texts = ["<answer>4</answer>", "<answer>5</answer>", "<answer>4</answer> good", "<answer>4</answer>"]
    build_tokenizer([*texts, "good bad"], 280).save_pretrained(tmp_path)
    data = arrays(tmp_path, *texts)
    prompt = ({"role": "user", "content": "2 + 2?"},)
    parts = [{"verifier": "exact_match"}, {"verifier": "ours"}]
    payload = {"answer": "4", "mode": "product", "parts": parts}
    rewards = RewardsConfig(services=ServicesConfig(backoff_s=0.001, max_attempts=3))
    with serving(scores_by(lambda text: 0.5)) as service:
        allow_also(endpoints=[Endpoint("ours", service.url)])
        worker = VerifierWorker(str(tmp_path), 5.0, ("exact_match", "ours"), 0, rewards)
        worker.wait_ready()
        scores = worker.score("composite", payload, data, prompt)
        only_last = worker.score("ours", {"answer": "4"}, data, prompt, rows=[3])
        worker.close()
    assert scores.rewards.tolist() == [0.5, 0, 0.5, 0.5]
    of_parts = "exact_match 1; ours 0.5"
    assert scores.reasons == (of_parts, "exact_match 0", of_parts, of_parts)
    assert only_last.rewards.tolist() == [0.5, 0, 0, 0.5]  # the first says the same
    assert scores.usage is not None
    assert (scores.usage["responses"], scores.usage["asked"]) == (3, 2)
    asked = [item["response"] for item in service.requests[0]["items"]]
    assert asked == ["<answer>4</answer>", "<answer>4</answer> good"]


def _load(model_folder: Path, verifier: str) -> None:
    worker = VerifierWorker(str(model_folder), timeout_s=1.0, verifiers=[verifier], repetition_ngram=0)
    try:
        worker.wait_ready()
    finally:
        worker.close()


def test_a_response_whose_verifier_failed_is_left_out(
    worker: VerifierWorker, model_folder: Path, tmp_path: Path
) -> None:
    texts = ["fine", "raise", "good", "nan", "crash"]
    data = arrays(model_folder, *texts)
    prompt = Prompt("train/0", "toy", MISBEHAVE, (1,), {"log": str(tmp_path / "log")})
    request = RolloutRequest(prompt, 0, 5, 0, Sampling(1.0, 1.0, 8))
    chunk = RolloutChunk(
        request, request.indices, np.diff(data.offsets).astype(np.int32), np.ones(5, bool), 0, 0, 0, None
    )
    scores, ended, unfinished = worker.judge(chunk, data)
    scored = scored_chunk(chunk, scores, ended, unfinished)
    assert (scored.rewards.tolist(), scored.chunk.indices.tolist()) == ([1, 1], [0, 2])
    assert scored.chunk.data.token_ids.tolist() == arrays(model_folder, "fine", "good").token_ids.tolist()
    assert scored.failed is not None and scored.failed.indices.tolist() == [1, 3, 4]
    assert scored.failed.errors == (
        f"LookupError: told to (bad_verifiers.py:{line_of('told to')})",
        "the score is nan",
        "crashed",
    )
    assert scored.num_failed == 3


def test_a_response_that_makes_a_built_in_verifier_fail_scores_0(
    worker: VerifierWorker, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = arrays(model_folder, "fine", "good", "nan")
    found = Verdicts([None, None, 1.0], {0: "has not ended after 1 s", 1: "ResourceError: no sandbox"}, {0})
    monkeypatch.setattr(worker.pool, "judge", lambda *_: found)
    scores = worker.score("code", {}, data)
    assert scores.rewards.tolist() == [0, 0, 1]
    assert (scores.errors, scores.num_failed) == (("", "ResourceError: no sandbox", ""), 2)


def line_of(text: str) -> int:
    source = Path(bad_verifiers.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(source, 1) if text in line)
