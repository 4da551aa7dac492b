"""Ray actor that scores the responses of several chunks at a time, in child processes that may hang or crash."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from brorl_graders.answers import answers_of
from brorl_graders.base.names import Names, allow
from brorl_graders.environments.host import EpisodeHost
from brorl_graders.grading import Pool

from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.core.template_files import BY_DEFAULT, TemplateSettings
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.scoring.evidence import evidence_of
from nemo_brorl.scoring.grader_settings import configure_code, deadlines_of, host_limits, service_limits
from nemo_brorl.scoring.response_arrays import repetition_of, response_keys
from nemo_brorl.scoring.turn_tokens import TurnTokens
from nemo_brorl.scoring.turns import Judged, ResponseScores, TurnJudge, kept_reasons, without_failed
from nemo_brorl.types import ChunkArrays, Period, RolloutChunk

LIGHTEST = "exact_match"  # verifier that loads nothing, to check that processes can be started


class VerifierWorker:
    """A worker that owns a pool of scoring processes. `score` may run in several threads at once."""

    def __init__(
        self,
        model_folder: str,
        timeout_s: float,
        verifiers: Sequence[str],
        repetition_ngram: int,
        rewards: RewardsConfig | None = None,
        with_answers: bool = False,
        record: tuple[Path | None, int] = (None, 0),
        names: Names | None = None,
        template: TemplateSettings = BY_DEFAULT,
    ) -> None:
        """Start a scoring worker with its pool of child processes.

        `verifiers` are loaded by `wait_ready`, and others when first needed. `repetition_ngram`: tokens of an n-gram, 0
        to skip repetition. `rewards`: settings of verifiers, None for the defaults. `with_answers`: also return the
        answers that verifiers extract. `record`: folder where replies of services are stored, or None, and the
        number of this worker. `names`: verifiers, services and environments that prompts may use, None for those
        allowed in this process. `template`: how an environment's replies are written.
        """
        if names is not None:
            allow(names)
        if rewards is not None:
            configure_code(rewards)
        self.tokenizer = load_tokenizer(model_folder, is_tried=True, template=template)
        self.verifiers = tuple(verifiers)
        self.repetition_ngram = repetition_ngram
        self.with_answers = with_answers
        self.rewards = rewards or RewardsConfig()
        self._lock = threading.Lock()
        self.turn_judge: TurnJudge | None = None  # None: no environment was needed so far
        self.pool = Pool(
            timeout_s if rewards is None else deadlines_of(rewards),
            services=service_limits(self.rewards.services),
            record_folder=record[0],
            worker=record[1],
            processes=max(1, len(os.sched_getaffinity(0)) // self.rewards.num_workers),
        )

    def judge(
        self,
        chunk: RolloutChunk,
        data: ChunkArrays,
        rows: Sequence[int] | None = None,
    ) -> Judged:
        """Score the responses of a chunk of rollouts, or let an environment take its trajectories one turn further.

        Without an environment all responses end. Those whose verifier fails are left out. `chunk` comes without its
        tokens, which are in `data`. `rows`: indices of the responses to score without an environment, the others get
        reward 0. None: all. Raises what `score` raises.
        """
        began_at = time.time()
        prompt = chunk.request.prompt
        if prompt.has_episodes:
            scores, ended, unfinished = self._judge_of_turns().judge(chunk, data)
        else:
            scores = self.score(prompt.verifier, prompt.payload, data, prompt.messages, rows)
            ended = unfinished = None
        if scores.errors:
            scores, ended = without_failed(scores, chunk, data)
        period = Period(began_at, began_at, time.time())
        return scores._replace(period=period), ended, unfinished

    def _judge_of_turns(self) -> TurnJudge:
        """Return the judge that lets environments reply to turns, which is made when an environment is first needed."""
        with self._lock:
            if self.turn_judge is None:
                tokens = TurnTokens(self.tokenizer)
                limits = host_limits(self.rewards.environments, tokens.tool_format)
                host = EpisodeHost(limits)
                self.turn_judge = TurnJudge(self.tokenizer, host, tokens, self.rewards)
            return self.turn_judge

    def end_episodes(self) -> None:
        """End the environment's episodes of all unfinished trajectories, because the driver dropped them."""
        if self.turn_judge is not None:
            self.turn_judge.end_all()

    def score(
        self,
        verifier: str,
        payload: Mapping[str, Any],
        data: ChunkArrays,
        prompt: Sequence[Mapping[str, str]] = (),
        rows: Sequence[int] | None = None,
    ) -> ResponseScores:
        """Return a verifier's scores of the responses of a chunk of rollouts.

        Equal texts are scored once, and a failure counts for each response, which has reward 0 here. `prompt`: messages
        of the prompt, which services see. `rows`: indices of the responses to score, the others get reward 0. None:
        all. Raises what `Pool.judge` raises.
        """
        texts: list[str] = []
        log_probs: list[float] = []
        for start, end in pairwise(data.offsets.tolist()):
            texts.append(self.tokenizer.decode(data.token_ids[start:end].tolist()))
            log_probs.append(data.log_probs[start:end].sum())
        counts = Counter(texts)
        if rows is not None:
            counts = Counter(texts[row] for row in rows)
        different = list(counts)
        verdicts = self.pool.judge(verifier, payload, different, prompt, counts)
        score_of = dict(zip(different, verdicts.scores, strict=True))
        reason_of = {different[index]: reason for index, reason in verdicts.reasons.items()}
        num_failed = sum(score_of.get(text, 0.0) is None for text in texts)
        rewards = [score_of.get(text) or 0.0 for text in texts]
        error_of = {different[index]: reason for index, reason in verdicts.reasons.items() if verdicts.is_own(index)}
        return ResponseScores(
            rewards=np.array(rewards, np.float32),
            num_failed=num_failed,
            repetition=repetition_of(data, self.repetition_ngram),
            keys=response_keys(data),
            log_probs=np.array(log_probs, np.float32),
            answers=self._answers(verifier, payload, texts),
            evidence=evidence_of(verifier, payload, different, verdicts, counts),
            usage=self.pool.take_usage(),
            reasons=kept_reasons(reason_of.get(text, "") for text in texts),
            errors=kept_reasons(error_of.get(text, "") for text in texts),
        )

    def wait_ready(self) -> None:
        """Block until the verifiers are loaded in the scoring processes.

        Raises ConfigError when a verifier cannot be loaded, and ResourceError when no process can start.
        """
        for verifier in self.verifiers or (LIGHTEST,):
            self.pool.load(verifier)

    def _answers(
        self, verifier: str, payload: Mapping[str, Any], texts: Sequence[str]
    ) -> tuple[str | None, ...] | None:
        """Return the answer that a verifier extracts from each text. None: answers are off, or it extracts none."""
        answers = answers_of(verifier, payload) if self.with_answers else None
        if answers is None:
            return None
        answer_of = {text: answers.read(text) for text in set(texts)}
        return tuple(answer_of[text] for text in texts)

    def close(self) -> None:
        """Kill all child processes of a verifier worker and end its requests to scoring services."""
        if self.turn_judge is not None:
            self.turn_judge.host.close()
        self.pool.close()

    def child_pids(self) -> list[int]:
        """Return the process ids of a verifier worker's current child processes."""
        return self.pool.child_pids()
