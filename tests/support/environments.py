"""Trajectories without engines, Ray or processes: a generator that really goes on from tokens, and environments that
answer, hang and crash as told."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from brorl_graders.environments.protocol import EpisodeOutcome, EpisodeStep

from nemo_brorl.cluster.object_store import fetch
from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.generation.answers import answered_chunk
from nemo_brorl.generation.chunk_messages import ChunkMeta
from nemo_brorl.generation.chunk_task import ChunkTask, Continuation, RolloutTask
from nemo_brorl.generation.in_flight import ChunkInFlight
from nemo_brorl.scoring.pool import NO_SCORES, scored_chunk
from nemo_brorl.scoring.turns import TurnJudge
from nemo_brorl.types import Prompt, RolloutChunk, RolloutRequest, ScoredChunk
from tests.support.fakes import FakeGenerator, FakePrompts, FakeVerifier

OBSERVATION = (90, 91, 92)  # its tokens, which nobody samples
VOCABULARY = 100
PROMPT_TOKENS = 3


def draw(*what: object) -> int:
    """A number that depends on these alone."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


def environment_prompt(uid: str = "train/0", **task: Any) -> Prompt:
    payload = {"environment": "fake", "settings": {}, "task": task}
    return Prompt(
        uid, "toy", "environment", tuple(range(PROMPT_TOKENS)), payload, messages=({"role": "user", "content": "go"},)
    )


class EnvironmentPrompts(FakePrompts):
    """As FakePrompts, of environments."""

    def take_prompts(self, num: int) -> list[Prompt]:
        return [environment_prompt(prompt.uid) for prompt in super().take_prompts(num)]


class TurnGenerator(FakeGenerator):
    """Draws a rollout's first token from its seed and each further one, below 90, from all tokens so far, as greedy
    decoding does: whoever goes on from the same tokens comes to the same ones. A turn has one to four tokens, or so."""

    def answer(self, request: RolloutRequest, num_ended: int) -> RolloutChunk:
        partial = None if request.partial is None else fetch(request.partial.data)
        task = ChunkTask(0, request, partial, Future())
        for rollout in task.rollouts():
            task.put(rollout.row, self.continuation(rollout, has_ended=rollout.row < num_ended))
        self.num_samples += num_ended
        meta, arrays, cut_arrays = task.reply(self.version, VOCABULARY)
        assert isinstance(meta, ChunkMeta)
        in_flight = ChunkInFlight(0, 0, 0, request.num_rollouts, None, arrays, cut_arrays)
        return answered_chunk(in_flight, request, meta)

    def continuation(self, rollout: RolloutTask, has_ended: bool) -> Continuation:
        so_far = list(rollout.token_ids)
        tokens: list[int] = []
        is_stopped = False
        while not is_stopped and len(tokens) < rollout.max_tokens:
            is_first = len(so_far) == PROMPT_TOKENS
            token = draw(rollout.seed if is_first else so_far) % 90
            so_far.append(token)
            tokens.append(token)
            is_stopped = draw(so_far, "stop") % 3 == 0
        if not has_ended:
            tokens = tokens[: min(2, len(tokens) - 1)]  # it is cut in mid-sentence
        log_probs = [-0.1 - token / VOCABULARY for token in tokens]
        versions = [self.version] if tokens else []
        return Continuation(tokens, log_probs, versions, has_ended, is_stopped)


Answer = Callable[[EpisodeStep], EpisodeOutcome]


def outcome(reward: float = 0.0, has_ended: bool = False, **more: Any) -> EpisodeOutcome:
    fields = {"truncated": False, "info": {}, "error": "", **more}
    observation = () if has_ended else ({"role": "user", "content": "more"},)
    return EpisodeOutcome(observation, reward, has_ended, **fields)


def one_to_four_turns(step: EpisodeStep) -> EpisodeOutcome:
    """A trajectory of one to four turns, which earns at the last one or does not."""
    num_turns = 1 + draw(step.actions[0], step.episode, "turns") % 4
    if len(step.actions) < num_turns:
        return outcome(0.25, info={"tool_error": draw(step.actions) % 5 == 0})
    return outcome(float(draw(step.actions, step.episode) % 2), has_ended=True)


class FakeHost:
    """Keeps what each instance was told; one that was ended is made anew from its actions."""

    def __init__(self, answer: Answer = one_to_four_turns) -> None:
        self.answer = answer
        self.instances: dict[str, tuple[str, ...]] = {}
        self.num_steps: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.num_made_anew = 0

    def step(self, steps: Sequence[EpisodeStep]) -> list[EpisodeOutcome]:
        outcomes: list[EpisodeOutcome] = []
        for step in steps:
            if len(step.actions) > 1 and self.instances.get(step.episode) != step.actions[:-1]:
                self.num_made_anew += 1
            self.num_steps[step.episode, step.actions] += 1
            self.instances[step.episode] = step.actions
            outcomes.append(self.answer(step))
        return outcomes

    def end(self, episodes: Collection[str]) -> None:
        for episode in episodes:
            self.instances.pop(episode, None)

    def close(self) -> None:
        self.instances.clear()


class FakeTokens:
    """Every observation is three tokens."""

    def after(
        self,
        messages: Sequence[Mapping[str, Any]],
        response_ids: Sequence[int],
        is_stopped: bool,
        observation: Sequence[Mapping[str, Any]],
    ) -> list[int]:
        assert observation, "an observation is needed to go on"
        return list(OBSERVATION)


class NumberTokenizer:
    """Text of tokens is their numbers."""

    eos_token_id = -1

    def with_stops(self, texts: Sequence[str]) -> frozenset[int]:
        return frozenset({self.eos_token_id, *map(int, texts)})

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))


def make_judge(host: FakeHost, **settings: Any) -> TurnJudge:
    return TurnJudge(NumberTokenizer(), host, FakeTokens(), RewardsConfig(**settings))  # type: ignore[arg-type]


class EnvironmentVerifier(FakeVerifier):
    """The real judging of turns over a fake host, `num_per_poll` chunks at a time; other prompts as FakeVerifier."""

    num_per_poll: int | None = None

    def __init__(self, answer: Answer = one_to_four_turns, **settings: Any) -> None:
        super().__init__()
        self.host = FakeHost(answer)
        self.judge = make_judge(self.host, **settings)

    def poll(self) -> list[ScoredChunk]:
        waiting = self.submitted
        num = len(waiting) if self.num_per_poll is None else self.num_per_poll
        self.submitted = waiting[num:]
        return [self.scored(chunk) for chunk in waiting[:num]]

    def forget(self) -> None:
        super().forget()
        self.judge.end_all()

    def scored(self, chunk: RolloutChunk) -> ScoredChunk:
        if "environment" not in chunk.request.prompt.payload:
            return super().scored(chunk)
        if not len(chunk.lengths):
            return scored_chunk(chunk, NO_SCORES)
        return scored_chunk(chunk, *self.judge.judge(chunk, fetch(chunk.data)))
