"""Scores the responses of one chunk in a child process that may hang or crash: each response has a hard deadline.

Life of a child: started (by the constructor, or after a kill) → ready → scoring → ready … A child that passes a deadline or
goes away in the middle of a score costs that one response (reward 0, counted as failed); it is killed and a new one scores the rest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from multiprocessing.connection import Pipe
from typing import Any, NamedTuple

import numpy as np

from nemo_brorl.errors import ResourceError
from nemo_brorl.logs import get_logger
from nemo_brorl.rewards.child import READY
from nemo_brorl.rewards.repetition import repetition_of, response_keys
from nemo_brorl.tokenizer import load_tokenizer
from nemo_brorl.types import ChunkArrays, Float32, UInt64

log = get_logger(__name__)

START_LIMIT_S = 120.0  # a child imports its verifiers' libraries; that is not the response's fault
MAX_LOGGED = 20  # failures written to the log in full, per worker


class ResponseScores(NamedTuple):
    """What is found out about the responses of a chunk; fields as in `types.ScoredChunk`."""

    rewards: Float32
    num_failed: int
    repetition: Float32
    keys: UInt64
    log_probs: Float32


class VerifierWorker:
    """Owns one child process. Not thread-safe: one chunk at a time."""

    def __init__(self, model_folder: str, timeout_s: float, plugins: Sequence[str], repetition_ngram: int) -> None:
        """`repetition_ngram` tokens make an n-gram; 0: repetition is not looked for."""
        self.tokenizer = load_tokenizer(model_folder)
        self.timeout_s = timeout_s
        self.plugins = tuple(plugins)
        self.repetition_ngram = repetition_ngram
        self.num_failures = 0
        self.is_ready = False
        self._start_child()

    def score(self, verifier: str, payload: Mapping[str, Any], data: ChunkArrays) -> ResponseScores:
        """Equal texts are scored once; a failing one counts for each response."""
        bounds = data.offsets.tolist()
        ids = [data.token_ids[start:end].tolist() for start, end in pairwise(bounds)]
        texts = [self.tokenizer.decode(response) for response in ids]
        scores = self._score_texts(verifier, payload, list(dict.fromkeys(texts)))
        rewards = np.array([scores[text] or 0.0 for text in texts], dtype=np.float32)
        num_failed = sum(scores[text] is None for text in texts)
        log_probs = np.array([data.log_probs[start:end].sum() for start, end in pairwise(bounds)], np.float32)
        return ResponseScores(rewards, num_failed, repetition_of(data, self.repetition_ngram), response_keys(data), log_probs)

    def wait_ready(self) -> None:
        """Return once the child can score. Raises ResourceError when it cannot start."""
        if self.is_ready:
            return
        if not self.connection.poll(START_LIMIT_S):
            raise ResourceError(f"the verifier process did not start within {START_LIMIT_S:.0f} s; is the machine out of memory?")
        try:
            self.is_ready = self.connection.recv() == READY
        except EOFError as error:
            raise ResourceError(f"the verifier process ended while starting (exit code {self.process.wait()}); see the log") from error

    def close(self) -> None:
        """Kill the child."""
        self.process.kill()
        self.process.wait()
        self.connection.close()

    def child_pid(self) -> int:
        """Process id of the current child."""
        return self.process.pid

    def _score_texts(self, verifier: str, payload: Mapping[str, Any], texts: list[str]) -> dict[str, float | None]:
        """Score of each text; None where the verifier failed."""
        scores: dict[str, float | None] = {}
        while len(scores) < len(texts):
            self.wait_ready()
            rest = texts[len(scores) :]
            try:
                self.connection.send((verifier, dict(payload), rest))
                for text in rest:
                    scores[text] = self._next_score(verifier)
            except (EOFError, OSError):  # the child went away, or was killed at a deadline
                failed = texts[len(scores)]
                scores[failed] = None
                self._note_failure(verifier, f"hung or crashed on {failed[:200]!r}")
                self.close()
                self._start_child()
        return scores

    def _next_score(self, verifier: str) -> float | None:
        if not self.connection.poll(self.timeout_s):
            raise EOFError("deadline")
        score, error = self.connection.recv()
        if error is None:
            return score
        self._note_failure(verifier, error)
        return None

    def _note_failure(self, verifier: str, what: str) -> None:
        self.num_failures += 1
        if self.num_failures <= MAX_LOGGED:
            log.warning("verifier %s: %s; the response scores 0", verifier, what)

    def _start_child(self) -> None:
        self.connection, theirs = Pipe()  # a socket pair: only the child's end is inherited
        command = [sys.executable, "-m", "nemo_brorl.rewards.child", str(theirs.fileno()), *self.plugins]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment
        )
        theirs.close()
        self.is_ready = False
