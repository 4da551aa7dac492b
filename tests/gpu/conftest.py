"""One rank on the first GPU: `pytest tests/gpu` in a process of its own, because the CPU tests prepare Megatron for the
CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.schema import BroRLConfig

os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")  # Transformer Engine would multiply fp32 in TF32


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs a GPU that torch can use; skipped, visibly, where there is none."""
    import torch

    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("gpu")
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))


@pytest.fixture(scope="session")
def gpu_device() -> Iterator[Any]:
    """With process groups of a single rank open."""
    import torch.distributed as dist

    from nemo_brorl.policy.process.device import open_device

    device = open_device(on_gpu=True, num_threads=1)
    from nemo_brorl.config.parallel_layout import ParallelLayout
    from nemo_brorl.policy.process import process_groups

    process_groups.open_groups(ParallelLayout(1, 1, 1), 0, dist.HashStore(), device, seed=1)
    yield device
    process_groups.close_groups()


@pytest.fixture(scope="session")
def new_gpu_learner(gpu_device: Any) -> Callable[[Path, BroRLConfig], Any]:
    """A function that makes the Learner of a model folder and a config on the GPU."""
    from nemo_brorl.policy.process.device import forget_compiled
    from nemo_brorl.policy.rank.learner import Learner

    def new(folder: Path, config: BroRLConfig) -> Learner:
        forget_compiled()  # variants of other models count against the limit of recompilations
        config.trainer.gpus_per_node = 1
        return Learner(RankSettings.from_config(config), folder, gpu_device)

    return new
