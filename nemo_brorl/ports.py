"""Protocols between the loop and the outside. `trainer.py` knows only these; `wiring.py` chooses who stands behind
them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from nemo_brorl.types import (
    EngineStats,
    Float32,
    Int32,
    KeptCopy,
    Prompt,
    RolloutChunk,
    RolloutRequest,
    ScoredChunk,
    ScoredGroup,
    StepRecord,
    StreamedBucket,
    TensorInfo,
    UpdatePlan,
    UpdateReport,
    WeightLink,
)


class PromptSource(Protocol):
    """An endless, seeded, resumable stream of prompts."""

    def take_prompts(self, num: int) -> list[Prompt]:
        """The next `num` prompts; each is handed out exactly once."""

    def record_outcomes(self, outcomes: Sequence[tuple[Prompt, float]]) -> list[str]:
        """Take in what a step's prompts came to, each with its share of correct rollouts, in an order that is always
        the same: the next prompts may be easier or harder. A line about each change."""

    def metrics(self) -> dict[str, float]:
        """Of the stream so far."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-able position in the stream."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""


class PromptPool(Protocol):
    """Chooses the prompts of a stream that are asked (`rollouts.prompt_pool`)."""

    def begin_step(self) -> None:
        """Hear that another batch is filled: `metrics` counts from here."""

    def take_prompts(self, num: int) -> list[Prompt]:
        """Return the next `num` prompts. Raises StarvationError when there are none left to ask."""

    def record_groups(self, sampled: Sequence[ScoredGroup]) -> None:
        """Take in all groups that a step has sampled, once it is over."""

    def metrics(self) -> dict[str, float]:
        """Return metrics of the step."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, JSON-able."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`."""


class Forecast(Protocol):
    """How long responses will be; `rollouts.lengths.LengthHistory` is one. It helps to spread work and never changes
    what is sampled."""

    def tokens(self, request: RolloutRequest, age: float = 0.0) -> float:
        """Tokens still to be sampled for one rollout of a request, on average, when it has `age` now."""

    def record_progress(
        self,
        request: RolloutRequest,
        num_ended: int,
        num_running: int,
        age: float,
    ) -> None:
        """How far an engine has come with a request: those running have `age` tokens, on average."""

    def record_finished(self, request: RolloutRequest, lengths: Int32) -> None:
        """A request is done: the lengths of those of its rollouts that ended."""


class GenerationSession(Protocol):
    """Sampling under way. Requests may be added while others are sampled; nothing here waits, except `close`."""

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Queue more. Raises ConfigError for a request that does not fit `generation.max_model_len`."""

    def cut(self, uids: Collection[str]) -> None:
        """End all unfinished requests of these prompts now. Each still arrives through `poll`: what had ended, which
        may be nothing, and the rest as `partial`."""

    def poll(self) -> list[RolloutChunk]:
        """What has finished since the last poll, one chunk per request, in any order. Raises GenerationError when an
        engine cannot be brought back."""

    def pending(self) -> list[Any]:
        """References, one of which resolves when `poll` may have news; for `object_store.wait_any`."""

    def close(self) -> None:
        """Drop what is unfinished and wait until the engines are idle."""


class Generator(Protocol):
    """Engines that sample responses under a known policy version."""

    def open_session(self, forecast: Forecast | None = None) -> GenerationSession:
        """Begin to sample; one session at a time. `forecast` helps to spread the work; it never changes what is
        sampled."""

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutChunk]:
        """Chunks as they finish, in any order, one per request. Closing the iterator early aborts what is
        unfinished."""

    def weight_receivers(self) -> tuple[str, ...]:
        """Names of the processes that weights go to; a process that takes another's place has another name."""

    def join_weight_link(self, link: WeightLink) -> None:
        """Bring all of them into a broadcast. Raises ReceiverLostError that names those that do not come in time."""

    def load_weights(self, manifest: Sequence[TensorInfo], buckets: Iterable[Any], version: int) -> int:
        """Load a stream of StreamedBucket into every engine and stamp it; drops stale prefix caches. What an open
        session has in flight is gone on with under the new weights. Returns the most bytes that were alive beside the
        models.

        Raises WeightSyncError, before an engine is touched, when the manifest does not fit the engines' model;
        ReceiverLostError when an engine is lost that a broadcast needs: then it may be published again.
        """

    def stats(self) -> list[EngineStats]:
        """A snapshot of every engine's counters."""

    def stalled(self, seconds: float) -> list[str]:
        """Engines that have something to do and have not been heard of for longer than this, as a message names them.
        May be called from another thread."""

    def sleep(self) -> Mapping[str, float]:
        """Give the devices to the policy, as far as `generation.sleep` says; only `wake_weights` may be called then.

        Metrics of what the engines still hold; an engine that holds too much is replaced by `wake_weights`.
        """

    def wake_weights(self) -> bool:
        """Make room for weights again. Whether an engine has lost them: then `load_weights` must follow, else it may;
        `wake_cache` must before anything is sampled."""

    def wake_cache(self) -> None:
        """Make room for the KV cache again."""

    def close(self) -> None:
        """Stop all engines."""


class Policy(Protocol):
    """The trained model."""

    @property
    def data_parallel_size(self) -> int:
        """Number of model replicas; the packer plans for this many ranks."""

    def update(self, plan: UpdatePlan) -> UpdateReport:
        """Run every mini-batch of the plan. Raises TrainingError when a rank is gone."""

    def begin_update(self, plan: UpdatePlan) -> None:
        """Start an update and return; only `finish_update` may be called until it is over."""

    def finish_update(self, timeout_s: float | None = None) -> UpdateReport | None:
        """The report of the update under way; None when it is not over within `timeout_s`. Raises as `update`."""

    def stalled(self, seconds: float) -> list[str]:
        """Ranks that have not moved for longer than this in the call under way, as a message names them. From any
        thread."""

    def log_probs(
        self, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]], with_fp8: bool = True
    ) -> list[Float32]:
        """Log-probability of each response token under the current weights, per sequence [T]; `with_fp8=False` switches
        off what `policy.fp8` does to the matrix products."""

    def hf_log_probs(self, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]]) -> list[Float32]:
        """The same from Hugging Face transformers on the current weights' folder, for the parity gate."""

    def weight_manifest(self) -> list[TensorInfo]:
        """Names, shapes and dtypes of the weight stream, in order."""

    @property
    def weight_transport(self) -> str:
        """object_store, collective or cuda_ipc: how the bytes of the weight stream travel."""

    def open_weight_link(self, receivers: tuple[str, ...]) -> WeightLink | None:
        """What these processes must join before the next `weight_stream`; None: nothing, or they have joined."""

    def weight_stream(self) -> Iterator[StreamedBucket | KeptCopy]:
        """Buckets that cover the manifest in order, each with the copy that is kept of it, or followed by it. Raises
        WeightSyncError that names a rank that is late."""

    def begin_save(self, folder: Path) -> None:
        """Start to write weights, optimizer and reference as they are now into an empty folder; any parallel layout may
        load it.

        Returns once everything is copied; then any method may be called while the files are written.
        """

    def finish_save(self, wait: bool) -> float | None:
        """Make what `begin_save` wrote a checkpoint; seconds that writing took. None: not written yet, and not told to
        wait.

        Raises CheckpointError, after which nothing is pending.
        """

    def load(self, folder: Path) -> None:
        """Continue from a finished save. Raises CheckpointError."""

    def export(self, folder: Path) -> None:
        """Write a Hugging Face folder: config, tokenizer, safetensors."""

    def reset_reference(self, clear_optimizer: bool) -> None:
        """Make the current weights the reference of the KL term; if asked, forget Adam's moments and step count."""

    def release(self) -> None:
        """Hand memory that is kept for later work back to the devices that engines share; everything may still be
        called."""

    def offload(self) -> None:
        """Make room for engines on the same devices: `release`, and what `policy.offload` names; until `onload` only
        `finish_save` may be called."""

    def onload(self) -> None:
        """Take the room again."""

    def close(self) -> None:
        """Stop all ranks."""


class Verifier(Protocol):
    """Scores chunks while later ones are still being sampled."""

    def score(self, chunks: Iterable[RolloutChunk]) -> Iterator[ScoredChunk]:
        """Scored chunks in any order; consumes `chunks` as they come. What was submitted before is forgotten."""

    def submit(self, chunk: RolloutChunk, places: Sequence[int] | None = None) -> None:
        """Begin to score a chunk, without waiting. One without responses comes back with the next `poll`. `places`: of
        the responses to score, the others get 0; None: all."""

    def poll(self) -> list[ScoredChunk]:
        """Chunks that were submitted and have been scored since the last poll, in any order."""

    def pending(self) -> list[Any]:
        """References, one of which resolves when `poll` may have news."""

    def metrics(self) -> dict[str, float]:
        """Of what was polled since the last call."""

    def forget(self) -> None:
        """Give up what was submitted and not polled: no later `poll` returns it."""

    def stalled(self, seconds: float) -> list[str]:
        """Workers that have something to do and have not finished a chunk for longer than this. May be called from
        another thread."""

    def close(self) -> None:
        """Stop all workers."""


class MetricSink(Protocol):
    """Somewhere metrics go."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one step's flat `group/name` metrics."""

    def close(self) -> None:
        """Flush."""


class RolloutStore(Protocol):
    """Where the groups of every step are kept."""

    def write(self, record: StepRecord) -> None:
        """Begin to write a step, in place of one of this number. Never raises: what cannot be written is a warning."""

    def flush(self) -> None:
        """Return when what was begun is written, or will not be."""

    def drop_after(self, step: int | None) -> None:
        """Remove later steps, which a resumed run comes to again; all of them for a run that starts anew (None)."""
