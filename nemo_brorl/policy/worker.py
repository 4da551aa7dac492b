"""The Ray actor of one policy rank. Nothing heavy is imported until the actor runs, in its own process.

Process groups of one rank: opened from a `ParallelLayout`, closed without leaving anything behind.

Profiles of chosen ranks in chosen steps, and what a GPU's memory held when it was full. Files lie in `profiles/` of
the run folder.

`profile.kind=torch`: a trace of operators and kernels by torch's profiler, which Perfetto opens. `nsys`: the rank runs
under Nsight Systems, which records between cudaProfilerStart and cudaProfilerStop.
"""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil
import ray
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from nemo_brorl.config.schema import BroRLConfig, ProfileConfig
from nemo_brorl.core.files import replacing
from nemo_brorl.core.logs import get_logger, setup_logging
from nemo_brorl.policy.device import Device
from nemo_brorl.policy.layout import ParallelLayout, profile_folder
from nemo_brorl.policy.rank_progress import PROGRESS, RankAnswer, RankProgress, tracked
from nemo_brorl.types import BucketNotice, Float32, UpdatePlan, WeightBucket, WeightLink

if TYPE_CHECKING:
    from nemo_brorl.policy.learner import Learner

TIMEOUT = timedelta(minutes=30)


def join_store(host: str, port: int, world_size: int) -> dist.TCPStore:
    """Meeting point of all ranks (`broadcast_group.open_store`), as seen by those that do not serve it."""
    return dist.TCPStore(host, port, world_size, is_master=False, timeout=TIMEOUT)


def open_groups(
    layout: ParallelLayout,
    rank: int,
    store: dist.Store,
    device: Device,
    seed: int,
) -> None:
    """Join all process groups of Megatron and seed its random-number tracker. Waits for every rank."""
    os.environ["RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(layout.world_size)
    os.environ["LOCAL_RANK"] = "0"
    dist.init_process_group(
        device.backend,
        store=store,
        rank=rank,
        world_size=layout.world_size,
        timeout=TIMEOUT,
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.expert_tensor,
        # for the optimizer's checkpoints in host memory, which are not used; Gloo wants a host name that resolves
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(seed)


def close_groups() -> None:
    """Leave all process groups."""
    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def this_host(is_single_node: bool) -> str:
    """The address other ranks reach this one by: the one that Ray's nodes know each other by. A host's own name is no
    help, it often stands for 127.0.1.1."""
    if is_single_node:
        return "127.0.0.1"
    return ray.util.get_node_ip_address()


def choose_interface(address: str) -> None:
    """Have Gloo listen where others reach this node; it would look its name up. What the environment says goes
    before."""
    for name, entries in psutil.net_if_addrs().items():
        if address in [entry.address for entry in entries]:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            return


MAX_EVENTS = 100_000  # allocations that a memory snapshot remembers

_log = get_logger(__name__)


class Profiling:
    """What the settings ask of one rank."""

    def __init__(
        self,
        settings: ProfileConfig,
        folder: Path,
        rank: int,
        cuda: Any = torch.cuda,
    ) -> None:
        """`folder` of profiles; `cuda`: torch's module, or a test's."""
        self.settings = settings
        self.folder = folder
        self.rank = rank
        self.cuda = cuda
        self.keeps_memory = settings.memory_snapshot and cuda.is_available()
        if self.keeps_memory:
            cuda.memory._record_memory_history(max_entries=MAX_EVENTS)

    @contextmanager
    def of_update(self, step: int) -> Iterator[None]:
        """Profile what is inside, if this rank's update of this step is to be."""
        is_chosen = step in self.settings.steps and self.rank in self.settings.ranks
        if not is_chosen or self.settings.kind == "off":
            yield
        elif self.settings.kind == "nsys":
            self.cuda.profiler.start()
            try:
                yield
            finally:
                self.cuda.profiler.stop()
        else:
            with self._torch_profile(step):
                yield

    @contextmanager
    def of_memory(self) -> Iterator[None]:
        """Write what the GPU's memory holds when it runs full inside."""
        try:
            yield
        except torch.OutOfMemoryError:
            if self.keeps_memory:
                path = self._path("out_of_memory", "pickle")
                self.cuda.memory._dump_snapshot(str(path))
                _log.error("out of memory: %s says what held it (pytorch.org/memory_viz opens it)", path)
            raise

    @contextmanager
    def _torch_profile(self, step: int) -> Iterator[None]:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as recorded:
            yield
        path = self._path(f"step_{step:06d}", "json.gz")
        with replacing(path) as aside:
            recorded.export_chrome_trace(str(aside))
        _log.info("profile of step %d: %s", step, path)

    def _path(self, name: str, suffix: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{name}_rank_{self.rank}.{suffix}"


# Methods of the Learner that the driver calls, all but the stream of weights.
LearnerMethod = Literal[
    "update",
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
    """Rank `rank` of the policy. Life cycle: constructed, `open_store` (rank 0), `start`, any method, `close`."""

    def __init__(
        self,
        config: BroRLConfig,
        layout: ParallelLayout,
        model_folder: Path,
        rank: int,
    ) -> None:
        setup_logging(f"policy {rank}")
        # Megatron and torch warn about each other's deprecations and about Apex; a user can do nothing about either.
        warnings.filterwarnings("ignore", module=r"(megatron|torch)\.")
        self.config = config
        self.layout = layout
        self.model_folder = model_folder
        self.rank = rank
        self.store: Any = None
        self.weight_store: Any = None  # rank 0's, while weights are broadcast
        self.device: Any = None
        self.learner: Learner  # from `start` on, as is the next
        self.profiling: Profiling

    @tracked
    def open_store(self) -> tuple[str, int]:
        """Host and port where the ranks meet; served by this process."""
        self._open_device()
        from nemo_brorl.core import weight_wire

        host = this_host(self.config.trainer.num_nodes == 1)
        self.store = weight_wire.open_store(host, self.layout.world_size, TIMEOUT)
        return host, self.store.port

    @tracked
    def prepare(self) -> None:
        """Import everything, while rank 0 opens the store."""
        self._open_device()
        from nemo_brorl.policy import learner  # noqa: F401 - megatron: the slow part

    def _open_device(self) -> None:
        from nemo_brorl.policy.device import open_device

        self.device = open_device(self.layout.on_gpu, self.config.policy.num_threads or 1)

    @tracked
    def start(self, address: tuple[str, int]) -> None:
        """Join the process groups and load the model. Raises ModelError, ConfigError."""
        from nemo_brorl.policy.learner import Learner

        if self.store is None:
            self.store = join_store(*address, self.layout.world_size)
        if self.config.trainer.num_nodes > 1:
            choose_interface(this_host(is_single_node=False))
        seed = self.config.trainer.seed
        open_groups(self.layout, self.rank, self.store, self.device, seed)
        self.profiling = Profiling(self.config.profile, profile_folder(self.config), self.rank)
        self.learner = Learner(self.config, self.layout, self.model_folder, self.device)
        # imports and model stay: Megatron collects garbage in every save, and looks at all of them otherwise
        gc.freeze()
        _log.info("model loaded from %s", self.model_folder)

    def call(self, method: LearnerMethod, *arguments: Any) -> RankAnswer:
        """A method of this rank's Learner, as a RankAnswer."""
        received_at = time.time()
        with PROGRESS.method(method), self.profiling.of_memory():
            value = self._profiled(method, *arguments)
        return PROGRESS.answer(value, received_at)

    def _profiled(self, method: LearnerMethod, *arguments: Any) -> Any:
        learner_method = getattr(self.learner, method)
        if method != "update":
            return learner_method(*arguments)
        plan: UpdatePlan = arguments[0]
        with self.profiling.of_update(plan.version):  # every step makes one version
            return learner_method(plan)

    @tracked
    def hf_log_probs(self, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]]) -> list[Float32]:
        """As transformers computes them, from the model folder."""
        from nemo_brorl.policy.weights.hf_folder import hf_log_probs

        temperature = self.config.rollouts.temperature
        return hf_log_probs(self.model_folder, prompt_ids, response_ids, temperature)

    @tracked
    def open_weight_link(self, receivers: tuple[str, ...]) -> WeightLink:
        """Rank 0: serve the meeting point of a weight broadcast."""
        from nemo_brorl.core import weight_wire

        before = self.learner.sender.group
        self.learner.sender.group = None
        if before is not None:
            before.close()  # its members may be gone
        host = this_host(self.config.trainer.num_nodes == 1)
        self.weight_store = weight_wire.open_store(host)
        generation = self.config.generation
        return WeightLink(
            host,
            self.weight_store.port,
            receivers,
            generation.tensor_parallel_size,
            "nccl" if self.layout.on_gpu else "gloo",
            generation.weight_timeout_s,
        )

    @tracked
    def join_weight_link(self, link: WeightLink) -> None:
        """Rank 0: wait for the receivers. Raises ReceiverLostError."""
        from nemo_brorl.core import weight_wire

        self.learner.sender.group = weight_wire.wait_for_receivers(link, self.weight_store)

    def stream_weights(self) -> Iterator[WeightBucket | BucketNotice | None]:
        """This rank's side of the weight stream: on rank 0 messages, on others None once a bucket."""
        with PROGRESS.method("stream_weights"):
            yield from self.learner.send_weights()

    def progress(self) -> RankProgress:
        """Where the other methods are; runs in a thread of its own, so it answers while they compute or hang."""
        return PROGRESS.read()

    @tracked
    def close(self) -> None:
        """Leave the process groups; the process may then end."""

        close_groups()
        self.store = None
