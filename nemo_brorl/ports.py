"""Define the protocols between the training loop and its services.

`training/trainer.py` knows only these protocols. `commands/wiring.py` chooses their implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from nemo_brorl.types import (
    EngineStats,
    Float32,
    Int32,
    Prompt,
    RankRehearsal,
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

    accepted_changes: list[str]  # changes of the data since the checkpoint, which the settings accept

    def take_prompts(self, num: int) -> list[Prompt]:
        """Return the next `num` prompts of the stream, which returns each prompt exactly once."""

    def record_outcomes(self, outcomes: Sequence[tuple[Prompt, float]]) -> list[str]:
        """Update the difficulty curriculum from the success rates of one training step's prompts.

        `outcomes` pairs each prompt with its success rate, in a deterministic order. Returns one log line for each
        change of difficulty.
        """

    def metrics(self) -> dict[str, float]:
        """Return metrics of the prompt stream, counted since its start."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the prompt stream as a JSON-able state for a checkpoint."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the prompt stream from the position that `state_dict` returned."""


class PromptPool(Protocol):
    """Protocol of the choice of the stream's prompts that are sampled (`rollouts.prompt_pool`)."""

    def begin_step(self) -> None:
        """Reset the prompt pool's per-step counts, which `metrics` returns, before the next batch is sampled."""

    def take_prompts(self, num: int) -> list[Prompt]:
        """Return the next `num` prompts to sample responses to. Raises StarvationError when none are left."""

    def record_groups(self, sampled: Sequence[ScoredGroup]) -> None:
        """Update the prompt pool from all scored rollout groups that a training step sampled, once the step is over."""

    def metrics(self) -> dict[str, float]:
        """Return the prompt pool's metrics of the current training step."""

    def state_dict(self) -> dict[str, Any]:
        """Return the prompt pool's JSON-able state for a checkpoint."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the prompt pool from a state that `state_dict` returned."""


class Forecast(Protocol):
    """Protocol of a prediction of response lengths, for example `LengthHistory`.

    It helps to spread work over engines and never changes what is sampled.
    """

    def tokens(self, request: RolloutRequest, age: float = 0.0) -> float:
        """Return how many more tokens one rollout of a request is expected to need after its first `age` tokens."""

    def record_progress(
        self,
        request: RolloutRequest,
        num_ended: int,
        num_running: int,
        age: float,
    ) -> None:
        """Record how many rollouts of a request an engine has finished and how many it is still sampling.

        The unfinished rollouts have `age` tokens on average.
        """

    def record_finished(self, request: RolloutRequest, lengths: Int32) -> None:
        """Record the response lengths of a request's completed rollouts, once the request is finished."""


class GenerationSession(Protocol):
    """Protocol of sampling under way. Requests can be added while others are sampled, and only `close` waits."""

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Queue more rollout requests for the generation engines.

        Raises ConfigError for a request that does not fit `generation.max_model_len`.
        """

    def cut(self, uids: Collection[str]) -> None:
        """Stop sampling for the prompts with these uids now, which ends all their unfinished rollout requests.

        `poll` still returns a chunk of rollouts for each of these requests: its finished rollouts, possibly none, and
        its unfinished rollouts as `partial`.
        """

    def poll(self) -> list[RolloutChunk]:
        """Return the chunks of rollouts that finished since the last call, one for each finished request, in any order.

        Raises GenerationError when an engine cannot be restarted.
        """

    def pending(self) -> list[Any]:
        """Return references for `object_store.wait_any`: when one resolves, `poll` may return new rollouts."""

    def close(self) -> None:
        """Drop unfinished rollout requests and wait until the generation engines are idle."""


class WeightTarget(Protocol):
    """Protocol of the engines that take part in a weight sync."""

    def weight_receivers(self) -> tuple[str, ...]:
        """Return the names of the engine processes that receive the policy's weights.

        A process that replaces a lost one has a new name.
        """

    def join_weight_link(self, link: WeightLink) -> None:
        """Connect all engine processes that receive weights to a weight broadcast.

        Raises ReceiverLostError, which names the processes that do not join in time.
        """

    def load_weights(self, manifest: Sequence[TensorInfo], buckets: Iterable[StreamedBucket], version: int) -> int:
        """Load the policy's weights into every one of these engines, and set their policy version.

        Stale prefix caches are dropped. Requests in flight in an open session continue with the new weights. Returns
        the peak of bytes that were allocated on top of the models.

        Raises WeightSyncError, before an engine is touched, when the manifest does not fit the engines' model. Raises
        ReceiverLostError when an engine is lost that a broadcast needs: the weights can then be sent again.
        """


class Generator(WeightTarget, Protocol):
    """Protocol of the engines that sample responses with a known policy version."""

    def open_session(self, forecast: Forecast | None = None) -> GenerationSession:
        """Open a session that samples rollouts, of which only one can be open at a time.

        `forecast` predicts response lengths. It helps to spread requests over the engines and never changes what is
        sampled.
        """

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutChunk]:
        """Yield chunks of rollouts as they finish, one for each request, in any order.

        Closing the iterator early aborts the unfinished requests.
        """

    def on_lost_weights(self, publish_again: Callable[[WeightTarget], None]) -> None:
        """Set what is called while a session samples and an engine that replaces a lost one lacks the weights.

        The call may send the weights to this engine, or leave it to the next weight sync. Where engines give their
        memory to the policy it is never called, because there is no room for weights while engines sample.
        """

    def stats(self) -> list[EngineStats]:
        """Return a snapshot of the counters of every generation engine."""

    def stalled(self, seconds: float) -> list[str]:
        """Describe each generation engine that has work and has not reported progress for more than `seconds`.

        Another thread may call this.
        """

    def sleep(self) -> Mapping[str, float]:
        """Release the engines' GPU memory to the policy, as the setting `generation.sleep` says, unless they sleep.

        Afterwards only `wake_weights` may be called. Returns metrics of the memory that engines still hold.
        `wake_weights` replaces an engine that holds too much.
        """

    def wake_weights(self) -> bool:
        """Make room for the weights of sleeping engines again, and return True if an engine has lost its weights.

        If True, `load_weights` must follow, otherwise it may. `wake_cache` must be called before anything is sampled.
        """

    def wake_cache(self) -> None:
        """Make room in GPU memory for the KV cache of engines that were asleep."""

    def close(self) -> None:
        """Stop all generation engines."""


class Policy(Protocol):
    """Protocol of the trained model on all its ranks."""

    @property
    def data_parallel_size(self) -> int:
        """Number of data-parallel replicas of the policy, for each of which micro-batches are planned."""

    def update(self, plan: UpdatePlan) -> UpdateReport:
        """Train the policy on every mini-batch of an update plan. Raises TrainingError when a rank is lost."""

    def begin_update(self, plan: UpdatePlan) -> None:
        """Start an update of the policy without waiting for its end.

        Until the update is over, only `finish_update` may be called.
        """

    def finish_update(self, timeout_s: float | None = None) -> UpdateReport | None:
        """Return the report of the policy update under way, or None if it is not over within `timeout_s` seconds.

        Raises TrainingError when a rank is lost, as `update` does.
        """

    def rehearse(self, num_tokens: int) -> list[RankRehearsal]:
        """Run a row of `num_tokens` tokens through everything in an update but the optimizer step.

        Returns the results in rank order. The weights, the optimizer and random numbers stay as they are. Raises
        ResourceError for a rank that runs out of memory.
        """

    def stalled(self, seconds: float) -> list[str]:
        """Describe each policy rank that has made no progress for more than `seconds` in the policy call under way.

        Another thread may call this.
        """

    def log_probs(
        self, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]], with_fp8: bool = True
    ) -> list[Float32]:
        """Return the log-prob of each response token under the policy's current weights, one array [T] per sequence.

        `with_fp8=False` switches off FP8 in matrix products (`policy.fp8`).
        """

    def hf_log_probs(self, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]]) -> list[Float32]:
        """Return the response tokens' log-probs as Hugging Face transformers computes them with the policy's weights.

        The parity gate at the start of a run compares them with the log-probs of the policy and of the engines.
        Returns one array [T] for each sequence.
        """

    def weight_manifest(self) -> list[TensorInfo]:
        """Return names, shapes and dtypes of the tensors that the weight stream sends to the engines, in order."""

    @property
    def weight_transport(self) -> str:
        """Transport of the policy's weights to the engines: object_store, collective or cuda_ipc."""

    def open_weight_link(self, receivers: tuple[str, ...]) -> WeightLink | None:
        """Return the address of a weight broadcast that `receivers` must join before the next `weight_stream`.

        None: the transport needs no such link, or the receivers have joined.
        """

    def weight_stream(self) -> Iterator[StreamedBucket]:
        """Yield the policy's weights as buckets of tensors, in the order of the weight manifest.

        Raises WeightSyncError, which names the policy rank, when a policy rank is late.
        """

    def begin_save(self, folder: Path) -> None:
        """Start to write the policy's weights, optimizer state and reference weights into an empty folder.

        Returns once everything is copied. Then any method may be called while the files are written. The result can be
        loaded in any parallel layout.
        """

    def finish_save(self, wait: bool) -> float | None:
        """Turn the files that `begin_save` started into a checkpoint, and return the seconds that writing took.

        None: the files are not written yet, and `wait` is False. Raises CheckpointError if saving failed. Then no save
        is pending.
        """

    def load(self, folder: Path) -> None:
        """Load the policy's state from a finished checkpoint. Raises CheckpointError if it cannot be loaded."""

    def export(self, folder: Path) -> None:
        """Write the policy's current weights as a Hugging Face folder: config, tokenizer, safetensors."""

    def reset_reference(self, clear_optimizer: bool) -> None:
        """Make the policy's current weights the reference of the KL term.

        With `clear_optimizer`, also reset Adam's moments and step count.
        """

    def release(self) -> None:
        """Free the policy's cached GPU memory on devices that it shares with generation engines.

        Afterwards every method may be called.
        """

    def offload(self) -> None:
        """Free GPU memory for engines on shared devices: move the policy state that `policy.offload` names to the host.

        Also frees cached memory, as `release` does. Until `onload`, only `finish_save` may be called.
        """

    def onload(self) -> None:
        """Move the policy's offloaded state from the host back to the policy's devices."""

    def close(self) -> None:
        """Stop all policy ranks."""


class ChunkScorer(Protocol):
    """Protocol of the verifiers, which score chunks while later chunks are still being sampled."""

    def score(self, chunks: Iterable[RolloutChunk]) -> Iterator[ScoredChunk]:
        """Score chunks of rollouts as `chunks` yields them, and yield the scored chunks in any order.

        Chunks that were submitted before are dropped.
        """

    def submit(self, chunk: RolloutChunk, places: Sequence[int] | None = None) -> None:
        """Start to score a chunk of rollouts, without waiting for the result.

        A chunk without responses comes back with the next `poll`. `places`: indices of the responses to score, while
        the other responses get reward 0. None: all.
        """

    def poll(self) -> list[ScoredChunk]:
        """Return the submitted chunks of rollouts that were scored since the last call, in any order."""

    def pending(self) -> list[Any]:
        """Return references for `object_store.wait_any`: when one resolves, `poll` may return newly scored rollouts."""

    def metrics(self) -> dict[str, float]:
        """Return metrics of scoring, for the rollouts that `poll` has returned since the last call of `metrics`."""

    def forget(self) -> None:
        """Drop all submitted chunks of rollouts that `poll` has not returned, so that no later `poll` returns them."""

    def stalled(self, seconds: float) -> list[str]:
        """Describe each verifier worker that has rollouts to score and has finished none for more than `seconds`.

        Another thread may call this.
        """

    def close(self) -> None:
        """Stop all verifier workers."""


class MetricSink(Protocol):
    """Protocol of a destination of metrics, such as a file or a tracker."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one training step, each named `group/name`."""

    def close(self) -> None:
        """Flush the training metrics that a metrics logger still buffers."""


class RolloutStore(Protocol):
    """Protocol of the store that keeps the groups of every step."""

    def write(self, record: StepRecord) -> None:
        """Start to write the rollouts of one training step to the rollout store.

        They replace an earlier record of the same training step. Never raises: rollouts that cannot be written cause
        only a warning.
        """

    def flush(self) -> None:
        """Wait until all rollouts passed to `write` are in the rollout store, or their writing has failed."""

    def drop_after(self, step: int | None) -> None:
        """Remove the stored rollouts of all training steps after `step`, which a resumed run will write again.

        None: remove the rollouts of all steps, for a run that starts from the beginning.
        """
