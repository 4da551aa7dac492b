"""Run one policy rank as a Ray actor. Nothing heavy is imported until the actor runs in its own process."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.core.console import get_logger, setup_logging
from nemo_brorl.core.quick_imports import quick_imports
from nemo_brorl.policy.process.rank_progress import PROGRESS, RankAnswer, RankProgress, tracked
from nemo_brorl.types import BucketNotice, Float32, UpdatePlan, WeightBucket, WeightLink

if TYPE_CHECKING:
    from nemo_brorl.policy.process.profiling import Profiling
    from nemo_brorl.policy.rank.learner import Learner

_log = get_logger(__name__)

# Methods of the Learner that the driver calls through `PolicyWorker.call`. The weight stream has a method of its own.
LearnerMethod = Literal[
    "update",
    "rehearse",
    "log_probs",
    "weight_manifest",
    "begin_save",
    "is_save_written",
    "finish_save",
    "load",
    "export",
    "reset_reference",
    "release",
    "offload",
    "onload",
]


class PolicyWorker:
    """One rank of the policy. Call `open_store` (on rank 0), `start`, then any method, and `close` at the end."""

    def __init__(
        self,
        settings: RankSettings,
        model_folder: Path,
        rank: int,
    ) -> None:
        setup_logging(f"policy {rank}")
        # Megatron and torch warn about each other's deprecations and about Apex, which a user cannot change.
        warnings.filterwarnings("ignore", module=r"(megatron|torch)\.")
        self.settings = settings
        self.model_folder = model_folder
        self.rank = rank
        self.store: Any = None
        self.weight_store: Any = None  # rank 0's meeting point for weight broadcasts
        self.device: Any = None
        # `start` sets both.
        self.learner: Learner
        self.profiling: Profiling

    @tracked
    def open_store(self) -> tuple[str, int]:
        """Open the TCP store at which all policy ranks meet in this process, and return its host and port."""
        self._open_device()
        from nemo_brorl.policy.process import process_groups
        from nemo_brorl.weights.rendezvous import open_store

        host = process_groups.this_host(self.settings.sizes.num_nodes == 1)
        self.store = open_store(host, self.settings.layout.world_size, process_groups.STORE_TIMEOUT)
        return host, self.store.port

    @tracked
    def prepare(self) -> None:
        """Import what the policy rank needs for its device, while rank 0 opens the TCP store at which ranks meet."""
        self._open_device()

    def _open_device(self) -> None:
        with quick_imports():
            from nemo_brorl.policy.process.device import open_device

        self.device = open_device(self.settings.layout.on_gpu, self.settings.policy.num_threads or 1)

    @tracked
    def start(self, address: tuple[str, int]) -> None:
        """Join the process groups of the policy ranks and load the model.

        Raises ModelError for an unusable model folder, ConfigError for settings that do not fit the model.
        """
        with quick_imports():
            from nemo_brorl.policy.process import process_groups
            from nemo_brorl.policy.process.profiling import Profiling
            from nemo_brorl.policy.rank.learner import Learner

        if self.store is None:
            self.store = process_groups.join_store(*address, self.settings.layout.world_size)
        if self.settings.sizes.num_nodes > 1:
            process_groups.choose_interface(process_groups.this_host(is_single_node=False))
        settings = self.settings
        process_groups.open_groups(settings.layout, self.rank, self.store, self.device, settings.seed)
        self.profiling = Profiling(settings.profile, settings.profile_folder, self.rank)
        self.learner = Learner(settings, self.model_folder, self.device)
        # Imports and model live as long as the process. Megatron collects garbage in every save and would scan them.
        gc.freeze()
        _log.info("model loaded from %s", self.model_folder)

    def call(self, method: LearnerMethod, *arguments: Any) -> RankAnswer:
        """Call a method of this policy rank's `Learner`, and return its result as a RankAnswer."""
        received_at = time.time()
        with PROGRESS.method(method), self.profiling.of_memory():
            value = self._profiled(method, *arguments)
        return PROGRESS.answer(value, received_at)

    def _profiled(self, method: LearnerMethod, *arguments: Any) -> Any:
        learner_method = getattr(self.learner, method)
        if method != "update":
            return learner_method(*arguments)
        plan: UpdatePlan = arguments[0]
        # Every step makes one version, so the version is the number of the step.
        with self.profiling.of_update(plan.version):
            return learner_method(plan)

    @tracked
    def hf_log_probs(self, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]]) -> list[Float32]:
        """Return the log-probs [T] of every response, computed by transformers from the weights in the model folder."""
        from nemo_brorl.policy.rank.hf_log_probs import hf_log_probs

        temperature = self.settings.rollouts.temperature
        return hf_log_probs(self.model_folder, prompt_ids, response_ids, temperature)

    @tracked
    def open_weight_link(self, receivers: tuple[str, ...]) -> WeightLink:
        """Serve the TCP store of a weight broadcast on policy rank 0, and return where the engines must join."""
        from nemo_brorl.policy.process import process_groups
        from nemo_brorl.weights.rendezvous import open_store

        before = self.learner.sender.group
        self.learner.sender.group = None
        if before is not None:
            before.close()
        host = process_groups.this_host(self.settings.sizes.num_nodes == 1)
        self.weight_store = open_store(host)
        generation = self.settings.generation
        return WeightLink(
            host,
            self.weight_store.port,
            receivers,
            generation.tensor_parallel_size,
            "nccl" if self.settings.layout.on_gpu else "gloo",
            generation.weight_timeout_s,
        )

    @tracked
    def join_weight_link(self, link: WeightLink) -> None:
        """Wait on policy rank 0 until all inference engines have joined the weight broadcast.

        Raises ReceiverLostError when an engine does not join in time.
        """
        from nemo_brorl.weights.rendezvous import wait_for_receivers

        self.learner.sender.group = wait_for_receivers(link, self.weight_store)

    def stream_weights(self) -> Iterator[WeightBucket | BucketNotice | None]:
        """Yield this policy rank's messages of a weight sync: buckets on rank 0, one None per bucket on other ranks."""
        with PROGRESS.method("stream_weights"):
            yield from self.learner.send_weights()

    def progress(self) -> RankProgress:
        """Return the progress of the method that this policy rank runs.

        It is called in a thread of its own, so it answers while the method computes or hangs.
        """
        return PROGRESS.read()

    @tracked
    def close(self) -> None:
        """Leave the process groups, after which this rank's process may end."""
        from nemo_brorl.policy.process import process_groups

        process_groups.close_groups()
        self.store = None
