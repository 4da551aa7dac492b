"""Judging of turns: environments reply to the newest turn of each trajectory, and some trajectories continue.

A trajectory's response is `turn 1 | observation 1 | turn 2 | …`. It continues when its environment has replied, and the
response has room for the observation and one more token. The observation's tokens are then appended to the sampled
ones, which are never tokenised again. With a verifier that only scores, every response ends with its first turn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from brorl_graders.environments.host import EpisodeHost
from brorl_graders.environments.protocol import EpisodeOutcome, EpisodeStep, TurnSize, failed_outcome

from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.scoring.evidence import evidence_of_episodes
from nemo_brorl.scoring.response_arrays import (
    repetition_of,
    response_keys,
    select_responses,
    split,
    turn_bounds,
    turn_ends,
)
from nemo_brorl.scoring.turn_tokens import TurnTokens
from nemo_brorl.types import (
    Bool,
    ChunkArrays,
    FailedRollouts,
    Float32,
    Int64,
    PartialRollouts,
    Period,
    RewardEvidence,
    RolloutChunk,
    RolloutRequest,
    TurnRecord,
    UInt64,
)

MAX_REASON = 300  # characters
SEEDS = 2**31


class ResponseScores(NamedTuple):
    """Scores of the responses of a chunk that have ended. Fields are as in `types.ScoredChunk`."""

    rewards: Float32
    num_failed: int
    repetition: Float32
    keys: UInt64
    log_probs: Float32
    answers: tuple[str | None, ...] | None = None
    evidence: RewardEvidence | None = None
    turns: TurnRecord | None = None
    usage: Mapping[str, float] | None = None  # use of services and processes since the last chunk (`Pool.take_usage`)
    unfinished: PartialRollouts | None = None  # its data is sent apart
    ended: Int64 | None = None  # rows of the chunk that have ended; None: all
    is_stopped: Bool | None = None  # [ended] whether each stopped by itself; None: as sampled
    period: Period | None = None
    reasons: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()  # why the verifier failed by its own fault [n]; "": it did not. Empty: on none
    failed: FailedRollouts | None = None


# Scores, arrays of the ended responses if some have not ended, and arrays of the unfinished responses.
Judged = tuple[ResponseScores, ChunkArrays | None, ChunkArrays | None]


def kept_reasons(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return a verifier's reasons for its scores as they are stored with the rollouts: shortened and valid UTF-8.

    The result is empty if all reasons are empty.
    """
    kept: list[str] = []
    for reason in reasons:
        text = reason[:MAX_REASON].encode("utf-8", "replace")
        kept.append(text.decode())
    return tuple(kept) if any(kept) else ()


def without_failed(
    scores: ResponseScores, chunk: RolloutChunk, data: ChunkArrays
) -> tuple[ResponseScores, ChunkArrays]:
    """Return the scores and tokens of the responses whose verifier did not fail: a failure is no reward of 0."""
    is_scored = np.array([not error for error in scores.errors])
    kept = np.flatnonzero(is_scored)
    scored = scores._replace(
        rewards=scores.rewards[kept],
        repetition=scores.repetition[kept],
        keys=scores.keys[kept],
        log_probs=scores.log_probs[kept],
        answers=scores.answers and tuple(scores.answers[row] for row in kept),
        ended=kept,
        reasons=scores.reasons and tuple(scores.reasons[row] for row in kept),
        failed=FailedRollouts(chunk.indices[~is_scored], tuple(filter(None, scores.errors))),
        errors=(),
    )
    return scored, select_responses(data, kept.tolist())


class TurnJudge:
    """Judge that takes trajectories one turn further. `judge` may be called from any thread."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        host: EpisodeHost,
        tokens: TurnTokens,
        settings: RewardsConfig,
    ) -> None:
        self.tokenizer = tokenizer
        self.host = host
        self.tokens = tokens
        self.ngram = 0
        if settings.shaping.repetition_penalty > 0:
            self.ngram = settings.shaping.repetition_ngram
        self.sums_rewards = settings.trajectory_reward == "sum"
        self._open: set[str] = set()  # episodes that may be running in the host
        self._lock = threading.Lock()

    def judge(self, chunk: RolloutChunk, data: ChunkArrays) -> Judged:
        """Score the trajectories that end with their newest turn, and append the environment's observation to the rest.

        Returns the scores. If some trajectories are unfinished, it also returns the tokens of the ended and of the
        unfinished ones.
        """
        steps = list(self._steps(chunk, data))
        outcomes = self._stepped(steps)
        observations = self._observations(chunk, data, outcomes)
        record = _extended(chunk, data, outcomes)
        unfinished_rows: list[int] = []
        ended: list[int] = []
        episodes: list[str] = []
        for row, observation in enumerate(observations):
            if observation:
                unfinished_rows.append(row)
            else:
                ended.append(row)
                episodes.append(steps[row].episode)
        self._end(episodes)
        arrays = select_responses(data, ended)
        scores = self._scores(
            arrays,
            record.select(ended),
            [outcomes[row] for row in ended],
        )
        is_stopped = chunk.is_stopped[ended]
        for index, row in enumerate(ended):
            outcome = outcomes[row]
            if outcome.truncated or not outcome.has_ended:
                is_stopped[index] = False
        scores = scores._replace(
            evidence=evidence_of_episodes(outcomes),
            is_stopped=is_stopped,
        )
        if not unfinished_rows:
            return scores, None, None
        scores = scores._replace(ended=np.array(ended, np.int64))
        longer = select_responses(data, unfinished_rows, observations)
        unfinished = PartialRollouts(
            indices=chunk.indices[unfinished_rows],
            lengths=np.diff(longer.offsets).astype(np.int32),
            version=chunk.version,
            data=None,
            num_sampled=longer.num_sampled,
            turns=record.select(unfinished_rows),
            engine=chunk.engine,
        )
        return scores._replace(unfinished=unfinished), arrays, longer

    def _scores(
        self,
        arrays: ChunkArrays,
        turns: TurnRecord,
        outcomes: Sequence[EpisodeOutcome],
    ) -> ResponseScores:
        """Return the scores of trajectories that have ended, from the last outcomes of their environments."""
        has_failed = np.array([bool(outcome.error) for outcome in outcomes], bool)
        # A trajectory whose environment failed gets no reward, not even for its earlier turns.
        turn_rewards = np.where(has_failed[:, None], np.float32(0), turns.rewards)
        rewards = turn_rewards[:, -1]
        if self.sums_rewards:
            rewards = turn_rewards.sum(axis=1)
        log_probs = [part.sum() for part in split(arrays, arrays.log_probs)]
        ends = turn_ends(arrays, turns.rewards.shape[1])
        return ResponseScores(
            rewards=rewards,
            num_failed=int(has_failed.sum()),
            repetition=repetition_of(arrays, self.ngram),
            keys=response_keys(arrays),
            log_probs=np.array(log_probs, np.float32),
            turns=replace(turns, rewards=turn_rewards, ends=ends),
            reasons=kept_reasons(outcome.error for outcome in outcomes),
        )

    def end_all(self) -> None:
        """End the environment's episodes of all unfinished trajectories."""
        with self._lock:
            episodes = list(self._open)
        self._end(episodes)

    def _stepped(self, steps: Sequence[EpisodeStep]) -> list[EpisodeOutcome]:
        with self._lock:
            self._open.update(step.episode for step in steps)
        return self.host.step(steps)

    def _end(self, episodes: Sequence[str]) -> None:
        self.host.end(episodes)
        with self._lock:
            self._open.difference_update(episodes)

    def _steps(self, chunk: RolloutChunk, data: ChunkArrays) -> Iterator[EpisodeStep]:
        request = chunk.request
        payload = request.prompt.payload
        for row, (start, end) in enumerate(pairwise(data.offsets.tolist())):
            actions: list[str] = []
            sizes: list[TurnSize] = []
            for low, high in turn_bounds(data, start, end):
                text = self.tokenizer.decode(data.token_ids[low:high].tolist())
                has_stop = any(stop in text for stop in request.sampling.stop_strings)
                actions.append(text)
                sizes.append(self._size(request, data, low - start, slice(low, high), has_stop))
            yield EpisodeStep(
                episode=_episode(chunk, row),
                environment=payload["environment"],
                settings=payload.get("settings", {}),
                task=payload.get("task", {}),
                seed=(request.seed + int(chunk.indices[row])) % SEEDS,
                actions=tuple(actions),
                sizes=tuple(sizes),
            )

    def _size(
        self,
        request: RolloutRequest,
        data: ChunkArrays,
        before: int,
        turn: slice,
        has_stop: bool,
    ) -> TurnSize:
        """Return the number of tokens before a turn and in it, and whether a limit on tokens cut it off.

        The turn starts after `before` tokens of its response. `has_stop`: it ends with a stop string.
        """
        limits = request.sampling
        num_sampled = turn.stop - turn.start
        is_full = before + num_sampled >= limits.max_tokens
        if limits.max_turn_tokens is not None and num_sampled >= limits.max_turn_tokens:
            is_full = True
        if is_full and num_sampled:
            stops = self.tokenizer.with_stops(limits.stop_tokens)
            is_full = not has_stop and int(data.token_ids[turn.stop - 1]) not in stops
        return TurnSize(
            len(request.prompt.token_ids) + before,
            num_sampled,
            is_full,
        )

    def _observations(
        self,
        chunk: RolloutChunk,
        data: ChunkArrays,
        outcomes: list[EpisodeOutcome],
    ) -> list[list[int]]:
        """Return the tokens of the newest observation by trajectory, empty where it ends or is refused."""
        prompt = chunk.request.prompt
        limit = chunk.request.sampling.max_tokens
        observations: list[list[int]] = []
        for row, response in enumerate(split(data, data.token_ids)):
            observations.append([])
            outcome = outcomes[row]
            is_over = outcome.has_ended or outcome.truncated or outcome.error
            if is_over or len(response) >= limit:
                continue
            is_stopped = bool(chunk.is_stopped[row])
            try:
                tokens = self.tokens.after(prompt.messages, response.tolist(), is_stopped, outcome.observation)
            except ModelError as error:
                outcomes[row] = failed_outcome(str(error))
                continue
            if len(response) + len(tokens) < limit:
                observations[row] = tokens
        return observations


def _extended(chunk: RolloutChunk, data: ChunkArrays, outcomes: Sequence[EpisodeOutcome]) -> TurnRecord:
    """Return the turn records (rewards and tool errors) of a chunk's trajectories, extended by their newest turn."""
    newest: list[float] = []
    errors: list[bool] = []
    for outcome in outcomes:
        newest.append(outcome.reward)
        errors.append(bool(outcome.info.get("tool_error")))
    rewards = np.array(newest, np.float32)[:, None]
    is_tool_error = np.array(errors, bool)[:, None]
    partial = chunk.request.partial
    if partial is None or data.is_sampled is None:  # first turn, or a restart after the tokens were lost
        return TurnRecord(rewards, is_tool_error)
    rows = np.searchsorted(partial.indices, chunk.indices)
    if partial.turns is not None:
        before = partial.turns.select(rows.tolist())
        rewards = np.hstack([before.rewards, rewards])
        is_tool_error = np.hstack([before.is_tool_error, is_tool_error])
    return TurnRecord(rewards, is_tool_error)


def _episode(chunk: RolloutChunk, row: int) -> str:
    return f"{chunk.request.prompt.uid}/{chunk.indices[row]}"
