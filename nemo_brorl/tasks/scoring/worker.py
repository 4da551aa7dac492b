"""Scores the responses of a chunk, several chunks at a time, in processes that may hang or crash (`crew.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from nemo_brorl.config.reward_schema import RewardsConfig
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.tasks.scoring.crew import Crew
from nemo_brorl.tasks.scoring.repetition import repetition_of, response_keys
from nemo_brorl.tasks.verifiers.code import code
from nemo_brorl.tasks.verifiers.deadlines import Deadlines
from nemo_brorl.tasks.verifiers.registry import answer_reader
from nemo_brorl.types import ChunkArrays, Float32, UInt64

LIGHTEST = "exact_match"  # loads nothing: shows that processes can be started


class ResponseScores(NamedTuple):
    """What is found out about the responses of a chunk; fields as in `types.ScoredChunk`."""

    rewards: Float32
    num_failed: int
    repetition: Float32
    keys: UInt64
    log_probs: Float32
    answers: tuple[str | None, ...] | None = None


class VerifierWorker:
    """Owns a crew. `score` may run in several threads at once."""

    def __init__(
        self,
        model_folder: str,
        timeout_s: float,
        verifiers: Sequence[str],
        repetition_ngram: int,
        rewards: RewardsConfig | None = None,
        with_answers: bool = False,
    ) -> None:
        """`verifiers` are loaded by `wait_ready`, others when first needed. `repetition_ngram` tokens make an n-gram;
        0: repetition is not looked for. `rewards` are the settings of verifiers that have some; None: the defaults.
        `with_answers`: read them too."""
        if rewards is not None:
            code.configure(rewards)
        self.tokenizer = load_tokenizer(model_folder)
        self.verifiers = tuple(verifiers)
        self.repetition_ngram = repetition_ngram
        self.with_answers = with_answers
        self.crew = Crew(Deadlines(timeout_s) if rewards is None else Deadlines.of(rewards))

    def score(self, verifier: str, payload: Mapping[str, Any], data: ChunkArrays) -> ResponseScores:
        """Equal texts are scored once; a failing one counts for each response. Raises as `Crew.score`."""
        bounds = data.offsets.tolist()
        texts = [self.tokenizer.decode(data.token_ids[start:end].tolist()) for start, end in pairwise(bounds)]
        different = list(dict.fromkeys(texts))
        scores = dict(zip(different, self.crew.score(verifier, payload, different), strict=True))
        rewards = np.array([scores[text] or 0.0 for text in texts], dtype=np.float32)
        num_failed = sum(scores[text] is None for text in texts)
        log_probs = np.array([data.log_probs[start:end].sum() for start, end in pairwise(bounds)], np.float32)
        read = answer_reader(verifier, payload) if self.with_answers else None
        answers = {text: read(payload, text) for text in different} if read is not None else None
        given = None if answers is None else tuple(answers[text] for text in texts)
        return ResponseScores(
            rewards, num_failed, repetition_of(data, self.repetition_ngram), response_keys(data), log_probs, given
        )

    def wait_ready(self) -> None:
        """Return once the verifiers are loaded. Raises ConfigError when one cannot be, ResourceError when no process
        can start."""
        for verifier in self.verifiers or (LIGHTEST,):
            self.crew.load(verifier)

    def close(self) -> None:
        """Kill all processes."""
        self.crew.close()

    def child_pids(self) -> list[int]:
        """Process ids of the current children."""
        return self.crew.children()
