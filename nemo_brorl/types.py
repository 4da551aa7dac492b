# long: every carrier on one page is what this page is for
"""Define the records that travel along the one direction of data, on one page.

`Prompt → RolloutRequest → RolloutChunk → RolloutGroup → ScoredGroup → TrainBatch → UpdatePlan (of MicroBatch) →
UpdateReport`

Each stage takes the previous type and returns the next. All records are frozen. Axes: N rollouts of a prompt (a group),
n rollouts of a chunk, P prompt tokens, T response tokens. The driver holds no tokens. `RolloutChunk.data` is a
reference into Ray's object store, or the arrays themselves in tests and for supervised data. `object_store.fetch` takes
both.

A rollout in an environment is a trajectory of several turns: `turn 1 | observation 1 | turn 2 | …`. The response is all
of that. Tokens of observations were not sampled: they are masked out of the loss and have log-prob 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from brorl_graders import ENVIRONMENT, full_mark, lowest_right
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]
# expert indices, in the smallest integer format that holds them; NO_ROUTE: not known
Routes = NDArray[np.signedinteger[Any]]

NO_ROUTE = -1

WEIGHT_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class ReadOnly:
    """A record whose arrays cannot be written, since observers and a user's functions are handed what training uses."""

    def __post_init__(self) -> None:
        for value in vars(self).values():
            for array in value if isinstance(value, tuple) else (value,):
                if isinstance(array, np.ndarray):
                    array.setflags(write=False)


@dataclass(frozen=True)
class Prompt:
    """One question, tokenised with its chat template, with the data that its verifier needs."""

    uid: str  # stable identity within a run: the same prompt drawn twice has two uids
    task: str  # name under which metrics are grouped
    verifier: str  # key of rewards.VERIFIERS
    token_ids: tuple[int, ...]  # [P]
    payload: Mapping[str, Any]  # JSON-able data for the verifier, with the full mark of its rewards
    domain: str = ""  # name of the mixture's domain that the prompt comes from; "" without a mixture
    messages: tuple[Mapping[str, str], ...] = ()  # the messages (role and content) that were tokenised
    level: int | None = None  # difficulty level of the task, from 0; None: the task has no levels

    @property
    def has_episodes(self) -> bool:
        """True if an environment replies to the model's responses, over several turns."""
        return self.verifier == ENVIRONMENT


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of a rollout request."""

    temperature: float
    top_p: float
    max_tokens: int  # limit of response tokens, the stop token and a trajectory's observations included
    max_turn_tokens: int | None = None  # limit of tokens sampled in one turn; None: as many as the response has left
    stop_tokens: tuple[str, ...] = ()  # further tokens that end a response
    stop_strings: tuple[str, ...] = ()  # texts that end a response which holds them


@dataclass(frozen=True)
class TurnRecord(ReadOnly):
    """Rewards and tool errors of n trajectories that have k turns each."""

    rewards: Float32  # raw rewards [n, k]
    is_tool_error: Bool  # flags [n, k]; True: the turn called a tool wrongly
    ends: TurnEnds | None = None  # None: the trajectories have not ended

    def select(self, indices: Sequence[int] | Bool) -> TurnRecord:
        """Return the turn record (rewards and tool errors) of the trajectories that `indices` or a mask [n] select."""
        ends = None if self.ends is None else self.ends.select(indices)
        return TurnRecord(self.rewards[indices], self.is_tool_error[indices], ends)


@dataclass(frozen=True)
class TurnEnds(ReadOnly):
    """Length and hash of each response's prefix up to the end of each turn, observation included.

    The driver holds no tokens and finds shared prefixes by these hashes. A response with fewer turns than k repeats its
    last entry.
    """

    lengths: Int32  # tokens up to the end of the turn [n, k]
    keys: UInt64  # hashes of these tokens [n, k]; equal prefixes have equal hashes

    def select(self, indices: Sequence[int] | Bool) -> TurnEnds:
        return TurnEnds(self.lengths[indices], self.keys[indices])


@dataclass(frozen=True)
class PartialRollouts(ReadOnly):
    """Unfinished rollouts of a group that will be resumed.

    They were cut off in mid-response, or their environment has replied and the next turn is due. Newer weights may
    sample the rest, in a later step.
    """

    indices: Int32  # indices within the group [n], ascending
    lengths: Int32  # tokens so far, observations included [n]; 0 for a rollout that had not started
    version: int  # oldest policy version that sampled one of the tokens
    data: Any  # the tokens so far, in the form of RolloutChunk.data
    num_sampled: Int32 | None = None  # number of sampled tokens among them [n]; None: all
    turns: TurnRecord | None = None  # record of the finished turns; None: no turn has finished
    engine: int = -1  # index of the engine that sampled last and may still cache the tokens; -1: none

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens sampled so far, summed over the partial rollouts."""
        counts = self.lengths if self.num_sampled is None else self.num_sampled
        return int(counts.sum())


@dataclass(frozen=True)
class RolloutRequest:
    """A request to one engine for n rollouts of a prompt's group.

    They are new rollouts from `first_index` on, or partial ones to resume.
    """

    prompt: Prompt
    first_index: int
    num_rollouts: int  # n
    seed: int  # seed of the group; rollout i is sampled with seed + i, in any chunk
    sampling: Sampling
    partial: PartialRollouts | None = None  # the n rollouts to resume; first_index is the smallest of their indices
    # seconds from the engine's start on the request until it is cut, as by `GenerationSession.cut`
    deadline_s: float | None = None

    @property
    def indices(self) -> Int32:  # [n]
        """Indices of the n requested rollouts within their group, ascending."""
        if self.partial is not None:
            return self.partial.indices
        return np.arange(self.first_index, self.first_index + self.num_rollouts, dtype=np.int32)


@dataclass(frozen=True)
class ChunkArrays:
    """Token arrays of a chunk: n responses, packed end to end."""

    token_ids: Int32  # [sum T]
    # log-probs of the tokens [sum T] under the sampling distribution (after temperature); 0: not sampled
    log_probs: Float32
    offsets: Int64  # bounds [n + 1]; response i is [offsets[i], offsets[i + 1])
    is_sampled: Bool | None = None  # mask [sum T], False for tokens of observations; None: all were sampled
    # experts [sum T, layers, k] that each response token was routed to; None: not recorded
    routes: Routes | None = None
    prompt_routes: Routes | None = None  # experts [P, layers, k] that each prompt token was routed to

    @property
    def num_sampled(self) -> Int32 | None:
        """Number of sampled tokens of each response [n]. None: every token was sampled."""
        if self.is_sampled is None:
            return None
        sums = np.append(0, np.cumsum(self.is_sampled))
        return np.diff(sums[self.offsets]).astype(np.int32)


@dataclass(frozen=True)
class Period:
    """Start and end of the work on a chunk, in unix seconds by the clock of the process that did it."""

    received_at: float
    began_at: float  # time of the first token, or of the first response
    ended_at: float


@dataclass(frozen=True)
class RolloutChunk(ReadOnly):
    """The rollouts that one engine sampled for one request.

    The small fields are for decisions, and `data` is for the processes that need tokens. m = n rollouts, or fewer when
    the request was cut. Then the unfinished rollouts are in `partial`.
    """

    request: RolloutRequest
    indices: Int32  # indices within the group [m], ascending
    lengths: Int32  # response tokens [m]
    is_stopped: Bool  # flags [m]; True: ended by a stop token, and a trajectory by its environment; False: cut
    version: int  # oldest policy version that sampled one of the tokens
    newest_version: int  # differs from version where a rollout was resumed, or weights changed while it was sampled
    engine: int  # index of the engine
    data: Any  # ray.ObjectRef of ChunkArrays, or ChunkArrays
    partial: PartialRollouts | None = None  # unfinished rollouts of a request that was cut
    num_sampled: Int32 | None = None  # sampled tokens of each response [m]; None: all
    period: Period | None = None  # the engine's working time; None: not known

    @property
    def sampled_tokens(self) -> int:
        """Number of sampled tokens, summed over the responses of the chunk."""
        counts = self.lengths if self.num_sampled is None else self.num_sampled
        return int(counts.sum())


@dataclass(frozen=True)
class PaidAnswer:
    """One extracted answer that earned a reward, with the number of responses that gave it."""

    answer: str  # the answer as its verifier extracts it, shortened
    num: int  # responses that earned a reward with it
    is_reference: bool  # True: it is the prompt's reference answer


@dataclass(frozen=True)
class RewardEvidence:
    """Signs of wrong rewards in a chunk, counted where its responses are scored.

    It is small: it has the text of one example only.
    """

    num_without_answer: int  # responses with a reward although their verifier extracts no answer
    num_late: int  # responses whose verifier was ended at its deadline
    num_raised: int  # responses whose verifier raised, or ended its process
    paid: tuple[PaidAnswer, ...] = ()  # the most frequent rewarded answers
    example: str = ""  # beginning of one response that the numbers count


@dataclass(frozen=True)
class FailedRollouts(ReadOnly):
    """Rollouts that have ended and have no reward, since their verifier failed by its own fault. No group has them."""

    indices: Int32  # indices within the group [n]
    errors: tuple[str, ...]  # why the verifier of each failed [n]


@dataclass(frozen=True)
class ScoredChunk(ReadOnly):
    """A rollout chunk with its raw rewards, without the responses whose verifier failed."""

    chunk: RolloutChunk
    rewards: Float32  # raw rewards [n], before any shaping
    num_failed: int  # responses whose verifier failed: those in `failed`, and those that made it fail (reward 0)
    repetition: Float32  # share of repeated n-grams [n]; 0 unless shaping uses it
    keys: UInt64  # hashes of the tokens [n]; equal responses have equal hashes
    log_probs: Float32  # log-probs of the whole responses [n] under the distribution they were sampled from
    # normalised extracted answers [n], None where there is none; None: not requested, or not known
    answers: tuple[str | None, ...] | None = None
    evidence: RewardEvidence | None = None  # None: not collected
    turns: TurnRecord | None = None  # record of the n trajectories, their last turn included; None: no environment
    unfinished: PartialRollouts | None = None  # trajectories that have not ended; `chunk` leaves them out
    period: Period | None = None  # the verifier's working time; None: not known
    # the verifier's remark on each score, or why it failed [n]; "": none. Empty: no remark at all
    reasons: tuple[str, ...] = ()
    worker: int = 0  # index of the verifier worker
    failed: FailedRollouts | None = None  # responses that `chunk` leaves out; None: there are none


@dataclass(frozen=True)
class SampledMass:
    """Probability mass over whole responses that a group's rollouts have covered.

    Each distinct response counts once.
    """

    num_distinct: int
    num_singletons: int  # distinct responses that one rollout alone drew
    correct: float  # summed probability of the correct responses
    wrong: float  # summed probability of the wrong responses
    correct_squares: float  # Σ p² over the correct responses
    wrong_squares: float  # Σ p² over the wrong responses


@dataclass(frozen=True)
class RolloutGroup:
    """The rollouts of one prompt: all N, or those that had ended when the group was closed.

    Chunks are in the order of their first_index.
    """

    prompt: Prompt
    chunks: tuple[RolloutChunk, ...]

    @property
    def num_rollouts(self) -> int:
        return sum(len(chunk.lengths) for chunk in self.chunks)

    @property
    def version(self) -> int:
        """Oldest policy version that sampled a token of the group."""
        return min(chunk.version for chunk in self.chunks)

    @property
    def newest_version(self) -> int:
        return max(chunk.newest_version for chunk in self.chunks)

    @cached_property
    def lengths(self) -> Int32:  # [N]
        return _joined([chunk.lengths for chunk in self.chunks])

    @cached_property
    def num_sampled(self) -> Int32:
        """Number of sampled tokens of each response in the group [N]."""
        counts: list[Int32] = []
        for chunk in self.chunks:
            counts.append(chunk.lengths if chunk.num_sampled is None else chunk.num_sampled)
        return _joined(counts)

    @cached_property
    def is_stopped(self) -> Bool:  # [N]
        return _joined([chunk.is_stopped for chunk in self.chunks])


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    joined = np.concatenate(arrays)
    joined.setflags(write=False)
    return joined


@dataclass(frozen=True)
class ScoredGroup(ReadOnly):
    """A rollout group with its raw rewards. Filters and advantages work on it."""

    group: RolloutGroup
    rewards: Float32  # raw rewards [N]
    num_failed: int  # rollouts whose verifier failed: those that the group lacks, and those that made it fail
    repetition: Float32  # share of repeated n-grams [N], as in ScoredChunk
    mass: SampledMass
    # ascending indices of the rollouts that no earlier step has trained on; None: all
    train_indices: Int64 | None = None
    answers: tuple[str | None, ...] | None = None  # normalised extracted answers [N], as in ScoredChunk
    evidence: tuple[RewardEvidence, ...] = ()  # one entry for each chunk whose evidence was collected
    records: tuple[TurnRecord | None, ...] = ()  # one turn record for each chunk; empty: no environment
    reasons: tuple[str, ...] = ()  # the verifier's remarks [N], as in ScoredChunk
    scored: tuple[Period | None, ...] = ()  # the verifier's working time on each chunk
    errors: tuple[str, ...] = ()  # why verifiers failed on the rollouts that the group lacks

    @property
    def turns(self) -> tuple[TurnRecord | None, ...]:
        """Rewards and tool errors by turn, one record for each chunk of the group's rollouts. None: no environment."""
        return self.records or (None,) * len(self.group.chunks)

    @property
    def turn_ends(self) -> TurnEnds | None:
        """Length and hash of each rollout's prefix up to the end of each turn [N, k]. None if a rollout lacks them."""
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
        """Number of turns of each rollout [N]; 1 without an environment."""
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
        """Index of each rollout within the requested group. Some are missing if sampling of the group ended early."""
        return np.concatenate([chunk.indices for chunk in self.group.chunks])


def is_right(group: ScoredGroup) -> Bool:
    """Return the mask [N] of a group's right rollouts: their raw rewards reach the full mark of the group's prompt."""
    return group.rewards >= lowest_right(full_mark(group.prompt.payload))


@dataclass(frozen=True)
class WithdrawnGroup:
    """The finished rollouts of a group that did not close. No update trains on them."""

    group: ScoredGroup
    reason: str  # name under which `DynamicSampling.withdraw` counts the group


@dataclass(frozen=True)
class FilledBatch:
    """Result of one step's sampling: groups to train on, metrics and times."""

    batch: tuple[ScoredGroup, ...]  # groups to train on; completed groups of earlier steps come last
    sampled: tuple[ScoredGroup, ...]  # every group that closed, informative or not
    withdrawn: tuple[WithdrawnGroup, ...]
    loss_scale: float  # factor of the loss, for batches that vary in size
    metrics: Mapping[str, float]
    generate_s: float  # seconds until the last rollout was sampled
    reward_s: float  # seconds from then until the last rollout was scored
    failures: tuple[str, ...] = ()  # one line for each verifier that failed, with its commonest error


@dataclass(frozen=True)
class TrainBatch(ReadOnly):
    """The informative groups of one step, with one advantage for each rollout."""

    groups: tuple[ScoredGroup, ...]
    advantages: tuple[Float32, ...]  # for each group [N]; 0 for rollouts that are not trained on
    rollouts: tuple[Int64, ...]  # for each group, ascending indices of the rollouts that are trained on
    loss_scale: float = 1.0  # factor of the loss, for batches that vary in size
    # smallest range of raw rewards of an informative group; None: all groups are trained on
    min_reward_range: float | None = None
    shaped: tuple[Float32, ...] = ()  # for each group [N]: shaped rewards that the advantages were computed from
    # for each group [N, K]: advantages of single turns, whose means are in `advantages`; empty: none
    turn_advantages: tuple[Float32, ...] = ()


@dataclass(frozen=True)
class PlannedGroup(ReadOnly):
    """The data of one group that a policy rank needs for an update."""

    prompt_ids: Int32  # [P]
    chunks: tuple[Any, ...]  # references to the chunks' arrays, in order
    advantages: Float32  # for each rollout [N], or for each turn [N, K]
    staleness: int  # number of updates between the weights that sampled the group and those that train on it
    is_measured: bool = True  # True: its rollouts of the last mini-batch are a fresh sample (`MeasuredGain`)
    num_turns: Int32 | None = None  # turns of each rollout [N]; None: one each
    task: str = ""  # the prompt's task, which decides on its teacher


@dataclass(frozen=True)
class GroupSlice:
    """Rollouts of one group that share one copy of their prompt inside a micro-batch."""

    group: int  # index into UpdatePlan.groups
    rollouts: tuple[int, ...]  # indices within the group


@dataclass(frozen=True)
class MicroBatch:
    """One forward and backward pass of one rank, over a packed sequence of `num_tokens`.

    `num_tokens` is the sum over group slices of P + sum T.
    """

    slices: tuple[GroupSlice, ...]
    num_tokens: int
    num_loss_tokens: int  # sampled tokens of the responses


@dataclass(frozen=True)
class UpdatePlan:
    """Everything that the policy ranks do in one update.

    All data-parallel ranks have equally many micro-batches in a mini-batch.
    """

    version: int  # policy version that the update produces
    objective: str  # key of losses.LOSSES
    learning_rate: float
    groups: tuple[PlannedGroup, ...]
    mini_batches: tuple[tuple[tuple[MicroBatch, ...], ...], ...]  # [mini-batch][data-parallel rank][micro-batch]
    loss_scale: float = 1.0  # factor of the loss, from the batch

    def num_loss_tokens(self, mini_batch: int) -> int:
        """Return the number of sampled tokens in one mini-batch over all ranks: the denominator of the token mean."""
        micro_batches = chain.from_iterable(self.mini_batches[mini_batch])
        return sum(micro.num_loss_tokens for micro in micro_batches)

    def num_turns(self, mini_batch: int) -> int:
        """Return the number of turns of the trajectories in one mini-batch, over all ranks."""
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
        """Return the number of responses in one mini-batch, over all ranks."""
        num_responses = 0
        for micro in chain.from_iterable(self.mini_batches[mini_batch]):
            num_responses += sum(len(group_slice.rollouts) for group_slice in micro.slices)
        return num_responses


@dataclass(frozen=True)
class UpdateReport:
    """Result of one update of the policy: metrics, times and counters."""

    version: int
    metrics: Mapping[str, float]  # flat metrics, named group/name
    seconds: Mapping[str, float]  # seconds of fetch, log_prob and update
    num_updates: int  # optimizer steps taken
    num_skipped: int  # mini-batches skipped for a non-finite loss or gradient


@dataclass(frozen=True)
class RankRehearsal:
    """Result of a policy rank's part in a rehearsed update, in which no optimizer step is taken."""

    grad_norm: float  # norm of the exchanged gradients of all ranks
    opposed_norm: float  # norm after another pass, in which the gradients of all replicas add up to zero
    own_norm: float | None  # norm of this rank's share of the exchanged gradients; None: it has no share
    is_unchanged: bool  # False: gathering the weights of all replicas changed a weight of this rank
    peak_gib: float | None  # most memory that the rank took of its GPU; None: on CPU
    room_gib: float | None  # memory of the GPU that was free then


@dataclass(frozen=True)
class StoredGroup:
    """A group of a step, with the data that the rollout store writes of it."""

    scored: ScoredGroup
    origin: str  # sampled in this step, carried from an earlier one, or completed: the tail of a group that was cut
    fate: str  # outcome: trained in this step, carried on, or the reason why not
    shaped: Float32 | None = None  # shaped rewards [N]; None: not trained on, which also empties advantages and trained
    advantages: Float32 | None = None  # [N]
    trained: Int64 | None = None  # indices of the rollouts that were trained on


@dataclass(frozen=True)
class StepRecord:
    """A step's data for the rollout store: enough to replay the update."""

    step: int
    version: int  # policy version that the update produced
    learning_rate: float
    loss_scale: float
    groups: tuple[StoredGroup, ...]  # groups of the batch first, in its order
    num_left_out: int = 0  # groups of the step that are not stored


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
    """Description of a weight bucket whose bytes do not travel through Ray.

    They are broadcast, or are in the memory of the same GPU.
    """

    tensors: tuple[TensorInfo, ...]
    checksum: int  # checksum of the bytes, as `weights.flat.checksum` computes it on their device
    # handles by which another process maps the bytes, by GPU; None: they are broadcast
    handles: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class StreamedBucket:
    """One bucket of the weight stream, as a reference into Ray's object store."""

    message: Any  # reference to the WeightBucket or BucketNotice that engines get
    num_bytes: int  # bytes of its tensors


@dataclass(frozen=True)
class WeightLink:
    """Address of a weight broadcast. Rank 0 sends, and worker w of receiver r is rank 1 + r × workers + w."""

    host: str
    port: int
    receivers: tuple[str, ...]  # names of the receivers; every process that is ever started has its own
    workers_per_receiver: int
    backend: str  # gloo, nccl
    timeout_s: float  # seconds to join, and to move one bucket

    @property
    def world_size(self) -> int:
        return 1 + len(self.receivers) * self.workers_per_receiver


@dataclass(frozen=True)
class EngineStats:
    """Counters of one engine since its start. The difference of two snapshots is the work of a step."""

    engine: int
    version: int
    prefix_cache_queries: int  # tokens looked up in the prefix cache
    prefix_cache_hits: int  # tokens found in the prefix cache
    num_preemptions: int
    generated_tokens: int
    generated_samples: int
    num_restarts: int = 0  # number of times that this engine was replaced
    num_garbage: int = 0  # replacements because of garbage that the engine had sampled
    num_resampled: int = 0  # rollouts that were sampled again because their engine was lost
    resumed_tokens: int = 0  # tokens, prompt included, that rollouts had when they were resumed
    resumed_hits: int = 0  # tokens among resumed_tokens that were found in the prefix cache
