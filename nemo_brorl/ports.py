"""Define the protocols between the training loop and its services.

`training/trainer.py` knows only these protocols. `commands/wiring.py` chooses their implementations.
"""

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
    """Protocol of an endless, seeded, resumable stream of prompts."""

    def take_prompts(self, num: int) -> list[Prompt]:
        """Return the next `num` prompts of the stream, which returns each prompt exactly once."""

    def record_outcomes(self, outcomes: Sequence[tuple[Prompt, float]]) -> list[str]:
        """Update the curriculum from the success rate of each prompt of a step.

        Pass `outcomes` in a deterministic order. Returns one log line for each change of difficulty.
        """

    def metrics(self) -> dict[str, float]:
        """Return metrics of the prompt stream, counted since its start."""

    def state_dict(self) -> dict[str, Any]:
        """Return the JSON-able position in the prompt stream."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the prompt stream from the position that `state_dict` returned."""


class PromptPool(Protocol):
    """Protocol of the choice of the stream's prompts that are sampled (`rollouts.prompt_pool`)."""

    def begin_step(self) -> None:
        """Reset the counts of `metrics`, because another batch is about to be filled."""

    def take_prompts(self, num: int) -> list[Prompt]:
        """Return the next `num` prompts to sample. Raises StarvationError when none are left."""

    def record_groups(self, sampled: Sequence[ScoredGroup]) -> None:
        """Update the prompt pool from all groups that a step has sampled, once the step is over."""

    def metrics(self) -> dict[str, float]:
        """Return the prompt pool's metrics of the step."""

    def state_dict(self) -> dict[str, Any]:
        """Return the prompt pool's JSON-able state for a checkpoint."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the prompt pool's state from `state_dict`."""


class Forecast(Protocol):
    """Protocol of a prediction of response lengths, for example `LengthHistory`.

    It helps to spread work over engines and never changes what is sampled.
    """

    def tokens(self, request: RolloutRequest, age: float = 0.0) -> float:
        """Return how many more tokens one rollout of a request is expected to need when it has `age` tokens now."""

    def record_progress(
        self,
        request: RolloutRequest,
        num_ended: int,
        num_running: int,
        age: float,
    ) -> None:
        """Record how far an engine has come with a request; running rollouts have `age` tokens on average."""

    def record_finished(self, request: RolloutRequest, lengths: Int32) -> None:
        """Record the lengths of the rollouts that ended, once their request is finished."""


class GenerationSession(Protocol):
    """Protocol of sampling under way. Requests can be added while others are sampled, and only `close` waits."""

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Queue more rollout requests.

        Raises ConfigError for a request that does not fit `generation.max_model_len`.
        """

    def cut(self, uids: Collection[str]) -> None:
        """End all unfinished requests of these prompts now.

        Each request still arrives through `poll`: its finished rollouts, possibly none, and the rest as `partial`.
        """

    def poll(self) -> list[RolloutChunk]:
        """Return the chunks that finished since the last poll, one for each request, in any order.

        Raises GenerationError when an engine cannot be restarted.
        """

    def pending(self) -> list[Any]:
        """Return references for `object_store.wait_any`: when one resolves, `poll` may have new chunks."""

    def close(self) -> None:
        """Drop unfinished requests and wait until the engines are idle."""


class Generator(Protocol):
    """Protocol of the engines that sample responses with a known policy version."""

    def open_session(self, forecast: Forecast | None = None) -> GenerationSession:
        """Start to sample; only one session can be open at a time.

        `forecast` helps to spread the work and never changes what is sampled.
        """

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutChunk]:
        """Yield chunks as they finish, one for each request, in any order.

        Closing the iterator early aborts the unfinished requests.
        """

    def weight_receivers(self) -> tuple[str, ...]:
        """Return the names of the processes that receive weights; a replacement process has a new name."""

    def join_weight_link(self, link: WeightLink) -> None:
        """Connect all weight receivers to a broadcast.

        Raises ReceiverLostError that names the receivers that do not join in time.
        """

    def load_weights(self, manifest: Sequence[TensorInfo], buckets: Iterable[Any], version: int) -> int:
        """Load a stream of StreamedBucket into every engine and set the engines' policy version.

        Stale prefix caches are dropped. Requests in flight in an open session continue with the new weights. Returns
        the peak of bytes that were allocated on top of the models.

        Raises WeightSyncError, before an engine is touched, when the manifest does not fit the engines' model. Raises
        ReceiverLostError when an engine is lost that a broadcast needs: the weights can then be sent again.
        """

    def stats(self) -> list[EngineStats]:
        """Return a snapshot of the counters of every engine."""

    def stalled(self, seconds: float) -> list[str]:
        """Describe the engines that have work and have not reported for more than `seconds`.

        Another thread may call this.
        """

    def sleep(self) -> Mapping[str, float]:
        """Release GPU memory to the policy as `generation.sleep` says; then only `wake_weights` may be called.

        Returns metrics of the memory that engines still hold. `wake_weights` replaces an engine that holds too much.
        """

    def wake_weights(self) -> bool:
        """Make room for the engines' weights again, and return whether an engine has lost its weights.

        If True, `load_weights` must follow, otherwise it may. `wake_cache` must be called before anything is sampled.
        """

    def wake_cache(self) -> None:
        """Make room for the engines' KV cache again."""

    def close(self) -> None:
        """Stop all generation engines."""


class Policy(Protocol):
    """Protocol of the trained model on all its ranks."""

    @property
    def data_parallel_size(self) -> int:
        """Number of model replicas, for which the packer plans micro-batches."""

    def update(self, plan: UpdatePlan) -> UpdateReport:
        """Run every mini-batch of an update plan. Raises TrainingError when a rank is lost."""

    def begin_update(self, plan: UpdatePlan) -> None:
        """Start an update and return; until it is over, only `finish_update` may be called."""

    def finish_update(self, timeout_s: float | None = None) -> UpdateReport | None:
        """Return the report of the update under way, or None if it is not over within `timeout_s` seconds.

        Raises the errors of `update`.
        """

    def stalled(self, seconds: float) -> list[str]:
        """Describe the policy ranks that have made no progress for more than `seconds` in the call under way.

        Another thread may call this.
        """

    def log_probs(
        self, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]], with_fp8: bool = True
    ) -> list[Float32]:
        """Return the log-prob of each response token under the current weights, one array [T] for each sequence.

        `with_fp8=False` switches off FP8 in matrix products (`policy.fp8`).
        """

    def hf_log_probs(self, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]]) -> list[Float32]:
        """Return log-probs that Hugging Face transformers computes with the current weights, for the parity gate.

        One array [T] for each sequence, as `log_probs` returns.
        """

    def weight_manifest(self) -> list[TensorInfo]:
        """Return names, shapes and dtypes of the tensors in the weight stream, in order."""

    @property
    def weight_transport(self) -> str:
        """Transport of the weight stream's bytes: object_store, collective or cuda_ipc."""

    def open_weight_link(self, receivers: tuple[str, ...]) -> WeightLink | None:
        """Return the link that the receivers must join before the next `weight_stream`.

        None: the transport needs no link, or the receivers have joined.
        """

    def weight_stream(self) -> Iterator[StreamedBucket | KeptCopy]:
        """Yield buckets that cover the weight manifest in order, each with its kept copy, or followed by it.

        Raises WeightSyncError that names a rank that is late.
        """

    def begin_save(self, folder: Path) -> None:
        """Start to write the current weights, optimizer and reference into an empty folder.

        Returns once everything is copied. Then any method may be called while the files are written. Any parallel
        layout can load the result.
        """

    def finish_save(self, wait: bool) -> float | None:
        """Turn the files of `begin_save` into a checkpoint, and return the seconds that writing took.

        None: the files are not written yet, and `wait` is False. Raises CheckpointError, after which nothing is
        pending.
        """

    def load(self, folder: Path) -> None:
        """Load a finished checkpoint and continue from it. Raises CheckpointError."""

    def export(self, folder: Path) -> None:
        """Write the current weights as a Hugging Face folder: config, tokenizer, safetensors."""

    def reset_reference(self, clear_optimizer: bool) -> None:
        """Make the current weights the reference of the KL term.

        With `clear_optimizer`, also reset Adam's moments and step count.
        """

    def release(self) -> None:
        """Return cached GPU memory to the devices that engines share; afterwards every method may be called."""

    def offload(self) -> None:
        """Make room for engines on the shared devices: `release`, and move to the host what `policy.offload` names.

        Until `onload`, only `finish_save` may be called.
        """

    def onload(self) -> None:
        """Move offloaded state back to the policy's devices."""

    def close(self) -> None:
        """Stop all policy ranks."""


class ChunkScorer(Protocol):
    """Protocol of the verifiers, which score chunks while later chunks are still being sampled."""

    def score(self, chunks: Iterable[RolloutChunk]) -> Iterator[ScoredChunk]:
        """Yield scored chunks in any order, and consume `chunks` as they come.

        Chunks that were submitted before are forgotten.
        """

    def submit(self, chunk: RolloutChunk, places: Sequence[int] | None = None) -> None:
        """Start to score a chunk, without waiting; a chunk without responses comes back with the next `poll`.

        `places`: indices of the responses to score; the other responses get 0. None: all.
        """

    def poll(self) -> list[ScoredChunk]:
        """Return the submitted chunks that were scored since the last poll, in any order."""

    def pending(self) -> list[Any]:
        """Return references for `object_store.wait_any`: when one resolves, `poll` may have scored chunks."""

    def metrics(self) -> dict[str, float]:
        """Return metrics of the chunks that were polled since the last call."""

    def forget(self) -> None:
        """Abandon submitted chunks that were not polled: no later `poll` returns them."""

    def stalled(self, seconds: float) -> list[str]:
        """Describe the verifier workers that have work and have not finished a chunk for more than `seconds`.

        Another thread may call this.
        """

    def close(self) -> None:
        """Stop all verifier workers."""


class MetricSink(Protocol):
    """Protocol of a destination of metrics, such as a file or a tracker."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the flat `group/name` metrics of one step."""

    def close(self) -> None:
        """Flush the metrics that are still buffered."""


class RolloutStore(Protocol):
    """Protocol of the store that keeps the groups of every step."""

    def write(self, record: StepRecord) -> None:
        """Start to write a step's record, in place of an earlier record of that step.

        Never raises: a record that cannot be written is a warning.
        """

    def flush(self) -> None:
        """Wait until all started records are written, or have failed."""

    def drop_after(self, step: int | None) -> None:
        """Remove the records of steps after `step`, which a resumed run will write again.

        None: remove all records, for a run that starts from the beginning.
        """
