# long: every carrier on one page is what this page is for
"""The carriers that travel along the one direction of data, on one page.

`Prompt → RolloutRequest → RolloutChunk → RolloutGroup → ScoredGroup → TrainBatch → UpdatePlan (of MicroBatch) →
UpdateReport`

Each stage takes the previous type and returns the next. Everything is frozen. Axes: N rollouts of a prompt (a group),
n rollouts of a chunk, P prompt tokens, T response tokens. The driver holds no tokens: `RolloutChunk.data` is a
reference into Ray's object store (or, in tests and for supervised data, the arrays themselves; `object_store.fetch`
takes both).

A rollout of an environment is a trajectory of several turns: `turn 1 | observation 1 | turn 2 | …`. All of that is
its response; what the environment said in it was not sampled, is no part of the loss and has log-prob 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from brorl_graders import ENVIRONMENT
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]
Routes = NDArray[np.signedinteger[Any]]  # experts, in the smallest format that has them; NO_ROUTE: not known

NO_ROUTE = -1

SUCCESS_REWARD = 1.0 - 1e-6  # a rollout counts as correct from here on

WEIGHT_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Prompt:
    """One question, tokenised with its chat template, and what its verifier needs."""

    uid: str  # stable identity within a run: the same prompt drawn twice has two uids
    task: str  # metrics are grouped by it
    verifier: str  # key of rewards.VERIFIERS
    token_ids: tuple[int, ...]  # [P]
    payload: Mapping[str, Any]  # JSON-able; only the verifier reads it
    domain: str = ""  # of the mixture it was drawn from; "" where there is none
    messages: tuple[Mapping[str, str], ...] = ()  # each with role and content, of which the tokens were made
    level: int | None = None  # of its task's difficulty, from 0; None: the task has no levels

    @property
    def has_episodes(self) -> bool:
        """Whether an environment answers, over several turns."""
        return self.verifier == ENVIRONMENT


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn."""

    temperature: float
    top_p: float
    max_tokens: int  # response tokens, the stop token included; of a trajectory, observations too
    max_turn_tokens: int | None = None  # sampled in one turn; None: as many as the response has left


@dataclass(frozen=True)
class TurnRecord:
    """What the turns of n trajectories came to. Those that are kept together have made equally many: k."""

    rewards: Float32  # [n, k] raw
    is_tool_error: Bool  # [n, k] a tool was called wrongly
    ends: TurnEnds | None = None  # None: not over yet

    def rows(self, places: Sequence[int] | Bool) -> TurnRecord:
        """The record of some of them."""
        ends = None if self.ends is None else self.ends.rows(places)
        return TurnRecord(self.rewards[places], self.is_tool_error[places], ends)


@dataclass(frozen=True)
class TurnEnds:
    """How responses begin, up to the end of each turn with what was observed after it; for the driver, which holds no
    tokens, to see what they share. Of fewer turns than k the last one is repeated."""

    lengths: Int32  # [n, k] tokens until there
    keys: UInt64  # [n, k] of these tokens: equal ones have equal keys

    def rows(self, places: Sequence[int] | Bool) -> TurnEnds:
        return TurnEnds(self.lengths[places], self.keys[places])


@dataclass(frozen=True)
class PartialRollouts:
    """Rollouts of a group to be gone on with: cut in mid-sentence, maybe for a later step under newer weights, or
    trajectories whose environment has answered."""

    indices: Int32  # [n] places in the group, ascending
    lengths: Int32  # [n] tokens sampled so far; 0 for one that had not begun
    version: int  # oldest policy version that sampled one of the tokens
    data: Any  # as RolloutChunk.data: their tokens so far
    num_sampled: Int32 | None = None  # [n] of these tokens, those that were sampled; None: all
    turns: TurnRecord | None = None  # their turns that are over; None: none is
    engine: int = -1  # that sampled the last of these tokens, and may hold them all in its prefix cache; -1: none

    @property
    def sampled_tokens(self) -> int:
        """Tokens of all of them that were sampled."""
        counts = self.lengths if self.num_sampled is None else self.num_sampled
        return int(counts.sum())


@dataclass(frozen=True)
class RolloutRequest:
    """Ask one engine for n rollouts of a prompt's group: those from `first_index` on, or the ones to resume."""

    prompt: Prompt
    first_index: int
    num_rollouts: int  # n
    seed: int  # of the group; rollout i of the group is drawn with seed + i, whatever chunk it falls into
    sampling: Sampling
    partial: PartialRollouts | None = None  # the n rollouts to go on with, first_index is the first of their indices
    # from when an engine begins with it until it is cut there, as by `GenerationSession.cut`
    deadline_s: float | None = None

    @property
    def indices(self) -> Int32:  # [n]
        """Places in the group, ascending."""
        if self.partial is not None:
            return self.partial.indices
        return np.arange(self.first_index, self.first_index + self.num_rollouts, dtype=np.int32)


@dataclass(frozen=True)
class ChunkArrays:
    """The bulk of a chunk: n responses, packed end to end."""

    token_ids: Int32  # [sum T]
    log_probs: Float32  # [sum T], of the token under the sampling distribution (after temperature); 0: not sampled
    offsets: Int64  # [n + 1], response i is [offsets[i], offsets[i + 1])
    is_sampled: Bool | None = None  # [sum T], False for tokens of observations; None: all were sampled
    routes: Routes | None = None  # [sum T, layers, k] experts that a token went to; None: not recorded
    prompt_routes: Routes | None = None  # [P, layers, k] of the prompt's tokens

    @property
    def num_sampled(self) -> Int32 | None:
        """[n] tokens of each response that were sampled; None: all."""
        if self.is_sampled is None:
            return None
        sums = np.append(0, np.cumsum(self.is_sampled))
        return np.diff(sums[self.offsets]).astype(np.int32)


@dataclass(frozen=True)
class Period:
    """When a chunk was worked on, unix seconds by the clock of whoever did."""

    received_at: float
    began_at: float  # with its first token, or its first response
    ended_at: float


@dataclass(frozen=True)
class RolloutChunk:
    """What one engine sampled for one request: decisions need the small fields, workers fetch `data`.

    m = n rollouts, or fewer when the request was cut short; then the others are in `partial`.
    """

    request: RolloutRequest
    indices: Int32  # [m] places in the group, ascending
    lengths: Int32  # [m] response tokens
    is_stopped: Bool  # [m] ended by a stop token, and the trajectory by its environment (False: cut at a limit)
    version: int  # oldest policy version that sampled one of the tokens
    newest_version: int  # differs where a rollout was resumed, or weights changed while it was sampled
    engine: int  # index of the engine
    data: Any  # ray.ObjectRef of ChunkArrays, or ChunkArrays
    partial: PartialRollouts | None = None  # the rollouts that were cut
    num_sampled: Int32 | None = None  # [m] tokens of each response that were sampled; None: all
    period: Period | None = None  # of the engine; None: not known

    @property
    def sampled_tokens(self) -> int:
        """Tokens of all responses that were sampled."""
        counts = self.lengths if self.num_sampled is None else self.num_sampled
        return int(counts.sum())


@dataclass(frozen=True)
class PaidAnswer:
    """An answer that earned a reward."""

    answer: str  # as its verifier reads it, shortened
    num: int  # responses that earned with it
    is_reference: bool  # it is the prompt's own answer


@dataclass(frozen=True)
class RewardEvidence:
    """What may speak against rewards, found where responses are read. Small: no response but one example is in it."""

    num_without_answer: int  # responses that earned although their verifier reads no answer in them
    num_late: int  # responses whose verifier was ended at its deadline
    num_raised: int  # responses whose verifier raised, or ended its process
    paid: tuple[PaidAnswer, ...] = ()  # the most frequent ones
    example: str = ""  # beginning of a response that one of these numbers counts


@dataclass(frozen=True)
class ScoredChunk:
    """A chunk with its raw rewards."""

    chunk: RolloutChunk
    rewards: Float32  # [n] raw, before any shaping
    num_failed: int  # responses whose verifier timed out or crashed (reward 0)
    repetition: Float32  # [n] share of repeated n-grams; 0 where shaping does not ask for it
    keys: UInt64  # [n] of the tokens: equal responses have equal keys
    log_probs: Float32  # [n] of the whole responses under the distribution they were drawn from
    # [n] in one spelling, None where there is none; None: not asked for, or not known
    answers: tuple[str | None, ...] | None = None
    evidence: RewardEvidence | None = None  # None: not looked for
    turns: TurnRecord | None = None  # [n] trajectories, with their last turn; None: of no environment
    unfinished: PartialRollouts | None = None  # sampled trajectories that have not ended; `chunk` leaves them out
    period: Period | None = None  # of the verifier; None: not known
    # [n] what the verifier says of each score, why it failed for one; "": nothing. Empty: nothing of any
    reasons: tuple[str, ...] = ()
    worker: int = 0  # number of the verifier


@dataclass(frozen=True)
class SampledMass:
    """How much of the distribution over whole responses a group has seen. Every different response counts once."""

    num_distinct: int
    num_singletons: int  # drawn exactly once
    correct: float  # probability of the correct ones
    wrong: float
    correct_squares: float  # Σ p² of the correct ones
    wrong_squares: float


@dataclass(frozen=True)
class RolloutGroup:
    """The rollouts of one prompt, all N or those that had ended when the group was closed; chunks in order of
    first_index."""

    prompt: Prompt
    chunks: tuple[RolloutChunk, ...]

    @property
    def num_rollouts(self) -> int:
        return sum(len(chunk.lengths) for chunk in self.chunks)

    @property
    def version(self) -> int:
        """The oldest policy version in the group."""
        return min(chunk.version for chunk in self.chunks)

    @property
    def newest_version(self) -> int:
        return max(chunk.newest_version for chunk in self.chunks)

    @cached_property
    def lengths(self) -> Int32:  # [N]
        return np.concatenate([chunk.lengths for chunk in self.chunks])

    @cached_property
    def num_sampled(self) -> Int32:
        """[N] tokens of each response that were sampled."""
        counts: list[Int32] = []
        for chunk in self.chunks:
            counts.append(chunk.lengths if chunk.num_sampled is None else chunk.num_sampled)
        return np.concatenate(counts)

    @cached_property
    def is_stopped(self) -> Bool:  # [N]
        return np.concatenate([chunk.is_stopped for chunk in self.chunks])


@dataclass(frozen=True)
class ScoredGroup:
    """A group with raw rewards; filters and advantages work on this."""

    group: RolloutGroup
    rewards: Float32  # [N] raw
    num_failed: int
    repetition: Float32  # [N], as in ScoredChunk
    mass: SampledMass
    train_indices: Int64 | None = (
        None  # places of the rollouts that no earlier step has learnt from, ascending; None: all
    )
    answers: tuple[str | None, ...] | None = None  # [N], as in ScoredChunk
    evidence: tuple[RewardEvidence, ...] = ()  # of its chunks, where it was looked for
    records: tuple[TurnRecord | None, ...] = ()  # of its chunks; none: of no environment
    reasons: tuple[str, ...] = ()  # [N], as in ScoredChunk
    scored: tuple[Period | None, ...] = ()  # of its chunks, when the verifier worked on them

    @property
    def turns(self) -> tuple[TurnRecord | None, ...]:
        """Of each chunk the record of its trajectories' turns; None: of no environment."""
        return self.records or (None,) * len(self.group.chunks)

    @property
    def turn_ends(self) -> TurnEnds | None:
        """Of all rollouts; None where they are not known of all."""
        known = [record.ends for record in self.turns if record is not None and record.ends is not None]
        if len(known) < len(self.group.chunks):
            return None
        most = max(ends.lengths.shape[1] for ends in known)
        lengths: list[Int32] = []
        keys: list[UInt64] = []
        for ends in known:
            missing = ((0, 0), (0, most - ends.lengths.shape[1]))
            lengths.append(np.pad(ends.lengths, missing, mode="edge"))
            keys.append(np.pad(ends.keys, missing, mode="edge"))
        return TurnEnds(np.concatenate(lengths), np.concatenate(keys))

    @property
    def num_turns(self) -> Int32:
        """[N] turns of each rollout, one where there is no environment."""
        counts: list[Int32] = []
        for chunk, record in zip(self.group.chunks, self.turns, strict=True):
            num = 1 if record is None else record.rewards.shape[1]
            counts.append(np.full(len(chunk.lengths), num, np.int32))
        return np.concatenate(counts)

    @property
    def prompt(self) -> Prompt:
        return self.group.prompt

    @property
    def indices(self) -> Int32:
        """[N] index within the group that was asked for, of each rollout; some are missing in a group closed early."""
        return np.concatenate([chunk.indices for chunk in self.group.chunks])


@dataclass(frozen=True)
class WithdrawnGroup:
    """The finished rollouts of a group that did not close: nobody learns from them."""

    group: ScoredGroup
    reason: str  # as `DynamicSampling.withdraw` counts it


@dataclass(frozen=True)
class FilledBatch:
    """Result of a step's sampling."""

    batch: tuple[ScoredGroup, ...]  # to learn from, completed groups of earlier steps last
    sampled: tuple[ScoredGroup, ...]  # every group that closed, informative or not
    withdrawn: tuple[WithdrawnGroup, ...]
    loss_scale: float  # of the batch, where batches vary in size
    metrics: Mapping[str, float]
    generate_s: float  # until the last rollout was sampled
    reward_s: float  # after that, until the last one was scored


@dataclass(frozen=True)
class TrainBatch:
    """The informative groups of one step with one advantage per rollout."""

    groups: tuple[ScoredGroup, ...]
    advantages: tuple[Float32, ...]  # per group [N]; 0 for rollouts that are not trained
    rollouts: tuple[Int64, ...]  # per group the rollouts that are trained, ascending indices into N
    loss_scale: float = 1.0  # where batches vary in size
    min_reward_range: float | None = None  # of raw rewards in a group for which it was kept; None: all groups were
    shaped: tuple[Float32, ...] = ()  # per group [N]: the rewards that the advantages were made of
    # per group [N, K] where turns have advantages of their own, of which those above are means; none: they have not
    turn_advantages: tuple[Float32, ...] = ()


@dataclass(frozen=True)
class PlannedGroup:
    """What a policy rank needs of one group."""

    prompt_ids: Int32  # [P]
    chunks: tuple[Any, ...]  # data references, in order
    advantages: Float32  # [N], or [N, K] of each turn
    staleness: int  # updates between the weights that sampled it and those that learn from it
    is_measured: bool = True  # whether its rollouts of the last mini-batch are a fresh sample (`MeasuredGain`)
    num_turns: Int32 | None = None  # [N]; None: one each


@dataclass(frozen=True)
class GroupSlice:
    """Some rollouts of one group that share one copy of its prompt inside a micro-batch."""

    group: int  # index into UpdatePlan.groups
    rollouts: tuple[int, ...]  # indices within the group


@dataclass(frozen=True)
class MicroBatch:
    """One forward/backward pass of one rank: a row of `num_tokens` = per slice P + sum T."""

    slices: tuple[GroupSlice, ...]
    num_tokens: int
    num_loss_tokens: int  # sampled tokens of the responses


@dataclass(frozen=True)
class UpdatePlan:
    """Everything the ranks do in one update. Every data-parallel rank has the same number of micro-batches per
    mini-batch."""

    version: int  # of the weights this update produces
    objective: str  # key of losses.LOSSES
    learning_rate: float
    groups: tuple[PlannedGroup, ...]
    mini_batches: tuple[tuple[tuple[MicroBatch, ...], ...], ...]  # [mini-batch][data-parallel rank][micro-batch]
    loss_scale: float = 1.0  # as of the batch

    def num_loss_tokens(self, mini_batch: int) -> int:
        """Sampled tokens of one mini-batch over all ranks: the denominator of the token mean."""
        micro_batches = chain.from_iterable(self.mini_batches[mini_batch])
        return sum(micro.num_loss_tokens for micro in micro_batches)

    def num_turns(self, mini_batch: int) -> int:
        """Turns of the trajectories of one mini-batch over all ranks."""
        total = 0
        for micro in chain.from_iterable(self.mini_batches[mini_batch]):
            for group_slice in micro.slices:
                num_turns = self.groups[group_slice.group].num_turns
                if num_turns is None:
                    total += len(group_slice.rollouts)
                else:
                    total += int(num_turns[list(group_slice.rollouts)].sum())
        return total

    def num_responses(self, mini_batch: int) -> int:
        """Responses of one mini-batch over all ranks."""
        num_responses = 0
        for micro in chain.from_iterable(self.mini_batches[mini_batch]):
            num_responses += sum(len(group_slice.rollouts) for group_slice in micro.slices)
        return num_responses


@dataclass(frozen=True)
class UpdateReport:
    """What an update did."""

    version: int
    metrics: Mapping[str, float]  # flat, group/name
    seconds: Mapping[str, float]  # fetch, log_prob, update
    num_updates: int  # optimizer steps taken
    num_skipped: int  # mini-batches skipped for a non-finite loss or gradient


@dataclass(frozen=True)
class StoredGroup:
    """A group of a step as the rollout store keeps it."""

    scored: ScoredGroup
    origin: str  # sampled in this step, carried from an earlier one, or completed: the tail of one that was cut
    fate: str  # trained in this step, carried on, or why not
    shaped: Float32 | None = None  # [N]; None where it was not trained, as are the next two
    advantages: Float32 | None = None  # [N]
    trained: Int64 | None = None  # rollouts that were trained


@dataclass(frozen=True)
class StepRecord:
    """What the rollout store keeps of a step: enough to learn from it again."""

    step: int
    version: int  # of the weights that the update produced
    learning_rate: float
    loss_scale: float
    groups: tuple[StoredGroup, ...]  # those of the batch first, in its order
    num_left_out: int = 0  # groups of it that are not stored


@dataclass(frozen=True)
class TensorInfo:
    """Name, shape and dtype of one Hugging Face tensor, as in the safetensors header."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # key of WEIGHT_ITEM_BYTES: "float32", "bfloat16"

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * WEIGHT_ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class WeightBucket:
    """Consecutive tensors of the weight stream, flattened end to end."""

    tensors: tuple[TensorInfo, ...]
    data: NDArray[np.uint8]  # raw bytes of the tensors, contiguous, in order
    checksum: int  # zlib.crc32 of data


@dataclass(frozen=True)
class BucketNotice:
    """What Ray carries of a bucket whose bytes take another way: a broadcast, or memory of the same GPU."""

    tensors: tuple[TensorInfo, ...]
    checksum: int  # of the bytes, as `weights.flat.checksum` counts on the device they are on
    # by GPU: how another process maps the bytes there; None: they are broadcast
    handles: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class StreamedBucket:
    """One bucket of the weight stream, as references."""

    message: Any  # to a WeightBucket or BucketNotice: what engines get
    copy: Any  # to a WeightBucket, for engines that are started later; None: not kept, or a KeptCopy follows
    num_bytes: int  # of its tensors


@dataclass(frozen=True)
class KeptCopy:
    """Copy of the StreamedBucket before it: it is made while engines load that one."""

    reference: Any  # to a WeightBucket


@dataclass(frozen=True)
class WeightLink:
    """Where the processes of a weight broadcast meet. Rank 0 sends; worker w of receiver r is rank 1 + r × workers +
    w."""

    host: str
    port: int
    receivers: tuple[str, ...]  # names, another one for every process that is ever started
    workers_per_receiver: int
    backend: str  # gloo, nccl
    timeout_s: float  # to join, and to move one bucket

    @property
    def world_size(self) -> int:
        return 1 + len(self.receivers) * self.workers_per_receiver


@dataclass(frozen=True)
class EngineStats:
    """Counters of one engine since its start; differences of two snapshots are what a step did."""

    engine: int
    version: int
    prefix_cache_queries: int  # tokens looked up
    prefix_cache_hits: int  # tokens found
    num_preemptions: int
    generated_tokens: int
    generated_samples: int
    num_restarts: int = 0  # engines that were replaced here
    num_garbage: int = 0  # of these, for what they had sampled
    num_resampled: int = 0  # rollouts that were sampled again because their engine was lost
    resumed_tokens: int = 0  # that rollouts had when they were gone on with, their prompt's included
    resumed_hits: int = 0  # of these, found in the prefix cache
