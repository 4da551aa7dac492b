"""The verifier pool on real Ray, with Reasoning Gym and with verifiers that hang and crash."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray
from brorl_graders.base.settings import Endpoint
from brorl_lab.bases.initial_model import build_tokenizer

from graders.tests.support.bad_verifiers import MISBEHAVE
from graders.tests.support.names import allow_also
from graders.tests.support.scoring_service import scores_by, serving
from nemo_brorl.cluster.object_store import wait_any
from nemo_brorl.config.data import TaskConfig
from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.prompts.reasoning_gym import ReasoningGymSource
from nemo_brorl.scoring.pool import VerifierPool
from nemo_brorl.types import ChunkArrays, Prompt, RolloutChunk, RolloutRequest, Sampling

SAMPLING = Sampling(temperature=1.0, top_p=1.0, max_tokens=16)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_tokenizer(["hang crash fine answer 0123456789"], 290).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pool(cluster: None, model_folder: Path) -> Iterator[VerifierPool]:
    allow_also(verifiers=[MISBEHAVE])
    made = VerifierPool(RewardsConfig(num_workers=2, timeout_s=1.0), model_folder, [MISBEHAVE])
    made.wait_ready()
    yield made
    made.close()


def make_chunk(folder: Path, prompt: Prompt, texts: list[str], index: int) -> RolloutChunk:
    ids = [load_tokenizer(folder).encode(text) for text in texts]
    lengths = np.array([len(row) for row in ids], np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    data = ChunkArrays(np.concatenate(ids).astype(np.int32), np.zeros(int(offsets[-1]), np.float32), offsets)
    request = RolloutRequest(prompt, index, len(texts), 0, SAMPLING)
    return RolloutChunk(
        request, request.indices, lengths, np.ones(len(texts), bool), 0, 0, engine=0, data=ray.put(data)
    )


def test_reasoning_gym_responses_are_scored_where_the_arrays_are(pool: VerifierPool, model_folder: Path) -> None:
    source = ReasoningGymSource([TaskConfig(name="gcd")], 0.1, "train", seed=1)
    chunks = []
    for index in range(6):
        question = source.question(index)
        prompt = Prompt(f"train/{index}", question.task, question.verifier, (1,), question.payload)
        right = question.payload["answer"]
        chunks.append(
            make_chunk(
                model_folder, prompt, [f"<answer>{right}</answer>", f"<answer>{right}", "<answer>no</answer>"], index
            )
        )
    scored = {item.chunk.request.first_index: item for item in pool.score(iter(chunks))}
    assert sorted(scored) == list(range(6))
    assert all(item.rewards.tolist() == [1.0, 0.0, 0.0] and item.num_failed == 0 for item in scored.values())


def test_a_hang_and_a_crash_cost_their_own_samples_only(pool: VerifierPool, model_folder: Path, tmp_path: Path) -> None:
    prompt = Prompt("train/0", "toy", MISBEHAVE, (1,), {"log": str(tmp_path / "log")})
    rows = [["fine", "hang", "fine 1"], ["fine 2", "fine 3"], ["crash", "fine 4"], ["fine 5"]]
    chunks = [make_chunk(model_folder, prompt, row, index) for index, row in enumerate(rows)]
    scored = {item.chunk.request.first_index: item for item in pool.score(chunks)}
    assert [scored[index].rewards.tolist() for index in range(4)] == [[1, 1], [1, 1], [1], [1]]
    assert [scored[index].num_failed for index in range(4)] == [1, 0, 1, 0]


def test_chunks_of_a_prompt_ask_a_service_once_and_what_it_cost_comes_back(
    cluster: None, model_folder: Path, tmp_path: Path
) -> None:
    with serving(scores_by(lambda text: float("fine" in text))) as service:
        allow_also(endpoints=[Endpoint("ours", service.url)])
        prompt = Prompt("train/0", "toy", "ours", (1,), {}, messages=({"role": "user", "content": "well?"},))
        pool = VerifierPool(RewardsConfig(num_workers=2), model_folder, ["ours"], record_folder=tmp_path)
        pool.wait_ready()
        rows = [["fine", "answer"], ["answer", "fine", "fine"]]
        chunks = [make_chunk(model_folder, prompt, row, index) for index, row in enumerate(rows)]
        scored = {item.chunk.request.first_index: item for item in pool.score(chunks)}
        metrics = pool.metrics()
        pool.close()
    assert [scored[index].rewards.tolist() for index in range(2)] == [[1, 0], [0, 1, 1]]
    assert (metrics["service/responses"], metrics["service/asked"]) == (5, 2)
    assert pool.metrics() == {"reward/late_s": 0.0}
    recorded = [path.read_text().count("\n") for path in tmp_path.glob("worker_*.jsonl")]
    assert sum(recorded) == 2


def test_chunks_are_submitted_and_polled_one_by_one_and_an_empty_one_comes_back(
    pool: VerifierPool, model_folder: Path, tmp_path: Path
) -> None:
    prompt = Prompt("train/0", "toy", MISBEHAVE, (1,), {"log": str(tmp_path / "log")})
    empty = make_chunk(model_folder, prompt, ["x"], 7)
    empty = replace(
        empty, indices=empty.indices[:0], lengths=empty.lengths[:0], is_stopped=empty.is_stopped[:0], data=None
    )
    pool.submit(empty)
    assert pool.pending() == []
    assert [(item.chunk.request.first_index, item.rewards.tolist(), item.keys.tolist()) for item in pool.poll()] == [
        (7, [], [])
    ]
    for index in range(3):
        pool.submit(make_chunk(model_folder, prompt, [f"fine {index}"], index))
    scored = []
    while pool.pending():
        wait_any(pool.pending(), 60.0)
        scored += pool.poll()
    assert sorted(item.chunk.request.first_index for item in scored) == [0, 1, 2]
    assert pool.poll() == []


def test_a_slow_verifier_is_named_and_its_chunk_can_be_forgotten(
    pool: VerifierPool, model_folder: Path, tmp_path: Path
) -> None:
    prompt = Prompt("train/0", "toy", MISBEHAVE, (1,), {"log": str(tmp_path / "log")})
    pool.submit(make_chunk(model_folder, prompt, ["hang"], 0))
    (late,) = pool.stalled(0.0)
    assert late.startswith("verifier ")
    assert pool.stalled(3600.0) == []
    pool.forget()
    assert pool.pending() == []
    scored = list(pool.score([make_chunk(model_folder, prompt, ["fine"], 1)]))
    assert [item.chunk.request.first_index for item in scored] == [1]


def test_a_tokenizer_that_is_not_there_is_a_model_error(pool: VerifierPool, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        VerifierPool(RewardsConfig(), tmp_path / "absent")


def test_closing_the_pool_leaves_no_process_even_when_a_verifier_hangs(
    pool: VerifierPool, model_folder: Path, tmp_path: Path
) -> None:
    config = RewardsConfig(num_workers=1, timeout_s=600.0)
    doomed = VerifierPool(config, model_folder, [MISBEHAVE])
    doomed.wait_ready()
    prompt = Prompt("train/0", "toy", MISBEHAVE, (1,), {"log": str(tmp_path / "log")})
    list(doomed.score([make_chunk(model_folder, prompt, ["fine"], 0)]))
    (child,) = ray.get(doomed.workers[0].child_pids.remote())
    doomed.workers[0].score.remote(MISBEHAVE, dict(prompt.payload), make_chunk(model_folder, prompt, ["hang"], 0).data)
    doomed.close()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{child}").exists()
