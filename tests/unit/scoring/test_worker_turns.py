"""A verifier worker with real environments: what was sampled stays, what is told follows it by the template."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from graders.tests.support.names import allow_also
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.scoring.turn_tokens import TurnTokens
from nemo_brorl.scoring.worker import VerifierWorker
from nemo_brorl.types import ChunkArrays, Prompt, RolloutChunk, RolloutRequest, Sampling
from tests.support.source_tree import ROOT

MODEL = ROOT / "models" / "sums"
TOKENIZER = load_tokenizer(MODEL)
TASK = {"text": "2 + 2 =", "verifier": "exact_match", "payload": {"answer": "4"}}
SETTINGS = {"feedback": "No."}
WRONG_SETTINGS = {"feedback": 5, "max_turns": "x"}
PAYLOAD = {"environment": "verify_and_retry", "settings": SETTINGS, "task": TASK}
MESSAGES = ({"role": "user", "content": "2 + 2 ="},)


@pytest.fixture(scope="module")
def worker() -> Iterator[VerifierWorker]:
    allow_also(environments=[("verify_and_retry", SETTINGS), ("verify_and_retry", WRONG_SETTINGS)])
    worker = VerifierWorker(str(MODEL), 5.0, [], 0)
    worker.wait_ready()
    yield worker
    worker.close()


def chunk_of(texts: list[str]) -> tuple[RolloutChunk, ChunkArrays]:
    """Responses that ended by the stop token."""
    tokens = [[*TOKENIZER.encode(text), TOKENIZER.eos_token_id] for text in texts]
    lengths = np.array([len(ids) for ids in tokens], np.int32)
    num = int(lengths.sum())
    data = ChunkArrays(
        token_ids=np.concatenate(tokens).astype(np.int32),
        log_probs=np.full(num, -1.0, np.float32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )
    prompt_ids = tuple(TOKENIZER.prompt_ids(MESSAGES))
    prompt = Prompt("train/0", "sums", "environment", prompt_ids, PAYLOAD, messages=MESSAGES)
    request = RolloutRequest(prompt, 0, len(texts), 7, Sampling(1.0, 1.0, 200))
    stopped = np.ones(len(texts), bool)
    return RolloutChunk(request, request.indices, lengths, stopped, 0, 0, 0, None), data


def test_the_right_one_ends_and_the_wrong_one_is_told_and_goes_on(worker: VerifierWorker) -> None:
    chunk, data = chunk_of(["<answer>4</answer>", "<answer>5</answer>"])
    scores, ended, longer = worker.judge(chunk, data)
    assert scores.rewards.tolist() == [1.0]
    assert scores.unfinished is not None
    assert scores.unfinished.indices.tolist() == [1]
    assert ended is not None and longer is not None
    text = TOKENIZER.backend.decode(longer.token_ids.tolist(), skip_special_tokens=False)
    assert text == "<answer>5</answer><|im_end|>\n<|im_start|>user\nNo.<|im_end|>\n<|im_start|>assistant\n"
    assert longer.is_sampled is not None
    sampled = longer.token_ids[longer.is_sampled].tolist()
    assert sampled == [*TOKENIZER.encode("<answer>5</answer>"), TOKENIZER.eos_token_id]
    assert longer.log_probs[~longer.is_sampled].tolist() == [0.0] * int((~longer.is_sampled).sum())


def test_an_environment_that_fails_ends_its_trajectories_with_the_reason(worker: VerifierWorker) -> None:
    chunk, data = chunk_of(["<answer>5</answer>"])
    broken = {**PAYLOAD, "settings": WRONG_SETTINGS}
    prompt = Prompt("train/1", "sums", "environment", chunk.request.prompt.token_ids, broken, messages=MESSAGES)
    request = RolloutRequest(prompt, 0, 1, 7, chunk.request.sampling)
    failing = RolloutChunk(request, chunk.indices, chunk.lengths, chunk.is_stopped, 0, 0, 0, None)
    scores, _, longer = worker.judge(failing, data)
    assert scores.num_failed == 1
    assert scores.rewards.tolist() == [0.0]
    assert longer is None
    assert scores.evidence is not None and "max_turns" in scores.evidence.example


def test_an_observation_that_the_template_refuses_fails_its_own_trajectory_and_not_the_run(
    worker: VerifierWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> list[int]:
        raise ModelError("told to refuse")

    monkeypatch.setattr(TurnTokens, "after", refuse)
    scores, _, longer = worker.judge(*chunk_of(["<answer>4</answer>", "<answer>5</answer>"]))
    assert (scores.rewards.tolist(), scores.num_failed, longer) == ([1.0, 0.0], 1, None)
    assert scores.reasons[1:] == ("told to refuse",)
