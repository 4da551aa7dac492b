"""Ledger of the groups that are being sampled: which rollouts are out, finished or cut.

The ledger is the only owner of a group between its first request and its last reply. It moves no tokens and knows no
engine. A rollout that was cut is *partial*: its tokens so far are in `OpenGroup.partial` until it is requested again.

A group's N rollouts are requested in chunks, each with the group's seed and its index in the group.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
from brorl_graders import full_mark, lowest_right

from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.core.errors import GenerationError
from nemo_brorl.types import (
    Float32,
    Int32,
    Int64,
    PartialRollouts,
    Prompt,
    RolloutChunk,
    RolloutGroup,
    RolloutRequest,
    SampledMass,
    Sampling,
    ScoredChunk,
    ScoredGroup,
    TurnRecord,
    UInt64,
)

MIN_CHUNK = 8  # smallest chunk that is worth its calls, in rollouts
NO_ENGINE = -1

SEED_BITS = 48  # leaves room to add N and stay a positive signed 64-bit number


@dataclass
class OpenGroup:
    """The rollouts of one prompt while they are sampled."""

    prompt: Prompt
    sampling: Sampling
    deadline_s: float | None = None  # deadline of each request
    scored_chunks: list[ScoredChunk] = field(default_factory=list)  # chunks of finished rollouts
    partial: list[PartialRollouts] = field(default_factory=list)  # rollouts that were cut and not requested again
    num_trained_chunks: int = 0  # chunks that an earlier step has trained on; they come first
    unscored: tuple[ScoredChunk, ...] = ()  # chunks whose verifier failed on every response

    @property
    def uid(self) -> str:
        return self.prompt.uid

    @property
    def is_closed(self) -> bool:
        """Return True if a step has trained on rollouts of this group already.

        Then only its unfinished rollouts are resumed.
        """
        return self.num_trained_chunks > 0

    @property
    def num_finished(self) -> int:
        return sum(len(scored.rewards) for scored in self.scored_chunks)

    @property
    def num_failed(self) -> int:
        """Return the number of rollouts that the group lacks, since their verifier failed."""
        failed = [scored.failed for scored in (*self.scored_chunks, *self.unscored)]
        return sum(len(rollouts.errors) for rollouts in failed if rollouts is not None)

    @property
    def num_partial(self) -> int:
        return sum(len(partial.indices) for partial in self.partial)

    @property
    def num_rollouts(self) -> int:
        """Return the number of the group's rollouts that the engines have returned, finished or cut off.

        When no rollout of the group is being sampled, these are all rollouts that were requested.
        """
        return self.num_finished + self.num_partial

    @property
    def oldest_version(self) -> int | None:
        """Return the oldest policy version that sampled a token of the group, or None if the group has no token."""
        versions = [scored.chunk.version for scored in self.scored_chunks]
        for partial in self.partial:
            # A rollout that was cut before its first token belongs to no version yet.
            if partial.lengths.any():
                versions.append(partial.version)
        return min(versions, default=None)

    @property
    def rewards(self) -> Float32:
        """Return the raw rewards of the finished rollouts, [finished], in the order of their index in the group."""
        rewards = [scored.rewards for scored in in_order(self.scored_chunks)]
        return np.concatenate(rewards)

    @property
    def lengths(self) -> Int32:
        """Return the response lengths in tokens of the finished rollouts, [finished], by their index in the group."""
        lengths = [scored.chunk.lengths for scored in in_order(self.scored_chunks)]
        return np.concatenate(lengths)

    def close(self) -> ScoredGroup:
        """Build the scored group from its finished rollouts, without the unfinished ones."""
        return close_group(self.prompt, self.scored_chunks, self.unscored)

    def untrained_indices(self) -> Int64:
        """Return the indices, among a group's finished rollouts, of those that no step has trained on, ascending."""
        trained: set[int] = set()
        for scored in self.scored_chunks[: self.num_trained_chunks]:
            trained.update(scored.chunk.indices.tolist())
        indices: list[int] = []
        for scored in in_order(self.scored_chunks):
            indices.extend(scored.chunk.indices.tolist())
        untrained: list[int] = []
        for index_in_closed, index in enumerate(indices):
            if index not in trained:
                untrained.append(index_in_closed)
        return np.array(untrained, np.int64)


class GroupLedger:
    """The groups that are being sampled, by uid, in the order in which they were opened.

    ledger.open(group)                  # train/7: nothing requested
    ledger.ask("train/7", range(4))     # out 0 1 2 3
    ledger.receive(chunk of 0 1)        # out 2 3
    ledger.receive(chunk of 2, 3 cut)   # out nothing: 3 finished, 1 partial  settled
    ledger.ask("train/7", [3])          # out 3: 3 finished, 0 partial        after `release`, in a later step `open`
    ledger.receive(chunk of 3)          # out nothing: 4 finished             settled
    ledger.release("train/7")           # forgotten

    Every rollout that was requested comes back exactly once, or `receive` raises. A trajectory that has not ended comes
    back partial, with the observation of its environment, and is requested again.
    """

    def __init__(self) -> None:
        self.groups: dict[str, OpenGroup] = {}
        self._out: dict[str, set[int]] = {}  # uid → indices of rollouts that have not come back

    @property
    def num_out(self) -> int:
        """Return the number of requested rollouts that the engines and verifiers have not returned."""
        return sum(map(len, self._out.values()))

    def unsettled(self) -> list[str]:
        """Return the uids of the groups with requested rollouts that were not returned yet."""
        uids: list[str] = []
        for uid, out in self._out.items():
            if out:
                uids.append(uid)
        return uids

    def open(self, group: OpenGroup) -> None:
        """Add a group to the ledger of rollouts that are being sampled, before any of its rollouts is requested."""
        assert group.uid not in self.groups, f"group {group.uid} is being sampled already"
        self.groups[group.uid] = group
        self._out[group.uid] = set()

    def ask(self, uid: str, indices: Iterable[int]) -> None:
        """Record that these rollouts of a group were requested from the engines.

        Unfinished rollouts among them are no longer counted as unfinished, because they are being resumed.
        """
        requested = set(indices)
        group = self.groups[uid]
        left: list[PartialRollouts] = []
        for partial in group.partial:
            if not _is_resumed(partial, requested):
                left.append(partial)
        group.partial = left
        self._out[uid] |= requested

    def receive(self, chunk: RolloutChunk, scored: ScoredChunk | None) -> None:
        """Record the reply to a request for rollouts.

        `scored` is None for a chunk of rollouts that no verifier has seen.
        """
        uid = chunk.request.prompt.uid
        group = self.groups[uid]
        out = self._out[uid]
        indices = chunk.indices.tolist()
        unfinished = None if scored is None else scored.unfinished
        for partial in (chunk.partial, unfinished):
            if partial is not None:
                indices += partial.indices.tolist()
                group.partial.append(partial)
        failed = None if scored is None else scored.failed
        if failed is not None:
            indices += failed.indices.tolist()
        # A rollout that came back twice would count twice in the loss.
        for index in indices:
            assert index in out, f"rollout {index} of {uid} came back twice"
            out.remove(index)
        # A chunk of which every rollout was cut has nothing to train on.
        if scored is not None and len(chunk.indices):
            group.scored_chunks.append(scored)
        elif scored is not None and failed is not None:
            group.unscored += (scored,)

    def is_settled(self, uid: str) -> bool:
        """Return True if all requested rollouts of a group have been returned, finished or cut off."""
        return not self._out[uid]

    def release(self, uid: str) -> OpenGroup:
        """Remove and return a group whose requested rollouts have all been returned, finished or cut off."""
        assert not self._out[uid], f"{len(self._out[uid])} rollouts of {uid} are still out"
        del self._out[uid]
        return self.groups.pop(uid)


def _is_resumed(partial: PartialRollouts, requested: set[int]) -> bool:
    """Return True if a set of cut rollouts is requested again, which must be all of them or none.

    They are resumed together, because their tokens are one object.
    """
    indices = partial.indices.tolist()
    num_asked = len(requested.intersection(indices))
    assert num_asked in (0, len(indices)), "partial rollouts of one chunk must be resumed together"
    return num_asked > 0


def check_version(group: OpenGroup, version: int) -> None:
    """Raise GenerationError if a token of the group was not sampled under the policy weights of the current step."""
    for scored in group.scored_chunks:
        chunk = scored.chunk
        versions = {chunk.version, chunk.newest_version}
        if versions != {version}:
            raise GenerationError(
                f"engine {chunk.engine} sampled {group.uid} under version {chunk.version} to"
                f" {chunk.newest_version}, the step is of version {version}"
            )


def close_group(
    prompt: Prompt,
    scored_chunks: Iterable[ScoredChunk],
    unscored: tuple[ScoredChunk, ...] = (),
) -> ScoredGroup:
    """Build one group of rollouts from its scored chunks, which may be in any order.

    The verifier failed on every response of the `unscored` chunks. Only a group of these alone has no rollout.
    """
    ordered = in_order(scored_chunks)
    every = [*ordered, *unscored]
    ordered = ordered or every
    chunks = tuple(scored.chunk for scored in ordered)
    rewards = np.concatenate([scored.rewards for scored in ordered])
    repetition = np.concatenate([scored.repetition for scored in ordered])
    keys = np.concatenate([scored.keys for scored in ordered])
    log_probs = np.concatenate([scored.log_probs for scored in ordered])
    return ScoredGroup(
        group=RolloutGroup(prompt, chunks),
        rewards=rewards,
        num_failed=sum(scored.num_failed for scored in every),
        repetition=repetition,
        mass=sampled_mass(keys, log_probs, rewards, full_mark(prompt.payload)),
        answers=_joined_answers(ordered),
        evidence=tuple(scored.evidence for scored in every if scored.evidence is not None),
        records=_records(ordered),
        reasons=_joined_reasons(ordered),
        scored=tuple(scored.period for scored in ordered),
        errors=tuple(chain.from_iterable(scored.failed.errors for scored in every if scored.failed is not None)),
    )


def in_order(scored_chunks: Iterable[ScoredChunk]) -> list[ScoredChunk]:
    """Return scored chunks of rollouts, sorted by the index of their first rollout in the group."""
    return sorted(scored_chunks, key=_first_index)


def _first_index(scored: ScoredChunk) -> int:
    return int(scored.chunk.indices[0])


def _joined_answers(scored_chunks: Sequence[ScoredChunk]) -> tuple[str | None, ...] | None:
    """Return the extracted answers of the rollouts of all chunks, or None unless every chunk has answers."""
    answers: list[str | None] = []
    for scored in scored_chunks:
        if scored.answers is None:
            return None
        answers.extend(scored.answers)
    return tuple(answers)


def _joined_reasons(scored_chunks: Sequence[ScoredChunk]) -> tuple[str, ...]:
    """Return the verifiers' reasons for the rewards of the rollouts of all chunks, or () if no chunk has reasons."""
    if not any(scored.reasons for scored in scored_chunks):
        return ()
    reasons: list[str] = []
    for scored in scored_chunks:
        reasons.extend(scored.reasons or [""] * len(scored.rewards))
    return tuple(reasons)


def _records(scored_chunks: Sequence[ScoredChunk]) -> tuple[TurnRecord | None, ...]:
    """Return the record of environment turns of each chunk of rollouts, or () if no chunk has a record."""
    records: list[TurnRecord | None] = []
    num_kept = 0
    for scored in scored_chunks:
        records.append(scored.turns)
        num_kept += scored.turns is not None
    return tuple(records) if num_kept else ()


def sampled_mass(keys: UInt64, log_probs: Float32, rewards: Float32, mark: float = 1.0) -> SampledMass:
    """Return the probability mass of the distinct responses that the rollouts of a group have sampled.

    Whole responses take the role of the theory's tokens (`docs/explanation/theory.md`). `keys`, `log_probs` and
    `rewards` are [N], of which those from `mark` on are right. Equal responses have equal keys, and are assumed to have
    equal rewards.
    """
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    # The square of a long response's probability is zero in float32.
    different = log_probs[first].astype(np.float64)
    probabilities = np.exp(different)
    is_correct = rewards[first] >= lowest_right(mark)
    correct = probabilities[is_correct]
    wrong = probabilities[~is_correct]
    return SampledMass(
        num_distinct=len(first),
        num_singletons=int((counts == 1).sum()),
        correct=float(correct.sum()),
        wrong=float(wrong.sum()),
        correct_squares=float((correct**2).sum()),
        wrong_squares=float((wrong**2).sum()),
    )


def group_seed(run_seed: int, prompt_uid: str) -> int:
    """Return the seed from which a prompt's group of rollouts is sampled.

    The seed depends on the run's seed and the prompt's uid alone, so a restart samples the same rollouts.
    """
    # Python's own `hash` of a text differs between processes.
    digest = hashlib.blake2b(f"{run_seed}/{prompt_uid}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - SEED_BITS)


def sampling_of(rollouts: RolloutsConfig) -> Sampling:
    """Return the sampling parameters of training."""
    return Sampling(
        rollouts.temperature, rollouts.top_p, rollouts.max_response_tokens, rollouts.max_turn_tokens, *rollouts.stops
    )


def requests_for(
    prompts: Sequence[Prompt],
    num_per_prompt: int,
    chunk_size: int,
    sampling: Sampling,
    run_seed: int,
    deadline_s: float | None = None,
) -> list[RolloutRequest]:
    """Return requests for `num_per_prompt` rollouts of each prompt, in order, with `chunk_size` rollouts per request.

    The last request of a prompt may have fewer rollouts.
    """
    requests: list[RolloutRequest] = []
    for prompt in prompts:
        seed = group_seed(run_seed, prompt.uid)
        for first in range(0, num_per_prompt, chunk_size):
            num_rollouts = min(chunk_size, num_per_prompt - first)
            request = RolloutRequest(prompt, first, num_rollouts, seed, sampling, deadline_s=deadline_s)
            requests.append(request)
    return requests


def requests_to_resume(group: OpenGroup, run_seed: int) -> list[RolloutRequest]:
    """Return requests to resume all unfinished rollouts of a group.

    The requests may go to any engine, because no engine has the tokens of these rollouts any longer.
    """
    requests: list[RolloutRequest] = []
    for partial in group.partial:
        elsewhere = replace(partial, engine=NO_ENGINE)
        requests.append(request_to_resume(group, elsewhere, run_seed))
    return requests


def request_to_resume(group: OpenGroup, partial: PartialRollouts, run_seed: int) -> RolloutRequest:
    """Return the request that resumes one set of unfinished rollouts of a group."""
    return RolloutRequest(
        group.prompt,
        int(partial.indices[0]),
        len(partial.indices),
        group_seed(run_seed, group.uid),
        group.sampling,
        partial=partial,
        deadline_s=group.deadline_s,
    )


def fitting_chunk_size(
    num_rollouts: int,
    num_engines: int,
    chunk_size: int,
    chunks_per_engine: int = 16,
) -> int:
    """Return the number of rollouts in a chunk, which one request to an engine samples.

    It is at most `chunk_size`, and less if engines would get too few chunks. Each engine should get at least
    `chunks_per_engine` chunks, because started chunks cannot be moved, so balance needs many of them. A chunk has at
    least `MIN_CHUNK` rollouts, because every chunk costs its calls.
    """
    smallest = min(chunk_size, MIN_CHUNK)
    balanced = math.ceil(num_rollouts / (num_engines * chunks_per_engine))
    return max(smallest, min(chunk_size, balanced))
