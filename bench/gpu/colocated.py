"""One vLLM engine and one policy rank on one GPU (for `--tiny` on the CPU), in Ray, as a colocated run has them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import ray

from bench.gpu.setting import GIB, Setting
from nemo_brorl.cluster.object_store import fetch
from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.generation.pool import VllmPool
from nemo_brorl.policy.driver.megatron_policy import MegatronPolicy
from nemo_brorl.types import Prompt, RolloutRequest, Sampling

SAMPLE_S = 0.005
REQUEST = RolloutRequest(Prompt("a", "task", "verifier", tuple(range(3, 103)), {}), 0, 8, 1, Sampling(1.0, 1.0, 16))


def config_for(setting: Setting, share: float, sleep: str = "off", **generation: Any) -> BroRLConfig:
    """Build the configuration of a bf16 policy without KL reference, and of one engine with `share` of the GPU.

    In a tiny setting both run on the CPU, and the engine's KV cache is small.
    """
    config = BroRLConfig()
    config.algorithm.kl.coefficient = 0.0
    config.policy.precision = config.generation.precision = "bf16"
    config.generation.num_engines = 1
    config.generation.sleep = sleep
    config.generation.lean_scheduler = "on"  # auto is off on a GPU until runs of this bench have compared it
    config.generation.enforce_eager = setting.is_tiny  # CUDA graphs on a GPU
    if setting.is_tiny:
        config.generation.kv_cache_gib = 0.0625
    else:
        config.trainer.gpus_per_node = 1
        config.policy.data_parallel_size = None
        config.generation.gpu_memory_utilization = share
    for name, value in generation.items():
        assert hasattr(config.generation, name), name
        setattr(config.generation, name, value)
    return config


@dataclass
class Pair:
    """Both roles; `policy` is None where it was not asked for."""

    pool: VllmPool
    policy: MegatronPolicy | None


@contextmanager
def start(config: BroRLConfig, engine_model: Path, policy_model: Path | None = None) -> Iterator[Pair]:
    """Start Ray and the actors, engine first, and end all of them on exit."""
    from nemo_brorl.cluster.process_placement import Places, plan_roles

    cpu = {} if config.trainer.gpus_per_node else {"num_cpus": 2, "num_gpus": 0}
    ray.init(include_dashboard=False, logging_level="ERROR", object_store_memory=8 * GIB if not cpu else GIB, **cpu)
    places = Places(plan_roles(RunSizes.from_config(config)))
    pool = VllmPool(config.generation, RunSizes.from_config(config), engine_model, places)
    policy = (
        MegatronPolicy(RankSettings.from_config(config), policy_model, places=places)
        if policy_model is not None
        else None
    )
    try:
        pool.wait_ready()
        if policy is not None:
            policy.wait_ready()
        yield Pair(pool, policy)
    finally:
        if policy is not None:
            policy.close()
        pool.close()
        places.close()
        ray.shutdown()


def sample(pool: VllmPool) -> tuple[list[list[int]], np.ndarray]:
    """Generate a few responses, and return their token ids and their concatenated log-probs."""
    (chunk,) = pool.generate([REQUEST])
    arrays = fetch(chunk.data)
    return [part.tolist() for part in np.split(arrays.token_ids, arrays.offsets[1:-1])], arrays.log_probs


def disagreement(pair: Pair) -> float:
    """Return the mean |Megatron − vLLM| log-prob of freshly sampled responses, in nats.

    It is large when the engine has other weights than the policy.
    """
    assert pair.policy is not None
    responses, sampled = sample(pair.pool)
    prompts: Sequence[Sequence[int]] = [REQUEST.prompt.token_ids] * len(responses)
    return float(np.abs(np.concatenate(pair.policy.log_probs(prompts, responses)) - sampled).mean())


def used_gib(setting: Setting) -> float:
    """Return the GiB in use on the whole GPU by the driver's count, or 0 on CPU."""
    if setting.is_tiny:
        return 0.0
    import pynvml

    pynvml.nvmlInit()
    return float(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used) / GIB


class PeakUse:
    """A context: the most memory of the GPU in use while it is open, above what was in use before, in GiB."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.extra = 0.0
        self.ended = threading.Event()

    def _watch(self, before: float) -> None:
        while not self.ended.wait(SAMPLE_S):
            self.extra = max(self.extra, used_gib(self.setting) - before)

    def __enter__(self) -> PeakUse:
        self.thread = threading.Thread(target=self._watch, args=(used_gib(self.setting),), daemon=True)
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self.thread.join()
