"""Ray actor that scores the responses of chunks, several at a time, in processes that may hang or crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from nemo_brorl.config.schema import RewardsConfig
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.tasks.scoring.evidence import evidence_of
from nemo_brorl.tasks.scoring.process_pool import ProcessPool
from nemo_brorl.tasks.scoring.repetition import repetition_of, response_keys
from nemo_brorl.tasks.scoring.turns import Judged, ResponseScores, TurnJudge
from nemo_brorl.tasks.verifiers.code import code
from nemo_brorl.tasks.verifiers.deadlines import Deadlines
from nemo_brorl.tasks.verifiers.registry import answer_reader, configure
from nemo_brorl.types import ChunkArrays, RolloutChunk

ENVIRONMENT = "environment"  # the verifier that answers
LIGHTEST = "exact_match"  # loads nothing: shows that processes can be started


class VerifierWorker:
    """Owns a process pool. `score` may run in several threads at once."""

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
            configure(rewards.verifiers)
        self.tokenizer = load_tokenizer(model_folder)
        self.verifiers = tuple(verifiers)
        self.repetition_ngram = repetition_ngram
        self.with_answers = with_answers
        self.turn_judge: TurnJudge | None = None  # None: no environment is asked
        self.process_pool = ProcessPool(Deadlines(timeout_s) if rewards is None else Deadlines.of(rewards))

    def judge(self, chunk: RolloutChunk, data: ChunkArrays) -> Judged:
        """What becomes of a chunk's responses, as `TurnJudge.judge`; a verifier that only scores ends all of them.
        `chunk` is without its data. Raises as `score`."""
        prompt = chunk.request.prompt
        if self.turn_judge is not None and prompt.verifier == ENVIRONMENT:
            return self.turn_judge.judge(chunk, data)
        return self.score(prompt.verifier, prompt.payload, data), None, None

    def end_episodes(self) -> None:
        """Forget every trajectory under way: nobody waits for it any more."""
        if self.turn_judge is not None:
            self.turn_judge.end_all()

    def score(
        self,
        verifier: str,
        payload: Mapping[str, Any],
        data: ChunkArrays,
    ) -> ResponseScores:
        """Equal texts are scored once; a failing one counts for each response. Raises as `ProcessPool.score`."""
        texts: list[str] = []
        log_probs: list[float] = []
        for start, end in pairwise(data.offsets.tolist()):
            texts.append(self.tokenizer.decode(data.token_ids[start:end].tolist()))
            log_probs.append(data.log_probs[start:end].sum())
        counts = Counter(texts)
        different = list(counts)
        verdicts = self.process_pool.judge(verifier, payload, different)
        score_of = dict(zip(different, verdicts.scores, strict=True))
        rewards: list[float] = []
        num_failed = 0
        for text in texts:
            score = score_of[text]
            num_failed += score is None
            rewards.append(score or 0.0)
        return ResponseScores(
            rewards=np.array(rewards, np.float32),
            num_failed=num_failed,
            repetition=repetition_of(data, self.repetition_ngram),
            keys=response_keys(data),
            log_probs=np.array(log_probs, np.float32),
            answers=self._answers(verifier, payload, texts),
            evidence=evidence_of(verifier, payload, different, verdicts, counts),
        )

    def wait_ready(self) -> None:
        """Return once the verifiers are loaded. Raises ConfigError when one cannot be, ResourceError when no process
        can start."""
        for verifier in self.verifiers or (LIGHTEST,):
            self.process_pool.load(verifier)

    def _answers(
        self, verifier: str, payload: Mapping[str, Any], texts: Sequence[str]
    ) -> tuple[str | None, ...] | None:
        """Answer of each text; None where nobody asks for answers, or the verifier knows of none."""
        read = answer_reader(verifier, payload) if self.with_answers else None
        if read is None:
            return None
        answer_of = {text: read(payload, text) for text in set(texts)}
        return tuple(answer_of[text] for text in texts)

    def close(self) -> None:
        """Kill all processes."""
        self.process_pool.close()

    def child_pids(self) -> list[int]:
        """Process ids of the current children."""
        return self.process_pool.child_pids()
