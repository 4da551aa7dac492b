"""Ray cluster, started and ended by us, or the running one named by RAY_ADDRESS."""

from __future__ import annotations

import logging
import os
from types import TracebackType

import ray

from nemo_brorl.config.schema import TrainerConfig
from nemo_brorl.core.errors import ResourceError
from nemo_brorl.core.logs import get_logger

log = get_logger(__name__)

CPU_OBJECT_STORE_BYTES = 1 << 30
MIN_LOCAL_CPUS = 2  # logical slots: actors ask for fractions, the cores are shared in time


class RayCluster:
    """A context: inside it Ray is up; on the way out everything started here is gone.

    With RAY_ADDRESS set (a Slurm job sets it) it connects, checks that the cluster has the GPUs the config asks for,
    and leaves it running. BRORL_ACTOR_LOGS=1 shows the actors' own output.
    """

    def __init__(self, config: TrainerConfig) -> None:
        self.config = config

    def __enter__(self) -> RayCluster:
        is_on_gpu = self.config.gpus_per_node > 0
        shared = {
            "namespace": f"brorl-{os.getpid()}",
            "log_to_driver": os.environ.get("BRORL_ACTOR_LOGS") == "1",
            "logging_level": logging.ERROR,
        }
        try:
            if "RAY_ADDRESS" in os.environ:
                ray.init(address=os.environ["RAY_ADDRESS"], **shared)
            elif is_on_gpu:
                ray.init(include_dashboard=False, **shared)
            else:
                cpus = max(os.cpu_count() or 1, MIN_LOCAL_CPUS)
                ray.init(
                    num_cpus=cpus,
                    num_gpus=0,
                    include_dashboard=False,
                    object_store_memory=CPU_OBJECT_STORE_BYTES,
                    **shared,
                )
        except (ConnectionError, RuntimeError, OSError) as error:
            raise ResourceError(
                f"Ray did not start: {error}. Is RAY_ADDRESS right, /dev/shm large enough (1 GiB), /tmp writable?"
            ) from error
        self.check_gpus()
        return self

    def check_gpus(self) -> None:
        """Raise ResourceError when the cluster has fewer GPUs than configured."""
        wanted = self.config.gpus_per_node * self.config.num_nodes
        if wanted == 0:
            return
        found = int(ray.cluster_resources().get("GPU", 0))
        if found < wanted:
            ray.shutdown()
            raise ResourceError(
                f"the cluster has {found} GPUs, trainer.num_nodes × trainer.gpus_per_node asks for {wanted}:"
                " set them to what is there, or trainer.gpus_per_node=0 to run on CPU"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ray.shutdown()
